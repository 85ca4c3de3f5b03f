/* A distributed MoE layer with replicas against the same layer on one rank: whatever a planner
 * decides, outputs and gradients are the same, and replicas do get rows. */
#include "balance/plan_time.h"
#include "moe/routing_plan.h"
#include "moe_ranks.h"
#include "random_planner.h"
#include "tensor/select/select.h"

static int64_t replicas_seen;

/* Runs a scenario, compares with one rank, and adds up plans, replicas and bytes. */
static result at_work(const scenario *s, const result *one)
{
    result many;

    if (run_ranks(s, &many)) {
        compare(s, one, &many);
        CHECK(many.primary_max >= 1);
        replicas_seen += many.replicas;
    }
    drop(&many);
    return many;
}

/* --- any plan --------------------------------------------------------------------------------- */

static void anywhere(scenario *s, const result *one, int i)
{
    static const int degrees[] = {1, 2, 3, 17};

    s->cfg = (ek_moe_config){.planner = &random_planner,
                             .degree = degrees[i % 4],
                             .smart_group = i % 4 == 3 ? 1 + i % 3 : 0,
                             .a2a = (ek_a2a)(i % 3)};
    s->recompute = i % 3 == 0;
    s->spare_slots = 1 + i % 3;
    at_work(s, one);
}

static void replicas_anywhere_change_nothing(void)
{
    replicas_seen = 0;
    each_layout(plain(), anywhere);
    CHECK(replicas_seen > 50);
}

static void more_ranks_than_experts(void)
{
    scenario s = plain();

    s.spec.experts = 2;
    s.spec.top_k = s.top_k = 1;
    replicas_seen = 0;
    each_layout(s, anywhere);
    CHECK(replicas_seen > 50);
}

static void one_expert_takes_all(void)
{
    scenario s = plain();

    s.collapse = 1;
    s.top_k = 1;
    each_layout(s, anywhere);
}

static void shared_by_tensor_parallel_ranks(scenario *s, const result *one, int i)
{
    static const int sizes[RANKS_MAX + 1][3] = {{1, 1, 1}, {1, 1, 1}, {2, 2, 1}, {3, 3, 1},
                                                {2, 4, 2}, {5, 5, 1}, {2, 3, 6}};

    s->sizes.tp = sizes[s->ranks][i % 3];
    anywhere(s, one, i);
    s->sizes.tp = 1;
}

static void with_capacity_and_tensor_parallel_ranks(void)
{
    scenario s = plain();

    s.capacity_factor = 1;
    each_layout(s, shared_by_tensor_parallel_ranks);
}

/* Kernels with packed weights, in both element sizes. */
static void packed_forms(scenario *s, const result *one, int i)
{
    if (i % 3 == 0)
        anywhere(s, one, i);
}

static void with_other_kernels(void)
{
    scenario s = plain();

    s.isa = ek_cpu_isa();
    s.mode = EK_MODE_FP32;
    each_layout(s, packed_forms);
    s.mode = EK_MODE_BF16;
    each_layout(s, packed_forms);
}

/* --- a plan that balances --------------------------------------------------------------------- */

static void exact_balances(void)
{
    scenario s = plain();
    result one, off, exact;

    s.seqs[0] = 40;
    s.seqs[1] = 30;
    s.collapse = 1;
    s.ranks = 4;
    s.sizes.ep = 4;
    run_alone(&s, &one);
    s.cfg = (ek_moe_config){.degree = 2};
    off = at_work(&s, &one);
    CHECK_INT(off.replicas, 0);
    CHECK(off.rank_max == off.primary_max && off.rank_max > 1.5);
    s.cfg.planner = &ek_planner_exact;
    s.spare_slots = 1;
    replicas_seen = 0;
    exact = at_work(&s, &one);
    CHECK(exact.primary_max == off.primary_max);
    CHECK(exact.rank_max < 1.02);
    CHECK(replicas_seen > 0);
    /* weights twice and gradients once, in addition to a different number of rows */
    CHECK(exact.bytes > off.bytes);
    drop(&one);
}

/* --- counts of the step's plans --------------------------------------------------------------- */

static ek_plan_terms watched, unplanned; /* sums over the plans of all ranks and steps, and over
                                            the initial placement instead of these */
static int64_t plans_watched;
static pthread_mutex_t watching = PTHREAD_MUTEX_INITIALIZER;

static ek_status watched_fast(void *memory, const ek_plan_limits *l, const int64_t *counts,
                              ek_plan *p)
{
    enum { SLOTS_MAX = RANKS_MAX * 16 };
    int64_t room[4 * RANKS_MAX + (RANKS_MAX + 1) * SLOTS_MAX];
    int32_t slots[SLOTS_MAX];
    ek_plan_limits units = *l;
    ek_plan_terms t, before;

    EK_REQUIRE(l->ranks * l->slots <= SLOTS_MAX, EK_EINVAL, "more slots than this test has");
    units.costs = (ek_plan_costs){.compute_s_per_row = 1, .comm_s_per_row = 1, .replica_s = 1};
    memset(p->quota, 0, (size_t)(l->ranks * l->slots) * sizeof(*p->quota));
    for (int32_t e = 0; e < l->experts; e++)
        for (int32_t r = 0; r < l->ranks; r++)
            p->quota[p->placement.primary[e]] += counts[r * l->experts + e];
    before = ek_plan_terms_of(&units, counts, p, room, slots);
    EK_TRY(ek_planner_exact.plan_transient(memory, l, counts, p));
    t = ek_plan_terms_of(&units, counts, p, room, slots);
    pthread_mutex_lock(&watching);
    watched.products_s += t.products_s;
    watched.rows_s += t.rows_s;
    watched.replicas_s += t.replicas_s;
    unplanned.products_s += before.products_s;
    plans_watched++;
    pthread_mutex_unlock(&watching);
    return EK_OK;
}

static void counts_are_those_of_the_plans(void)
{
    ek_planner planner = ek_planner_exact;
    int64_t replicas = 0;

    planner.plan_transient = watched_fast;
    for (int i = 0; i < 4; i++) {
        scenario s = plain();
        result one, many;
        double times;

        s.ranks = s.sizes.ep = 2 + i;
        s.collapse = i % 2;
        s.spare_slots = 1;
        s.cfg = (ek_moe_config){.degree = 1 + i % 2, .planner = &planner};
        watched = unplanned = (ek_plan_terms){0};
        plans_watched = 0;
        run_alone(&s, &one);
        many = at_work(&s, &one);
        times = (double)plans_watched / MICROS; /* how often a micro-batch was planned */
        CHECK(times >= s.ranks);
        CHECK(many.work.busiest * times == watched.products_s);
        CHECK(many.work.link * times == watched.rows_s);
        CHECK(many.work.replicas * times == watched.replicas_s);
        CHECK(many.work.rows >= many.work.busiest && many.work.rows > 0);
        CHECK(many.saved_rows * times == unplanned.products_s - watched.products_s);
        CHECK(i % 2 == 0 || many.saved_rows > 0); /* one expert takes most */
        replicas += many.replicas;
        drop(&one);
    }
    CHECK(replicas > 0);
}

/* No replicas: all rows go to one rank, those of other ranks over its link. */
static void counts_without_a_planner(void)
{
    scenario s = plain();
    result one, many;

    s.collapse = 1;
    s.top_k = 1;
    s.ranks = s.sizes.ep = 3;
    run_alone(&s, &one);
    many = at_work(&s, &one);
    CHECK(many.work.rows > 0);
    CHECK(many.work.busiest == many.work.rows);
    CHECK(many.work.link > 0 && many.work.link < many.work.rows);
    CHECK(many.work.replicas == 0.0);
    CHECK(many.saved_rows == 0.0);
    CHECK(one.work.rows == 0.0); /* not distributed */
    drop(&one);
}

/* --- a planner that fails --------------------------------------------------------------------- */

static ek_status give_up(void *memory, const ek_plan_limits *l, const int64_t *counts, ek_plan *p)
{
    (void)memory;
    (void)l;
    (void)counts;
    (void)p;
    return EK_FAIL(EK_EINVAL, "no plan");
}

static ek_status lose_some(void *memory, const ek_plan_limits *l, const int64_t *counts, ek_plan *p)
{
    EK_TRY(random_transient(memory, l, counts, p));
    for (int32_t s = 0; s < l->ranks * l->slots; s++)
        p->quota[s] /= 2;
    return EK_OK;
}

static ek_status move_primaries(void *memory, const ek_plan_limits *l, const int64_t *counts,
                                ek_plan *p)
{
    EK_TRY(random_transient(memory, l, counts, p));
    p->placement.primary[0] = p->placement.primary[1];
    return EK_OK;
}

static void failing_planners_are_not_called_again(void)
{
    static const ek_plan_fn fast[] = {give_up, lose_some, move_primaries};
    scenario s = plain();
    result one;

    run_alone(&s, &one);
    s.ranks = 4;
    s.sizes.ep = 2;
    s.spare_slots = 2;
    for (int i = 0; i < 3; i++) {
        ek_planner bad = {.name = "bad", .reserve = random_take, .plan_transient = fast[i]};
        result r;

        s.cfg = (ek_moe_config){.degree = 1, .planner = &bad};
        r = at_work(&s, &one);
        CHECK_INT(r.replicas, 0);
        CHECK(r.rank_max == r.primary_max);
    }
    drop(&one);
}

/* --- row counts ------------------------------------------------------------------------------- */

typedef struct {
    int64_t part[5], slot[4];
} sums;

static void put_sum(void *context, int32_t part, int32_t slot, int64_t rows)
{
    sums *s = context;

    CHECK(rows >= 0);
    s->part[part] += rows;
    s->slot[slot] += rows;
}

/* The sums by part and by slot are right, and every entry is within one row of its share. */
static void rows_are_shared_evenly(void)
{
    for (uint64_t i = 0; i < 500; i++) {
        int64_t left[4], want[4], parts[5], all = 0;
        sums got = {{0}, {0}};

        for (int p = 0; p < 5; p++) {
            parts[p] = (int64_t)(ek_random_bits(3, i, (uint64_t)p) % 9) * (p != 2);
            all += parts[p];
        }
        for (int s = 0; s < 4; s++) {
            want[s] =
                s < 3 ? (int64_t)(ek_random_bits(4, i, (uint64_t)s) % (uint64_t)(all + 1)) : all;
            all -= want[s];
            left[s] = want[s];
        }
        ek_routing_plan_share_rows(left, 4, parts, 5, put_sum, &got);
        for (int s = 0; s < 4; s++) {
            CHECK_INT(got.slot[s], want[s]);
            CHECK_INT(left[s], 0);
        }
        for (int p = 0; p < 5; p++)
            CHECK_INT(got.part[p], parts[p]);
    }
}

static const ek_case cases[] = {
    EK_CASE(rows_are_shared_evenly),
    EK_CASE(replicas_anywhere_change_nothing),
    EK_CASE(more_ranks_than_experts),
    EK_CASE(one_expert_takes_all),
    EK_CASE(counts_are_those_of_the_plans),
    EK_CASE(counts_without_a_planner),
    EK_CASE(with_capacity_and_tensor_parallel_ranks),
    EK_CASE(with_other_kernels),
    EK_CASE(exact_balances),
    EK_CASE(failing_planners_are_not_called_again),
};
EK_TEST_MAIN(cases)
