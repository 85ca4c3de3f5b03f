/* Runs a function in a child process; a pipe brings back its status, message and result. */
#include "base/command_child.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TEXT = 2048, STOP_ASKED_MS = 200 };

/* What is before the result. */
typedef struct {
    ek_status st;
    char text[TEXT];
} child_end;

static int write_all(int fd, const void *from, size_t bytes)
{
    const char *at = from;

    while (bytes > 0) {
        ssize_t n = write(fd, at, bytes);

        if (n < 0 && errno != EINTR)
            return 0;
        at += n > 0 ? n : 0;
        bytes -= n > 0 ? (size_t)n : 0;
    }
    return 1;
}

/* Signals end the child at once; what is ignored (nohup) stays so. */
static void forget_handlers(void)
{
    static const int ending[] = {SIGINT, SIGTERM, SIGHUP};

    for (size_t i = 0; i < sizeof(ending) / sizeof(ending[0]); i++)
        if (signal(ending[i], SIG_DFL) == SIG_IGN)
            signal(ending[i], SIG_IGN);
}

static _Noreturn void compute(ek_child_run *run, const void *arg, void *result, size_t bytes,
                              int fd, pid_t parent)
{
    child_end end = {0};

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    forget_handlers();
    end.st = run(arg, result);
    if (end.st < 0)
        snprintf(end.text, sizeof(end.text), "%s", ek_err_message());
    fflush(stderr);
    _exit(!(write_all(fd, &end, sizeof(end)) && write_all(fd, result, bytes)));
}

/* How reading ended. */
typedef enum { WHOLE, CHILD_ENDED, STOPPED, READ_FAILED } reading;

/* Reads all bytes; *error: errno of READ_FAILED. */
static reading read_all(int fd, void *to, size_t bytes, int (*stop)(void), int *error)
{
    char *at = to;

    while (bytes > 0) {
        struct pollfd readable = {.fd = fd, .events = POLLIN};
        int ready = poll(&readable, 1, STOP_ASKED_MS);
        ssize_t n = ready > 0 ? read(fd, at, bytes) : -1;

        *error = ready != 0 && n < 0 ? errno : 0;
        if (stop != NULL && stop())
            return STOPPED;
        if (n == 0)
            return CHILD_ENDED;
        if (*error != 0 && *error != EINTR)
            return READ_FAILED;
        at += n > 0 ? n : 0;
        bytes -= n > 0 ? (size_t)n : 0;
    }
    return WHOLE;
}

static ek_status receive(const char *what, int fd, pid_t pid, void *result, size_t bytes,
                         int (*stop)(void))
{
    int status = 0, error = 0;
    child_end end;
    reading got = read_all(fd, &end, sizeof(end), stop, &error);

    if (got == WHOLE)
        got = read_all(fd, result, bytes, stop, &error);
    if (got != WHOLE)
        kill(pid, SIGKILL);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        continue;
    EK_REQUIRE(got != STOPPED, EK_ECANCELED, "%s: interrupted", what);
    EK_REQUIRE(got != READ_FAILED, EK_EIO, "%s: cannot read from its process: %s", what,
               strerror(error));
    EK_REQUIRE(got == WHOLE || !WIFSIGNALED(status), EK_EIO, "%s: its process was killed (%s)",
               what, strsignal(WTERMSIG(status)));
    EK_REQUIRE(got == WHOLE, EK_EIO, "%s: its process ended without a result (status %d)", what,
               WEXITSTATUS(status));
    return end.st < 0 ? EK_FAIL(end.st, "%s", end.text) : EK_OK;
}

ek_status ek_child_compute(const char *what, ek_child_run *run, const void *arg, void *result,
                           size_t bytes, int (*stop)(void))
{
    pid_t parent = getpid(), pid;
    int fd[2];
    ek_status st;

    EK_REQUIRE(pipe2(fd, O_CLOEXEC) == 0, EK_EIO, "%s: no pipe: %s", what, strerror(errno));
    fflush(NULL); /* or both would write what is buffered */
    pid = fork();
    if (pid == 0)
        compute(run, arg, result, bytes, fd[1], parent);
    st = pid < 0 ? EK_FAIL(EK_ENOMEM, "%s: no process: %s", what, strerror(errno)) : EK_OK;
    close(fd[1]);
    if (st == EK_OK)
        st = receive(what, fd[0], pid, result, bytes, stop);
    close(fd[0]);
    return st;
}
