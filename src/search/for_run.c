/* Searches as a run's settings say. */
#include "search/for_run.h"

#include "base/log.h"
#include "search/report.h"

#include <stdio.h>
#include <string.h>

/* What a search borrows as long as its answer is used. */
typedef struct {
    ek_train_config train;
    ek_search_config search;
    char fix[64];
} run_search;

static ek_status search_with(run_search *r, int64_t micro_batch, ek_search **out)
{
    if (micro_batch > 0) {
        (void)snprintf(r->fix, sizeof(r->fix), "micro-batch=%lld", (long long)micro_batch);
        r->search.fix = r->fix;
    }
    return ek_search_run(&r->search, out);
}

/* *s: what the pool is made of. */
static ek_status search_layouts(run_search *r, ek_search **s)
{
    int64_t given = r->train.micro_batch, micro;

    EK_TRY(search_with(r, given, s));
    if (r->train.layout_every == 0 || given > 0)
        return EK_OK;
    micro = (*s)->layouts[(*s)->best[0]].choice.value[EK_CHOICE_MICRO_BATCH];
    ek_search_close(s);
    return search_with(r, micro, s);
}

static ek_status make_pool(run_search *r, char **pool)
{
    ek_search *s = NULL;
    ek_status st = search_layouts(r, &s);

    if (st == EK_OK)
        st = ek_search_pool_text(s, pool);
    if (st == EK_OK && strcmp(s->model.dtype, r->search.cluster->machine.dtype) != 0)
        ek_log("layout", EK_LOG_WARN,
               "the machine of --cluster was measured in %s, and the run computes in %s",
               r->search.cluster->machine.dtype, s->model.dtype);
    if (st == EK_OK)
        ek_log("layout", EK_LOG_INFO, "%lld layouts searched in %.1f s", (long long)s->n,
               s->took_s);
    ek_search_close(&s);
    return st;
}

ek_status ek_search_for_run(const ek_train_config *cfg, int ranks, char **pool)
{
    run_search r = {.train = *cfg};
    ek_simulation_files *files = NULL;
    ek_status st;

    EK_REQUIRE(
        cfg->cluster != NULL, EK_EINVAL,
        "--layout auto: give --cluster, the file of the cluster to search on; evenkeel bench "
        "costs --cluster-out writes the one that it runs on");
    r.train.world = NULL;
    r.train.replay_routing = NULL;
    st = ek_simulation_open_files(cfg->cluster, cfg->replay_routing, &files);
    if (st == EK_OK) {
        r.search = (ek_search_config){.train = &r.train,
                                      .cluster = &files->cluster,
                                      .ranks = ranks,
                                      .memory = (double)cfg->memory_limit,
                                      .top = 1,
                                      .trace = files->trace};
        st = make_pool(&r, pool);
    }
    ek_simulation_close_files(&files);
    return st;
}
