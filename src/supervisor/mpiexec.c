/* MPICH (Hydra) and Open MPI differ in the command line of mpiexec, in what it prints about the end
 * of a worker, and in how it hangs.
 *
 * Both accept hosts as "a:2,b:1".  Workers are not bound to cores unless the
 * user's words bind them: another job may have the same ones, and each runs an OpenMP team.
 * MPICH's mpiexec reports the end of a worker on stdout, in a block that starts with a line of "=",
 * Open MPI's on stderr. */
#include "supervisor/mpiexec.h"

#include "evenkeel/job.h"

#include "supervisor/protocol.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH_CAP = 4096 };

static const char blanks[] = " \t\r";

/* Appends an argument; ek_mpiexec_args_init() reserves enough entries. */
static void add(ek_mpiexec_args *a, const char *word)
{
    if (a->n + 1 < a->room)
        a->argv[a->n++] = (char *)(uintptr_t)word;
}

static void add_mpich(ek_mpiexec_args *a, const char *hosts, bool bound)
{
    if (!bound) { /* Hydra refuses the option twice */
        add(a, "-bind-to");
        add(a, "none");
    }
    if (hosts != NULL) {
        add(a, "-hosts");
        add(a, hosts);
    }
}

static void add_open_mpi(ek_mpiexec_args *a, const char *hosts, bool bound)
{
    static const char *const passed[] = {EK_LAUNCHED_VARIABLE, EK_RACKS_VARIABLE,
                                         EK_STOP_AT_VARIABLE, "GOMP_SPINCOUNT", "OMP_WAIT_POLICY"};

    add(a, "--oversubscribe");
    if (!bound) {
        add(a, "--bind-to");
        add(a, "none");
    }
    if (geteuid() == 0)
        add(a, "--allow-run-as-root");
    if (hosts != NULL) {
        add(a, "--host");
        add(a, hosts);
        for (size_t i = 0; i < sizeof(passed) / sizeof(passed[0]); i++)
            if (getenv(passed[i]) != NULL) {
                add(a, "-x");
                add(a, passed[i]);
            }
    }
}

static void add_words(ek_mpiexec_args *a, char *words)
{
    char *rest, *word;

    for (word = strtok_r(words, blanks, &rest); word != NULL; word = strtok_r(NULL, blanks, &rest))
        add(a, word);
}

/* Absolute path of this program. */
static ek_status own_path(char **out)
{
    char path[PATH_CAP];
    ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 1);

    EK_REQUIRE(n > 0, EK_EIO, "cannot determine the path of evenkeel (/proc/self/exe)");
    path[n] = '\0';
    *out = strdup(path);
    EK_REQUIRE(*out != NULL, EK_ENOMEM, "no memory for the command line of mpiexec");
    return EK_OK;
}

ek_status ek_mpiexec_args_init(const ek_supervisor_config *config, const char *mpiexec, int ranks,
                               const char *hosts, ek_mpiexec_args *out)
{
    const char *more = config->mpiexec_args != NULL ? config->mpiexec_args : "";
    bool bound = strstr(more, "-bind-to") != NULL;
    ek_status st = EK_OK;

    memset(out, 0, sizeof(*out));
    out->room = (size_t)config->argc + strlen(more) + 32; /* a word has at least one letter */
    out->argv = calloc(out->room, sizeof(*out->argv));
    out->owned[0] = strdup(mpiexec);
    out->owned[1] = strdup(more);
    out->owned[2] = malloc(16);
    EK_REQUIRE_OUT(out->argv != NULL && out->owned[0] != NULL && out->owned[1] != NULL &&
                       out->owned[2] != NULL,
                   EK_ENOMEM, "no memory for the command line of mpiexec");
    EK_TRY_OUT(own_path(&out->owned[3]));
    snprintf(out->owned[2], 16, "%d", ranks);
    add(out, out->owned[0]);
    add(out, "-n");
    add(out, out->owned[2]);
    if (strncmp(ek_job_library(), "Open MPI", 8) == 0)
        add_open_mpi(out, hosts, bound);
    else
        add_mpich(out, hosts, bound);
    add_words(out, out->owned[1]);
    add(out, out->owned[3]);
    for (int i = 0; i < config->argc; i++)
        add(out, config->argv[i]);
    return EK_OK;
out:
    ek_mpiexec_args_fini(out);
    return st;
}

void ek_mpiexec_args_fini(ek_mpiexec_args *a)
{
    for (size_t i = 0; i < sizeof(a->owned) / sizeof(a->owned[0]); i++)
        free(a->owned[i]);
    free(a->argv);
    memset(a, 0, sizeof(*a));
}

/* --- output ----------------------------------------------------------------------------------- */

/* The text after `key` in the line, or NULL. */
static const char *find_after(const char *line, const char *key)
{
    const char *at = strstr(line, key);

    return at != NULL ? at + strlen(key) : NULL;
}

/* "=   PID 10124 RUNNING AT node3", "=   EXIT CODE: 9", "... EXIT STRING: Killed (signal 9)". */
static void search_mpich(ek_worker_death *d, const char *line)
{
    const char *at;

    if (line[0] == '=' && (at = find_after(line, "PID ")) != NULL) {
        if (sscanf(at, "%d RUNNING AT %255s", &d->pid, d->host) != 2)
            d->pid = -1;
    } else if (line[0] == '=' && (at = find_after(line, "EXIT CODE: ")) != NULL) {
        d->code = atoi(at);
    } else if ((at = find_after(line, "EXIT STRING: ")) != NULL &&
               (at = find_after(at, "(signal ")) != NULL) {
        d->signal = atoi(at);
    }
}

/* "... noticed that process rank 1 with PID 0 on node node3 exited on signal 9 (Killed).", or
 * "  Process name: [[19330,1],0]" and "  Exit code:    3". */
static void search_open_mpi(ek_worker_death *d, const char *line)
{
    const char *at;

    if ((at = find_after(line, "noticed that process rank ")) != NULL) {
        if (sscanf(at, "%d with PID %*d on node %255s", &d->rank, d->host) != 2)
            d->rank = -1;
        if ((at = find_after(at, "exited on signal ")) != NULL)
            d->signal = atoi(at);
    } else if ((at = find_after(line, "Process name: [[")) != NULL) {
        if (sscanf(at, "%*d,%*d],%d", &d->rank) != 1)
            d->rank = -1;
    } else if ((at = find_after(line, "Exit code: ")) != NULL) {
        d->code = atoi(at);
    }
}

void ek_mpiexec_read_death(const char *line, ek_worker_death *d)
{
    search_mpich(d, line);
    search_open_mpi(d, line);
}

/* Lines that Open MPI's mpiexec prints for every failed job, and its rulers. */
static int is_boilerplate(const char *line)
{
    return strncmp(line, "Primary job  terminated normally, but", 37) == 0 ||
           strncmp(line, "a non-zero exit code. Per user-direction", 40) == 0 ||
           (strlen(line) > 70 && strspn(line, "-") == strlen(line));
}

/* "[mpiexec@head] ...", "[proxy:0:2@node3] ...": internal messages of MPICH's mpiexec (Hydra). */
static int is_of_hydra(const char *line)
{
    return strncmp(line, "[mpiexec@", 9) == 0 || strncmp(line, "[proxy:", 7) == 0;
}

ek_mpiexec_line ek_mpiexec_classify(const char *line)
{
    if (is_boilerplate(line))
        return EK_MPIEXEC_BOILERPLATE;
    return is_of_hydra(line) ? EK_MPIEXEC_INTERNAL : EK_MPIEXEC_OTHER;
}

int ek_mpiexec_begins_report(const char *line, size_t n)
{
    static const char rule[] = "==============================";

    return n > sizeof(rule) && memcmp(line, rule, sizeof(rule) - 1) == 0;
}

/* "[1795318471.361091] [vm:7928 :0]   mm_posix.c:219  UCX  ERROR ...": errors of MPICH's transport
 * on stdout, usually about a rank that has just died. */
int ek_mpiexec_is_ucx_error(const char *line, size_t n)
{
    static const char word[] = " UCX  ";

    return n > 0 && line[0] == '[' && memmem(line, n, word, sizeof(word) - 1) != NULL;
}

/* "... [vm:7928 :0]  mm_posix.c:219  UCX  ERROR   open(file_name=/proc/7927/fd/28 flags=0x0)
 * failed: No such file or directory". */
int ek_mpiexec_read_lost_peer(const char *line, ek_lost_peer *out)
{
    const char *who = find_after(line, "] ["), *what = find_after(line, "open(file_name=/proc/");

    return ek_mpiexec_is_ucx_error(line, strlen(line)) && who != NULL && what != NULL &&
           strstr(what, "No such file") != NULL &&
           sscanf(who, "%255[^:]:%d", out->host, &out->pid) == 2 &&
           sscanf(what, "%d/", &out->lost) == 1;
}

/* --- hangs ------------------------------------------------------------------------------------ */

/* State letter of a process and, for a zombie, its wait status in *ended: the third and the last
 * field of /proc/PID/stat, see proc_pid_stat(5).  0: no such process. */
static char state_of(long pid, int *ended)
{
    char path[64], text[1200], *at, state = 0;
    FILE *f;

    *ended = 0;
    snprintf(path, sizeof(path), "/proc/%ld/stat", pid);
    f = fopen(path, "re");
    if (f == NULL)
        return state;
    if (fgets(text, sizeof(text), f) != NULL && (at = strrchr(text, ')')) != NULL && at[1] == ' ') {
        state = at[2];
        *ended = atoi(strrchr(at, ' ') + 1);
    }
    fclose(f);
    return state;
}

/* Number of children of a process that have failed and are not reaped yet; others: other children.
 */
static int failed_children(pid_t pid, int *others)
{
    char path[64];
    int failed = 0;
    long child;
    FILE *f;

    *others = 0;
    snprintf(path, sizeof(path), "/proc/%ld/task/%ld/children", (long)pid, (long)pid);
    f = fopen(path, "re");
    while (f != NULL && fscanf(f, "%ld", &child) == 1) {
        int ended, has_failed = state_of(child, &ended) == 'Z' && ended != 0;

        failed += has_failed;
        *others += !has_failed;
    }
    if (f != NULL)
        fclose(f);
    return failed;
}

int ek_mpiexec_has_failed_launcher(pid_t pid)
{
    int others;

    return failed_children(pid, &others) > 0;
}

int ek_mpiexec_seems_stuck(pid_t pid)
{
    int others, ended;

    return failed_children(pid, &others) > 0 && others == 0 && state_of(pid, &ended) == 'S';
}
