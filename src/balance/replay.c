/* Replay of a trace: one placement per layer, planned and evaluated iteration by iteration. */
#include "balance/replay.h"

#include "balance/early_replicas.h"
#include "balance/plan_time.h"
#include "base/clock.h"
#include "base/sort.h"
#include "placement/survivability.h"

#include <math.h>
#include <string.h>

/* Deviations below this are rounding. */
static const double rounding = 0.5;

/* A layer's replicas before the gate. */
typedef struct {
    ek_plan made; /* from the counts of the micro-batch before */
    int known;
    ek_early_times times;
} forecast;

typedef struct {
    const ek_trace *t;
    const ek_replay_config *cfg;
    ek_plan_limits l;
    ek_arena arena;
    void *planner;          /* memory of the planner */
    int64_t *counts, *seen; /* [ranks][experts] of the iteration; of the plan */
    int64_t *total, *load;  /* [experts], [ranks] */
    int64_t *memory;        /* scratch of ek_plan_time */
    int32_t *slots;         /* scratch of ek_plan_time */
    ek_plan plan, served;   /* as planned; with quotas for the iteration's counts */
    ek_plan *kept;          /* [layers] the persistent placement and its quotas */
    ek_plan_history *past;  /* [layers]; NULL: see plans_from_past */
    forecast *forecasts;    /* [layers]; NULL: replicas are planned after the gate */
    ek_plan fresh, other;   /* then: from the micro-batch's counts; scratch */
    int64_t fresh_ns;       /* time of such plans of a layer, */
    int64_t n_fresh;        /* and their number */
    ek_late_replicas late;
    ek_placement sent;
    ek_replay_replicas replicas;
    int64_t iteration;
    double *us, *rb;              /* [plans] */
    ek_replica_sets replica_sets; /* replica sets of the persistent placements */
    ek_replica_sets others;       /* the same without the layer being planned */
    int32_t *domain_of;           /* [ranks] numbered from 0 */
    ek_apportion_scratch scale;   /* with weight [2 experts], of ek_trace_scale */
    int64_t *weight;
    double before_s, after_s, bytes;
} replay;

/* Whether plan_persistent runs on the counts of the iterations before. */
static int plans_from_past(const ek_replay_config *cfg)
{
    return cfg->history == NULL && cfg->planner->plan_persistent != NULL &&
           cfg->planner->plan_transient != NULL;
}

static int makes_forecasts(const ek_replay_config *cfg)
{
    return cfg->forecasts && cfg->planner->may_use_previous_counts;
}

static void reserve_forecasts(replay *r)
{
    ek_arena *a = &r->arena;

    r->forecasts = ek_arena_alloc(a, r->t->layers, sizeof(*r->forecasts));
    for (int64_t i = 0; i < r->t->layers; i++) {
        ek_plan measured;

        ek_plan_reserve(r->forecasts != NULL ? &r->forecasts[i].made : &measured, a, &r->l);
    }
    ek_plan_reserve(&r->fresh, a, &r->l);
    ek_plan_reserve(&r->other, a, &r->l);
    ek_placement_reserve(&r->sent, a, r->l.experts, r->l.ranks, r->l.slots);
    ek_late_replicas_reserve(&r->late, a, &r->l);
}

static void reserve_arrays(replay *r)
{
    const ek_plan_limits *l = &r->l;
    int64_t table = (int64_t)l->ranks * l->experts, slots = (int64_t)l->ranks * l->slots;
    int64_t plans = r->t->iterations * r->t->layers;
    ek_arena *a = &r->arena;

    r->planner = ek_planner_reserve(r->cfg->planner, a, l);
    r->counts = ek_arena_alloc(a, table, sizeof(*r->counts));
    r->seen = ek_arena_alloc(a, table, sizeof(*r->seen));
    r->total = ek_arena_alloc(a, l->experts, sizeof(*r->total));
    r->load = ek_arena_alloc(a, l->ranks, sizeof(*r->load));
    r->memory = ek_arena_alloc(a, 4 * l->ranks + (l->ranks + 1) * slots, sizeof(*r->memory));
    r->slots = ek_arena_alloc(a, slots, sizeof(*r->slots));
    ek_plan_reserve(&r->plan, a, l);
    ek_plan_reserve(&r->served, a, l);
    r->kept = ek_arena_alloc(a, r->t->layers, sizeof(*r->kept));
    for (int64_t i = 0; i < r->t->layers; i++) {
        ek_plan measured;

        ek_plan_reserve(r->kept != NULL ? &r->kept[i] : &measured, a, l);
    }
    if (plans_from_past(r->cfg))
        r->past = ek_arena_alloc(a, r->t->layers, sizeof(*r->past));
    for (int64_t i = 0; plans_from_past(r->cfg) && i < r->t->layers; i++) {
        ek_plan_history measured;

        ek_plan_history_reserve(r->past != NULL ? &r->past[i] : &measured, a, l);
    }
    if (makes_forecasts(r->cfg))
        reserve_forecasts(r);
    ek_replica_sets_reserve(&r->replica_sets, a, ek_plan_number_nodes(l, NULL),
                            r->t->layers * l->experts);
    ek_replica_sets_reserve(&r->others, a, ek_plan_number_domains(l, NULL),
                            r->t->layers * l->experts);
    r->domain_of = ek_arena_alloc(a, l->ranks, sizeof(*r->domain_of));
    ek_apportion_reserve(&r->scale, a, l->experts);
    r->weight = ek_arena_alloc(a, 2 * l->experts, sizeof(*r->weight));
    r->us = ek_arena_alloc(a, plans, sizeof(*r->us));
    r->rb = ek_arena_alloc(a, plans, sizeof(*r->rb));
}

static ek_status reserve_replay(replay *r)
{
    ek_arena_measure(&r->arena);
    reserve_arrays(r);
    EK_TRY(ek_arena_check(&r->arena, "the replay of a trace"));
    EK_TRY(ek_arena_reserve(&r->arena, "the replay of a trace"));
    reserve_arrays(r);
    for (int64_t i = 0; i < r->t->layers; i++)
        ek_placement_block(&r->kept[i].placement, 1);
    return ek_arena_check(&r->arena, "the replay of a trace");
}

/* --- measures --------------------------------------------------------------------------------- */

typedef struct {
    double max_over_mean, deviation;
} spread;

static spread spread_of(replay *r, const ek_plan *p)
{
    double mean = 0, sum = 0, unit = (double)ek_row_cost_unit(&r->l), most;
    int64_t all = 0;

    (void)ek_plan_loads(&r->l, p, r->load);
    most = (double)ek_row_costs_largest(&r->l, r->load);
    for (int32_t i = 0; i < r->l.ranks; i++) {
        all += r->load[i];
        r->load[i] *= ek_row_cost(&r->l, i);
        mean += (double)r->load[i] / r->l.ranks;
    }
    for (int32_t i = 0; i < r->l.ranks; i++)
        sum += ((double)r->load[i] - mean) * ((double)r->load[i] - mean);
    if (r->l.row_cost != NULL)
        mean = ek_row_costs_mean(&r->l, all);
    return (spread){mean > 0 ? most / mean : 1, sqrt(sum / r->l.ranks) / unit};
}

/* The q-quantile of n values; sorts them. */
static double quantile(double *x, int64_t n, double q)
{
    ek_sort_reals(x, n);
    return n > 0 ? x[(int64_t)(q * (double)(n - 1) + 0.5)] : 0;
}

/* Whether a rank held an expert. */
static int held_expert(const ek_placement *before, int32_t rank, int32_t expert)
{
    return ek_plan_slot(before, rank, expert) >= 0;
}

/* Bytes of replicas: weights out and gradients back. */
static double replica_bytes_of(const replay *r)
{
    double bytes = 0;

    for (int32_t s = 0; s < r->l.ranks * r->l.slots; s++)
        bytes += ek_plan_is_replica(&r->plan.placement, s) ? r->l.costs.replica_bytes : 0;
    return bytes;
}

/* Bytes of the state of experts that a persistent placement puts on ranks that did not hold them.
 */
static double moved_bytes(const replay *r, const ek_placement *before)
{
    const ek_placement *now = &r->plan.placement;
    double bytes = 0;

    for (int32_t s = 0; s < r->l.ranks * r->l.slots; s++) {
        int32_t e = now->expert_of[s];

        if (e >= 0 && !held_expert(before, s / r->l.slots, e))
            bytes += r->l.costs.state_bytes;
    }
    return bytes;
}

/* --- one layer of one iteration --------------------------------------------------------------- */

/* The unbalanced case: primary copies only, in block order. */
static spread evaluate_before(replay *r)
{
    ek_placement_block(&r->served.placement, 1);
    ek_plan_totals(&r->l, r->counts, r->total);
    ek_plan_primaries_only(&r->l, r->total, &r->served);
    r->before_s += ek_plan_time(&r->l, r->counts, &r->served, r->memory, r->slots);
    return spread_of(r, &r->served);
}

/* Sets limits.others: the replica sets of the other layers. */
static void set_others(replay *r, int64_t layer)
{
    if (r->l.replicas_min <= 1)
        return;
    ek_plan_number_domains(&r->l, r->domain_of);
    ek_replica_sets_clear(&r->others);
    for (int64_t o = 0; o < r->t->layers; o++)
        if (o != layer)
            ek_replica_sets_add_placement(&r->others, &r->kept[o].placement, r->domain_of,
                                          r->l.replicas_min);
    r->l.others = &r->others;
}

/* Makes a persistent placement of a layer, from the sums of `of` micro-batches, to serve `horizon`.
 */
static ek_status place_layer(replay *r, int64_t layer, const int64_t *counts, int64_t of,
                             int64_t horizon)
{
    ek_placement *kept = &r->kept[layer].placement;
    ek_plan_limits l;

    r->plan.of = of;
    set_others(r, layer);
    l = r->l;
    l.horizon = horizon;
    EK_TRY(r->cfg->planner->plan_persistent(r->planner, &l, counts, &r->plan));
    r->bytes += moved_bytes(r, kept);
    ek_placement_copy(kept, &r->plan.placement);
    memcpy(r->kept[layer].reason, r->plan.reason, sizeof(r->plan.reason));
    return EK_OK;
}

static int64_t batches_of(const replay *r)
{
    return r->cfg->batches > 0 ? r->cfg->batches : 1;
}

/* The limits with the horizon in iterations, in which the past is counted. */
static ek_plan_limits limits_of_past(const replay *r)
{
    ek_plan_limits l = r->l;

    l.horizon = (l.horizon + batches_of(r) - 1) / batches_of(r);
    return l;
}

static ek_status place_from_past(replay *r, int64_t layer)
{
    ek_plan_history *h = &r->past[layer];
    ek_plan_limits l = limits_of_past(r);
    int due = ek_plan_due(h, &l), enforces = r->cfg->planner->enforces_replicas_min;
    int64_t horizon = ek_plan_horizon(h, &l);

    if (h->of == 0 && enforces) /* the first replicas are not to wait */
        return place_layer(r, layer, r->seen, 1, r->l.horizon);
    if (!due && (enforces || l.horizon == 0 || h->of != 1)) /* as training after its first step */
        return EK_OK;
    return place_layer(r, layer, h->counts, h->of, horizon * batches_of(r));
}

static ek_status plan_persistent(replay *r, int64_t layer)
{
    if (r->past != NULL)
        return place_from_past(r, layer);
    return r->cfg->history == NULL ? place_layer(r, layer, r->seen, 1, r->l.horizon) : EK_OK;
}

/* --- replicas before the gate ----------------------------------------------------------------- */

/* What a forecast has of a plan. */
static void copy_forecast(ek_plan *to, const ek_plan *from)
{
    ek_placement_copy(&to->placement, &from->placement);
    memcpy(to->reason, from->reason, sizeof(to->reason));
    to->before_s = from->before_s;
    to->after_s = from->after_s;
}

/* The planner's from r->seen, which is the forecast of the next micro-batch, too. */
static ek_status plan_fresh(void *context, ek_plan *p)
{
    replay *r = context;
    int64_t start = ek_clock_ns();

    EK_TRY(r->cfg->planner->plan_transient(r->planner, &r->l, r->seen, p));
    r->fresh_ns += ek_clock_ns() - start;
    r->n_fresh++;
    copy_forecast(&r->fresh, p);
    return EK_OK;
}

static void keep_forecast(const replay *r, forecast *f)
{
    copy_forecast(&f->made, &r->fresh);
    f->known = 1;
}

/* Counts the replicas of r->plan, as many times as micro-batches are alike; sent: those in r->sent
 * were sent before the gate. */
static void count_replicas(replay *r, const ek_placement *kept, int sent, int64_t times)
{
    const ek_placement *p = &r->plan.placement;
    ek_replay_replicas *n = &r->replicas;
    int64_t transient = 0, all = 0;

    for (int32_t s = 0; s < r->l.ranks * r->l.slots; s++) {
        int is = ek_plan_is_replica(p, s);

        all += is;
        transient += is && kept->expert_of[s] < 0;
    }
    n->replicas += times * all;
    n->transient += times * transient;
    n->sent = sent ? &r->sent : NULL;
    if (r->cfg->planner->uses_previous_counts) /* and nothing is added */
        n->ahead += times * transient;
    if (!sent)
        return;
    n->ahead += times * (transient - ek_late_replicas_count(&r->late, p, &r->sent).all);
    n->unused += times * ek_late_replicas_unused(&r->late, p, &r->sent).all;
}

/* One micro-batch for r->seen, as ek_routing_plan_use_previous and what follows it in training. */
static ek_status plan_micro(replay *r, int64_t layer, int sent)
{
    forecast *f = &r->forecasts[layer];
    const ek_placement *kept = &r->kept[layer].placement;
    ek_early_choice c = {.late = &r->late,
                         .limits = &r->l,
                         .counts = r->seen,
                         .persistent = kept->expert_of,
                         .made = &f->made,
                         .sent = sent,
                         .plan = plan_fresh,
                         .context = r,
                         .expert_of = r->other.placement.expert_of,
                         .quota = r->other.quota};

    ek_placement_copy(&r->plan.placement, sent ? &f->made.placement : kept);
    if (!f->known)
        return plan_fresh(r, &r->plan);
    EK_TRY(ek_early_choose(&c, &f->times, &r->plan));
    ek_placement_copy(&r->sent, &f->made.placement);
    return EK_OK;
}

static ek_status tell_first(replay *r, int64_t layer)
{
    ek_replay_replicas first = r->replicas;

    first.first = 1;
    if (r->cfg->each == NULL)
        return EK_OK;
    EK_TRY(ek_plan_check(&r->l, r->counts, &r->plan));
    return r->cfg->each(r->cfg->context, r->iteration, layer, r->counts, &r->plan, &first);
}

/* All micro-batches of an iteration.  From the second on they have the same counts and forecast, so
 * that those that go the same way are alike. */
static ek_status plan_micros(replay *r, int64_t layer)
{
    forecast *f = &r->forecasts[layer];
    const ek_placement *kept = &r->kept[layer].placement;
    int64_t slots = (int64_t)r->l.ranks * r->l.slots;
    ek_early_times now = {0};
    int before = -1; /* the way of the micro-batch before */

    f->known = f->known && ek_early_is_current(kept->expert_of, f->made.placement.expert_of, slots);
    memcpy(f->made.placement.primary, kept->primary, (size_t)r->l.experts * sizeof(*kept->primary));
    if (r->t->iterations == 1) { /* as if there had been one like it */
        ek_placement_copy(&r->plan.placement, kept);
        EK_TRY(plan_fresh(r, &r->plan));
        keep_forecast(r, f);
    }
    for (int64_t i = 0; i < batches_of(r); i++) {
        int sent = f->known && ek_early_pays(&f->times);

        if (i < 2 || sent != before) {
            EK_TRY(plan_micro(r, layer, sent));
        } else {
            f->times.now_before_s = now.now_before_s;
            f->times.now_after_s = now.now_after_s;
        }
        now = f->times;
        ek_early_judge(&f->times);
        count_replicas(r, kept, sent, 1);
        if (i == 0 && batches_of(r) > 1)
            EK_TRY(tell_first(r, layer));
        keep_forecast(r, f);
        before = sent;
    }
    return EK_OK;
}

/* --- one layer -------------------------------------------------------------------------------- */

static ek_status plan_transient(replay *r, int64_t layer)
{
    if (r->forecasts != NULL)
        return plan_micros(r, layer);
    EK_TRY(r->cfg->planner->plan_transient(r->planner, &r->l, r->seen, &r->plan));
    count_replicas(r, &r->kept[layer].placement, 0, batches_of(r));
    return EK_OK;
}

static ek_status make_plan(replay *r, int64_t layer, double *us)
{
    const ek_planner *planner = r->cfg->planner;
    int64_t start;

    ek_placement_copy(&r->plan.placement, &r->kept[layer].placement);
    start = ek_clock_ns();
    r->replicas = (ek_replay_replicas){0};
    r->fresh_ns = r->n_fresh = 0;
    if (planner->plan_persistent != NULL)
        EK_TRY(plan_persistent(r, layer));
    if (planner->plan_transient != NULL) {
        EK_TRY(plan_transient(r, layer));
    } else if (r->cfg->history != NULL) { /* quotas of the persistent placement */
        ek_plan_totals(&r->l, r->seen, r->total);
        ek_plan_serve(&r->l, r->total, &r->kept[layer], r->plan.quota);
        memcpy(r->plan.reason, r->kept[layer].reason, sizeof(r->plan.reason));
    }
    *us = (double)(ek_clock_ns() - start) * 1e-3;
    if (r->n_fresh > 0) /* without what decides between two of them */
        *us = (double)r->fresh_ns * 1e-3 / (double)r->n_fresh;
    if (planner->plan_transient == NULL)
        count_replicas(r, &r->plan.placement, 0, batches_of(r));
    r->bytes += replica_bytes_of(r);
    if (r->past != NULL) {
        ek_plan_limits l = limits_of_past(r);

        ek_plan_remember(&r->past[layer], &l, r->seen);
    }
    return ek_plan_check(&r->l, r->seen, &r->plan);
}

static void read_counts(const replay *r, const ek_trace *t, int64_t iteration, int64_t layer,
                        int64_t *counts)
{
    ek_trace_counts(t, iteration, layer, r->l.ranks, counts);
    if (r->cfg->tokens > 0)
        ek_trace_scale(&r->scale, r->l.ranks, r->l.experts, r->cfg->tokens, r->cfg->top_k,
                       r->weight, counts);
}

/* Makes the persistent placements of all layers from `history`. */
static ek_status place_all_layers(replay *r, ek_replay_result *out)
{
    const ek_trace *h = r->cfg->history;
    int64_t table = (int64_t)r->l.ranks * r->l.experts;

    for (int64_t layer = 0; layer < r->t->layers; layer++) {
        int64_t start;

        memset(r->seen, 0, (size_t)table * sizeof(*r->seen));
        for (int64_t i = 0; i < h->iterations; i++) {
            read_counts(r, h, i, layer, r->counts);
            for (int64_t c = 0; c < table; c++)
                r->seen[c] += r->counts[c];
        }
        ek_placement_copy(&r->plan.placement, &r->kept[layer].placement);
        start = ek_clock_ns();
        EK_TRY(place_layer(r, layer, r->seen, h->iterations, r->l.horizon));
        out->persistent_us += (double)(ek_clock_ns() - start) * 1e-3 / (double)r->t->layers;
        memcpy(r->kept[layer].quota, r->plan.quota,
               (size_t)(r->l.ranks * r->l.slots) * sizeof(*r->plan.quota));
    }
    return EK_OK;
}

/* Weighted loads must not overflow. */
static ek_status check_sums(const replay *r)
{
    int64_t sum = 0;

    for (int64_t c = 0; c < (int64_t)r->l.ranks * r->l.experts; c++)
        sum += r->counts[c];
    EK_REQUIRE(r->l.row_cost == NULL || sum <= (int64_t)1 << 48, EK_EINVAL,
               "%lld assignments in a layer are too many where ranks differ in speed",
               (long long)sum);
    return EK_OK;
}

static ek_status replay_layer(replay *r, int64_t iteration, int64_t layer, ek_replay_result *out)
{
    spread before, after;

    r->iteration = iteration;
    read_counts(r, r->t, iteration, layer, r->counts);
    read_counts(r, r->t, iteration - r->cfg->lag, layer, r->seen);
    EK_TRY(check_sums(r));
    before = evaluate_before(r);
    EK_TRY(make_plan(r, layer, &r->us[out->plans]));
    ek_placement_copy(&r->served.placement, &r->plan.placement);
    ek_plan_totals(&r->l, r->counts, r->total);
    ek_plan_serve(&r->l, r->total, &r->plan, r->served.quota);
    r->served.before_s = r->plan.before_s;
    r->served.after_s = r->plan.after_s;
    memcpy(r->served.reason, r->plan.reason, sizeof(r->served.reason));
    if (r->cfg->planner->plan_transient != NULL)
        memcpy(r->served.primary_reason, r->kept[layer].reason, sizeof(r->served.primary_reason));
    EK_TRY(ek_plan_check(&r->l, r->counts, &r->served));
    after = spread_of(r, &r->served);
    r->after_s += ek_plan_time(&r->l, r->counts, &r->served, r->memory, r->slots);
    r->rb[out->plans++] = fmax(before.deviation, rounding) / fmax(after.deviation, rounding);
    out->before += before.max_over_mean;
    out->mean += after.max_over_mean;
    out->worst = fmax(out->worst, after.max_over_mean);
    return r->cfg->each != NULL ? r->cfg->each(r->cfg->context, iteration, layer, r->counts,
                                               &r->served, &r->replicas)
                                : EK_OK;
}

/* Collects the replica sets of all layers, by nodes or failure domains. */
static void find_replica_sets(replay *r,
                              int32_t (*group)(const ek_plan_limits *l, int32_t *of_rank))
{
    ek_replica_sets_clear(&r->replica_sets);
    r->replica_sets.domains = group(&r->l, r->domain_of);
    for (int64_t layer = 0; layer < r->t->layers; layer++)
        ek_replica_sets_add_placement(&r->replica_sets, &r->kept[layer].placement, r->domain_of, 0);
}

static void evaluate_survivability(replay *r, ek_replay_result *out)
{
    const ek_replica_sets *h = &r->replica_sets;

    if (r->l.domain_of != NULL) {
        find_replica_sets(r, ek_plan_number_domains);
        ek_replica_sets_text(h, "rack", out->racks_text, sizeof(out->racks_text));
    }
    find_replica_sets(r, ek_plan_number_nodes);
    out->nodes = h->domains;
    out->survives = ek_replica_sets_survive(h);
    for (int32_t k = 1; k <= EK_REPLAY_LOST && k <= h->domains; k++)
        out->survivability[k - 1] = ek_replica_sets_survivability(h, k).p;
    ek_replica_sets_text(h, "node", out->survivability_text, sizeof(out->survivability_text));
}

static void finish_result(replay *r, ek_replay_result *out)
{
    double n = (double)out->plans;

    out->before /= n;
    out->mean /= n;
    out->bytes = r->bytes / n;
    out->us_median = quantile(r->us, out->plans, 0.5);
    out->us_p99 = quantile(r->us, out->plans, 0.99);
    out->rb_median = quantile(r->rb, out->plans, 0.5);
    out->speedup = r->after_s > 0 ? r->before_s / r->after_s : 1;
}

ek_status ek_replay(const ek_trace *t, const ek_replay_config *cfg, ek_replay_result *out)
{
    replay r = {.t = t, .cfg = cfg, .l = cfg->limits};
    ek_status st = EK_OK;

    memset(out, 0, sizeof(*out));
    EK_REQUIRE(t->experts == cfg->limits.experts, EK_EINVAL,
               "the trace has %lld experts, the plan is for %d", (long long)t->experts,
               (int)cfg->limits.experts);
    EK_REQUIRE(cfg->limits.ranks > 0 &&
                   cfg->limits.slots >= (t->experts + cfg->limits.ranks - 1) / cfg->limits.ranks,
               EK_EINVAL, "%d ranks of %d slots cannot hold %lld experts", (int)cfg->limits.ranks,
               (int)cfg->limits.slots, (long long)t->experts);
    EK_REQUIRE(cfg->lag >= 0 && cfg->lag < t->iterations, EK_EINVAL,
               "a lag of %lld iterations, and the trace has %lld", (long long)cfg->lag,
               (long long)t->iterations);
    EK_REQUIRE(!makes_forecasts(cfg) || cfg->lag == 0, EK_EINVAL,
               "a lag of %lld iterations, with plans from the micro-batch before",
               (long long)cfg->lag);
    EK_REQUIRE(cfg->history == NULL ||
                   (cfg->history->layers == t->layers && cfg->history->experts == t->experts),
               EK_EINVAL, "the history has %lld layers of %lld experts, the trace %lld of %lld",
               (long long)cfg->history->layers, (long long)cfg->history->experts,
               (long long)t->layers, (long long)t->experts);
    EK_TRY_OUT(reserve_replay(&r));
    r.plan.explain = cfg->each != NULL;
    if (cfg->history != NULL && cfg->planner->plan_persistent != NULL)
        EK_TRY_OUT(place_all_layers(&r, out));
    for (int64_t i = cfg->lag; i < t->iterations; i++)
        for (int64_t layer = 0; layer < t->layers; layer++)
            EK_TRY_OUT(replay_layer(&r, i, layer, out));
    finish_result(&r, out);
    evaluate_survivability(&r, out);
out:
    ek_arena_fini(&r.arena);
    return st;
}
