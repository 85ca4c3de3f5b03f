/* Places the experts of every expert-parallel group, and adds up what each node holds. */
#include "train/failure_parts.h"

#include "placement/partners.h"
#include "train/even_plans.h"

#include <string.h>

/* Assignments of each rank to each expert under even loads: many, so that shares are even. */
enum { EVEN = 4096 };

typedef struct {
    const ek_sim_layout *l;
    const ek_sim_graphs *graphs;
    const ek_trace *trace;
    int64_t node_ranks;
    int32_t layers;    /* of the trace; 1: all are alike */
    int32_t *layer_of; /* [model layers] of these; -1: a dense layer */
    int *in_stage;     /* [layers] 1: layers of the stage are like this one */
    ek_plan_limits limits;
    void *planner; /* its memory; NULL: none places experts */
    ek_plan plan;
    int32_t *node_of;       /* [ep] of a group's ranks */
    int32_t *number_of;     /* [ep] the same, numbered */
    int64_t *counts, *sums; /* [ep][experts] */
    ek_replica_sets *out, others;
    uint64_t *masks;            /* [layers][experts][etp][words] of a stage */
    int *host_of;               /* [ranks] */
    int32_t *partner, *scratch; /* [ranks], [4 * ranks] */
    int32_t *copied_to;         /* [ranks]: who has a copy of all that a rank keeps; -1: nobody */
    unsigned char *needs;       /* [ranks]: scratch */
} parts_work;

/* Groups of ranks that shard buckets: data parallel, of the stage, expert data parallel. */
enum { KINDS = 3 };

static int32_t ranks_of(const parts_work *w)
{
    return w->l->pp * w->l->dp * w->l->tp;
}

static int32_t nodes_of(const parts_work *w)
{
    return (int32_t)((ranks_of(w) + w->node_ranks - 1) / w->node_ranks);
}

static int places_experts(const ek_sim_layout *l)
{
    return l->planner != NULL && l->planner->enforces_replicas_min && l->replicas_min > 1;
}

static void lay_out(parts_work *w, ek_arena *a)
{
    const ek_sim_layout *l = w->l;
    int64_t table = (int64_t)l->ep * l->spec.experts;
    int64_t parts = (int64_t)w->layers * l->spec.experts * l->etp;

    w->node_of = ek_arena_alloc(a, l->ep, sizeof(*w->node_of));
    w->number_of = ek_arena_alloc(a, l->ep, sizeof(*w->number_of));
    w->layer_of = ek_arena_alloc(a, l->spec.layers, sizeof(*w->layer_of));
    w->in_stage = ek_arena_alloc(a, w->layers, sizeof(*w->in_stage));
    w->counts = ek_arena_alloc(a, table, sizeof(*w->counts));
    w->sums = ek_arena_alloc(a, table, sizeof(*w->sums));
    ek_replica_sets_reserve(w->out, a, nodes_of(w),
                            parts * l->pp + (int64_t)l->pp * l->tp + KINDS * (int64_t)ranks_of(w));
    w->host_of = ek_arena_alloc(a, ranks_of(w), sizeof(*w->host_of));
    w->partner = ek_arena_alloc(a, ranks_of(w), sizeof(*w->partner));
    w->scratch = ek_arena_alloc(a, 4 * (int64_t)ranks_of(w), sizeof(*w->scratch));
    w->copied_to = ek_arena_alloc(a, ranks_of(w), sizeof(*w->copied_to));
    w->needs = ek_arena_alloc(a, ranks_of(w), sizeof(*w->needs));
    ek_replica_sets_reserve(&w->others, a, l->ep, (int64_t)w->layers * l->spec.experts);
    w->masks = ek_arena_alloc(a, parts * w->out->words, sizeof(*w->masks));
}

/* Of a group: planners look at the nodes of its ranks as they reserve memory. */
static void lay_out_plan(parts_work *w, ek_arena *a)
{
    w->planner = NULL;
    if (places_experts(w->l))
        w->planner = ek_planner_reserve(w->l->planner, a, &w->limits);
    ek_plan_reserve(&w->plan, a, &w->limits);
}

static void set_bit(uint64_t *mask, int64_t node)
{
    mask[node / 64] |= UINT64_C(1) << (node % 64);
}

/* Sets the node of a rank, and of the copy of what that keeps. */
static void set_rank(const parts_work *w, uint64_t *mask, int64_t rank)
{
    set_bit(mask, rank / w->node_ranks);
    if (w->copied_to[rank] >= 0)
        set_bit(mask, w->copied_to[rank] / w->node_ranks);
}

/* Sums of a layer's assignments. */
static void sum_counts(parts_work *w, int32_t layer)
{
    int64_t table = (int64_t)w->l->ep * w->l->spec.experts;

    for (int64_t i = 0; i < table; i++)
        w->sums[i] = w->trace == NULL ? EVEN : 0;
    for (int64_t i = 0; w->trace != NULL && i < w->trace->iterations; i++) {
        ek_trace_counts(w->trace, i, layer, w->l->ep, w->counts);
        for (int64_t k = 0; k < table; k++)
            w->sums[k] += w->counts[k];
    }
}

/* Places the experts of a layer in a group, aligned with the layers before. */
static ek_status place_experts(parts_work *w, int32_t layer)
{
    ek_placement_block(&w->plan.placement, 1);
    if (w->planner == NULL)
        return EK_OK;
    sum_counts(w, layer);
    w->limits.layer = layer;
    w->limits.others = &w->others;
    w->others.domains = ek_plan_number_domains(&w->limits, w->number_of);
    w->others.words = (w->others.domains + 63) / 64;
    EK_TRY(w->l->planner->plan_persistent(w->planner, &w->limits, w->sums, &w->plan));
    ek_replica_sets_add_placement(&w->others, &w->plan.placement, w->number_of,
                                  w->limits.replicas_min);
    return EK_OK;
}

/* Marks the nodes that hold each shard of each expert of a layer, in a group that begins at a rank.
 */
static void mark_experts(parts_work *w, int32_t layer, int64_t first)
{
    const ek_placement *p = &w->plan.placement;
    int etp = w->l->etp;

    for (int32_t s = 0; s < p->ranks * p->slots; s++)
        for (int i = 0; i < etp && p->expert_of[s] >= 0; i++) {
            int64_t part = ((int64_t)layer * p->experts + p->expert_of[s]) * etp + i;
            int64_t rank = first + (int64_t)(s / p->slots) * etp + i;

            set_rank(w, w->masks + part * w->out->words, rank);
        }
}

/* Places the experts of a group that begins at a rank, and marks their nodes. */
static ek_status place_group(parts_work *w, int64_t first)
{
    ek_arena a = {0};
    ek_status st;

    for (int32_t r = 0; r < w->l->ep; r++)
        w->node_of[r] = (int32_t)((first + (int64_t)r * w->l->etp) / w->node_ranks);
    w->limits.node_of = w->node_of;
    ek_arena_measure(&a);
    lay_out_plan(w, &a);
    EK_TRY_OUT(ek_arena_reserve(&a, "the places of experts"));
    lay_out_plan(w, &a);
    EK_TRY_OUT(ek_arena_check(&a, "the places of experts"));
    ek_replica_sets_clear(&w->others);
    for (int32_t layer = 0; layer < w->layers; layer++) {
        if (!w->in_stage[layer])
            continue;
        EK_TRY_OUT(place_experts(w, layer));
        mark_experts(w, layer, first);
    }
out:
    ek_arena_fini(&a);
    return st;
}

static void find_layers(parts_work *w, int stage)
{
    memset(w->in_stage, 0, (size_t)w->layers * sizeof(*w->in_stage));
    for (int32_t k = 0; k < w->graphs->n_classes; k++) {
        const ek_graph *g = w->graphs->classes[k].graph;

        if (w->graphs->classes[k].stage != stage)
            continue;
        for (int32_t i = 0; i < g->n_ops; i++) {
            int32_t layer = ek_graph_op(g, i)->layer;

            if (layer >= 0 && w->layer_of[layer] >= 0)
                w->in_stage[w->layer_of[layer]] = 1;
        }
    }
}

static ek_status add_experts(parts_work *w, int stage)
{
    const ek_sim_layout *l = w->l;
    int64_t ranks = (int64_t)l->dp * l->tp, each = l->spec.experts * l->etp;
    int64_t parts = w->layers * each;

    find_layers(w, stage);

    memset(w->masks, 0, (size_t)(parts * w->out->words) * sizeof(*w->masks));
    for (int g = 0; g < l->edp; g++) {
        w->limits.ep_group = g;
        EK_TRY(place_group(w, stage * ranks + (int64_t)g * l->ep * l->etp));
    }
    for (int64_t i = 0; i < parts; i++)
        if (w->in_stage[i / each])
            ek_replica_sets_add(w->out, w->masks + i * w->out->words);
    return EK_OK;
}

/* The other weights: ranks of a stage that are equal modulo --tp hold the same. */
static void add_shards(parts_work *w, int stage)
{
    const ek_sim_layout *l = w->l;

    for (int t = 0; t < l->tp; t++) {
        memset(w->masks, 0, (size_t)w->out->words * sizeof(*w->masks));
        for (int d = 0; d < l->dp; d++)
            set_rank(w, w->masks, ((int64_t)stage * l->dp + d) * l->tp + t);
        ek_replica_sets_add(w->out, w->masks);
    }
}

/* Whether rank i has alone what the ranks of a kind of group shard: with ZeRO its range of
 * their buckets; else its columns of the embedding, which the first stage has. */
static int has_range(const ek_sim_layout *l, int kind, int32_t i)
{
    return l->zero > 0 || (kind == 0 && i < l->dp * l->tp);
}

/* What each rank keeps of sharded buckets and of the embedding, which its partner has, too. */
static void add_ranges(parts_work *w)
{
    const ek_sim_layout *l = w->l;
    int32_t ranks = ranks_of(w);
    const ek_ranks groups[KINDS] = {
        {0, l->tp, l->dp}, {0, 1, l->dp * l->tp}, {0, l->ep * l->etp, l->edp}};

    for (int k = 0; k < KINDS && (l->zero > 0 || l->embed_columns); k++) {
        if (groups[k].n == 1)
            continue;
        ek_partners_choose_groups(ranks, groups[k].stride, groups[k].n, w->host_of, NULL,
                                  w->partner, w->scratch);
        for (int32_t i = 0; i < ranks; i++) {
            if (!has_range(l, k, i))
                continue;
            memset(w->masks, 0, (size_t)w->out->words * sizeof(*w->masks));
            set_rank(w, w->masks, i);
            if (w->partner[i] >= 0)
                set_bit(w->masks, w->host_of[w->partner[i]]);
            ek_replica_sets_add(w->out, w->masks);
        }
    }
}

/* Who has copies of all that ranks keep, as in training without racks (train/rank_copies.h). */
static void choose_copies(parts_work *w)
{
    const ek_sim_layout *l = w->l;
    ek_partner_layout of = {
        ranks_of(w), l->dp, l->tp, l->edp, l->ep, l->etp, l->zero > 0 || l->embed_columns};

    for (int32_t i = 0; i < of.ranks; i++) {
        w->host_of[i] = (int)(i / w->node_ranks);
        w->copied_to[i] = -1;
    }
    if (l->rank_copies)
        (void)ek_partners_choose_ranks(&of, w->host_of, NULL, w->needs, w->copied_to, w->scratch);
}

ek_status ek_failure_parts(const ek_sim_layout *l, const ek_sim_graphs *g, const ek_cluster *c,
                           const ek_trace *trace, ek_arena *a, ek_replica_sets *out)
{
    ek_sim_loads_config loads = ek_loads_config_of(l, c, l->pp * l->dp * l->tp);
    parts_work w = {.l = l,
                    .graphs = g,
                    .trace = trace,
                    .node_ranks = ek_cluster_node_ranks(c),
                    .layers = trace != NULL ? (int32_t)trace->layers : 1,
                    .out = out,
                    .limits = ek_sim_loads_limits(&loads)};

    w.limits.costs = (ek_plan_costs){.compute_s_per_row = 1e-6,
                                     .comm_s_per_row = 1e-6,
                                     .replica_s = 1e-3,
                                     .replica_bytes = 1,
                                     .migrate_s_per_expert = 1e-3,
                                     .state_bytes = 1};
    w.limits.layers = w.layers;
    w.limits.ep_groups = l->edp;
    ek_arena_measure(a);
    lay_out(&w, a);
    EK_TRY(ek_arena_reserve(a, "the places of experts"));
    lay_out(&w, a);
    EK_TRY(ek_arena_check(a, "the places of experts"));
    ek_sim_spread_layers(&l->spec, w.layers, w.layer_of);
    choose_copies(&w);
    for (int stage = 0; stage < l->pp; stage++) {
        EK_TRY(add_experts(&w, stage));
        add_shards(&w, stage);
    }
    add_ranges(&w);
    return EK_OK;
}
