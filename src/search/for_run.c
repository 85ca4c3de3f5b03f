/* Searches as a run's settings say. */
#include "search/for_run.h"

#include "base/log.h"
#include "search/report.h"

#include <stdio.h>

enum { FIX = 64 };

static ek_status search_with(const ek_search_config *like, int64_t micro_batch, ek_search **out)
{
    ek_search_config c = *like;
    char fix[FIX] = "";

    if (micro_batch > 0) {
        (void)snprintf(fix, sizeof(fix), "micro-batch=%lld", (long long)micro_batch);
        c.fix = fix;
    }
    return ek_search_run(&c, out);
}

/* *s: what the pool is made of. */
static ek_status search_layouts(const ek_search_config *c, ek_search **s)
{
    int64_t given = c->train->micro_batch, micro;

    EK_TRY(search_with(c, given, s));
    if (c->train->layout_every == 0 || given > 0)
        return EK_OK;
    micro = (*s)->layouts[(*s)->best[0]].choice.value[EK_CHOICE_MICRO_BATCH];
    ek_search_close(s);
    return search_with(c, micro, s);
}

static ek_status make_pool(const ek_search_config *c, char **pool)
{
    ek_search *s = NULL;
    ek_status st = search_layouts(c, &s);

    if (st == EK_OK)
        st = ek_search_pool_text(s, pool);
    if (st == EK_OK)
        ek_log("layout", EK_LOG_INFO, "%lld layouts searched in %.1f s", (long long)s->n,
               s->took_s);
    ek_search_close(&s);
    return st;
}

ek_status ek_search_for_run(const ek_train_config *cfg, int ranks, char **pool)
{
    ek_train_config plain = *cfg;
    ek_search_config c = {
        .train = &plain, .ranks = ranks, .memory = (double)cfg->memory_limit, .top = 1};
    ek_simulation_files *files = NULL;
    ek_status st;

    EK_REQUIRE(
        cfg->cluster != NULL, EK_EINVAL,
        "--layout auto: give --cluster, the file of the cluster to search on; evenkeel bench "
        "costs --cluster-out writes the one that it runs on");
    plain.world = NULL;
    plain.replay_routing = NULL;
    st = ek_simulation_open_files(cfg->cluster, cfg->replay_routing, &files);
    if (st == EK_OK) {
        c.cluster = &files->cluster;
        c.trace = files->trace;
        st = make_pool(&c, pool);
    }
    ek_simulation_close_files(&files);
    return st;
}
