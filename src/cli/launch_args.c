/* Builds the command line of mpiexec, for MPICH (Hydra) or Open MPI.
 *
 * Both accept hosts as "a:2,b:1".  Workers are not bound to cores, as each runs an OpenMP team. */
#include "evenkeel/job.h"

#include "cli/launch_priv.h"
#include "cli/racks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH_CAP = 4096 };

static const char blanks[] = " \t\r";

/* Appends an argument; launch_args_make() reserves enough entries. */
static void add(launch_args *a, const char *word)
{
    if (a->n + 1 < a->room)
        a->argv[a->n++] = (char *)(uintptr_t)word;
}

static void add_mpich(launch_args *a, const char *hosts)
{
    add(a, "-bind-to");
    add(a, "none");
    if (hosts != NULL) {
        add(a, "-hosts");
        add(a, hosts);
    }
}

static void add_open_mpi(launch_args *a, const char *hosts)
{
    static const char *const passed[] = {LAUNCH_VARIABLE, RACKS_VARIABLE, STOP_VARIABLE,
                                         "GOMP_SPINCOUNT", "OMP_WAIT_POLICY"};

    add(a, "--oversubscribe");
    add(a, "--bind-to");
    add(a, "none");
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

static void add_words(launch_args *a, char *words)
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

ek_status launch_args_make(const launch *l, const char *mpiexec, int ranks, const char *hosts,
                           launch_args *out)
{
    const char *more = l->mpiexec_args != NULL ? l->mpiexec_args : "";
    ek_status st = EK_OK;

    memset(out, 0, sizeof(*out));
    out->room = (size_t)l->argc + strlen(more) + 32; /* a word has at least one letter */
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
        add_open_mpi(out, hosts);
    else
        add_mpich(out, hosts);
    add_words(out, out->owned[1]);
    add(out, out->owned[3]);
    for (int i = 0; i < l->argc; i++)
        add(out, l->argv[i]);
    return EK_OK;
out:
    launch_args_free(out);
    return st;
}

void launch_args_free(launch_args *a)
{
    for (size_t i = 0; i < sizeof(a->owned) / sizeof(a->owned[0]); i++)
        free(a->owned[i]);
    free(a->argv);
    memset(a, 0, sizeof(*a));
}
