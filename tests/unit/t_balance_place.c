/* The planner `place`: packings against golden values and brute force, relabelling against all
 * permutations, the 5 % threshold, and plans of random cases. */
#include "balance/plan_place.h"
#include "balance_golden.h"
#include "base/random.h"

enum { ROOM = 1 << 21, EXPERTS = 48, RANKS = 16, TRACE_EXPERTS = 32, TRACE_SOURCES = 16 };

/* --- random numbers --------------------------------------------------------------------------- */

typedef struct {
    uint64_t seed, at;
} dice;

/* 0 .. n - 1 */
static int32_t roll(dice *d, int32_t n)
{
    return (int32_t)(ek_random_bits(d->seed, 1, d->at++) % (uint64_t)n);
}

/* Loads of many magnitudes, with zeros and ties. */
static int64_t roll_load(dice *d)
{
    return roll(d, 4) == 0 ? roll(d, 3) : roll(d, 1 << (1 + roll(d, 16)));
}

/* --- packings --------------------------------------------------------------------------------- */

typedef struct {
    ek_arena arena;
    ek_place *m;
} packing;

static void setup_packing(packing *f, const int64_t *load, int32_t experts, int32_t ranks)
{
    CHECK(ek_arena_init(&f->arena, ROOM, "packings") == EK_OK);
    f->m = ek_place_reserve(&f->arena, experts, ranks);
    CHECK(ek_arena_check(&f->arena, "packings") == EK_OK);
    memcpy(f->m->load, load, (size_t)experts * sizeof(*load));
    ek_place_sort(f->m);
}

static void teardown_packing(packing *f)
{
    ek_arena_fini(&f->arena);
}

/* Checks that rank_of holds every expert once, within the capacity, and that `most` is the largest
 * load. */
static void check_packing(const ek_place *m, int64_t most)
{
    int64_t sum[RANKS] = {0}, largest = 0;
    int32_t held[RANKS] = {0};

    for (int32_t e = 0; e < m->experts; e++) {
        int32_t r = m->rank_of[e];

        if (r < 0 || r >= m->ranks) {
            EK_T_FAIL("expert %d is on rank %d", (int)e, (int)r);
            return;
        }
        sum[r] += m->load[e];
        held[r]++;
    }
    for (int32_t r = 0; r < m->ranks; r++) {
        CHECK(held[r] <= ek_place_capacity(m));
        largest = sum[r] > largest ? sum[r] : largest;
    }
    CHECK_INT(largest, most);
}

/* Iteration 1001, layer 0 of the trace, summed over sources and micro-batches. */
static const int64_t trace_0[TRACE_EXPERTS] = {
    16, 3, 58,    102,   14854, 28766, 7, 27,    7, 0,    32744, 30, 35, 79, 54, 3377,
    0,  1, 51345, 18639, 0,     61733, 1, 10267, 0, 4507, 35326, 0,  2,  29, 1,  134};

static void check_lpt(const int64_t *load, int32_t ranks, const int64_t *want, int64_t most)
{
    int64_t sum[RANKS] = {0};
    packing f;

    setup_packing(&f, load, TRACE_EXPERTS, ranks);
    CHECK_INT(ek_place_lpt(f.m), most);
    check_packing(f.m, most);
    for (int32_t e = 0; e < TRACE_EXPERTS; e++)
        sum[f.m->rank_of[e]] += load[e];
    for (int32_t r = 0; want != NULL && r < ranks; r++)
        CHECK_INT(sum[r], want[r]);
    teardown_packing(&f);
}

static void greedy_golden_loads(void)
{
    const int64_t four[] = {65254, 66200, 64659, 66031};
    const int64_t eight[] = {61733, 51346, 35330, 32761, 28838, 18758, 15169, 18209};

    check_lpt(trace_0, 4, four, 66200);
    check_lpt(trace_0, 8, eight, 61733);
    check_lpt(trace_0, 16, NULL, 61733);
}

/* One case of the recorded counts, summed over sources; 0: not available. */
static int read_trace(int nth, int64_t *load)
{
    int64_t counts[TRACE_SOURCES * TRACE_EXPERTS];

    if (!golden_counts(nth, counts))
        return 0;
    memset(load, 0, TRACE_EXPERTS * sizeof(*load));
    for (int i = 0; i < TRACE_SOURCES * TRACE_EXPERTS; i++)
        load[i % TRACE_EXPERTS] += counts[i];
    return 1;
}

static void greedy_golden_trace(void)
{
    static const struct {
        int32_t nth;
        int64_t four, eight, sixteen;
    } want[] = {{0, 66200, 61733, 61733},
                {2, 65970, 60921, 60916},
                {3, 65903, 40456, 40414},
                {4, 67566, 36110, 21262}};

    for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
        int64_t load[TRACE_EXPERTS];

        if (!read_trace(want[i].nth, load))
            SKIP(golden_missing);
        if (want[i].nth == 0)
            CHECK(memcmp(load, trace_0, sizeof(load)) == 0);
        check_lpt(load, 4, NULL, want[i].four);
        check_lpt(load, 8, NULL, want[i].eight);
        check_lpt(load, 16, NULL, want[i].sixteen);
    }
}

/* By hand: 5, 4, 3, 3, 3 on two ranks of capacity three is 5 + 3 + 0 and 4 + 3 + 3. */
static void greedy_by_hand(void)
{
    const int64_t load[] = {3, 5, 3, 4, 3, 0};
    const int32_t want[] = {1, 0, 0, 1, 1, 0};
    packing f;

    setup_packing(&f, load, 6, 2);
    CHECK_INT(ek_place_lpt(f.m), 10);
    for (int i = 0; i < 6; i++)
        CHECK_INT(f.m->rank_of[i], want[i]);
    CHECK_INT(ek_place_all(f.m, 9), -1); /* optimum: 5 + 4 and 3 + 3 + 3 */
    CHECK_INT(ek_place_all(f.m, 10), 9);
    check_packing(f.m, 9);
    teardown_packing(&f);
}

/* The optimum over all packings of n items; -1: none fits. */
static int64_t brute_packing(const int64_t *load, const int32_t *size, int32_t n, int32_t ranks,
                             const int32_t *cost, int32_t capacity)
{
    int64_t best = -1, ways = 1;

    for (int32_t i = 0; i < n; i++)
        ways *= ranks;
    for (int64_t way = 0; way < ways; way++) {
        int64_t sum[RANKS] = {0}, most = 0, left = way;
        int32_t held[RANKS] = {0}, fits = 1;

        for (int32_t i = 0; i < n; i++, left /= ranks) {
            int32_t r = (int32_t)(left % ranks);

            sum[r] += load[i];
            held[r] += size[i];
            fits &= held[r] <= capacity;
            most = sum[r] * cost[r] > most ? sum[r] * cost[r] : most;
        }
        if (fits && (best < 0 || most < best))
            best = most;
    }
    return best;
}

static void exact_equals_brute_force(void)
{
    const int32_t ones[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    dice d = {17, 0};

    for (int i = 0; i < 300; i++) {
        int32_t ranks = 1 + roll(&d, 4), experts = ranks + 1 + roll(&d, 7 - ranks);
        int64_t load[8], most;
        packing f;

        for (int32_t e = 0; e < experts; e++)
            load[e] = roll_load(&d);
        setup_packing(&f, load, experts, ranks);
        most = ek_place_all(f.m, INT64_MAX);
        check_packing(f.m, most);
        CHECK_INT(most, brute_packing(load, ones, experts, ranks, ones, ek_place_capacity(f.m)));
        CHECK(most >= ek_place_bound(f.m));
        CHECK(most <= ek_place_lpt(f.m));
        teardown_packing(&f);
    }
}

/* Items of several experts, which may not fit; every other time ranks cost different amounts. */
static void exact_with_sizes_equals_brute_force(void)
{
    int never = 0;
    dice d = {18, 0};

    for (int i = 0; i < 300; i++) {
        int32_t ranks = 1 + roll(&d, 4), n = 1 + roll(&d, 7), size[8], rank_of[8], held[4] = {0};
        int32_t capacity = 1 + roll(&d, 6), cost[4] = {1, 1, 1, 1};
        int64_t load[8], most, want, sum[4] = {0}, largest = 0;
        ek_arena a;
        ek_place_dp dp;

        for (int32_t e = 0; e < n; e++) {
            load[e] = roll_load(&d);
            size[e] = roll(&d, 4);
        }
        CHECK(ek_arena_init(&a, ROOM, "the exact program") == EK_OK);
        ek_place_dp_reserve(&dp, &a, n, ranks);
        for (int32_t r = 0; r < ranks && i % 2 == 1; r++)
            cost[r] = 1 + roll(&d, 4);
        most =
            ek_place_exact(&dp, load, size, n, ranks, i % 2 == 1 ? cost : NULL, capacity, rank_of);
        want = brute_packing(load, size, n, ranks, cost, capacity);
        CHECK_INT(most, want);
        never += want < 0;
        for (int32_t e = 0; most >= 0 && e < n; e++) {
            sum[rank_of[e]] += load[e];
            held[rank_of[e]] += size[e];
            CHECK(held[rank_of[e]] <= capacity);
        }
        for (int32_t r = 0; r < ranks; r++)
            largest = sum[r] * cost[r] > largest ? sum[r] * cost[r] : largest;
        CHECK(most < 0 || largest == most);
        ek_arena_fini(&a);
    }
    CHECK(never > 10 && never < 290);
}

static void hybrid_is_valid_and_helps(void)
{
    int helped = 0, refused = 0;
    dice d = {19, 0};

    for (int i = 0; i < 100; i++) {
        int32_t ranks = 2 + roll(&d, 4), experts = 13 + roll(&d, EXPERTS - 12), devices;
        int64_t load[EXPERTS], greedy, most;
        packing f;

        for (int32_t e = 0; e < experts; e++)
            load[e] = roll(&d, 1000);
        setup_packing(&f, load, experts, ranks);
        greedy = ek_place_lpt(f.m);
        most = ek_place_hybrid(f.m, ranks + 1 + roll(&d, EK_PLACE_ITEMS - ranks), INT64_MAX);
        refused += most < 0;
        if (most >= 0)
            check_packing(f.m, most);
        else
            check_packing(f.m, greedy);
        most = ek_place_pack(f.m, &devices);
        check_packing(f.m, most);
        CHECK(most <= greedy && most >= ek_place_bound(f.m));
        CHECK((devices > ranks) == (most < greedy));
        helped += most < greedy;
        teardown_packing(&f);
    }
    CHECK(helped > 10 && refused > 0);
}

/* --- relabelling ------------------------------------------------------------------------------ */

/* The maximum sum of overlaps over all permutations of the rows from `row` on. */
static int32_t brute_assignment(const int32_t *overlap, int32_t n, int32_t row, unsigned used)
{
    int32_t best = row == n ? 0 : -1;

    for (int32_t r = 0; row < n && r < n; r++)
        if (!(used >> r & 1)) {
            int32_t sum =
                overlap[row * n + r] + brute_assignment(overlap, n, row + 1, used | 1u << r);

            best = sum > best ? sum : best;
        }
    return best;
}

static void assignment_equals_brute_force(void)
{
    dice d = {20, 0};

    for (int i = 0; i < 400; i++) {
        int32_t n = 1 + roll(&d, 6), sum = 0, most = 1 + roll(&d, 9);
        const int64_t none[RANKS] = {0};
        unsigned used = 0;
        packing f;

        setup_packing(&f, none, n, n);
        for (int32_t k = 0; k < n * n; k++)
            f.m->match.overlap[k] = roll(&d, most);
        ek_place_assign(&f.m->match);
        for (int32_t r = 0; r < n; r++) {
            used |= 1u << f.m->match.group_of[r];
            sum += f.m->match.overlap[f.m->match.group_of[r] * n + r];
        }
        CHECK_INT(used, (1u << n) - 1);
        CHECK_INT(sum, brute_assignment(f.m->match.overlap, n, 0, 0));
        teardown_packing(&f);
    }
}

/* --- plans ------------------------------------------------------------------------------------ */

typedef struct {
    ek_arena arena;
    ek_plan_limits l;
    ek_plan p;
    void *memory;
    int64_t *counts;
} fixture;

static void setup(fixture *f, int32_t experts, int32_t ranks, int32_t slots)
{
    ek_arena measure;

    f->l = (ek_plan_limits){.experts = experts, .ranks = ranks, .slots = slots};
    f->l.costs.compute_s_per_row = 2;
    f->l.costs.comm_s_per_row = 1;
    CHECK(ek_arena_init(&f->arena, ROOM, "a plan") == EK_OK);
    ek_plan_reserve(&f->p, &f->arena, &f->l);
    f->counts = ek_arena_alloc(&f->arena, (int64_t)ranks * experts, sizeof(*f->counts));
    ek_arena_measure(&measure);
    CHECK(ek_planner_place.reserve(&measure, &f->l) == NULL);
    measure.used += f->arena.used;
    f->memory = ek_planner_place.reserve(&f->arena, &f->l);
    CHECK(ek_arena_check(&f->arena, "a plan") == EK_OK);
    CHECK_INT(f->arena.used, measure.used);
    ek_placement_block(&f->p.placement, 1);
    f->p.explain = 1;
}

static void teardown(fixture *f)
{
    ek_arena_fini(&f->arena);
}

/* Plans; checks that the plan is valid and has the largest load `want`. */
static void plan_and_check(fixture *f, int64_t want)
{
    int64_t load[64];

    CHECK(ek_planner_place.plan_persistent(f->memory, &f->l, f->counts, &f->p) == EK_OK);
    CHECK(ek_plan_check(&f->l, f->counts, &f->p) == EK_OK);
    CHECK_INT(ek_plan_loads(&f->l, &f->p, load), want);
    CHECK(f->p.after_s == (double)want * 3 && f->p.after_s <= f->p.before_s);
    CHECK(strncmp(f->p.reason, "place: ", 7) == 0);
}

/* Counts of one source. */
static void check_plan(const int64_t *load, int32_t experts, int32_t ranks, int64_t want)
{
    fixture f;

    setup(&f, experts, ranks, (experts + ranks - 1) / ranks);
    memcpy(f.counts, load, (size_t)experts * sizeof(*load));
    plan_and_check(&f, want);
    teardown(&f);
}

static void five_percent_is_not_enough(void)
{
    const int64_t no[] = {55, 45, 40, 40}, yes[] = {55, 46, 40, 40};

    check_plan(no, 4, 2, 100); /* 95 is possible */
    check_plan(yes, 4, 2, 95); /* of 101 */
}

static void edge_cases(void)
{
    const int64_t none[12] = {0}, one[12] = {0, 0, 7}, ragged[] = {9, 9, 1, 1, 1};

    for (int32_t ranks = 1; ranks <= 15; ranks++) {
        check_plan(none, 12, ranks, 0);
        check_plan(one, 12, ranks, 7);
    }
    check_plan(ragged, 5, 3, 10); /* capacity is two */
}

/* Loads 9 8 7 | 1 1 2 are packed as {9, 2, 1} and {8, 7, 1}; the second group has more in common
 * with the first rank.  Experts 0 and 4 swap ranks. */
static void staying_experts_keep_slots(void)
{
    const int64_t load[] = {9, 8, 7, 1, 1, 2};
    const int32_t was[] = {-1, 0, 1, 2, 3, -1, 4, 5}, want[] = {4, -1, 1, 2, 3, 0, -1, 5};
    fixture f;

    setup(&f, 6, 2, 4);
    for (int32_t s = 0; s < 8; s++) {
        f.p.placement.expert_of[s] = was[s];
        if (was[s] >= 0)
            f.p.placement.primary[was[s]] = s;
    }
    memcpy(f.counts + 6, load, sizeof(load)); /* of source 1 */
    plan_and_check(&f, 16);
    for (int32_t s = 0; s < 8; s++)
        CHECK_INT(f.p.placement.expert_of[s], want[s]);
    CHECK(strstr(f.p.reason, "2 of 6 experts move") != NULL);
    teardown(&f);
}

static void replicas_are_refused(void)
{
    fixture f;

    setup(&f, 4, 2, 3);
    f.p.placement.expert_of[5] = 0;
    CHECK_INT(ek_planner_place.plan_persistent(f.memory, &f.l, f.counts, &f.p), EK_EUNSUPPORTED);
    CHECK(strstr(ek_err_message(), "place") != NULL);
    CHECK(strstr(ek_err_message(), "slot 5") != NULL);
    teardown(&f);
}

/* Random primary ranks, some with more than their share. */
static void shuffle(fixture *f, dice *d)
{
    ek_placement *p = &f->p.placement;

    for (int32_t s = 0; s < p->ranks * p->slots; s++)
        p->expert_of[s] = -1;
    for (int32_t e = 0; e < p->experts; e++) {
        int32_t s = roll(d, p->ranks * p->slots);

        while (p->expert_of[s] >= 0)
            s = (s + 1) % (p->ranks * p->slots);
        p->expert_of[s] = e;
        p->primary[e] = s;
    }
}

static void copy_placement(ek_placement *to, const ek_placement *from)
{
    memcpy(to->expert_of, from->expert_of,
           (size_t)(from->ranks * from->slots) * sizeof(*from->expert_of));
    memcpy(to->primary, from->primary, (size_t)from->experts * sizeof(*from->primary));
}

static int same_placement(const ek_placement *a, const ek_placement *b)
{
    return memcmp(a->expert_of, b->expert_of,
                  (size_t)(a->ranks * a->slots) * sizeof(*a->expert_of)) == 0 &&
           memcmp(a->primary, b->primary, (size_t)a->experts * sizeof(*a->primary)) == 0;
}

/* Compares a plan with the placement it started from; returns whether anything moved. */
static int check_against(const fixture *f, const ek_placement *was, int64_t before)
{
    const ek_placement *p = &f->p.placement;
    int32_t capacity = (p->experts + p->ranks - 1) / p->ranks;
    int64_t after, load[64];

    CHECK(ek_plan_check(&f->l, f->counts, &f->p) == EK_OK);
    after = ek_plan_loads(&f->l, &f->p, load);
    CHECK(f->p.before_s == (double)before * 3 && f->p.after_s == (double)after * 3);
    if (same_placement(p, was)) {
        CHECK_INT(after, before);
        return 0;
    }
    CHECK(100 * after < 95 * before);
    for (int32_t r = 0; r < p->ranks; r++) {
        int32_t here = 0;

        for (int32_t s = r * p->slots; s < (r + 1) * p->slots; s++) {
            here += p->expert_of[s] >= 0;
            CHECK(p->expert_of[s] < 0 || p->primary[p->expert_of[s]] == s);
        }
        CHECK(here <= capacity);
    }
    for (int32_t e = 0; e < p->experts; e++)
        CHECK(p->primary[e] == was->primary[e] ||
              p->primary[e] / p->slots != was->primary[e] / p->slots);
    return 1;
}

/* No permutation of up to 6 ranks keeps more experts in place. */
static void check_fewest_moves(const fixture *f, const ek_placement *was)
{
    const ek_placement *p = &f->p.placement;
    int32_t overlap[36] = {0}, stay = 0;

    for (int32_t e = 0; e < p->experts; e++) {
        overlap[p->primary[e] / p->slots * p->ranks + was->primary[e] / p->slots]++;
        stay += p->primary[e] == was->primary[e];
    }
    CHECK_INT(stay, brute_assignment(overlap, p->ranks, 0, 0));
}

static void check_random(dice *d, int *moved)
{
    int32_t ranks = 1 + roll(d, 9), experts = 1 + roll(d, EXPERTS), times = 1 + roll(d, 1000);
    int64_t before, load[64];
    ek_plan_limits l;
    fixture f, g; /* g: the same plan again, and for multiplied counts */

    setup(&f, experts, ranks, (experts + ranks - 1) / ranks + roll(d, 3));
    l = f.l;
    setup(&g, experts, ranks, l.slots);
    shuffle(&f, d);
    for (int32_t i = 0; i < ranks * experts; i++)
        f.counts[i] = roll(d, 3) == 0 ? roll_load(d) : roll(d, 20);
    ek_plan_totals(&l, f.counts, g.counts);
    copy_placement(&g.p.placement, &f.p.placement);
    ek_plan_primaries_only(&l, g.counts, &g.p);
    before = ek_plan_loads(&l, &g.p, load);

    CHECK(ek_planner_place.plan_persistent(f.memory, &l, f.counts, &f.p) == EK_OK);
    *moved += check_against(&f, &g.p.placement, before);
    if (ranks <= 6)
        check_fewest_moves(&f, &g.p.placement);
    for (int32_t i = 0; i < ranks * experts; i++)
        g.counts[i] = f.counts[i] * times;
    CHECK(ek_planner_place.plan_persistent(g.memory, &l, g.counts, &g.p) == EK_OK);
    CHECK(same_placement(&f.p.placement, &g.p.placement));

    /* nothing more to gain */
    CHECK(ek_planner_place.plan_persistent(f.memory, &l, f.counts, &f.p) == EK_OK);
    CHECK(same_placement(&f.p.placement, &g.p.placement));
    teardown(&g);
    teardown(&f);
}

static void random_plans(void)
{
    int moved = 0;
    dice d = {21, 0};

    for (int i = 0; i < 400; i++)
        check_random(&d, &moved);
    CHECK(moved > 100 && moved < 390);
}

static const ek_case cases[] = {
    EK_CASE(greedy_golden_loads),
    EK_CASE(greedy_golden_trace),
    EK_CASE(greedy_by_hand),
    EK_CASE(exact_equals_brute_force),
    EK_CASE(exact_with_sizes_equals_brute_force),
    EK_CASE(hybrid_is_valid_and_helps),
    EK_CASE(assignment_equals_brute_force),
    EK_CASE(five_percent_is_not_enough),
    EK_CASE(edge_cases),
    EK_CASE(staying_experts_keep_slots),
    EK_CASE(replicas_are_refused),
    EK_CASE(random_plans),
};
EK_TEST_MAIN(cases)
