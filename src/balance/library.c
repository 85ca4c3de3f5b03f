/* Implements evenkeel/balance.h: memory, argument checks, persistent placement between calls. */
#include "evenkeel/balance.h"

#include "balance/custom_planner.h"
#include "balance/row_costs.h"
#include "base/entry.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SIZE_MAX_32 = 1 << 20 };

/* Limits for the sum of counts, without and with costs of ranks; no sum overflows. */
static const int64_t counts_max = (int64_t)1 << 62, counts_max_weighted = (int64_t)1 << 48;

struct ek_balance {
    const ek_planner *planner;
    ek_plan_limits l;
    ek_arena arena;
    void *memory;
    int32_t *node_of;
    int32_t *row_cost;     /* [ranks] */
    int64_t *total;        /* [experts] */
    ek_plan plan, served;  /* the last plan; its quotas for other counts */
    ek_placement base;     /* the persistent placement, from which the next plan starts */
    ek_plan_history past;  /* for planners with plan_persistent and plan_transient */
    int placed;            /* plan_persistent has placed replicas for the first time */
    int64_t *split, *rows; /* scratch of ek_plan_split */
    int32_t *slots;
};

const char *ek_balance_policy(int i)
{
    const ek_planner *p;
    int built_in = 0;

    if (i < 0)
        return NULL;
    while (built_in < i && ek_planners[built_in] != NULL)
        built_in++;
    p = ek_planners[built_in] != NULL ? ek_planners[built_in] : ek_custom_planner_at(i - built_in);
    return p != NULL ? p->name : NULL;
}

static int has_both(const ek_balance *b)
{
    return b->planner->plan_persistent != NULL && b->planner->plan_transient != NULL;
}

static void reserve_arrays(ek_balance *b)
{
    ek_plan_limits *l = &b->l;
    int64_t slots = (int64_t)l->ranks * l->slots;
    ek_arena *a = &b->arena;

    b->node_of = ek_arena_alloc(a, l->ranks, sizeof(*b->node_of));
    b->row_cost = ek_arena_alloc(a, l->ranks, sizeof(*b->row_cost));
    b->memory = ek_planner_reserve(b->planner, a, l);
    b->total = ek_arena_alloc(a, l->experts, sizeof(*b->total));
    ek_plan_reserve(&b->plan, a, l);
    ek_plan_reserve(&b->served, a, l);
    ek_placement_reserve(&b->base, a, l->experts, l->ranks, l->slots);
    if (has_both(b))
        ek_plan_history_reserve(&b->past, a, l);
    b->split = ek_arena_alloc(a, l->ranks + slots, sizeof(*b->split));
    b->rows = ek_arena_alloc(a, l->ranks * slots, sizeof(*b->rows));
    b->slots = ek_arena_alloc(a, slots, sizeof(*b->slots));
}

static ek_status check_config(const ek_balance_config *c)
{
    EK_REQUIRE(c->size == sizeof(*c), EK_EINVAL,
               "ek_balance_config of %zu bytes, this library's has %zu", c->size, sizeof(*c));
    EK_REQUIRE(c->experts >= 1 && c->experts <= SIZE_MAX_32, EK_EINVAL, "%d experts",
               (int)c->experts);
    EK_REQUIRE(c->ranks >= 1 && c->ranks <= SIZE_MAX_32, EK_EINVAL, "%d ranks", (int)c->ranks);
    EK_REQUIRE(c->spare_slots >= 0 && c->spare_slots <= SIZE_MAX_32, EK_EINVAL, "%d spare slots",
               (int)c->spare_slots);
    EK_REQUIRE(c->compute_s_per_row >= 0 && c->comm_s_per_row >= 0 && c->replica_s >= 0 &&
                   c->migrate_s_per_expert >= 0,
               EK_EINVAL, "a cost is negative or NaN");
    EK_REQUIRE(c->horizon >= 0 && c->horizon <= INT32_MAX, EK_EINVAL, "a horizon of %lld plans",
               (long long)c->horizon);
    EK_REQUIRE((int64_t)c->ranks * ((c->experts + c->ranks - 1) / c->ranks + c->spare_slots) <=
                   INT32_MAX / 8,
               EK_EOVERFLOW, "%d ranks of %d spare slots are too many", (int)c->ranks,
               (int)c->spare_slots);
    return EK_OK;
}

static ek_status set_speeds(ek_balance *b, const double *speeds)
{
    for (int32_t r = 0; r < b->l.ranks && speeds != NULL; r++)
        EK_REQUIRE(isfinite(speeds[r]) && speeds[r] > 0, EK_EINVAL, "the speed of rank %d is %g",
                   (int)r, speeds[r]);
    b->l.row_cost = NULL;
    if (speeds != NULL && ek_row_costs_of_speeds(b->l.ranks, speeds, b->row_cost))
        b->l.row_cost = b->row_cost;
    return EK_OK;
}

static ek_status init_balance(ek_balance *b, const ek_balance_config *c)
{
    const char *policy = c->policy != NULL ? c->policy : "exact";

    EK_TRY(check_config(c));
    b->planner = ek_planner_find(policy);
    EK_REQUIRE(b->planner != NULL, EK_EINVAL, "no balance policy %s", policy);
    b->planner = ek_planner_for(b->planner, c->replicas_min);
    b->l = (ek_plan_limits){.experts = c->experts,
                            .ranks = c->ranks,
                            .slots = (c->experts + c->ranks - 1) / c->ranks + c->spare_slots,
                            .replicas_min = c->replicas_min > 0 ? c->replicas_min : 1,
                            .prefer_survival = c->prefer_survival,
                            .horizon = c->horizon,
                            .costs = {.compute_s_per_row = c->compute_s_per_row,
                                      .comm_s_per_row = c->comm_s_per_row,
                                      .replica_s = c->replica_s,
                                      .migrate_s_per_expert = c->migrate_s_per_expert}};
    b->l.node_of = c->node_of; /* the planner may size its memory by nodes */
    ek_arena_measure(&b->arena);
    reserve_arrays(b);
    EK_TRY(ek_arena_check(&b->arena, "a planner"));
    EK_TRY(ek_arena_reserve(&b->arena, "a planner"));
    reserve_arrays(b);
    EK_TRY(ek_arena_check(&b->arena, "a planner"));
    if (c->node_of != NULL) {
        memcpy(b->node_of, c->node_of, (size_t)c->ranks * sizeof(*b->node_of));
        b->l.node_of = b->node_of;
    }
    EK_TRY(set_speeds(b, c->rank_speeds));
    ek_placement_block(&b->base, 1);
    ek_placement_block(&b->plan.placement, 1);
    b->plan.explain = 1;
    return EK_OK;
}

ek_status ek_balance_create(const ek_balance_config *cfg, ek_balance **out)
{
    EK_C_LOCALE;
    ek_balance *b;
    ek_status st;

    EK_NOT_NULL(cfg);
    EK_NOT_NULL(out);
    *out = NULL;
    b = calloc(1, sizeof(*b));
    EK_REQUIRE(b != NULL, EK_ENOMEM, "no memory for a planner");
    st = init_balance(b, cfg);
    if (st < 0)
        ek_balance_destroy(&b);
    *out = b;
    return st;
}

void ek_balance_destroy(ek_balance **b)
{
    if (b == NULL || *b == NULL)
        return;
    ek_arena_fini(&(*b)->arena);
    free(*b);
    *b = NULL;
}

static ek_status check_counts(const ek_balance *b, const int64_t *counts)
{
    int64_t n = (int64_t)b->l.ranks * b->l.experts, bad = -1, sum = 0;
    int64_t most = b->l.row_cost != NULL ? counts_max_weighted : counts_max;

    for (int64_t i = 0; i < n && bad < 0; i++) {
        bad = counts[i] < 0 || counts[i] > most - sum ? i : -1;
        sum += bad < 0 ? counts[i] : 0;
    }
    EK_REQUIRE(bad < 0, EK_EINVAL, "rank %lld has %lld assignments to expert %lld",
               (long long)(bad / b->l.experts), (long long)counts[bad],
               (long long)(bad % b->l.experts));
    return EK_OK;
}

static ek_status plan_base(ek_balance *b, const int64_t *counts, int64_t of, int64_t horizon)
{
    ek_plan_limits l = b->l;

    l.horizon = horizon;
    b->plan.of = of;
    EK_TRY(b->planner->plan_persistent(b->memory, &l, counts, &b->plan));
    ek_placement_copy(&b->base, &b->plan.placement);
    return EK_OK;
}

/* Makes the persistent placement from past counts if due; the first one with persistent replicas
 * from these counts, as an expert that is on one node only is not to wait. */
static ek_status plan_base_if_due(ek_balance *b, const int64_t *counts)
{
    int due = ek_plan_due(&b->past, &b->l), first = b->planner->enforces_replicas_min && !b->placed;

    if (!due && !first)
        return EK_OK;
    b->placed = 1;
    EK_TRY(first ? plan_base(b, counts, 1, b->l.horizon)
                 : plan_base(b, b->past.counts, b->past.of, ek_plan_horizon(&b->past, &b->l)));
    memcpy(b->plan.primary_reason, b->plan.reason, sizeof(b->plan.reason));
    return EK_OK;
}

/* Plans the persistent placement, then transient replicas for these counts. */
static ek_status plan_both(ek_balance *b, const int64_t *counts)
{
    EK_TRY(plan_base_if_due(b, counts));
    EK_TRY(b->planner->plan_transient(b->memory, &b->l, counts, &b->plan));
    ek_plan_remember(&b->past, &b->l, counts);
    return EK_OK;
}

static ek_status make_plan(ek_balance *b, const int64_t *counts)
{
    if (has_both(b))
        return plan_both(b, counts);
    if (b->planner->plan_persistent != NULL)
        return plan_base(b, counts, 1, b->l.horizon);
    return b->planner->plan_transient(b->memory, &b->l, counts, &b->plan);
}

/* After a failed plan, as before the first one: the last persistent placement, no replicas. */
static ek_status drop_plan(ek_balance *b, ek_status st)
{
    ek_placement_copy(&b->plan.placement, &b->base);
    memset(b->plan.quota, 0, (size_t)b->l.ranks * (size_t)b->l.slots * sizeof(*b->plan.quota));
    return EK_FAIL(st, "planner %s: %s", b->planner->name, ek_err_message());
}

ek_status ek_balance_set_rank_speeds(ek_balance *b, const double *speeds)
{
    EK_C_LOCALE;
    EK_NOT_NULL(b);
    return set_speeds(b, speeds);
}

ek_status ek_balance_plan(ek_balance *b, const int64_t *counts, ek_balance_plan_result *out)
{
    EK_C_LOCALE;
    ek_status st;

    EK_NOT_NULL(b);
    EK_NOT_NULL(counts);
    EK_NOT_NULL(out);
    EK_TRY(check_counts(b, counts));
    ek_placement_copy(&b->plan.placement, &b->base);
    b->plan.reason[0] = '\0';
    st = make_plan(b, counts);
    if (st < 0)
        return drop_plan(b, st);
    *out = (ek_balance_plan_result){.slots = b->l.slots,
                                    .expert_of = b->plan.placement.expert_of,
                                    .primary = b->plan.placement.primary,
                                    .quota = b->plan.quota,
                                    .before_s = b->plan.before_s,
                                    .after_s = b->plan.after_s,
                                    .reason = b->plan.reason,
                                    .primary_reason = b->plan.primary_reason};
    return EK_OK;
}

ek_status ek_balance_split(ek_balance *b, const int64_t *counts, int64_t *rows)
{
    EK_C_LOCALE;
    int64_t slots;

    EK_NOT_NULL(b);
    EK_NOT_NULL(counts);
    EK_NOT_NULL(rows);
    slots = (int64_t)b->l.ranks * b->l.slots;
    EK_TRY(check_counts(b, counts));
    ek_plan_totals(&b->l, counts, b->total);
    ek_plan_serve(&b->l, b->total, &b->plan, b->served.quota);
    memset(rows, 0, (size_t)(b->l.ranks * slots) * sizeof(*rows));
    for (int32_t e = 0; e < b->l.experts; e++) {
        int32_t n = ek_plan_split(&b->l, counts, &b->plan.placement, b->served.quota, e, b->split,
                                  b->slots, b->rows);

        for (int32_t r = 0; r < b->l.ranks; r++)
            for (int32_t i = 0; i < n; i++)
                rows[r * slots + b->slots[i]] = b->rows[(int64_t)r * n + i];
    }
    return EK_OK;
}
