/* Cleanup of the descendants of a supervisor's child processes.
 *
 * mpiexec's proxies, its remote launchers (ssh or a replacement) and workers run in sessions of
 * their own, and some outlive their parent.  All inherit the environment, so each child is marked
 * there (protocol.h) with 128 random bits of the supervisor and its PID, and cleanup kills every
 * process on this host that has the mark.
 *
 * A supervisor that is killed cannot clean up.  So it starts `evenkeel guard ID`, which blocks on a
 * pipe that closes when the supervisor ends in any way, and then kills all processes marked by it.
 * On other hosts, mpiexec's proxies exit when their connection to mpiexec closes, and kill their
 * workers. */
#include "supervisor/cleanup.h"

#include "base/clock.h"
#include "base/command.h"
#include "base/file.h"
#include "base/random_name.h"
#include "supervisor/process.h"
#include "supervisor/protocol.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { ENVIRON_MAX = 16 << 20 };

/* Time limits for killed processes to disappear: of one child, and of a supervisor. */
static const double child_gone_s = 1, supervisor_gone_s = 30;

static struct {
    char id[EK_RANDOM_NAME_CAP]; /* "": marking is disabled */
    int guarded;                 /* write end of the guard's pipe; 0: no guard */
    pid_t guard;
} here;

/* The initial environment of a process, to be freed by the caller; NULL: it has ended, or belongs
 * to another user. */
static char *environment_of(const char *pid, size_t *bytes)
{
    ek_path path;
    char *text = NULL;
    size_t room = 0;
    ssize_t n = -1;
    int fd;

    *bytes = 0;
    if (ek_path_set(&path, "/proc/%s/environ", pid) < 0 ||
        (fd = open(path.s, O_RDONLY | O_CLOEXEC)) < 0)
        return NULL;
    do {
        if (*bytes + 1 >= room) {
            char *grown = room < ENVIRON_MAX ? realloc(text, room = 2 * room + 4096) : NULL;

            if (grown == NULL)
                break;
            text = grown;
        }
        n = read(fd, text + *bytes, room - 1 - *bytes);
        *bytes += n > 0 ? (size_t)n : 0;
    } while (n > 0);
    close(fd);
    if (text != NULL)
        text[*bytes] = '\0';
    return text;
}

/* Marked as this child of the supervisor, or (child = 0) as any. */
static int has_mark(const char *pid, const char *id, pid_t child)
{
    static const char key[] = EK_PROCESS_MARK_VARIABLE "=";
    size_t bytes;
    char *text = environment_of(pid, &bytes);
    int found = 0;

    for (size_t at = 0; text != NULL && at < bytes && !found; at += strlen(text + at) + 1)
        found = strncmp(text + at, key, sizeof(key) - 1) == 0 &&
                ek_process_mark_is(text + at + sizeof(key) - 1, id, child);
    free(text);
    return found;
}

/* Returns the number of processes killed. */
static int kill_marked_once(const char *id, pid_t child)
{
    ek_names names = {0};
    int n = 0;

    if (ek_folder_entries("/proc", &names) < 0)
        return 0;
    for (int64_t i = 0; i < names.n; i++) {
        long pid = strtol(names.names[i], NULL, 10);

        if (pid > 1 && pid != getpid() && has_mark(names.names[i], id, child))
            n += kill((pid_t)pid, SIGKILL) == 0;
    }
    ek_names_free(&names);
    return n;
}

/* Repeats until none is found, as one of them may just have forked. */
static void kill_marked(const char *id, pid_t child, double seconds)
{
    int64_t end = ek_clock_ns() + ek_clock_from_s(seconds);
    struct timespec nap = {0, 3000000};

    while (kill_marked_once(id, child) > 0 && ek_clock_ns() < end)
        nanosleep(&nap, NULL);
}

const char *ek_cleanup_mark(void)
{
    return here.id[0] != '\0' ? here.id : NULL;
}

void ek_cleanup_kill(pid_t child)
{
    if (here.id[0] != '\0')
        kill_marked(here.id, child, child_gone_s);
}

/* --- the guard -------------------------------------------------------------------------------- */

/* Starts the guard, with the read end of its pipe as stdin. */
static void start_guard(int in)
{
    ek_internal_call call = {.kind = EK_INTERNAL_GUARD};
    ek_internal_args args;
    char command[] = "evenkeel", *argv[EK_INTERNAL_ARGS_MAX + 2] = {command};
    ek_process process = {.path = "/proc/self/exe",
                          .argv = argv,
                          .kind = EK_PROCESS_DETACHED,
                          .in = in,
                          .out = EK_PROCESS_NULL,
                          .err = EK_PROCESS_NULL};

    memcpy(call.id, here.id, sizeof(call.id));
    if (ek_internal_write(&call, &args) < 0)
        return;
    memcpy(argv + 1, args.argv, sizeof(args.argv));
    if (ek_process_start(&process, &here.guard) < 0)
        here.guard = 0;
}

void ek_cleanup_open(void)
{
    int ends[2];

    if (ek_random_name_make(here.id) < 0)
        here.id[0] = '\0';
    if (here.id[0] == '\0' || pipe2(ends, O_CLOEXEC) != 0)
        return;
    start_guard(ends[0]);
    close(ends[0]);
    here.guarded = here.guard > 0 ? ends[1] : 0;
    if (here.guard == 0)
        close(ends[1]);
}

void ek_cleanup_close(void)
{
    if (here.guarded > 0) {
        close(here.guarded);
        while (waitpid(here.guard, NULL, 0) < 0 && errno == EINTR)
            ;
    }
    here.guarded = 0;
    here.id[0] = '\0';
}

int ek_cleanup_guard_command(const ek_internal_call *call)
{
    static const int ignored[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
    char c;
    ssize_t n;

    prctl(PR_SET_NAME, "evenkeel");
    for (size_t i = 0; i < sizeof(ignored) / sizeof(ignored[0]); i++)
        signal(ignored[i], SIG_IGN);
    do
        n = read(STDIN_FILENO, &c, 1);
    while (n > 0 || (n < 0 && errno == EINTR));
    kill_marked(call->id, 0, supervisor_gone_s);
    return EK_EXIT_DONE;
}
