/* Searches as a run's settings say. */
#include "search/for_run.h"

#include "base/command_child.h"
#include "base/count_text.h"
#include "base/log.h"
#include "search/report.h"
#include "train/layout_room.h"
#include "train/output/layout_in_use.h"

#include <stdio.h>
#include <stdlib.h>
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
    char took[32];
    int logged = ek_log_limit(EK_LOG_ERROR); /* each layout would tell what a run with it does */
    ek_status st = search_layouts(r, &s);

    ek_log_unlimit(logged);
    if (st == EK_OK)
        st = ek_search_pool_text(s, pool);
    if (st == EK_OK && strcmp(s->model.dtype, r->search.cluster->machine.dtype) != 0)
        ek_log("layout", EK_LOG_WARN,
               "the machine of --cluster was measured in %s, and the run computes in %s",
               r->search.cluster->machine.dtype, s->model.dtype);
    if (st == EK_OK)
        ek_log("layout", EK_LOG_INFO, "%lld layout%s searched in %s", (long long)s->n,
               s->n == 1 ? "" : "s", ek_time_text(took, sizeof(took), s->took_s));
    ek_search_close(&s);
    return st;
}

ek_status ek_search_for_run(const ek_train_config *cfg, int ranks, const int *host_of, char **pool)
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
                                      .host_of = host_of,
                                      .memory = (double)cfg->memory_limit,
                                      .top = 1,
                                      .trace = files->trace};
        st = make_pool(&r, pool);
    }
    ek_simulation_close_files(&files);
    return st;
}

static void add_option(ek_run_layout *l, const char *name, const char *value)
{
    (void)snprintf(l->word[l->n++], EK_RUN_LAYOUT_WORD, "--%s", name);
    (void)snprintf(l->word[l->n++], EK_RUN_LAYOUT_WORD, "%s", value);
}

typedef struct {
    const ek_train_config *cfg;
    int ranks;
    const int *host_of;
    int left; /* ranks, after the loss of a host */
} run_of_child;

/* Whether the run may have a layout of its pool. */
static int may_have(const run_of_child *x, const ek_layout *l)
{
    int64_t micro_batch = x->cfg->micro_batch;

    return (micro_batch == 0 || l->value[EK_CHOICE_MICRO_BATCH] == micro_batch) &&
           (x->host_of == NULL || ek_layout_survives(l, x->left));
}

/* Whether there is memory for the copies that a layout of the pool needs.  Workers that choose
 * again say it themselves. */
static int has_room(const run_of_child *x, const ek_pool_layout *l)
{
    return x->host_of == NULL ||
           ek_layout_has_room(x->cfg, l, x->ranks, x->host_of, x->cfg->layout_every == 0);
}

/* *best: the first layout of cfg->layout_pool that the run may have. */
static ek_status choose_from_pool(const run_of_child *x, ek_layout_pool *pool, int64_t *best)
{
    EK_TRY(ek_layout_pool_read(x->cfg->layout_pool, pool));
    EK_REQUIRE(pool->ranks == x->ranks, EK_EINVAL,
               "--layout-pool: its layouts are of %lld ranks, and there are %d",
               (long long)pool->ranks, x->ranks);
    for (*best = 0; *best < pool->n; (*best)++)
        if (may_have(x, &pool->layout[*best].choice) && has_room(x, &pool->layout[*best]))
            return EK_OK;
    EK_REQUIRE(x->host_of != NULL, EK_EINVAL,
               "--layout-pool: none of its %lld layouts has the run's --micro-batch",
               (long long)pool->n);
    return EK_FAIL(EK_EINVAL,
                   "--layout-pool: none of its %lld layouts survives the loss of any host with the "
                   "run's --micro-batch: give --layout auto, which searches such layouts, or "
                   "--elastic=false",
                   (long long)pool->n);
}

/* Workers read it at each start, without a search of their own. */
static ek_status write_pool(const run_of_child *x, const char *text, ek_path *file)
{
    ek_path folder;

    EK_TRY(ek_path_absolute(x->cfg->out, &folder));
    EK_TRY(ek_path_set(file, "%s/layout-pool.json", folder.s));
    EK_TRY(ek_folder_make(NULL, folder.s));
    return ek_file_replace(NULL, file->s, text, strlen(text));
}

/* *best: the index in *pool of the run's layout.  *text: of a pool that was searched, else NULL;
 * the caller frees it. */
static ek_status find_layout(const run_of_child *x, ek_layout_pool *pool, int64_t *best,
                             char **text)
{
    *text = NULL;
    if (x->cfg->layout_pool != NULL)
        return choose_from_pool(x, pool, best);
    *best = 0;
    EK_TRY(ek_search_for_run(x->cfg, x->ranks, x->host_of, text));
    return ek_layout_pool_read(*text, pool);
}

/* The same; *without: no layout survives and fits, so that the run is not elastic by default. */
static ek_status find_any_layout(const run_of_child *x, ek_layout_pool *pool, int64_t *best,
                                 char **text, int *without)
{
    ek_train_config cfg = *x->cfg;
    char why[1024];
    ek_status st = find_layout(x, pool, best, text);

    *without = 0;
    if (cfg.elastic != EK_ELASTIC_BY_DEFAULT || (st != EK_ENOMEM && st != EK_EINVAL))
        return st;
    (void)snprintf(why, sizeof(why), "%s", ek_err_message());
    cfg.elastic = 0;
    free(*text);
    EK_TRY(find_layout(&(run_of_child){&cfg, x->ranks, NULL, 0}, pool, best, text));
    *without = 1;
    ek_log("layout", EK_LOG_WARN,
           "the loss of a host ends this run: --elastic is not on by default, as no layout can be "
           "chosen that survives it (%s)",
           why);
    return EK_OK;
}

static void add_layout(ek_run_layout *l, const ek_pool_layout *best)
{
    char value[EK_RUN_LAYOUT_WORD];

    for (int c = 0; c < EK_CHOICES; c++)
        add_option(l, ek_choice_name((ek_choice)c),
                   ek_choice_text((ek_choice)c, best->choice.value[c], value, sizeof(value)));
    add_option(l, "layout", "given");
    if (best->balance[0] != '\0')
        add_option(l, "balance", best->balance);
}

/* In the child. */
static ek_status choose_layout(const void *arg, void *result)
{
    const run_of_child *x = arg;
    ek_run_layout *out = result;
    ek_layout_pool *pool = calloc(1, sizeof(*pool));
    ek_pool_layout in_use;
    const ek_pool_layout *best = &in_use;
    char *text = NULL;
    int64_t first = 0;
    int changes = x->cfg->layout_every > 0, continues = 0, without = 0;
    ek_status st = EK_OK;

    EK_REQUIRE_OUT(pool != NULL, EK_ENOMEM, "no memory for layouts");
    if (changes)
        EK_TRY_OUT(ek_layout_in_use_read(x->cfg->out, &in_use, &continues));
    out->pool.s[0] = '\0';
    if (!continues || x->cfg->layout_pool == NULL)
        EK_TRY_OUT(find_any_layout(x, pool, &first, &text, &without));
    if (changes && text != NULL && !without && !x->cfg->dry_run)
        EK_TRY_OUT(write_pool(x, text, &out->pool));
    if (!continues)
        best = &pool->layout[first];
    out->n = 0;
    if (!changes || !without) /* else workers choose it, and change it, without --elastic */
        add_layout(out, best);
    out->n_layout_words = changes ? out->n : 0;
    if (without)
        (void)snprintf(out->word[out->n++], EK_RUN_LAYOUT_WORD, "--elastic=false");
    (void)ek_layout_words(&best->choice, best->balance, out->shown, sizeof(out->shown));
out:
    free(text);
    free(pool);
    return st;
}

/* host_of; NULL where all ranks are on one host: no layout survives its loss, so any may be chosen.
 */
static const int *several(const int *host_of, int ranks)
{
    for (int r = 1; r < ranks && host_of != NULL; r++)
        if (host_of[r] != host_of[0])
            return host_of;
    return NULL;
}

ek_status ek_search_layout_for_run(const ek_train_config *cfg, int ranks, const int *host_of,
                                   int (*stop)(void), ek_run_layout *out)
{
    const int *hosts = several(host_of, ranks);
    const run_of_child run = {cfg, ranks, hosts,
                              hosts != NULL ? ek_layout_ranks_left(ranks, hosts) : 0};

    return ek_child_compute("the search of a layout", choose_layout, &run, out, sizeof(*out), stop);
}
