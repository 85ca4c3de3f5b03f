/* Quotas and late replicas for a placement that was made from other counts. */
#include "balance/late_replicas.h"
#include "ek_test.h"

enum { RANKS = 4, EXPERTS = 8, SLOTS = 3, ALL = RANKS * SLOTS };

typedef struct {
    ek_arena a;
    ek_plan_limits l;
    ek_quota_flow flow;
    ek_plan p;
    int64_t counts[RANKS * EXPERTS];
} problem;

/* Experts 2 r and 2 r + 1 on rank r, and an empty slot. */
static void begin(problem *x, double exposed_s)
{
    x->l = (ek_plan_limits){.experts = EXPERTS,
                            .ranks = RANKS,
                            .slots = SLOTS,
                            .costs = {.compute_s_per_row = 1, .exposed_s = exposed_s}};
    CHECK_INT(ek_arena_init(&x->a, 1 << 20, "the test"), EK_OK);
    ek_quota_flow_reserve(&x->flow, &x->a, &x->l);
    ek_plan_reserve(&x->p, &x->a, &x->l);
    for (int32_t s = 0; s < ALL; s++)
        x->p.placement.expert_of[s] = -1;
    for (int32_t e = 0; e < EXPERTS; e++) {
        x->p.placement.primary[e] = e / 2 * SLOTS + e % 2;
        x->p.placement.expert_of[x->p.placement.primary[e]] = e;
    }
}

/* Each source sends `rows` to each expert, and `more` to expert 0. */
static void count(problem *x, int64_t rows, int64_t more)
{
    for (int32_t i = 0; i < RANKS * EXPERTS; i++)
        x->counts[i] = rows + (i % EXPERTS == 0 ? more : 0);
}

static int64_t busiest(problem *x)
{
    int64_t load[RANKS];

    CHECK_INT(ek_plan_check(&x->l, x->counts, &x->p), EK_OK);
    return ek_plan_loads(&x->l, &x->p, load);
}

static void replicas_that_are_there_suffice(void)
{
    problem x;

    begin(&x, 1);
    for (int32_t r = 1; r < RANKS; r++)
        x.p.placement.expert_of[r * SLOTS + 2] = 0;
    count(&x, 10, 60);
    CHECK_INT(ek_late_replicas_add(&x.flow, &x.l, x.counts, &x.p), 0);
    CHECK_INT(busiest(&x), 140);
    ek_arena_fini(&x.a);
}

/* Without any, 320 are on rank 0, and the mean is 140: replicas of expert 0 lower that to 200, 160
 * and 140. */
static void replicas_are_added_while_they_pay(void)
{
    static const double exposed[] = {1, 19, 20, 40, 200};
    static const int64_t most[] = {140, 140, 160, 200, 320};
    static const int32_t added[] = {3, 3, 2, 1, 0};

    for (int i = 0; i < 5; i++) {
        problem x;
        int32_t n;

        begin(&x, exposed[i]);
        count(&x, 10, 60);
        n = ek_late_replicas_add(&x.flow, &x.l, x.counts, &x.p);
        CHECK_INT(n, added[i]);
        CHECK_INT(busiest(&x), most[i]);
        for (int32_t s = 0; s < ALL; s++)
            n -= ek_plan_is_replica(&x.p.placement, s) && x.p.placement.expert_of[s] == 0;
        CHECK_INT(n, 0);
        ek_arena_fini(&x.a);
    }
}

static void no_slot_is_left(void)
{
    problem x;

    begin(&x, 1);
    for (int32_t r = 0; r < RANKS; r++)
        x.p.placement.expert_of[r * SLOTS + 2] = (2 * r + 2) % EXPERTS;
    count(&x, 10, 60);
    CHECK_INT(ek_late_replicas_add(&x.flow, &x.l, x.counts, &x.p), 0);
    CHECK(busiest(&x) > 140);
    ek_arena_fini(&x.a);
}

static const ek_case cases[] = {
    EK_CASE(replicas_that_are_there_suffice),
    EK_CASE(replicas_are_added_while_they_pay),
    EK_CASE(no_slot_is_left),
};
EK_TEST_MAIN(cases)
