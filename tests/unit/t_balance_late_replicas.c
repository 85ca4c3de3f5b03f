/* Quotas and late replicas for a placement that was made from other counts. */
#include "balance/late_replicas.h"
#include "ek_test.h"

enum { RANKS = 4, EXPERTS = 8, SLOTS = 3, ALL = RANKS * SLOTS };

typedef struct {
    ek_arena a;
    ek_plan_limits l;
    ek_late_replicas late;
    ek_plan p;
    int64_t counts[RANKS * EXPERTS];
    int32_t persistent[ALL]; /* the primaries */
} problem;

/* Experts 2 r and 2 r + 1 on rank r, and an empty slot. */
static void begin(problem *x, double exposed_s)
{
    x->l = (ek_plan_limits){.experts = EXPERTS,
                            .ranks = RANKS,
                            .slots = SLOTS,
                            .costs = {.compute_s_per_row = 1, .exposed_s = exposed_s}};
    CHECK_INT(ek_arena_init(&x->a, 1 << 20, "the test"), EK_OK);
    ek_late_replicas_reserve(&x->late, &x->a, &x->l);
    ek_plan_reserve(&x->p, &x->a, &x->l);
    for (int32_t s = 0; s < ALL; s++)
        x->p.placement.expert_of[s] = -1;
    for (int32_t e = 0; e < EXPERTS; e++) {
        x->p.placement.primary[e] = e / 2 * SLOTS + e % 2;
        x->p.placement.expert_of[x->p.placement.primary[e]] = e;
    }
    memcpy(x->persistent, x->p.placement.expert_of, sizeof(x->persistent));
}

/* Each source sends `rows` to each expert, and `more` to expert 0. */
static void count(problem *x, int64_t rows, int64_t more)
{
    for (int32_t i = 0; i < RANKS * EXPERTS; i++)
        x->counts[i] = rows + (i % EXPERTS == 0 ? more : 0);
}

/* Quotas and late replicas; returns how many are late. */
static int32_t late(problem *x)
{
    int32_t sent_of[ALL];
    ek_placement sent = x->p.placement;

    memcpy(sent_of, x->p.placement.expert_of, sizeof(sent_of));
    sent.expert_of = sent_of;
    ek_late_replicas_add(&x->late, &x->l, x->counts, x->persistent, &x->p);
    return ek_late_replicas_count(&x->late, &x->p.placement, &sent).all;
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
    CHECK_INT(late(&x), 0);
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
        n = late(&x);
        CHECK_INT(n, added[i]);
        CHECK_INT(busiest(&x), most[i]);
        for (int32_t s = 0; s < ALL; s++)
            n -= ek_plan_is_replica(&x.p.placement, s) && x.p.placement.expert_of[s] == 0;
        CHECK_INT(n, 0);
        ek_arena_fini(&x.a);
    }
}

/* Expert 7 is chosen by nobody; its replicas keep their slots from others, but are left out, other
 * than a persistent copy. */
static void idle_replicas_are_left_out(void)
{
    problem x;

    begin(&x, 1);
    x.p.placement.expert_of[2] = 7;
    x.p.placement.expert_of[SLOTS + 2] = 0;
    x.p.placement.expert_of[2 * SLOTS + 2] = x.persistent[2 * SLOTS + 2] = 7;
    count(&x, 10, 60);
    for (int32_t r = 0; r < RANKS; r++)
        x.counts[r * EXPERTS + 7] = 0;
    CHECK_INT(late(&x), 1); /* on rank 3 */
    CHECK_INT(x.p.placement.expert_of[2], -1);
    CHECK_INT(x.p.placement.expert_of[SLOTS + 2], 0);
    CHECK_INT(x.p.placement.expert_of[2 * SLOTS + 2], 7);
    CHECK_INT(x.p.placement.expert_of[3 * SLOTS + 2], 0);
    CHECK_INT(busiest(&x), 147);
    ek_arena_fini(&x.a);
}

/* Without spare slots. */
static void no_slot_is_left(void)
{
    problem x;

    begin(&x, 1);
    x.l.slots = x.p.placement.slots = 2;
    for (int32_t e = 0; e < EXPERTS; e++)
        x.p.placement.expert_of[x.p.placement.primary[e] = e] = e;
    count(&x, 10, 60);
    CHECK_INT(late(&x), 0);
    CHECK_INT(busiest(&x), 320);
    ek_arena_fini(&x.a);
}

/* Ranks 1 to 3 were sent a replica of expert 0; rank 1 has another one instead now, of expert 7,
 * and so has rank 0. */
static void what_was_sent_is_compared(void)
{
    problem x;
    int32_t sent_of[ALL];
    ek_late_count n;
    double with, without;
    ek_placement sent;

    begin(&x, 5);
    sent = x.p.placement;
    sent.expert_of = sent_of;
    memcpy(sent_of, x.p.placement.expert_of, sizeof(sent_of));
    count(&x, 10, 60);
    for (int32_t r = 1; r < RANKS; r++)
        sent_of[r * SLOTS + 2] = 0;
    memcpy(x.p.placement.expert_of, sent_of, sizeof(sent_of));
    x.p.placement.expert_of[2] = x.p.placement.expert_of[SLOTS + 2] = 7;
    memset(x.p.quota, 0, ALL * sizeof(*x.p.quota));
    for (int32_t e = 0; e < EXPERTS; e++)
        x.p.quota[x.p.placement.primary[e]] = e == 0 ? 280 : 40;
    n = ek_late_replicas_count(&x.late, &x.p.placement, &sent);
    CHECK_INT(n.all, 2);
    CHECK_INT(n.links, 1); /* rank 3 sends one expert, to two ranks */
    n = ek_late_replicas_unused(&x.late, &x.p.placement, &sent);
    CHECK_INT(n.all, 1);
    CHECK_INT(n.links, 1);
    with = ek_late_replicas_time(&x.late, &x.l, x.counts, &x.p, &sent);
    without = ek_late_replicas_time(&x.late, &x.l, x.counts, &x.p, NULL);
    CHECK(with == 320 + 2 * 5); /* one that is waited for, one that is not used */
    CHECK(without == 320 + 5);  /* a rank gets or sends one at most */
    ek_arena_fini(&x.a);
}

/* Two spare slots a rank: what was sent stays in its slot, whatever slot the plan gives it. */
static void what_was_sent_stays_in_its_slot(void)
{
    problem x;
    int32_t sent_of[ALL];
    ek_placement sent;

    begin(&x, 1);
    for (int32_t e = 0; e < EXPERTS; e++) { /* expert 2 r + 1 has no primary copy here */
        if (e % 2 == 1)
            x.p.placement.expert_of[x.p.placement.primary[e]] = -1;
        x.p.quota[x.p.placement.primary[e]] = 0;
    }
    sent = x.p.placement;
    sent.expert_of = sent_of;
    memcpy(sent_of, x.p.placement.expert_of, sizeof(sent_of));
    sent_of[1] = 2;
    sent_of[2] = 4;
    sent_of[SLOTS + 2] = 6;
    x.p.placement.expert_of[1] = 4;
    x.p.placement.expert_of[2] = 6;
    x.p.placement.expert_of[SLOTS + 1] = 6;
    x.p.quota[1] = 11;
    x.p.quota[2] = 12;
    x.p.quota[SLOTS + 1] = 13;
    ek_late_replicas_keep_slots(&x.p, &sent);
    CHECK_INT(x.p.placement.expert_of[1], 6);
    CHECK_INT(x.p.quota[1], 12);
    CHECK_INT(x.p.placement.expert_of[2], 4);
    CHECK_INT(x.p.quota[2], 11);
    CHECK_INT(x.p.placement.expert_of[SLOTS + 1], -1);
    CHECK_INT(x.p.quota[SLOTS + 1], 0);
    CHECK_INT(x.p.placement.expert_of[SLOTS + 2], 6);
    CHECK_INT(x.p.quota[SLOTS + 2], 13);
    ek_arena_fini(&x.a);
}

static const ek_case cases[] = {
    EK_CASE(replicas_that_are_there_suffice), EK_CASE(replicas_are_added_while_they_pay),
    EK_CASE(idle_replicas_are_left_out),      EK_CASE(no_slot_is_left),
    EK_CASE(what_was_sent_is_compared),       EK_CASE(what_was_sent_stays_in_its_slot),
};
EK_TEST_MAIN(cases)
