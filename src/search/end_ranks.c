/* Lays out the ends of a pipeline, of the model or of two with fewer layers. */
#include "search/end_ranks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Layers of a virtual stage of the two models with few layers; the first layers and the last may
 * share buffers with other neighbours than those between, so these are not the fewest possible.
 * They take less time than the model where it has at least FEW_OF. */
enum { FEW = 2, FEW_OF = 6 };
enum { MODELS = 2 };

enum { COPIES = 2 }; /* as train/run/protect.c chooses */

/* What is extrapolated may be larger by rounding, and bounds have to be at most the step's time. */
#define ROUNDING 1e-9

struct ek_end_ranks {
    ek_end_world world;
    ek_train_config cfg;
    double more; /* times the difference of the two models is added to the second; 0: there is one,
                    with all layers */
    ek_imagined_rank *rank[EK_END_RANKS][MODELS]; /* NULL: none */
    ek_train_config with_copies;                  /* cfg with two copies of each expert: */
    ek_imagined_rank
        *copied[EK_END_RANKS]; /* its ranks, if a run may choose so; NULL: it may not */
};

/* The layers of a virtual stage, if a few of them are laid out; else 0. */
static int64_t many_layers(const ek_end_world *w, const ek_train_config *cfg)
{
    int64_t stages = (int64_t)cfg->pp * cfg->chunks;

    if (!w->alike || cfg->elastic || w->layers % stages != 0) /* copies depend on all layers */
        return 0;
    if (strcmp(cfg->pp_layers, "even") != 0) /* few layers may be cut otherwise than all */
        return 0;
    return w->layers / stages >= FEW_OF ? w->layers / stages : 0;
}

static int32_t stage_ranks(const ek_end_ranks *x)
{
    return x->world.ranks / (x->cfg.pp > 1 ? x->cfg.pp : 1);
}

static int first_rank(const ek_end_ranks *x, int end)
{
    return end == EK_END_FIRST ? 0 : x->world.ranks - stage_ranks(x);
}

static ek_status open_rank(ek_end_ranks *x, int end)
{
    const ek_imagined_world w = {x->world.ranks, x->world.node_of, x->world.cluster,
                                 x->world.host_of};
    int64_t stages = (int64_t)x->cfg.pp * x->cfg.chunks;

    if (x->more <= 0)
        return ek_imagined_rank_open(&x->cfg, &w, first_rank(x, end), 0, &x->rank[end][0]);
    for (int i = 0; i < MODELS; i++)
        EK_TRY(ek_imagined_rank_open(&x->cfg, &w, first_rank(x, end), stages * (FEW + i),
                                     &x->rank[end][i]));
    return EK_OK;
}

/* Whether a run with --elastic chooses if experts have two copies: by the memory and the time that
 * they take, which depend on what is not known here yet. */
static int may_choose_copies(const ek_train_config *cfg)
{
    return cfg->elastic && cfg->replicas_min == 0 && cfg->ep > 1;
}

/* A rank with two copies, unless training refuses them. */
static ek_status open_copied(ek_end_ranks *x, int end)
{
    const ek_imagined_world w = {x->world.ranks, x->world.node_of, x->world.cluster,
                                 x->world.host_of};
    ek_status st =
        ek_imagined_rank_open(&x->with_copies, &w, first_rank(x, end), 0, &x->copied[end]);

    if (st == EK_OK && ek_imagined_rank_layout(x->copied[end]).replicas_min < COPIES)
        ek_imagined_rank_close(&x->copied[end]);
    if (st == EK_OK || ek_status_class(st) != EK_CLASS_USAGE)
        return st;
    ek_imagined_rank_close(&x->copied[end]);
    return EK_OK;
}

ek_status ek_end_ranks_open(const ek_end_world *w, const ek_train_config *cfg, ek_end_ranks **out)
{
    ek_end_ranks *x = calloc(1, sizeof(*x));
    int64_t layers = many_layers(w, cfg);

    *out = x;
    EK_REQUIRE(x != NULL, EK_ENOMEM, "no memory for a layout");
    x->world = *w;
    x->cfg = x->with_copies = *cfg;
    x->more = layers > 0 ? (double)(layers - (FEW + 1)) : 0;
    if (x->cfg.elastic && x->cfg.replicas_min == 0)
        x->cfg.replicas_min = 1; /* copies are left out where they do not fit */
    x->with_copies.replicas_min = COPIES;
    x->with_copies.memory_limit = INT64_MAX;
    for (int i = 0; i < (cfg->pp > 1 ? EK_END_RANKS : 1); i++) {
        EK_TRY(open_rank(x, i));
        if (may_choose_copies(cfg))
            EK_TRY(open_copied(x, i));
    }
    return EK_OK;
}

void ek_end_ranks_close(ek_end_ranks **px)
{
    ek_end_ranks *x = *px;

    *px = NULL;
    for (int i = 0; x != NULL && i < EK_END_RANKS; i++) {
        for (int k = 0; k < MODELS; k++)
            ek_imagined_rank_close(&x->rank[i][k]);
        ek_imagined_rank_close(&x->copied[i]);
    }
    free(x);
}

/* Of the whole model, from what the two with few layers have. */
static double extrapolated(const ek_end_ranks *x, double few, double one_more)
{
    return one_more + x->more * (one_more - few);
}

ek_status ek_end_ranks_measure(const ek_end_ranks *x, int64_t micro_batch, const char *recompute,
                               double *memory, double *copies)
{
    *memory = *copies = 0;
    for (int i = 0; i < EK_END_RANKS; i++) {
        double of[MODELS] = {0};

        for (int k = 0; k < MODELS && x->rank[i][k] != NULL; k++)
            EK_TRY(ek_imagined_rank_measure(x->rank[i][k], micro_batch, recompute, &of[k]));
        of[0] = x->more > 0 ? extrapolated(x, of[0], of[1]) : of[0];
        if (of[0] <= *memory)
            continue;
        *memory = of[0];
        *copies = ek_imagined_rank_copies(x->rank[i][0]);
    }
    return EK_OK;
}

ek_status ek_end_ranks_traffic(const ek_end_ranks *x, ek_layer_traffic *out)
{
    return ek_layer_traffic_of(x->rank[EK_END_FIRST][0], x->world.cluster, stage_ranks(x), out);
}

static ek_status time_rank(const ek_end_ranks *x, ek_imagined_rank *rank, int end,
                           int64_t micro_batch, ek_stage_time *out)
{
    ek_bound_prices prices;
    ek_sim_layout l;
    const ek_graph *g;
    double memory;

    EK_TRY(ek_imagined_rank_measure(rank, micro_batch, "full", &memory));
    EK_TRY(ek_imagined_rank_micro_step(rank, &g));
    l = ek_imagined_rank_layout(rank);
    EK_TRY(ek_bound_prices_of(x->world.cluster, &l, x->world.ranks, x->world.plans, &prices));
    return ek_stage_time_of(x->world.ranks, first_rank(x, end), stage_ranks(x), g, x->more <= 0,
                            &prices, out);
}

/* Lowers times to those with two copies of each expert, where these are less. */
static ek_status allow_for_copies(const ek_end_ranks *x, int end, int64_t micro_batch,
                                  ek_stage_time *out)
{
    ek_stage_time two;

    if (x->copied[end] == NULL)
        return EK_OK;
    EK_TRY(time_rank(x, x->copied[end], end, micro_batch, &two));
    for (int r = 0; r < EK_RECOMPUTES; r++) {
        out->micro[r] = fmin(out->micro[r], two.micro[r]);
        out->end[r] = fmin(out->end[r], two.end[r]);
        out->layers[r] = fmin(out->layers[r], two.layers[r]);
    }
    return EK_OK;
}

static void extrapolate_times(const ek_end_ranks *x, const ek_stage_time *few,
                              const ek_stage_time *one_more, ek_stage_time *out)
{
    double less = 1 - ROUNDING;

    for (int r = 0; r < EK_RECOMPUTES; r++) {
        out->micro[r] = less * extrapolated(x, few->micro[r], one_more->micro[r]);
        out->end[r] = less * extrapolated(x, few->end[r], one_more->end[r]);
        out->layers[r] = less * extrapolated(x, few->layers[r], one_more->layers[r]);
    }
    out->n_layers = extrapolated(x, few->n_layers, one_more->n_layers);
    out->is_whole = 0;
}

ek_status ek_end_ranks_time(const ek_end_ranks *x, int64_t micro_batch,
                            ek_stage_time of[EK_END_RANKS])
{
    for (int i = 0; i < EK_END_RANKS; i++) {
        ek_stage_time t[MODELS];

        if (x->rank[i][0] == NULL) {
            of[i] = of[EK_END_FIRST];
            continue;
        }
        EK_TRY(time_rank(x, x->rank[i][0], i, micro_batch, &t[0]));
        of[i] = t[0];
        if (x->more <= 0) {
            EK_TRY(allow_for_copies(x, i, micro_batch, &of[i]));
            continue;
        }
        EK_TRY(time_rank(x, x->rank[i][1], i, micro_batch, &t[1]));
        extrapolate_times(x, &t[0], &t[1], &of[i]);
    }
    return EK_OK;
}
