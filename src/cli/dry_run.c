/* --dry-run: how many ranks are planned, and whether they would be elastic. */
#include "cli/dry_run.h"

#include "supervisor/elastic_default.h"
#include "supervisor/limits.h"

ek_status cli_dry_run_ranks(const ek_options *o, const ek_command_job *job, ek_train_config *cfg,
                            int *ranks, int **host_of, int **rack_of)
{
    char why[EK_ELASTIC_WHY];
    int64_t wanted = ek_options_int(o, "ranks");
    int elsewhere = ek_options_text(o, "hosts") != NULL || ek_options_text(o, "discover") != NULL;

    *ranks = 1;
    if (job->world != NULL)
        return EK_OK;
    EK_REQUIRE(!elsewhere || wanted > 0, EK_EINVAL,
               "--dry-run does not contact other hosts: give the number of ranks (--ranks)");
    EK_REQUIRE(!elsewhere || wanted <= EK_HOST_RANKS_MAX, EK_EINVAL,
               "--dry-run supports at most %d ranks, not %lld (--ranks)", EK_HOST_RANKS_MAX,
               (long long)wanted);
    *ranks = wanted > 0 ? (int)wanted : 1;
    if (ek_elastic_by_default(o, why))
        cfg->elastic = EK_ELASTIC_BY_DEFAULT;
    EK_TRY(ek_elastic_places(o, ranks, host_of, rack_of));
    return elsewhere ? EK_OK : ek_limits_check_ranks(*ranks);
}
