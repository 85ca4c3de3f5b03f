/* Calls planners for a micro-batch or a persistent placement, and turns plans into row counts. */
#include "moe/routing_plan.h"

#include "base/clock.h"
#include "base/log.h"
#include "moe/planning_speeds.h"
#include "moe/routing_traffic.h"

#include <math.h>
#include <string.h>

/* Nodes of the expert ranks of a group, numbered by first rank. */
static void number_nodes(const ek_mesh *mesh, int ep_group, int32_t *node_of)
{
    int32_t nodes = 0;

    for (int r = 0; r < mesh->ep; r++) {
        int first = ep_group * mesh->ep * mesh->etp, same = 0;
        int node = ek_comm_node(mesh->stage, first + r * mesh->etp);

        while (same < r && ek_comm_node(mesh->stage, first + same * mesh->etp) != node)
            same++;
        node_of[r] = same < r ? node_of[same] : nodes++;
    }
}

/* Failure domains of the expert ranks of a group. */
static void copy_domains(const ek_moe_config *cfg, const ek_mesh *mesh, int ep_group,
                         int32_t *domain_of)
{
    for (int r = 0; r < mesh->ep; r++)
        domain_of[r] = cfg->domain_of[(ep_group * mesh->ep + r) * mesh->etp];
}

/* Sets nodes, domains and costs of ranks of the limits to those of a group. */
static void set_group_limits(ek_moe_planning *d, int ep_group)
{
    d->limits.ep_group = ep_group;
    d->limits.node_of = d->node_of + (int64_t)ep_group * d->limits.ranks;
    if (d->speeds.differ)
        d->limits.row_cost = d->speeds.cost + (int64_t)ep_group * d->limits.ranks;
    if (d->domain_of != NULL)
        d->limits.domain_of = d->domain_of + (int64_t)ep_group * d->limits.ranks;
}

/* Reserves memory of all planners of the config, and selects the first. */
static void reserve_planners(ek_moe_planning *d, ek_arena *a, const ek_moe_config *cfg)
{
    int n = 0;

    while (ek_moe_planner_at(cfg, n) != NULL)
        n++;
    d->memory_of = ek_arena_alloc(a, n, sizeof(*d->memory_of));
    for (int i = 0; i < n; i++) {
        void *memory = ek_planner_reserve(ek_moe_planner_at(cfg, i), a, &d->limits);

        if (d->memory_of != NULL)
            d->memory_of[i] = memory;
        d->memory = i == 0 ? memory : d->memory;
    }
}

ek_status ek_routing_plan_set_planner(ek_moe_planning *d, const ek_moe_config *cfg,
                                      const ek_planner *p)
{
    int at = 0;

    while (ek_moe_planner_at(cfg, at) != NULL && ek_moe_planner_at(cfg, at) != p)
        at++;
    EK_REQUIRE(ek_moe_planner_at(cfg, at) == p, EK_EINVAL,
               "planner %s is not among the planners that memory was reserved for", p->name);
    d->planner = p;
    d->memory = d->memory_of[at];
    d->planner_at = at;
    d->failed = d->unfit = 0;
    return EK_OK;
}

void ek_routing_plan_reserve(ek_moe_planning *d, ek_arena *a, const ek_moe_config *cfg,
                             const ek_mesh *mesh, int64_t layers, int32_t experts, int32_t slots)
{
    int64_t all = (int64_t)mesh->ep * slots;

    d->scratch.traffic = ek_routing_traffic_reserve(a, mesh);
    d->scratch.used = ek_arena_alloc(a, all * mesh->edp, 1);
    d->scratch.total = ek_arena_alloc(a, experts, sizeof(*d->scratch.total));
    if (cfg->planner == NULL)
        return;
    d->planner = cfg->planner;
    d->listener = cfg->listener;
    d->limits = (ek_plan_limits){.experts = experts,
                                 .ranks = mesh->ep,
                                 .slots = slots,
                                 .layers = (int32_t)layers,
                                 .ep_groups = mesh->edp,
                                 .replicas_min = cfg->replicas_min > 0 ? cfg->replicas_min : 1,
                                 .keep_all_slots = cfg->keep_all_slots,
                                 .prefer_survival = cfg->prefer_survival,
                                 .horizon = cfg->horizon,
                                 .batches = cfg->batches,
                                 .costs = cfg->costs};
    d->node_of = ek_arena_alloc(a, (int64_t)mesh->edp * mesh->ep, sizeof(*d->node_of));
    for (int ep_group = 0; ep_group < mesh->edp && d->node_of != NULL; ep_group++)
        number_nodes(mesh, ep_group, d->node_of + (int64_t)ep_group * mesh->ep);
    /* NULL while measuring: every rank is a node, the maximum. */
    d->limits.node_of = d->node_of;
    if (cfg->domain_of != NULL)
        d->domain_of = ek_arena_alloc(a, (int64_t)mesh->edp * mesh->ep, sizeof(*d->domain_of));
    for (int ep_group = 0; ep_group < mesh->edp && d->domain_of != NULL; ep_group++)
        copy_domains(cfg, mesh, ep_group, d->domain_of + (int64_t)ep_group * mesh->ep);
    d->limits.domain_of = d->domain_of;
    ek_planning_speeds_reserve(d, a, cfg, mesh);
    reserve_planners(d, a, cfg);
    if (cfg->replicas_min > 1) {
        ek_replica_sets_reserve(&d->others, a, ek_plan_number_domains(&d->limits, NULL),
                                layers * experts);
        d->others_domain = ek_arena_alloc(a, mesh->ep, sizeof(*d->others_domain));
    }
    if (ek_moe_may_place(cfg))
        ek_plan_reserve(&d->persistent, a, &d->limits);
    d->scratch.primary = ek_arena_alloc(a, experts, sizeof(*d->scratch.primary));
    d->scratch.quota = ek_arena_alloc(a, all, sizeof(*d->scratch.quota));
    d->scratch.counts = ek_arena_alloc(a, (int64_t)mesh->ep * experts, sizeof(*d->scratch.counts));
    d->scratch.split = ek_arena_alloc(a, mesh->ep + all, sizeof(*d->scratch.split));
    d->scratch.slots = ek_arena_alloc(a, all, sizeof(*d->scratch.slots));
    d->scratch.rows = ek_arena_alloc(a, mesh->ep * all, sizeof(*d->scratch.rows));
    if (ek_moe_may_use_previous(cfg)) {
        d->scratch.expert_of = ek_arena_alloc(a, all, sizeof(*d->scratch.expert_of));
        d->scratch.other_quota = ek_arena_alloc(a, all, sizeof(*d->scratch.other_quota));
        ek_late_replicas_reserve(&d->scratch.late, a, &d->limits);
    }
    d->scratch.source_rows =
        ek_arena_alloc(a, (int64_t)mesh->etp * (cfg->degree > 1 ? cfg->degree : 1),
                       sizeof(*d->scratch.source_rows));
}

static ek_moe_next_plan *next_plan_of(const ek_moe *m)
{
    return &m->next_plan[m->planning->planner_at];
}

/* --- counts and plan -------------------------------------------------------------------------- */

/* Sets d->scratch.counts [ep, experts] of a group; an expert rank's are the sum over its shards. */
static void count_assignments(const ek_moe *m, const ek_gate_stats *gate_stats, int ep_group)
{
    const ek_dispatch_layout *x = &m->x;
    ek_moe_planning *d = m->planning;
    int per_ep_group = x->ranks / x->ep_groups;

    memset(d->scratch.counts, 0,
           (size_t)d->limits.ranks * (size_t)x->experts * sizeof(*d->scratch.counts));
    for (int i = 0; i < per_ep_group; i++)
        for (int chunk = 0; chunk < x->token_chunks; chunk++) {
            const ek_gate_stats *rows = gate_stats + (ep_group * per_ep_group + i) * x->words +
                                        ek_gate_stats_rows(x->experts, chunk);
            int64_t *to = d->scratch.counts + (int64_t)(i / x->shards) * x->experts;

            for (int32_t e = 0; e < x->experts; e++)
                to[e] += rows[e].count;
        }
}

/* Scales the quotas of a placement that was made from other counts to d->scratch.counts. */
static ek_status serve_placement(ek_moe *m, int64_t *made_with, ek_plan *p)
{
    ek_moe_planning *d = m->planning;
    ek_plan planned = {.placement = p->placement, .quota = made_with};

    ek_plan_totals(&d->limits, d->scratch.counts, d->scratch.total);
    ek_plan_serve(&d->limits, d->scratch.total, &planned, p->quota);
    return EK_OK;
}

/* Whether the layer has a next plan; not where it is never distributed. */
static int has_next_plan(const ek_moe *m)
{
    return m->next_plan != NULL && m->planning->planner != NULL && m->step->training &&
           next_plan_of(m)->expert_of != NULL;
}

/* Not where slices are gathered, or experts come in waves. */
int ek_routing_plan_compares_previous(const ek_moe *m)
{
    return has_next_plan(m) && m->planning->planner->may_use_previous_counts && m->x.members == 1 &&
           !m->x.local && m->w->waves == NULL;
}

int ek_routing_plan_uses_previous(const ek_moe *m)
{
    return (has_next_plan(m) && m->planning->planner->uses_previous_counts) ||
           ek_routing_plan_compares_previous(m);
}

/* Adds d->scratch.counts to the history for the next persistent placement. */
static void record_history(ek_moe *m)
{
    if (m->history.counts != NULL && m->step->training)
        ek_plan_remember(&m->history, &m->planning->limits, m->planning->scratch.counts);
}

/* A plan for a group, whose placement is its part of expert_of [all slots]; sets the limits. */
static ek_plan begin_plan(ek_moe *m, int ep_group, int32_t *expert_of, int64_t *quota)
{
    const ek_dispatch_layout *x = &m->x;
    ek_moe_planning *d = m->planning;
    int32_t first = ep_group * d->limits.ranks * x->slots;

    for (int32_t e = 0; e < x->experts; e++)
        d->scratch.primary[e] = x->serves[(int64_t)ep_group * x->experts + e] - first;
    set_group_limits(d, ep_group);
    d->limits.layer = m->w->layer;
    d->limits.served = m->served != NULL ? m->served + first : NULL;
    return (ek_plan){
        .placement = {x->experts, d->limits.ranks, x->slots, expert_of + first, d->scratch.primary},
        .quota = quota,
        .explain = d->listener.on_plan != NULL};
}

/* Where experts come into memory in waves, a copy beside its primary would have no weights when
 * replicas' rows are multiplied. */
static ek_status check_waves(const ek_moe *m, const ek_plan *p)
{
    const ek_placement *at = &p->placement;

    for (int32_t s = 0; s < at->ranks * at->slots && m->w->waves != NULL; s++) {
        int32_t e = at->expert_of[s], primary = e >= 0 ? at->primary[e] : s;

        EK_REQUIRE(primary == s || primary / at->slots != s / at->slots, EK_EINVAL,
                   "with experts on disk no replica can be beside its primary: it put expert %d "
                   "into slot %d of expert rank %d",
                   (int)e, (int)s, (int)(s / at->slots));
    }
    return EK_OK;
}

/* Where a rank's last slots are for transient replicas, there is no memory for them in others. */
static ek_status check_transient_slots(const ek_moe *m, int32_t first, const ek_plan *p)
{
    const ek_plan_limits *l = &m->planning->limits;
    const int32_t *kept = m->w->placement.expert_of + first;
    const ek_planner *planner = m->planning->planner;
    int32_t states = l->slots - ek_planner_transient_slots(planner, l);

    for (int32_t s = 0; s < l->ranks * l->slots && ek_planner_fills_slots(planner); s++)
        EK_REQUIRE(s % l->slots >= states || p->placement.expert_of[s] == kept[s], EK_EINVAL,
                   "it put expert %d into slot %d of expert rank %d, which is for persistent "
                   "replicas",
                   (int)p->placement.expert_of[s], (int)(s % l->slots), (int)(s / l->slots));
    return EK_OK;
}

/* Makes the plan of a group for d->scratch.counts. */
static ek_status make_plan(ek_moe *m, int ep_group, ek_plan *p)
{
    const ek_dispatch_layout *x = &m->x;
    ek_moe_planning *d = m->planning;
    int32_t first = ep_group * d->limits.ranks * x->slots;
    int64_t start = ek_clock_ns();
    ek_status st = d->planner->plan_transient != NULL && !d->failed
                       ? d->planner->plan_transient(d->memory, &d->limits, d->scratch.counts, p)
                       : serve_placement(m, m->persistent_quota, p);

    m->stats.plan_s += (double)(ek_clock_ns() - start) * 1e-9;
    m->stats.plans++;
    if (st < 0)
        return st;
    for (int32_t e = 0; e < x->experts; e++)
        EK_REQUIRE(d->scratch.primary[e] == x->serves[(int64_t)ep_group * x->experts + e] - first,
                   EK_EINVAL, "it moved the primary of expert %d", (int)e);
    EK_TRY(ek_placement_check(&p->placement));
    EK_TRY(check_transient_slots(m, first, p));
    return check_waves(m, p);
}

/* --- row counts ------------------------------------------------------------------------------- */

void ek_routing_plan_share_rows(int64_t *left, int32_t n, const int64_t *parts, int32_t n_parts,
                                void (*add)(void *context, int32_t part, int32_t slot,
                                            int64_t rows),
                                void *context)
{
    int64_t all = 0;

    for (int32_t i = 0; i < n; i++)
        all += left[i];
    for (int32_t part = 0; part < n_parts && all > 0; part++) {
        int64_t rest = parts[part];

        for (int32_t i = 0; i < n; i++)
            rest -= left[i] * parts[part] / all;
        for (int32_t i = 0; i < n; i++) { /* slots with a remainder get one more, in order */
            int64_t share = left[i] * parts[part], rows = share / all;

            if (rest > 0 && share % all > 0) {
                rows++;
                rest--;
            }
            left[i] -= rows;
            add(context, part, i, rows);
        }
        all -= parts[part];
    }
}

/* Context of add_row_count: rows for one expert from one expert rank's tokens. */
typedef struct {
    const ek_dispatch_layout *x;
    int32_t *row_counts;
    const int32_t *slots; /* [n], numbered over all groups */
    int source;           /* the first shard */
} target;

static void add_row_count(void *context, int32_t part, int32_t slot, int64_t rows)
{
    target *t = context;
    int source = t->source + part / t->x->token_chunks;

    ek_dispatch_row_counts(t->x, t->row_counts, part % t->x->token_chunks,
                           source)[t->slots[slot]] += (int32_t)rows;
}

/* Splits the rows for an expert from one expert rank, left [n] by slot, over its sources and token
 * chunks. */
static void share_rank_rows(ek_moe *m, const ek_gate_stats *gate_stats, int32_t expert, int source,
                            int64_t *left, int32_t n, int32_t *row_counts)
{
    const ek_dispatch_layout *x = &m->x;
    target t = {x, row_counts, m->planning->scratch.slots, source};

    for (int i = 0; i < x->shards * x->token_chunks; i++)
        m->planning->scratch.source_rows[i] =
            gate_stats[(source + i / x->token_chunks) * x->words +
                       ek_gate_stats_rows(x->experts, i % x->token_chunks) + expert]
                .count;
    ek_routing_plan_share_rows(left, n, m->planning->scratch.source_rows,
                               x->shards * x->token_chunks, add_row_count, &t);
}

/* Sets d->scratch.slots [*n] and d->scratch.rows [ep, *n] of an expert, and checks that they cover
 * its counts. */
static ek_status split_expert(ek_moe *m, const ek_plan *p, int32_t expert, int32_t *n)
{
    ek_moe_planning *d = m->planning;

    *n = ek_plan_split(&d->limits, d->scratch.counts, &p->placement, p->quota, expert,
                       d->scratch.split, d->scratch.slots, d->scratch.rows);
    for (int32_t r = 0; r < d->limits.ranks; r++) {
        int64_t sum = 0, want = d->scratch.counts[(int64_t)r * m->x.experts + expert];

        for (int32_t i = 0; i < *n; i++)
            sum += d->scratch.rows[(int64_t)r * *n + i];
        EK_REQUIRE(sum == want, EK_EINVAL, "it serves %lld of %lld assignments to expert %d",
                   (long long)sum, (long long)want, (int)expert);
    }
    return EK_OK;
}

static void notify_listener(const ek_moe *m, int ep_group, const int64_t *counts, const ek_plan *p)
{
    const ek_moe_planning *d = m->planning;

    if (d->listener.on_plan != NULL)
        d->listener.on_plan(d->listener.context, m->w->layer, ep_group, &d->limits, counts, p);
}

/* The part of a group in what was sent before the gate, or would have been. */
static ek_placement sent_in_group(const ek_moe *m, int ep_group, const ek_placement *p)
{
    ek_placement sent = *p;

    sent.expert_of = next_plan_of(m)->expert_of + (int64_t)ep_group * sent.ranks * sent.slots;
    return sent;
}

/* A plan for d->scratch.counts, of the persistent copies, in the terms of a choice. */
typedef struct {
    ek_moe *m;
    int ep_group;
} fresh_plan;

static ek_status make_fresh_plan(void *context, ek_plan *p)
{
    const fresh_plan *f = context;

    return make_plan(f->m, f->ep_group, p);
}

static ek_early_choice choice_of(ek_moe *m, fresh_plan *fresh, int sent)
{
    ek_moe_planning *d = m->planning;
    const ek_plan *made = &next_plan_of(m)->made[fresh->ep_group];
    int64_t slots = (int64_t)made->placement.ranks * made->placement.slots;

    return (ek_early_choice){.late = &d->scratch.late,
                             .limits = &d->limits,
                             .counts = d->scratch.counts,
                             .persistent = m->w->placement.expert_of + fresh->ep_group * slots,
                             .made = made,
                             .sent = sent,
                             .plan = make_fresh_plan,
                             .context = fresh,
                             .expert_of = d->scratch.expert_of,
                             .quota = d->scratch.other_quota};
}

/* Completes a plan made from the previous micro-batch: quotas for d->scratch.counts in proportion
 * to the plan's. */
static ek_status reuse_previous_plan(ek_moe *m, int ep_group, ek_plan *p)
{
    const ek_plan *made = &next_plan_of(m)->made[ep_group];

    p->before_s = made->before_s;
    p->after_s = made->after_s;
    memcpy(p->reason, made->reason, sizeof(p->reason));
    return serve_placement(
        m, next_plan_of(m)->quota + (int64_t)ep_group * p->placement.ranks * p->placement.slots, p);
}

/* Sets route->late_of of a group, and whether this rank's part of it takes memory in use. */
static void list_late(const ek_moe *m, int ep_group, ek_moe_route *route)
{
    const int32_t *persistent = m->w->placement.expert_of;
    const int32_t *sent = next_plan_of(m)->expert_of;
    int32_t n = m->x.all_slots / m->x.ep_groups;

    for (int32_t s = ep_group * n; s < (ep_group + 1) * n; s++) {
        int here = s >= m->x.first_slot && s < m->x.first_slot + m->x.slots;

        route->late_of[s] = persistent[s] >= 0               ? persistent[s]
                            : route->expert_of[s] != sent[s] ? route->expert_of[s]
                                                             : -1;
        route->overwrites |= here && persistent[s] < 0 && sent[s] >= 0 && route->late_of[s] >= 0;
    }
}

/* Makes the plan of a group for d->scratch.counts, with what was sent before the gate. */
static ek_status plan_with_sent(ek_moe *m, int ep_group, const ek_moe_route *route, ek_plan *p)
{
    fresh_plan fresh = {m, ep_group};
    ek_early_choice choice;

    if (ek_routing_plan_compares_previous(m) && next_plan_of(m)->known) {
        choice = choice_of(m, &fresh, route->sent);
        return ek_early_choose(&choice, &next_plan_of(m)->times, p);
    }
    return route->sent ? reuse_previous_plan(m, ep_group, p) : make_plan(m, ep_group, p);
}

/* Counts a group's replicas, and sets route->late_of. */
static void count_replicas(ek_moe *m, int ep_group, ek_moe_route *route, const ek_placement *p)
{
    int32_t late = route->sent ? 0 : -1;

    if (ek_routing_plan_compares_previous(m) && route->sent) {
        ek_placement sent = sent_in_group(m, ep_group, p);

        list_late(m, ep_group, route);
        late = ek_late_replicas_count(&m->planning->scratch.late, p, &sent).all;
        m->stats.unused += (int64_t)m->x.shards *
                           ek_late_replicas_unused(&m->planning->scratch.late, p, &sent).all;
    }
    ek_routing_traffic_count_replicas(m, p, ep_group, late);
}

static ek_status plan_ep_group(ek_moe *m, const ek_gate_stats *gate_stats, int ep_group,
                               ek_moe_route *route)
{
    const ek_dispatch_layout *x = &m->x;
    ek_moe_planning *d = m->planning;
    int32_t first = ep_group * d->limits.ranks * x->slots;
    int per_ep_group = x->ranks / x->ep_groups;
    ek_plan p = begin_plan(m, ep_group, route->expert_of, d->scratch.quota);

    count_assignments(m, gate_stats, ep_group);
    record_history(m);
    EK_TRY(plan_with_sent(m, ep_group, route, &p));
    for (int32_t e = 0; e < x->experts; e++) {
        int32_t n;

        EK_TRY(split_expert(m, &p, e, &n));
        for (int32_t i = 0; i < n; i++)
            d->scratch.slots[i] += first;
        for (int32_t r = 0; r < d->limits.ranks; r++)
            share_rank_rows(m, gate_stats, e, ep_group * per_ep_group + r * x->shards,
                            d->scratch.rows + (int64_t)r * n, n, route->row_counts);
    }
    count_replicas(m, ep_group, route, &p.placement);
    notify_listener(m, ep_group, d->scratch.counts, &p);
    return EK_OK;
}

/* --- r = 0: every rank serves its own rows ---------------------------------------------------- */

/* Puts the experts that a rank lacks into its empty slots. */
static void fill_empty_slots(const ek_moe *m, int32_t *expert_of)
{
    int32_t e = 0;

    for (int32_t s = 0; s < m->x.slots; s++) {
        if (expert_of[s] >= 0)
            continue;
        while (e < m->x.experts && ek_slot_find(expert_of, m->x.slots, e) >= 0)
            e++;
        if (e < m->x.experts)
            expert_of[s] = e++;
    }
}

/* Assigns each source's rows to the slots of its own rank. */
static void set_local_rows(ek_moe *m, const ek_gate_stats *gate_stats, ek_moe_route *route)
{
    const ek_dispatch_layout *x = &m->x;

    memset(route->row_counts, 0,
           (size_t)x->token_chunks * (size_t)x->ranks * (size_t)x->all_slots *
               sizeof(*route->row_counts));
    for (int chunk = 0; chunk < x->token_chunks; chunk++)
        for (int source = 0; source < x->ranks; source++) {
            const ek_gate_stats *count =
                gate_stats + source * x->words + ek_gate_stats_rows(x->experts, chunk);
            int32_t first = source / x->shards * x->slots;
            int32_t *to = ek_dispatch_row_counts(x, route->row_counts, chunk, source);

            for (int32_t s = first; s < first + x->slots; s++)
                if (route->expert_of[s] >= 0)
                    to[s] = (int32_t)count[route->expert_of[s]].count;
        }
}

static void fill_all_ranks(const ek_moe *m, int32_t *expert_of)
{
    for (int32_t r = 0; r < m->w->placement.ranks; r++)
        fill_empty_slots(m, expert_of + r * m->x.slots);
}

/* Tutel's r = 0: every rank holds every expert. */
static void plan_local_rows(ek_moe *m, const ek_gate_stats *gate_stats, ek_moe_route *route)
{
    int32_t ranks = m->w->placement.ranks / m->x.ep_groups;

    fill_all_ranks(m, route->expert_of);
    set_local_rows(m, gate_stats, route);
    for (int ep_group = 0; ep_group < m->x.ep_groups && m->history.counts != NULL; ep_group++) {
        count_assignments(m, gate_stats, ep_group);
        record_history(m);
    }
    for (int ep_group = 0; ep_group < m->x.ep_groups; ep_group++) {
        ek_placement p = {.experts = m->x.experts,
                          .ranks = ranks,
                          .slots = m->x.slots,
                          .expert_of = route->expert_of + ep_group * ranks * m->x.slots,
                          .primary = m->w->placement.primary};

        ek_routing_traffic_count_replicas(m, &p, ep_group, -1);
    }
}

static void copy_placement(const ek_moe *m, int32_t *expert_of)
{
    const ek_placement *p = &m->w->placement;

    memcpy(expert_of, p->expert_of, (size_t)m->x.all_slots * sizeof(*p->expert_of));
}

static ek_status plan_ep_groups(ek_moe *m, const ek_gate_stats *gate_stats, ek_moe_route *route)
{
    const ek_dispatch_layout *x = &m->x;

    memset(route->row_counts, 0,
           (size_t)x->token_chunks * (size_t)x->ranks * (size_t)x->all_slots *
               sizeof(*route->row_counts));
    for (int ep_group = 0; ep_group < x->ep_groups; ep_group++)
        EK_TRY(plan_ep_group(m, gate_stats, ep_group, route));
    return EK_OK;
}

void ek_routing_plan_give_up(ek_moe *m)
{
    m->planning->failed = 1;
    if (m->mesh->at == 0)
        ek_log("balance", EK_LOG_WARN,
               "layer %d: planner %s failed: %s; training continues without it", m->w->layer,
               m->planning->planner->name, ek_err_message());
}

void ek_routing_plan_reset_other_layers(ek_moe *m)
{
    ek_moe_planning *d = m->planning;

    if (d->others.capacity == 0)
        return;
    set_group_limits(d, 0);
    ek_plan_number_domains(&d->limits, d->others_domain);
    ek_replica_sets_clear(&d->others);
    d->limits.others = &d->others;
}

void ek_routing_plan_add_other_layer(ek_moe *m, const ek_placement *p)
{
    ek_moe_planning *d = m->planning;
    ek_placement first = *p; /* the first group's; the others are alike */

    first.ranks = d->limits.ranks;
    if (d->others.capacity > 0)
        ek_replica_sets_add_placement(&d->others, &first, d->others_domain, d->limits.replicas_min);
}

ek_status ek_routing_plan_persistent(ek_moe *m)
{
    ek_moe_planning *d = m->planning;
    ek_placement now = m->w->placement; /* the first group's; the others are alike */
    int64_t start = ek_clock_ns(), horizon = d->limits.horizon;
    ek_status st;

    now.ranks = d->limits.ranks;
    ek_placement_copy(&d->persistent.placement, &now);
    set_group_limits(d, 0);
    if (d->speeds.differ)
        d->limits.row_cost = d->mean_cost;
    d->limits.layer = m->w->layer;
    d->persistent.of = m->history.of;
    d->persistent.explain =
        d->listener.on_plan != NULL || (m->mesh->at == 0 && ek_log_is_enabled(EK_LOG_DEBUG));
    d->limits.horizon = ek_plan_horizon(&m->history, &d->limits);
    st = d->planner->plan_persistent(d->memory, &d->limits, m->history.counts, &d->persistent);
    d->limits.horizon = horizon;
    if (st == EK_OK)
        st = ek_plan_check(&d->limits, m->history.counts, &d->persistent);
    m->stats.plan_s += (double)(ek_clock_ns() - start) * 1e-9;
    m->stats.plans++;
    if (st == EK_OK && d->persistent.explain) {
        notify_listener(m, -1, m->history.counts, &d->persistent);
        ek_log("balance", EK_LOG_DEBUG, "layer %d: %s: %s", m->w->layer, d->planner->name,
               d->persistent.reason);
    }
    return st;
}

/* Takes back what a failed plan has put into slots. */
static void drop_late(const ek_moe *m, ek_moe_route *route)
{
    if (!route->sent) {
        copy_placement(m, route->expert_of);
    } else if (ek_routing_plan_compares_previous(m)) {
        memcpy(route->expert_of, next_plan_of(m)->expert_of,
               (size_t)m->x.all_slots * sizeof(*route->expert_of));
        copy_placement(m, route->late_of);
        route->overwrites = 0;
    }
}

void ek_routing_plan_make(ek_moe *m, const ek_gate_stats *gate_stats, ek_moe_route *route)
{
    ek_moe_planning *d = m->planning;
    /* Planners are for training only.  A persistent placement is served even if its planner has
     * failed since, by the quotas that it was made with. */
    int plans = d->planner != NULL && m->step->training && !m->x.local && !d->unfit &&
                (ek_planner_fills_slots(d->planner) || !d->failed);

    ek_routing_traffic_begin(m);
    if (!ek_routing_plan_uses_previous(m)) /* else op_prefetch has set it */
        route->sent = 0;
    if (!route->sent)
        copy_placement(m, route->expert_of);
    if (plans && plan_ep_groups(m, gate_stats, route) < 0) {
        ek_routing_plan_give_up(m);
        d->unfit = 1;
        plans = 0;
        drop_late(m, route);
    }
    if (ek_routing_plan_compares_previous(m))
        ek_early_judge(&next_plan_of(m)->times);
    if (m->x.local)
        plan_local_rows(m, gate_stats, route);
    else if (!plans)
        ek_dispatch_default_rows(&m->x, gate_stats, route->row_counts);
    ek_routing_traffic_add(m, route, plans || m->x.local);
}

/* --- plans from the previous micro-batch ------------------------------------------------------ */

/* Reads nothing that another layer's planning may write meanwhile: ranks must decide alike. */
void ek_routing_plan_use_previous(ek_moe *m, ek_moe_route *route)
{
    ek_moe_next_plan *a = next_plan_of(m);

    if (a->known && !ek_early_is_current(m->w->placement.expert_of, a->expert_of, m->x.all_slots)) {
        a->known = 0;
        memset(a->quota, 0, (size_t)m->x.all_slots * sizeof(*a->quota));
    }
    route->sent = !ek_routing_plan_compares_previous(m) || (a->known && ek_early_pays(&a->times));
    if (m->x.local || !a->known || !route->sent)
        copy_placement(m, route->expert_of);
    else
        memcpy(route->expert_of, a->expert_of, (size_t)m->x.all_slots * sizeof(*a->expert_of));
    if (m->x.local)
        fill_all_ranks(m, route->expert_of);
    copy_placement(m, route->late_of);
    route->overwrites = 0;
}

static ek_status plan_next_groups(ek_moe *m, const ek_gate_stats *gate_stats)
{
    for (int ep_group = 0; ep_group < m->x.ep_groups; ep_group++) {
        int64_t *quota =
            next_plan_of(m)->quota + (int64_t)ep_group * m->planning->limits.ranks * m->x.slots;
        ek_plan p = begin_plan(m, ep_group, next_plan_of(m)->expert_of, quota);

        count_assignments(m, gate_stats, ep_group);
        EK_TRY(make_plan(m, ep_group, &p));
        EK_TRY(ek_plan_check(&m->planning->limits, m->planning->scratch.counts, &p));
        next_plan_of(m)->made[ep_group] = p;
    }
    return EK_OK;
}

void ek_routing_plan_from_previous(ek_moe *m, const ek_gate_stats *gate_stats)
{
    ek_moe_next_plan *a = next_plan_of(m);

    a->known = 0;
    if (m->planning->failed)
        return;
    copy_placement(m, a->expert_of);
    if (plan_next_groups(m, gate_stats) < 0)
        ek_routing_plan_give_up(m);
    else
        a->known = 1;
}
