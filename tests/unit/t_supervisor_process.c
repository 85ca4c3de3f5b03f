/* How a process is started: its streams, its mark, its process group or session, and what it prints
 * when its command cannot be executed. */
#include "ek_test.h"
#include "supervisor/process.h"
#include "supervisor/protocol.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Runs a process, whose stdout and stderr go to text [cap]; returns its exit status, -1: a signal.
 */
static int run(ek_process *p, char *text, size_t cap, pid_t *pid)
{
    int ends[2], status = -1;
    size_t n = 0;
    ssize_t more;

    CHECK(pipe2(ends, O_CLOEXEC) == 0);
    p->out = p->err = ends[1];
    CHECK(ek_process_start(p, pid) == EK_OK);
    close(ends[1]);
    while (n + 1 < cap && (more = read(ends[0], text + n, cap - 1 - n)) > 0)
        n += (size_t)more;
    text[n] = '\0';
    close(ends[0]);
    CHECK(waitpid(*pid, &status, 0) == *pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int run_script(ek_process *p, const char *script, char *text, size_t cap, pid_t *pid)
{
    char shell[] = "sh", c[] = "-c", copy[256];
    char *argv[] = {shell, c, copy, NULL};

    snprintf(copy, sizeof(copy), "%s", script);
    p->argv = argv;
    return run(p, text, cap, pid);
}

static void has_a_mark(void)
{
    ek_process p = {.in = EK_PROCESS_NULL, .mark = "x1"};
    char text[128], want[64];
    pid_t pid;

    CHECK(run_script(&p, "cat; echo $" EK_PROCESS_MARK_VARIABLE "; exit 3", text, sizeof(text),
                     &pid) == 3);
    snprintf(want, sizeof(want), "x1.%ld\n", (long)pid);
    CHECK(strcmp(text, want) == 0);
    p.mark = NULL;
    unsetenv(EK_PROCESS_MARK_VARIABLE);
    CHECK(run_script(&p, "echo $" EK_PROCESS_MARK_VARIABLE, text, sizeof(text), &pid) == 0);
    CHECK(strcmp(text, "\n") == 0);
}

/* The fifth and sixth field of /proc/PID/stat: process group and session. */
static void has_a_group_or_a_session(void)
{
    static const char script[] = "cut -d' ' -f5,6 /proc/$$/stat";
    char text[128], want[64];
    ek_process p = {.in = EK_PROCESS_NULL};
    pid_t pid;

    CHECK(run_script(&p, script, text, sizeof(text), &pid) == 0);
    snprintf(want, sizeof(want), "%ld %ld\n", (long)pid, (long)getsid(0));
    CHECK(strcmp(text, want) == 0);
    p.kind = EK_PROCESS_DETACHED;
    CHECK(run_script(&p, script, text, sizeof(text), &pid) == 0);
    snprintf(want, sizeof(want), "%ld %ld\n", (long)pid, (long)pid);
    CHECK(strcmp(text, want) == 0);
}

static void a_quiet_stdin_stays_open(void)
{
    ek_process p = {.in = EK_PROCESS_QUIET};
    char text[128];
    pid_t pid;

    CHECK(run_script(&p, "timeout 0.3 cat; echo $?", text, sizeof(text), &pid) == 0);
    CHECK(strcmp(text, "124\n") == 0);
}

static void no_signal_is_blocked(void)
{
    ek_process p = {.in = EK_PROCESS_NULL};
    sigset_t set, before;
    char text[128];
    pid_t pid;

    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, &before);
    CHECK(run_script(&p, "kill -USR1 $$; echo lives", text, sizeof(text), &pid) == -1);
    p.mask = &set;
    CHECK(run_script(&p, "kill -USR1 $$; echo lives", text, sizeof(text), &pid) == 0);
    sigprocmask(SIG_SETMASK, &before, NULL);
}

static void says_what_cannot_be_executed(void)
{
    char missing[] = "/nowhere/mpiexec", name[] = "mpiexec", text[128];
    char *argv[] = {missing, NULL}, *other[] = {name, NULL};
    ek_process p = {.argv = argv, .in = EK_PROCESS_NULL, .failed = "cannot start it: "};
    pid_t pid;

    CHECK(run(&p, text, sizeof(text), &pid) == EK_PROCESS_NOT_STARTED);
    CHECK(strcmp(text, "cannot start it: No such file or directory\n") == 0);
    p = (ek_process){.path = missing, .argv = other, .in = EK_PROCESS_NULL};
    CHECK(run(&p, text, sizeof(text), &pid) == EK_PROCESS_NOT_STARTED);
    CHECK(text[0] == '\0');
}

static const ek_case cases[] = {
    EK_CASE(has_a_mark),
    EK_CASE(has_a_group_or_a_session),
    EK_CASE(a_quiet_stdin_stays_open),
    EK_CASE(no_signal_is_blocked),
    EK_CASE(says_what_cannot_be_executed),
};
EK_TEST_MAIN(cases)
