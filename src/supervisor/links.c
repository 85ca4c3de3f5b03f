/* evenkeel links: connectivity test of a job.  Every rank sends one byte to every other rank; exits
 * with status 0 when all have arrived.  Internal: called by the --elastic supervisor
 * (core_links.h). */
#include "supervisor/links.h"

#include "evenkeel/job.h"

#include "base/command.h"
#include "comm/comm.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { LONGEST_S = 300 }; /* limit, if the supervisor does not kill it */

static ek_status exchange(ek_comm *world)
{
    size_t n = (size_t)ek_comm_size(world);
    int64_t *rows = malloc(n * n * sizeof(*rows));
    char *bytes = calloc(2, n);
    ek_coll *op = NULL;
    ek_status st = EK_OK;

    EK_REQUIRE_OUT(rows != NULL && bytes != NULL, EK_ENOMEM, "no memory for %zu ranks", n);
    for (size_t i = 0; i < n * n; i++)
        rows[i] = 1;
    EK_TRY_OUT(ek_comm_all_to_all(world, EK_A2A_LINEAR, rows, 1, bytes, bytes + n, &op));
    EK_TRY_OUT(ek_coll_wait(&op));
out:
    free(rows);
    free(bytes);
    return st;
}

int ek_links_command(const ek_internal_call *call)
{
    ek_comm *world = NULL;
    ek_status st;

    (void)call;
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* end with the parent */
    alarm(LONGEST_S);
    st = getppid() != 1 ? ek_job_join(&world) : EK_ECANCELED;
    if (st >= 0)
        st = exchange(world);
    if (st < 0 && world != NULL)
        ek_comm_give_up(world);
    ek_job_leave(&world);
    return st < 0 ? ek_command_fail("links", st) : EK_EXIT_DONE;
}
