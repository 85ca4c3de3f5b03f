/* evenkeel reserve: preallocates shared memory for ranks that are about to start on this host, or
 * frees it (elastic/prealloc.h).  Internal: called by the --elastic supervisor.
 *
 *     evenkeel reserve RUN SUPERVISOR HOST RANKS BLOCKS OUT    preallocates, for RANKS ranks
 *     evenkeel reserve RUN SUPERVISOR                          frees all of this run and supervisor
 *
 * RUN, SUPERVISOR: hexadecimal ids.  HOST: number of this host at the supervisor.  BLOCKS: sizes of
 * the state blocks of a rank. */
#include "supervisor/reserve.h"

#include "base/command.h"
#include "base/threads.h"
#include "elastic/prealloc.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { RANKS_MAX = 1 << 16 };

/* Preallocates for all ranks or for none.  Checks the available memory first: the kernel grants
 * shared memory beyond what it has. */
static ek_status preallocate_ranks(const ek_segment_id *first, int ranks, uint64_t supervisor_id,
                                   const char *out, const char *blocks)
{
    double have = (double)ek_memory_available(), want;
    ek_segment_id id = *first;
    size_t bytes;
    ek_status st = EK_OK;

    EK_TRY(ek_prealloc_bytes(blocks, &bytes));
    want = (double)bytes * ranks;
    EK_REQUIRE(have == 0 || want <= have, EK_ENOMEM,
               "%d joining ranks need about %.1f GB of memory, and %.1f GB are available", ranks,
               want / 1e9, have / 1e9);
    for (id.rank = EK_PREALLOC_RANK; id.rank < EK_PREALLOC_RANK + ranks && st == EK_OK; id.rank++)
        st = ek_prealloc_create(&id, supervisor_id, out, blocks);
    for (id.rank = EK_PREALLOC_RANK; id.rank < EK_PREALLOC_RANK + ranks && st < 0; id.rank++)
        (void)!ek_segment_remove(&id);
    return st;
}

static ek_status reserve(int argc, char **argv)
{
    ek_segment_id id = {0};
    uint64_t supervisor_id;
    int ranks = 0;

    EK_REQUIRE((argc == 3 || argc == 7) && sscanf(argv[1], "%" SCNx64, &id.run) == 1 &&
                   sscanf(argv[2], "%" SCNx64, &supervisor_id) == 1 &&
                   (argc == 3 || (sscanf(argv[3], "%" SCNd32, &id.generation) == 1 &&
                                  sscanf(argv[4], "%d", &ranks) == 1)) &&
                   id.generation >= 0 && ranks >= 0 && ranks <= RANKS_MAX,
               EK_EINVAL, "internal command, called by the supervisor");
    if (argc == 3)
        return ek_prealloc_remove(id.run, supervisor_id);
    return preallocate_ranks(&id, ranks, supervisor_id, argv[6], argv[5]);
}

int ek_reserve_command(int argc, char **argv)
{
    ek_status st;

    prctl(PR_SET_PDEATHSIG, SIGKILL); /* end with the parent */
    st = getppid() != 1 ? reserve(argc, argv) : EK_ECANCELED;
    return st < 0 ? ek_command_fail("reserve", st) : EK_EXIT_DONE;
}
