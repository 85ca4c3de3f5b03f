/* Starts processes. */
#include "supervisor/process.h"

#include "supervisor/protocol.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

/* A pipe that is never written and whose write end stays open; 0: none yet. */
static int quiet_pipe[2];

static int quiet_stdin(void)
{
    if (quiet_pipe[1] == 0 && pipe2(quiet_pipe, O_CLOEXEC) != 0)
        quiet_pipe[0] = quiet_pipe[1] = 0;
    return quiet_pipe[1] != 0 ? quiet_pipe[0] : -1;
}

/* The rest is in the new process, between fork and exec. */

static void set_streams(const ek_process *p, int in)
{
    int null = open("/dev/null", O_RDWR);

    dup2(in >= 0 ? in : null, STDIN_FILENO);
    dup2(p->out >= 0 ? p->out : null, STDOUT_FILENO);
    dup2(p->err >= 0 ? p->err : null, STDERR_FILENO);
}

static void set_mark(const char *mark)
{
    char text[EK_PROCESS_MARK_CAP];

    if (mark == NULL)
        return;
    ek_process_mark_write(mark, getpid(), text);
    setenv(EK_PROCESS_MARK_VARIABLE, text, 1);
}

static void become_child(pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(EK_PROCESS_NOT_STARTED);
    setpgid(0, 0);
}

static _Noreturn void execute(const ek_process *p, pid_t parent, int in)
{
    sigset_t none;

    if (p->kind == EK_PROCESS_CHILD)
        become_child(parent);
    else
        setsid();
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, p->mask != NULL ? p->mask : &none, NULL);
    signal(SIGPIPE, SIG_DFL);
    set_streams(p, in);
    set_mark(p->mark);
    execvp(p->path != NULL ? p->path : p->argv[0], p->argv);
    if (p->failed != NULL)
        dprintf(STDERR_FILENO, "%s%s\n", p->failed, strerror(errno));
    _exit(EK_PROCESS_NOT_STARTED);
}

ek_status ek_process_start(const ek_process *p, pid_t *pid)
{
    pid_t parent = getpid();
    int in = p->in == EK_PROCESS_QUIET ? quiet_stdin() : p->in;

    EK_REQUIRE(p->in != EK_PROCESS_QUIET || in >= 0, EK_EIO, "cannot start %s: %s", p->argv[0],
               strerror(errno));
    *pid = fork();
    if (*pid == 0)
        execute(p, parent, in);
    EK_REQUIRE(*pid > 0, EK_EIO, "cannot start %s: %s", p->argv[0], strerror(errno));
    if (p->kind == EK_PROCESS_CHILD)
        setpgid(*pid, *pid); /* either of the two may be first */
    return EK_OK;
}
