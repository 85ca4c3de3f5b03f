/* evenkeel reserve: memory for ranks that are about to come to this host, and its end (see
 * elastic/spare.h).  The launcher of a run with --elastic calls it; people need not.
 *
 *     evenkeel reserve RUN STARTER HOST RANKS PIECES OUT
 *     evenkeel reserve RUN STARTER
 *
 * makes it for so many ranks of the launcher's HOSTth host, and removes what there is of the run.
 */
#include "cli/cli.h"
#include "elastic/spare.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>

enum { RANKS_MAX = 1 << 16 };

static ek_status reserve(int argc, char **argv)
{
    ek_segment_id id = {0};
    uint64_t starter;
    int ranks = 0;

    EK_REQUIRE((argc == 3 || argc == 7) && sscanf(argv[1], "%" SCNx64, &id.run) == 1 &&
                   sscanf(argv[2], "%" SCNx64, &starter) == 1 &&
                   (argc == 3 || (sscanf(argv[3], "%" SCNd32, &id.generation) == 1 &&
                                  sscanf(argv[4], "%d", &ranks) == 1)) &&
                   id.generation >= 0 && ranks >= 0 && ranks <= RANKS_MAX,
               EK_EINVAL, "this command is for evenkeel's launchers, which know its arguments");
    if (argc == 3)
        return ek_spare_remove(id.run, starter);
    for (int i = 0; i < ranks; i++) {
        id.rank = EK_SPARE_RANK + i;
        EK_TRY(ek_spare_make(&id, starter, argv[6], argv[5]));
    }
    return EK_OK;
}

int cli_reserve(int argc, char **argv)
{
    ek_status st;

    prctl(PR_SET_PDEATHSIG, SIGKILL); /* whoever has asked for it is gone */
    st = reserve(argc, argv);
    return st < 0 ? cli_fail("reserve", st) : CLI_DONE;
}
