/* Shadowing: Algorithm 1 of FasterMoE by hand and on a recorded routing trace, what ends the
 * search, and properties over random layers. */
#include "balance_golden.h"
#include "base/random.h"
#include "plan_fixture.h"

enum { EXPERTS = 32, RANKS = 16, SLOTS = 16, DRAWS = 600 };

static void setup(fixture *f, int32_t experts, int32_t ranks, int32_t slots, ek_plan_costs costs)
{
    plan_setup(f, &ek_planner_shadow, experts, ranks, slots, costs);
}

static void run(fixture *f)
{
    plan_make(f, f->counts);
    CHECK(f->p.after_s <= f->p.before_s);
}

static int64_t count(const fixture *f, int32_t rank, int32_t expert)
{
    return f->counts[(int64_t)rank * f->l.experts + expert];
}

static int32_t primary_rank(const fixture *f, int32_t expert)
{
    return f->p.placement.primary[expert] / f->l.slots;
}

/* Whether the plan shadows an expert: every rank serves its own assignments, and some rank other
 * than the primary one has any. */
static int is_shadowed(const fixture *f, int32_t expert)
{
    int elsewhere = 0;

    for (int32_t r = 0; r < f->l.ranks; r++) {
        int32_t h = f->p.placement.primary[expert], s = ek_plan_slot(&f->p.placement, r, expert);

        s = h / f->l.slots == r ? h : s;
        if (s < 0 || f->p.quota[s] != count(f, r, expert))
            return 0;
        elsewhere |= r != primary_rank(f, expert) && count(f, r, expert) > 0;
    }
    return elsewhere;
}

static void check_shadows(const fixture *f, const int32_t *want, int32_t n)
{
    for (int32_t e = 0; e < f->l.experts; e++) {
        int wanted = 0;

        for (int32_t i = 0; i < n; i++)
            wanted |= want[i] == e;
        if (is_shadowed(f, e) != wanted)
            EK_T_FAIL("expert %d is%s shadowed: %s", (int)e, wanted ? " not" : "", f->p.reason);
    }
}

/* As printed, in milliseconds to `digits` places. */
static void check_ms(double got_s, double want_ms, int digits)
{
    if (!(fabs(1e3 * got_s - want_ms) <= 0.5 * pow(10, -digits) * (1 + 1e-9)))
        EK_T_FAIL("%.6f ms, expected %.*f", 1e3 * got_s, digits, want_ms);
}

static void check_reason(const fixture *f, const char *word)
{
    if (strstr(f->p.reason, word) == NULL)
        EK_T_FAIL("`%s` does not say `%s`", f->p.reason, word);
}

static void same_as_off(const fixture *f)
{
    for (int32_t e = 0; e < f->l.experts; e++) {
        int64_t total = 0;

        for (int32_t r = 0; r < f->l.ranks; r++)
            total += count(f, r, e);
        CHECK_INT(f->p.quota[f->p.placement.primary[e]], total);
    }
    for (int32_t s = 0; s < f->l.ranks * f->l.slots; s++)
        if (f->p.quota[s] > 0)
            CHECK_INT(f->p.placement.primary[f->p.placement.expert_of[s]], s);
    CHECK(f->p.after_s == f->p.before_s);
}

/* The paper's terms: width H, inner width alpha H, bytes per element, FLOP/s, bytes/s. */
static ek_plan_costs paper_costs(double alpha, double width, double bytes, double flops, double net)
{
    return (ek_plan_costs){.compute_s_per_row = 12 * alpha * width * width / flops,
                           .comm_s_per_row = 4 * width * bytes / net,
                           .replica_s = 4 * alpha * width * width * bytes / net};
}

/* --- vectors ---------------------------------------------------------------------------------- */

static void setup_by_hand(fixture *f, int32_t slots)
{
    static const int64_t counts[] = {700, 100, 100, 124, 800, 100, 100, 24,
                                     600, 200, 100, 124, 900, 24,  50,  50};

    setup(f, 4, 4, slots, paper_costs(2, 1024, 4, 11.5e12, 6.25e9));
    memcpy(f->counts, counts, sizeof(counts));
}

static void by_hand(void)
{
    const int32_t want[] = {0};
    const int64_t loads[] = {700, 1224, 950, 1222};
    int64_t load[4];
    fixture f;

    setup_by_hand(&f, 3);
    run(&f);
    check_shadows(&f, want, 1);
    CHECK_INT(ek_plan_loads(&f.l, &f.p, load), 1224);
    for (int r = 0; r < 4; r++)
        CHECK_INT(load[r], loads[r]);
    check_ms(f.p.before_s, 14.429, 3);
    check_ms(f.p.after_s, 8.047, 3);
    check_reason(&f, "heaviest rank 3000 -> 1224, 14.4 ms -> 8.05 ms");
    check_reason(&f, "with expert 1 it would take 13.5 ms; shadowed 0");
    teardown(&f);
}

/* Two experts of equal load: the smaller id goes first, and only one slot is vacant. */
static void ties_to_the_smaller_expert(void)
{
    const int32_t want[] = {1};
    fixture f;

    setup(&f, 3, 3, 2, (ek_plan_costs){.compute_s_per_row = 1, .comm_s_per_row = 1});
    for (int r = 0; r < 3; r++) {
        f.counts[r * 3 + 1] = 10;
        f.counts[r * 3 + 2] = 10;
    }
    run(&f);
    check_shadows(&f, want, 1);
    CHECK(f.p.before_s == 60 && f.p.after_s == 40);
    teardown(&f);
}

/* An equal time is no gain: ranks would be 20 and 20, for 20 without shadow. */
static void an_equal_time_is_refused(void)
{
    fixture f;

    setup(&f, 2, 2, 2, (ek_plan_costs){.compute_s_per_row = 1, .replica_s = 10});
    f.counts[0] = f.counts[2] = 10;
    run(&f);
    same_as_off(&f);
    CHECK(f.p.before_s == 20);
    check_reason(&f, "0 shadowed, heaviest rank 20 -> 20");
    check_reason(&f, "with expert 0 it would take 20.0 s");
    f.l.costs.replica_s = 9.5;
    run(&f);
    CHECK(is_shadowed(&f, 0));
    CHECK(f.p.after_s == 19.5);
    teardown(&f);
}

/* --- the routing trace ------------------------------------------------------------------------ */

static void check_case(int which, const int32_t *want, int32_t n, double before_ms, double after_ms)
{
    fixture f;

    setup(&f, EXPERTS, RANKS, SLOTS, paper_costs(2, 2048, 4, 11.5e12, 6.25e9));
    CHECK(golden_counts(which, f.counts));
    run(&f);
    check_shadows(&f, want, n);
    check_ms(f.p.before_s, before_ms, 2);
    check_ms(f.p.after_s, after_ms, 2);
    teardown(&f);
}

/* GPT-MoE, 32 experts on 16 ranks, two per rank in block order. */
static void recorded_trace(void)
{
    const int32_t a[] = {21, 18}, b[] = {27}, c[] = {12};
    int64_t counts[RANKS * EXPERTS];

    if (!golden_counts(0, counts))
        SKIP(golden_missing);
    check_case(0, a, 2, 979.51, 487.14);
    check_case(2, b, 1, 1287.29, 634.23);
    check_case(3, c, 1, 643.91, 390.36);
}

/* --- edges ------------------------------------------------------------------------------------ */

static void no_slot_no_shadow(void)
{
    fixture f;

    setup_by_hand(&f, 1);
    run(&f);
    same_as_off(&f);
    check_ms(f.p.after_s, 14.429, 3);
    check_reason(&f, "expert 0: no empty slot on rank 1");
    teardown(&f);
}

/* One full rank ends the search; a rank that already holds the expert needs no slot. */
static void one_full_rank(void)
{
    fixture f;

    setup_by_hand(&f, 2);
    f.p.placement.expert_of[5] = 3; /* rank 2: a replica of another expert */
    run(&f);
    same_as_off(&f);
    check_reason(&f, "expert 0: no empty slot on rank 2");
    CHECK_INT(f.p.placement.expert_of[3], -1);
    CHECK_INT(f.p.placement.expert_of[5], 3);
    f.p.placement.expert_of[5] = 0;
    run(&f);
    CHECK(is_shadowed(&f, 0));
    check_ms(f.p.after_s, 8.047, 3);
    teardown(&f);
}

static void no_assignments(void)
{
    fixture f;

    setup(&f, 5, 3, 4, (ek_plan_costs){.compute_s_per_row = 1, .comm_s_per_row = 1});
    run(&f);
    same_as_off(&f);
    CHECK(f.p.before_s == 0);
    CHECK_INT(f.p.placement.expert_of[2], -1);
    teardown(&f);
}

/* More ranks than experts, one expert takes all. */
static void one_expert_takes_all(void)
{
    fixture f;

    setup(&f, 2, 7, 1,
          (ek_plan_costs){.compute_s_per_row = 1, .comm_s_per_row = 2, .replica_s = 3});
    for (int r = 0; r < 7; r++)
        f.counts[r * 2] = 100 + r;
    run(&f);
    same_as_off(&f); /* rank 1 is full */
    teardown(&f);
    setup(&f, 2, 7, 2,
          (ek_plan_costs){.compute_s_per_row = 1, .comm_s_per_row = 2, .replica_s = 3});
    for (int r = 0; r < 7; r++)
        f.counts[r * 2] = 100 + r;
    run(&f);
    CHECK(is_shadowed(&f, 0));
    CHECK(f.p.before_s == 721 * 3 && f.p.after_s == 106 + 3);
    check_reason(&f, "only the primary rank has tokens for expert 1");
    teardown(&f);
}

/* An expert that only its primary rank uses is not worth a replica, whatever the costs. */
static void one_rank(void)
{
    fixture f;

    setup(&f, 3, 1, 3,
          (ek_plan_costs){.compute_s_per_row = 1, .comm_s_per_row = 1000, .replica_s = 1});
    f.counts[0] = 7;
    f.counts[2] = 9;
    run(&f);
    same_as_off(&f);
    CHECK(f.p.before_s == 16 * 1001);
    check_reason(&f, "only the primary rank has tokens for expert 2");
    teardown(&f);
}

static void all_experts_shadowed(void)
{
    const int32_t want[] = {0, 1};
    fixture f;

    setup(&f, 2, 2, 2, (ek_plan_costs){.compute_s_per_row = 1, .comm_s_per_row = 1});
    f.counts[1] = 8; /* each rank uses the other's expert */
    f.counts[2] = 20;
    run(&f);
    check_shadows(&f, want, 2);
    CHECK(f.p.before_s == 40 && f.p.after_s == 20);
    check_reason(&f, "no expert is left; shadowed 0 1");
    teardown(&f);
}

/* More shadows than the text holds: it ends with a complete number, wherever the limit is. */
static void why_ends_in_time(void)
{
    enum { MANY = 200 };
    fixture f;

    setup(&f, MANY, 2, MANY, (ek_plan_costs){.compute_s_per_row = 1, .comm_s_per_row = 1});
    for (int e = MANY / 2; e < MANY; e++) /* rank 0 uses the expert of rank 1, and serves half of
                                             it */
        f.counts[e] = 100;
    f.p.explain = 0;
    run(&f);
    CHECK(f.p.reason[0] == '\0');
    f.p.explain = 1;
    for (int i = 0; i < 8; i++, f.l.costs.compute_s_per_row *= 10) {
        const char *last;

        ek_placement_block(&f.p.placement, 1);
        run(&f);
        CHECK(strlen(f.p.reason) > EK_PLAN_REASON - 8 && strlen(f.p.reason) < EK_PLAN_REASON);
        last = strrchr(f.p.reason, ' ');
        CHECK(last != NULL && strlen(last) == 4 && is_shadowed(&f, atoi(last)));
    }
    teardown(&f);
}

/* --- random layers ---------------------------------------------------------------------------- */

typedef struct {
    uint64_t draw, next;
} dice;

static int32_t roll(dice *d, int32_t n)
{
    return (int32_t)(ek_random_bits(7, d->draw, d->next++) % (uint64_t)n);
}

static double chance(dice *d)
{
    return ek_random_uniform(7, d->draw, d->next++);
}

/* Skewed counts, some present replicas, primary slots off block order, random costs. */
static void setup_random(fixture *f, dice *d)
{
    int32_t experts = 1 + roll(d, 12), ranks = 1 + roll(d, 8);
    int32_t slots = (experts + ranks - 1) / ranks + roll(d, 5);
    ek_plan_costs c = {.compute_s_per_row = roll(d, 8) ? chance(d) : 0,
                       .comm_s_per_row = roll(d, 8) ? chance(d) : 0};

    c.replica_s = roll(d, 8) ? chance(d) * 100 : 0;
    setup(f, experts, ranks, slots, c);
    for (int32_t e = 0; e < experts; e++) {
        int32_t scale = roll(d, 4) ? 1 + roll(d, 20) : 1 + roll(d, 900);

        for (int32_t r = 0; r < ranks; r++)
            f->counts[r * experts + e] = roll(d, 5) ? roll(d, scale) : 0;
    }
    for (int32_t s = 0; s < ranks * slots; s++) {
        int32_t e = roll(d, experts);

        if (f->p.placement.expert_of[s] >= 0 || roll(d, 8) > 0)
            continue;
        f->p.placement.expert_of[s] = e;
        if (roll(d, 2) == 0)
            f->p.placement.primary[e] = s; /* perhaps after a replica on the same rank */
    }
}

/* Whether a precedes b: more assignments, or equal and the smaller id. */
static int before(const int64_t *total, int32_t a, int32_t b)
{
    return total[a] > total[b] || (total[a] == total[b] && a < b);
}

/* Recomputed time when all experts up to `last` are shadowed (-1: none). */
static double time_of(const fixture *f, const int64_t *total, int32_t last)
{
    int64_t most = 0;
    int32_t shadows = 0;

    for (int32_t e = 0; e < f->l.experts; e++)
        shadows += last >= 0 && !before(total, last, e);
    for (int32_t r = 0; r < f->l.ranks; r++) {
        int64_t load = 0;

        for (int32_t e = 0; e < f->l.experts; e++) {
            int in = last >= 0 && !before(total, last, e);

            load += in ? count(f, r, e) : primary_rank(f, e) == r ? total[e] : 0;
        }
        most = load > most ? load : most;
    }
    return shadows == 0 ? (double)most * (f->l.costs.compute_s_per_row + f->l.costs.comm_s_per_row)
                        : (double)most * f->l.costs.compute_s_per_row +
                              (double)shadows * f->l.costs.replica_s;
}

static int has_room(const fixture *f, int32_t expert)
{
    for (int32_t r = 0; r < f->l.ranks; r++)
        if (ek_plan_slot(&f->p.placement, r, expert) < 0 &&
            ek_plan_free_slot(&f->p.placement, r) < 0)
            return 0;
    return 1;
}

/* The shadowed experts are the hottest, each lowered the time, and the next would not or cannot. */
static void check_greedy(const fixture *f)
{
    int64_t total[16];
    int32_t order[16];
    double t;

    ek_plan_totals(&f->l, f->counts, total);
    for (int32_t e = 0; e < f->l.experts; e++) {
        int32_t place = 0;

        for (int32_t o = 0; o < f->l.experts; o++)
            place += before(total, o, e);
        order[place] = e;
    }
    t = time_of(f, total, -1);
    CHECK(f->p.before_s == t);
    for (int32_t i = 0, open = 1; i < f->l.experts; i++) {
        int32_t e = order[i];
        double with = time_of(f, total, e);

        if (is_shadowed(f, e)) {
            CHECK(open && with < t);
            t = with;
            continue;
        }
        if (open)
            CHECK(with >= t || !has_room(f, e) || total[e] == count(f, primary_rank(f, e), e));
        open = 0;
        CHECK_INT(f->p.quota[f->p.placement.primary[e]], total[e]);
    }
    CHECK(f->p.after_s == t);
}

/* Primary copies and present replicas stay; everything new is a shadow. */
static void check_kept(const fixture *f, const int32_t *was, const int32_t *primaries)
{
    for (int32_t e = 0; e < f->l.experts; e++)
        CHECK_INT(f->p.placement.primary[e], primaries[e]);
    for (int32_t s = 0; s < f->l.ranks * f->l.slots; s++) {
        int32_t e = f->p.placement.expert_of[s];

        if (e != was[s])
            CHECK(was[s] == -1 && is_shadowed(f, e));
    }
}

/* The same placement with counts and replica cost scaled gives the same decision.  Powers of two
 * scale times without rounding. */
static void check_scaled(fixture *f, const int32_t *was, int64_t by, double price)
{
    size_t all = (size_t)(f->l.ranks * f->l.slots);
    int32_t at[256];
    int64_t quota[256];
    double after = f->p.after_s;

    memcpy(at, f->p.placement.expert_of, all * sizeof(*at));
    memcpy(quota, f->p.quota, all * sizeof(*quota));
    memcpy(f->p.placement.expert_of, was, all * sizeof(*was));
    memset(f->p.quota, 0x55, all * sizeof(*f->p.quota)); /* present quotas do not matter */
    for (int32_t i = 0; i < f->l.ranks * f->l.experts; i++)
        f->counts[i] *= by;
    f->l.costs.compute_s_per_row *= price;
    f->l.costs.comm_s_per_row *= price;
    f->l.costs.replica_s *= price * (double)by;
    run(f);
    CHECK(memcmp(at, f->p.placement.expert_of, all * sizeof(*at)) == 0);
    for (size_t s = 0; s < all; s++)
        CHECK_INT(f->p.quota[s], quota[s] * by);
    CHECK(f->p.after_s == after * price * (double)by);
}

static int random_layer(uint64_t draw)
{
    dice d = {draw, 0};
    int32_t was[256], primaries[16], shadowed = 0;
    fixture f;

    setup_random(&f, &d);
    memcpy(was, f.p.placement.expert_of, (size_t)(f.l.ranks * f.l.slots) * sizeof(*was));
    memcpy(primaries, f.p.placement.primary, (size_t)f.l.experts * sizeof(*primaries));
    run(&f);
    check_greedy(&f);
    check_kept(&f, was, primaries);
    for (int32_t e = 0; e < f.l.experts; e++)
        shadowed += is_shadowed(&f, e);
    check_scaled(&f, was, 1, 1); /* the same once more */
    check_scaled(&f, was, 4, 0.125);
    teardown(&f);
    return shadowed;
}

static void random_layers(void)
{
    int some = 0, several = 0;

    for (uint64_t i = 0; i < DRAWS; i++) {
        int n = random_layer(i);

        some += n > 0;
        several += n > 1;
    }
    CHECK(some > DRAWS / 5 && some < DRAWS * 4 / 5 && several > DRAWS / 20);
}

static const ek_case cases[] = {
    EK_CASE(by_hand),
    EK_CASE(ties_to_the_smaller_expert),
    EK_CASE(an_equal_time_is_refused),
    EK_CASE(recorded_trace),
    EK_CASE(no_slot_no_shadow),
    EK_CASE(one_full_rank),
    EK_CASE(no_assignments),
    EK_CASE(one_expert_takes_all),
    EK_CASE(one_rank),
    EK_CASE(all_experts_shadowed),
    EK_CASE(why_ends_in_time),
    EK_CASE(random_layers),
};
EK_TEST_MAIN(cases)
