/* equal_layout.h - one way to train a small model (equal_models.h): what a layout is, how it is
 * drawn by seed, and the settings of its model, trainer and steps. */
#ifndef EQUAL_LAYOUT_H
#define EQUAL_LAYOUT_H

#include "equal_models.h"
#include "model/offload.h"
#include "nn/batch_shares.h"
#include "random_planner.h"
#include "tensor/select/select.h"

#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

/* Without sanitizers losses are compared over 50 steps; errors of memory show in fewer. */
enum { EQUAL_STEPS = EK_T_SLOW ? 16 : 50, EQUAL_STEPS_FP32 = 10, EQUAL_RANKS_MAX = 8 };

/* Which ranks share a node. */
typedef enum { EQUAL_ONE_NODE, EQUAL_TWOS, EQUAL_RAGGED } equal_nodes;

/* Dispatch settings: those of the layout, others every step (up to its degree), or tuned. */
typedef enum { EQUAL_GIVEN, EQUAL_RESTLESS, EQUAL_TUNED } equal_ways;

/* One way to train. */
typedef struct {
    int model, shape; /* numbers for equal_spec, equal_shape_of */
    int ranks, pp, model_chunks, tp, ep, etp, zero;
    int partners; /* 1: with ZeRO, ranks of other nodes have copies of what a rank keeps */
    int uneven;   /* 1: virtual stages have random numbers of layers */
    int degree, group;
    int gather; /* slices that shards gather (ek_dispatch_layout_set_gather); any unless settings
                   are given */
    ek_a2a a2a;
    equal_nodes nodes;
    ek_recompute recompute;
    ek_mode mode;
    int blind;              /* 1: no evaluations between steps */
    int worker;             /* 1: a separate thread runs network ops */
    int offload;            /* experts' masters and moments are on disk, 2: gradients too, with */
    int entries, forms;     /* so many entries and forms */
    int64_t bucket_bytes;   /* of buckets, about; 0: one for each expert if they are on disk */
    int columns;            /* 1: the embedding is sharded by columns, unless it is tied */
    const ek_trace *replay; /* replayed by the gates; one trace for each model of a program */
    int balance;            /* the planner, by index in equal_planners */
    const ek_planner *planner; /* used instead; must have the same plan functions */
    int replicas_min;          /* number of nodes that hold each expert */
    int survival;              /* 1: placements that survive most losses of nodes are preferred */
    int spare;                 /* spare slots of a rank; 0: by shape */
    int sets;                  /* ek_moe_config.replica_sets; 0: by shape */
    int slow; /* 1 + the rank whose rows take three times as long as those of others, which take
                 long; planners follow speeds.  0: none */
    equal_ways ways;
    int weights[EQUAL_RANKS_MAX]; /* shares of a micro-batch of data parallel ranks; 0: even */
    int follow;                   /* 1: shares follow speeds instead, which slow sets */
    /* Planners that alternate with that one, and the callback before a step. */
    const ek_planner *const *others;
    ek_status (*turn)(ek_trainer *tr, int step);
} equal_layout;

/* The first EQUAL_DRAWN are used in random layouts and in covering arrays. */
static const ek_planner *const equal_planners[] = {
    NULL,
    &random_planner,
    &ek_planner_exact,
    &random_persistent_plan,
    &random_from_previous,
    &random_before_or_after,
    &ek_planner_place,
    &ek_planner_prophet,
    &ek_planner_replicate,
    &ek_planner_eplb,
    &ek_planner_auto,
    &ek_planner_fastermoe,
    &ek_planner_shadow,
};
enum {
    EQUAL_DRAWN = 6,
    EQUAL_EXACT = 2,
    EQUAL_PROPHET = 7,
    EQUAL_REPLICATE = 8,
    EQUAL_AUTO = 10,
    EQUAL_PLANNERS = sizeof(equal_planners) / sizeof(equal_planners[0])
};

/* Whether experts migrate between persistent placements. */
static inline int equal_moves(const equal_layout *l)
{
    return l->others != NULL ||
           (l->balance > 0 && equal_planners[l->balance]->plan_persistent != NULL);
}

/* Whether experts' state may lie in all slots, or in all but those for transient replicas. */
static inline int equal_horizon(const equal_layout *l)
{
    const ek_planner *p = l->planner != NULL ? l->planner : equal_planners[l->balance];

    return equal_moves(l) && (l->others != NULL || ek_planner_fills_slots(p));
}

/* Whether each rank gathers all experts in some steps: not where spare slots have state. */
static inline int equal_gathers_all(const equal_layout *l)
{
    return l->gather < 0 || (l->gather != 0 && l->ways != EQUAL_GIVEN && !equal_horizon(l));
}

/* Spare slots of a rank. */
static inline int equal_spare(const equal_layout *l)
{
    ek_model_spec spec;

    if (equal_gathers_all(l)) {
        equal_spec(l->model, &spec);
        return (int)spec.experts;
    }
    return l->balance == 0 ? 0 : l->spare > 0 ? l->spare : 1 + l->shape % 2;
}

static inline int equal_sets(const equal_layout *l)
{
    static const int by_shape[] = {EK_REPLICA_SETS_EACH, 1, 2};

    return l->offload ? 1 : l->sets != 0 ? l->sets : by_shape[l->shape % 3];
}

static inline int equal_steps_of(ek_mode mode)
{
    return mode == EK_MODE_FP64 ? EQUAL_STEPS : EQUAL_STEPS_FP32;
}

static inline const char *equal_text(const equal_layout *l)
{
    static _Thread_local char text[400];
    static const char *const a2a[] = {"linear", "pairwise", "2dh"};
    static const char *const nodes[] = {"one node", "nodes of two", "ragged nodes"};
    static const char *const ways[] = {"", " at most", " or tuned"};

    snprintf(text, sizeof(text),
             "model %d, shape %d, %s, %d ranks: pp %d x %d%s, tp %d, ep %d, etp %d, zero %d%s, "
             "degree %d%s, group %d, gather %d, a2a %s (%s), recompute %d, network %s, embedding "
             "%s, balance %s, offload %d (%d entries, %d forms)%s",
             l->model, l->shape, ek_mode_name(l->mode), l->ranks, l->pp, l->model_chunks,
             l->uneven ? " uneven" : "", l->tp, l->ep, l->etp, l->zero,
             l->partners ? " with partners" : "", l->degree, ways[l->ways], l->group, l->gather,
             a2a[l->a2a], nodes[l->nodes], (int)l->recompute, l->worker ? "worker" : "inline",
             l->columns ? "in columns" : "whole",
             l->balance ? equal_planners[l->balance]->name : "off", l->offload, l->entries,
             l->forms, l->weights[0] ? ", uneven shares" : "");
    return text;
}

/* Node of each rank. */
static inline void equal_set_nodes(ek_comm *world, const equal_layout *l)
{
    static const int ragged[EQUAL_RANKS_MAX] = {0, 1, 1, 0, 1, 2, 3, 3};
    int node_of[EQUAL_RANKS_MAX];

    for (int i = 0; i < l->ranks; i++)
        node_of[i] = l->nodes == EQUAL_TWOS ? i / 2 : l->nodes == EQUAL_RAGGED ? ragged[i] : 0;
    ek_comm_set_nodes(world, node_of);
}

/* The sums of the weights, of this thread; NULL: even. */
static inline const int64_t *equal_weights(const equal_layout *l)
{
    static _Thread_local int64_t sums[EQUAL_RANKS_MAX + 1];
    int64_t weights[EQUAL_RANKS_MAX];
    int dp = l->ranks > 0 ? l->ranks / l->pp / l->tp : 1;

    if (l->weights[0] == 0)
        return NULL;
    for (int r = 0; r < dp; r++)
        weights[r] = l->weights[r];
    ek_shares_sum(weights, dp, sums);
    return sums;
}

static inline ek_trainer_config equal_config(const equal_layout *l)
{
    equal_shape shape = equal_shape_of(l->shape);

    return (ek_trainer_config){
        .batch = shape.batch,
        .seq = shape.seq,
        .micro_batch = shape.micro,
        .aux_coef = 0.02,
        .z_coef = 0.01,
        .capacity_factor = equal_capacity(l->model),
        .seed = 11,
        .document_mask = equal_masked(l->shape),
        .document_end = EQUAL_END,
        .shares = equal_weights(l),
        .follow_shares = l->follow,
        .recompute = l->recompute,
        .moe = {.degree = l->degree,
                .a2a = l->a2a,
                .gather = l->ways == EQUAL_GIVEN ? l->gather : 0,
                .gather_most = l->ways == EQUAL_GIVEN || l->gather == 0 ? 0
                               : equal_gathers_all(l)                   ? EK_GATHER_ALL
                                                                        : l->etp,
                .smart_group = l->group,
                .force_balance = l->model == 14 && l->replay == NULL,
                .replay = l->replay,
                .reroute = l->model == 15 && l->replay == NULL ? EK_REROUTE_SWIPE : EK_REROUTE_OFF,
                .planner = l->planner != NULL ? l->planner : equal_planners[l->balance],
                .replica_sets = equal_sets(l),
                .others = l->others,
                .plan_every = 1,
                .replicas_min = l->replicas_min,
                .prefer_survival = l->survival,
                .horizon = 20,
                .follow_speeds = l->slow > 0,
                .costs = {.compute_s_per_row = 1e-3,
                          .comm_s_per_row = 1e-4,
                          .replica_s = 1e-3,
                          .migrate_s_per_expert = 1e-3}},
        .tune_degree = l->ways == EQUAL_TUNED,
        .tune_a2a = l->ways == EQUAL_TUNED,
        .tune_gather = l->ways == EQUAL_TUNED && l->gather != 0,
        .exec = {.inline_async = !l->worker, .watchdog_s = 60},
        .optimizer = {.lr = 3e-4,
                      .min_lr = 3e-5,
                      .cosine = 1,
                      .warmup = 2,
                      .steps = EQUAL_STEPS,
                      .decay = 0.1,
                      .beta1 = 0.9,
                      .beta2 = 0.95,
                      .eps = 1e-8,
                      .clip = 0.5}};
}

/* --- settings --------------------------------------------------------------------------------- */

/* A divisor of n, by a random number. */
static inline int equal_divisor(int n, uint64_t bits)
{
    int divisors[64] = {1}, count = 0;

    for (int d = 1; d <= n; d++)
        if (n % d == 0)
            divisors[count++] = d;
    return divisors[bits % (uint64_t)count];
}

/* Dispatch settings of step i: any degree up to the layout's, any all-to-all, any slices. */
static inline ek_moe_traffic equal_traffic(const equal_layout *l, int i)
{
    uint64_t bits = ek_random_bits(23, (uint64_t)l->ranks, (uint64_t)i) >> 7;
    int gather = bits / 256 % 3 == 0 && equal_gathers_all(l) ? EK_GATHER_ALL
                                                             : equal_divisor(l->etp, bits / 1024);

    return (ek_moe_traffic){1 + (int)(bits % (uint64_t)l->degree), (ek_a2a)(bits / 64 % 3),
                            l->gather != 0 ? gather : 0};
}

/* Settings of step i. */
static inline ek_status equal_set_step(ek_trainer *tr, const equal_layout *l, int i)
{
    int64_t top_k = equal_top_k(l->model, i);
    ek_moe_traffic traffic;

    if (top_k > 0)
        EK_TRY(ek_trainer_set_top_k(tr, top_k));
    if (l->ways != EQUAL_RESTLESS)
        return EK_OK;
    traffic = equal_traffic(l, i);
    return ek_trainer_set_traffic(tr, &traffic);
}

/* Reads take random times, so that they end in any order. */
static inline ssize_t equal_slow_pread(int fd, void *data, size_t bytes, off_t offset)
{
    static atomic_int calls;
    uint64_t random = ek_random_bits(29, (uint64_t)offset, (uint64_t)atomic_fetch_add(&calls, 1));
    struct timespec nap = {0, (long)(random % 4 == 0 ? random / 4 % 400000 : 0)};

    nanosleep(&nap, NULL);
    return pread(fd, data, bytes, offset);
}

/* How the model of a layout is created; `config` points to the rest of it. */
typedef struct {
    ek_model_spec spec;
    ek_model_config config;
    int32_t stage_layers[EK_LAYERS_MAX];
    ek_offload_config offload;
    ek_disk_io io;
} equal_model_settings;

/* Every virtual stage has a layer; the others go to random ones. */
static inline void equal_cut_stages(equal_model_settings *s, const equal_layout *l)
{
    int stages = l->pp * l->model_chunks;

    for (int i = 0; i < stages; i++)
        s->stage_layers[i] = 1;
    for (int64_t i = stages; i < s->spec.layers; i++)
        s->stage_layers[ek_random_bits(31, (uint64_t)(l->model * 8 + stages), (uint64_t)i) %
                        (uint64_t)stages]++;
    s->config.stage_layers = s->stage_layers;
}

static inline void equal_set_model(equal_model_settings *s, const equal_layout *l,
                                   const ek_mesh *mesh)
{
    *s = (equal_model_settings){.config = {.trained = 1,
                                           .mesh = mesh,
                                           .model_chunks = l->model_chunks,
                                           .zero = l->zero,
                                           .partner_copies = l->partners,
                                           .spare_slots = equal_spare(l),
                                           .persistent_slots = equal_horizon(l),
                                           .migrates = equal_moves(l)},
                                .offload = {.dir = "/dev/shm",
                                            .entries = l->entries,
                                            .forms = l->forms,
                                            .gradients = l->offload == 2,
                                            .io = &s->io},
                                .io = ek_disk_io_system};
    equal_spec(l->model, &s->spec);
    if (l->uneven && l->pp > 1)
        equal_cut_stages(s, l);
    if (l->offload > 0) {
        s->io.pread = equal_slow_pread;
        s->offload.backend = l->entries % 2 ? EK_DISK_AUTO : EK_DISK_POOL;
        s->config.offload = &s->offload;
        s->config.bucket_bytes = 1; /* a bucket for each expert */
    }
    if (l->bucket_bytes > 0)
        s->config.bucket_bytes = l->bucket_bytes;
    s->config.embed_columns = l->columns && !s->spec.tie_embeddings;
    if (mesh != NULL && s->config.persistent_slots && l->others == NULL) {
        ek_trainer_config cfg = equal_config(l);
        int32_t n = ek_moe_transient_slots(&cfg.moe, &s->spec, mesh, s->config.spare_slots);

        s->config.transient_slots = n > 0 ? n : 0;
    }
}

/* --- drawing ---------------------------------------------------------------------------------- */

/* Whether sizes make a layout of a model. */
static inline int equal_legal(const equal_layout *l)
{
    int stage = l->ranks / l->pp;

    return l->ranks % l->pp == 0 && stage % l->tp == 0 && stage % (l->ep * l->etp) == 0 &&
           (l->pp > 1 || l->model_chunks == 1) &&
           l->pp * l->model_chunks <= equal_layers(l->model) &&
           (l->gather <= 1 || l->etp % l->gather == 0) && (l->gather >= 0 || !equal_horizon(l));
}

/* The i-th layout of `ranks` ranks. */
static inline equal_layout equal_draw(uint64_t seed, int ranks, int i)
{
    static const int degrees[] = {1, 2, 3, 4, 8};
    enum { DRAWS = 17 };
    uint64_t b[DRAWS];
    equal_layout l = {.ranks = ranks};
    int stage;

    for (int j = 0; j < DRAWS; j++)
        b[j] = ek_random_bits(seed, (uint64_t)ranks, (uint64_t)(i * DRAWS + j)) >> 7;
    l.model = (int)((seed + (uint64_t)(i + 4 * ranks)) % EQUAL_MODELS); /* each model in turn */
    l.shape = (int)(b[12] % EQUAL_SHAPES);
    do {
        l.pp = equal_divisor(ranks, b[0]++);
        l.model_chunks = l.pp > 1 ? 1 + (int)(b[1]++ % 3) : 1;
        stage = ranks / l.pp;
        l.tp = equal_divisor(stage, b[2]);
        l.etp = equal_divisor(stage, b[3]);
        l.ep = equal_divisor(stage / l.etp, b[4]);
    } while (!equal_legal(&l));
    l.zero = (int)(b[5] % 4);
    l.uneven = (int)(b[10] % 2);
    l.degree = degrees[b[6] % 5];
    l.group = b[7] % 4 == 0 ? 1 + (int)(b[7] / 4 % 2) : 0;
    l.a2a = (ek_a2a)(b[8] % 3);
    l.nodes = l.a2a == EK_A2A_2DH ? EQUAL_TWOS + (b[8] / 3) % 2 : EQUAL_ONE_NODE;
    l.recompute = (ek_recompute)(b[9] % 3);
    l.mode = b[11] % 4 == 0 ? EK_MODE_FP32 : EK_MODE_FP64;
    l.worker = b[13] % 4 == 0;
    l.columns = b[14] % 3 == 0;
    l.balance = (int)(b[15] % EQUAL_DRAWN);
    if (!equal_legal(&l))
        l.balance = 1;
    if (b[16] % 2 == 0) /* layouts that cannot gather are unchanged */
        l.gather = b[16] % 4 == 0 ? EK_GATHER_ALL : equal_divisor(l.etp, b[16] / 4);
    if (!equal_legal(&l))
        l.gather = 0;
    if (ek_random_bits(seed, 37, (uint64_t)(ranks * 4096 + i)) % 4 == 0)
        for (int r = 0; r < ranks; r++)
            l.weights[r] =
                1 + (int)((ek_random_bits(seed, 38 + (uint64_t)r, (uint64_t)i) >> 7) % 4);
    return l;
}

#endif
