/* Training with every planner, on very uneven loads: the same losses as one rank alone, and a
 * better balance of ranks, also where experts move whose state several ranks shard (ZeRO); a
 * planner that takes too long is switched off.  Ranks are threads. */
#include "balance/workload.h"
#include "equal_threads.h"

enum { ITERATIONS = 40, LAYERS = 2, SOURCES = 1, EXPERTS = 5 };

static uint32_t numbers[ITERATIONS * LAYERS * SOURCES * EXPERTS];

/* A workload in which the hot expert stays for a while. */
static const ek_trace *hot_spots(void)
{
    static ek_trace t = {.data = (const unsigned char *)numbers,
                         .width = sizeof(*numbers),
                         .iterations = ITERATIONS,
                         .layers = LAYERS,
                         .sources = SOURCES,
                         .experts = EXPERTS};
    ek_workload_shape s = {.iterations = ITERATIONS,
                           .layers = LAYERS,
                           .sources = SOURCES,
                           .experts = EXPERTS,
                           .tokens = 1000,
                           .top_k = 2,
                           .seed = 3};
    ek_workload_maker *m = NULL;

    CHECK(ek_workload_open(ek_workload_find("W5"), &s, &m) == EK_OK);
    for (int64_t i = 0; i < ITERATIONS * LAYERS; i++)
        ek_workload_counts(m, i / LAYERS, i % LAYERS, numbers + i * SOURCES * EXPERTS);
    ek_workload_close(&m);
    return &t;
}

static equal_layout over(int ranks, int balance)
{
    return (equal_layout){.ranks = ranks,
                          .pp = 1,
                          .model_chunks = 1,
                          .tp = 1,
                          .ep = ranks,
                          .etp = 1,
                          .degree = 1 + balance % 2,
                          .shape = 1,
                          .balance = balance,
                          .replay = hot_spots()};
}

/* What a planner does over ranks; losses are compared inside. */
static equal_result at_work(const equal_layout *l)
{
    static equal_result result[EQUAL_RANKS_MAX];

    equal_check_into(l, result);
    return result[0];
}

static void every_planner_trains_as_one_rank(void)
{
    for (int balance = 0; balance < EQUAL_PLANNERS; balance++)
        for (int ranks = 2; ranks <= 6; ranks += 2) {
            equal_layout l = over(ranks, balance);

            if (EK_T_SLOW ? ranks == 2 + balance % 3 * 2 : ranks != 4) /* 4: below */
                at_work(&l);
        }
}

/* Hot spots that stay for four steps: those who look at these very loads level them; those who look
 * at the past, where a placement can. */
static void planners_are_at_work(void)
{
    equal_layout off = over(4, 0);
    double none;

    if (EK_T_SLOW)
        SKIP("every_planner_trains_as_one_rank runs the same code");
    none = at_work(&off).after;

    for (int balance = 1; balance < EQUAL_PLANNERS; balance++) {
        const ek_planner *p = equal_planners[balance];
        equal_layout l = over(4, balance);
        equal_result r = at_work(&l);

        CHECK(r.before == none);
        if (p == &ek_planner_exact || p == &ek_planner_auto)
            CHECK(r.after < 1.1 * EQUAL_STEPS && r.replicas > 0);
        if (p == &ek_planner_shadow || p == &ek_planner_prophet)
            CHECK(r.after < 0.8 * none && r.replicas > 0);
        if (p == &ek_planner_place || p == &ek_planner_eplb)
            CHECK(r.after < 0.95 * none && r.moved > 0);
        if (p == &ek_planner_replicate) /* for loads that are gone when it has moved */
            CHECK(r.after != none && r.replicas > 0 && r.moved > 0);
        if (p == &ek_planner_fastermoe) /* shadows nothing where sources have equal numbers */
            CHECK(r.after == none && r.replicas == 0);
    }
}

static _Atomic int64_t sent_early;

/* Counts, in the step before, transfers of weights for backward that start under the forward of the
 * stage's last layer. */
static ek_status count_sent_early(ek_trainer *tr, int step)
{
    const ek_graph *g = ek_trainer_graph(tr);
    int32_t last = -1;
    int under = 0;

    (void)step;
    for (int32_t i = 0; i < g->n_ops; i++)
        last =
            g->ops[i].kind == EK_OP_DISPATCH_A2A && g->ops[i].layer > last ? g->ops[i].layer : last;
    for (int32_t i = 0; i < g->n_ops; i++) {
        const ek_op *op = &g->ops[i];

        if (op->layer != last)
            continue;
        under = (under || op->kind == EK_OP_DISPATCH_A2A) && op->kind != EK_OP_UNPERMUTE;
        sent_early += under && op->kind == EK_OP_REPLICAS;
    }
    return EK_OK;
}

/* With one set of memory for their weights and with two; on one stage, and on two, where another
 * micro-batch's backward follows. */
static void replicas_for_backward_are_sent_under_forward(void)
{
    static const int balances[] = {EQUAL_EXACT, EQUAL_AUTO};

    for (int i = 0; i < 8; i++) {
        int pp = 1 + i / 2 % 2;
        equal_layout l = over(4 * pp, balances[i / 4]);
        equal_result r;

        l.ep = 4;
        l.pp = pp;
        l.shape = i % 2 ? 5 : 1;
        l.turn = count_sent_early;
        if (EK_T_SLOW && i % 2 != i / 4)
            continue;
        sent_early = 0;
        r = at_work(&l);
        if (r.brought == 0 || sent_early == 0)
            EK_T_FAIL("%s: %.0f bytes of replicas, %lld transfers under forward", equal_text(&l),
                      r.brought, (long long)sent_early);
    }
}

static int makes_replicas(const ek_planner *p)
{
    return p == &ek_planner_replicate || p == &ek_planner_eplb || p == &random_persistent_plan;
}

/* Two and three groups of ranks with the same experts; slices; stages; with ZeRO 2 and 3 several
 * micro-batches, after each of which gradients are reduced. */
static equal_layout over_groups(int i, int balance, int zero)
{
    static const int of[][5] = {
        {4, 2, 1, 1, 1}, {6, 2, 1, 1, 1}, {6, 3, 1, 1, 1}, {8, 2, 2, 1, 1}, {8, 2, 1, 2, 1},
    };
    equal_layout l = over(of[i][0], balance);

    l.ep = of[i][1];
    l.etp = of[i][2];
    l.pp = of[i][3];
    l.model_chunks = of[i][4];
    l.zero = zero;
    l.shape = zero > 1 ? 5 : 1;
    return l;
}

enum { OVER_GROUPS = 5 };

/* Whether a build has a layout: a few for each policy, one with sanitizers; EK_TEST_ALL has all. */
static int is_drawn(int some, int one)
{
    return equal_number("EK_TEST_ALL", 0) || (some && (one || !EK_T_SLOW));
}

/* Experts move, and have replicas, where several ranks shard their state. */
static void sharded_experts_move(void)
{
    for (int balance = 1; balance < EQUAL_PLANNERS; balance++) {
        const ek_planner *p = equal_planners[balance];
        int64_t moved = 0;

        for (int at = 0; p->plan_persistent != NULL && at < 3 * OVER_GROUPS; at++) {
            int i = at % OVER_GROUPS, zero = 1 + at / OVER_GROUPS;
            equal_layout l = over_groups(i, balance, zero);
            equal_result r;

            l.mode = (i + zero) % 3 == 0 ? EK_MODE_FP32 : EK_MODE_FP64;
            if (!is_drawn((i + zero + balance) % OVER_GROUPS == 0, zero == 1 + balance % 3))
                continue;
            r = at_work(&l);
            moved += r.moved;
            if (r.moved == 0 && p != &ek_planner_auto) /* which may find that no move pays */
                EK_T_FAIL("%s: no expert moved", equal_text(&l));
            CHECK(!makes_replicas(p) || r.persistent_rows > 0);
        }
        CHECK(EK_T_SLOW || p->plan_persistent == NULL || moved > 0);
    }
}

/* What such ranks save is what they have, and any others go on with it; and the other way round. */
static void sharded_experts_that_moved_are_saved(void)
{
    for (int zero = 1; zero <= 3; zero++) {
        equal_layout moved = over_groups(zero, 3, zero), other = over(2 + zero % 2, 0);

        other.shape = moved.shape;
        equal_check_pair(&moved, &other, EQUAL_STEPS / 2 - 5 + zero);
        equal_check_pair(&other, &moved, EQUAL_STEPS / 4 - 2 + zero);
        if (EK_T_SLOW)
            break;
    }
}

/* Slices of experts are gathered that move and have replicas, of which each has its own slices: as
 * given, other ones in each step, or tuned; also with several groups that shard them. */
static void gathered_experts_move(void)
{
    static const int of[][4] = {{4, 2, 2, 0}, {8, 2, 4, 0}, {8, 2, 2, 0}, {8, 2, 2, 2}};

    for (int balance = 1; balance < EQUAL_PLANNERS; balance++) {
        const equal_ways ways[] = {EQUAL_GIVEN, EQUAL_RESTLESS, EQUAL_TUNED};
        const ek_planner *p = equal_planners[balance];

        for (int at = 0; p->plan_persistent != NULL && at < 12; at++) {
            int i = at % 4;
            equal_layout l = over(of[i][0], balance);
            equal_result r;

            l.ep = of[i][1];
            l.etp = of[i][2];
            l.zero = of[i][3];
            l.shape = i % 2 ? 5 : 1;
            l.degree = 2;
            l.ways = ways[at / 4];
            l.gather = at / 4 == 0 && i == 1 ? 2 : l.etp;
            if (!is_drawn((at + at / 4 + balance) % 4 == 0, at / 4 == balance % 3))
                continue;
            r = at_work(&l);
            CHECK(r.brought > 0);
            if (r.moved == 0 && p != &ek_planner_auto)
                EK_T_FAIL("%s: no expert moved", equal_text(&l));
            CHECK(!makes_replicas(p) || r.persistent_rows > 0);
        }
    }
}

static ek_status sleepy(void *memory, const ek_plan_limits *l, const int64_t *counts, ek_plan *p)
{
    usleep(60000);
    return random_transient(memory, l, counts, p);
}

/* Three steps are enough for its ranks to agree; what they compute does not change. */
static void who_takes_too_long_is_left_out(void)
{
    static const ek_planner slow = {
        .name = "sleepy", .what = "late", .reserve = random_take, .plan_transient = sleepy};
    equal_layout l = over(2, 1);
    equal_result r;

    l.planner = &slow;
    r = at_work(&l);
    CHECK(r.replicas > 0);
    CHECK(r.plans <= 4 * LAYERS * 4); /* of 50 steps, a few */
}

static const ek_case cases[] = {
    EK_CASE(every_planner_trains_as_one_rank),
    EK_CASE(planners_are_at_work),
    EK_CASE(replicas_for_backward_are_sent_under_forward),
    EK_CASE(sharded_experts_move),
    EK_CASE(sharded_experts_that_moved_are_saved),
    EK_CASE(gathered_experts_move),
    EK_CASE(who_takes_too_long_is_left_out),
};
EK_TEST_MAIN(cases)
