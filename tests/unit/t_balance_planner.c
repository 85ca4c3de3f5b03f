/* The arithmetic that planners share: serving other counts, splits by source, layer time, validity;
 * by hand, and by properties over random shapes. */
#include "balance/plan_time.h"
#include "balance/planner.h"
#include "base/random.h"
#include "ek_test.h"

enum { EXPERTS = 12, RANKS = 9, ALL = 64, DRAWS = 400 };

/* Exact products of assignment counts. */
__extension__ typedef __int128 wide;

typedef struct {
    ek_plan_limits l;
    ek_plan p;
    int32_t expert_of[ALL], primary[EXPERTS], node_of[RANKS];
    int64_t quota[ALL], counts[RANKS * EXPERTS], total[EXPERTS];
} fixture;

/* Block order, no assignments. */
static void setup(fixture *f, int32_t experts, int32_t ranks, int32_t slots)
{
    memset(f, 0, sizeof(*f));
    f->l = (ek_plan_limits){.experts = experts, .ranks = ranks, .slots = slots};
    f->p.placement = (ek_placement){experts, ranks, slots, f->expert_of, f->primary};
    f->p.quota = f->quota;
    CHECK(experts <= EXPERTS && ranks <= RANKS && ranks * slots <= ALL);
    ek_placement_block(&f->p.placement, 1);
}

static void set_counts(fixture *f, const int64_t *counts)
{
    memcpy(f->counts, counts, (size_t)(f->l.ranks * f->l.experts) * sizeof(*counts));
    ek_plan_totals(&f->l, f->counts, f->total);
}

static void check_all(const int64_t *got, const int64_t *want, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        if (got[i] != want[i])
            EK_T_FAIL("number %d is %lld, expected %lld", (int)i, (long long)got[i],
                      (long long)want[i]);
}

static int is_valid(const fixture *f)
{
    return ek_plan_check(&f->l, f->counts, &f->p) == EK_OK;
}

/* --- names ------------------------------------------------------------------------------------ */

static void planners_are_found_by_name(void)
{
    int n = 0;

    for (; ek_planners[n] != NULL; n++) {
        const ek_planner *p = ek_planners[n];

        CHECK(ek_planner_find(p->name) == p); /* names are unique */
        CHECK(p->what != NULL && p->what[0] != '\0' && p->reserve != NULL);
        CHECK(p->plan_persistent != NULL || p->plan_transient != NULL);
    }
    CHECK(n >= 4);
    CHECK(ek_planner_find("off") == &ek_planner_off);
    CHECK(ek_planner_find("exact") == &ek_planner_exact);
    CHECK(ek_planner_find("shadow") == &ek_planner_shadow);
    CHECK(ek_planner_find("place") == &ek_planner_place);
    CHECK(ek_planner_find("") == NULL);
    CHECK(ek_planner_find("of") == NULL);
    CHECK(ek_planner_find("off ") == NULL);
    CHECK(ek_planner_find("Exact") == NULL);
}

/* --- history ---------------------------------------------------------------------------------- */

/* A history in memory of its own, for 2 ranks and 2 experts. */
typedef struct {
    int64_t sums[4], of_experts[3][2];
    ek_plan_history h;
} small_history;

static ek_plan_history *start_history(small_history *x)
{
    *x = (small_history){0};
    x->h = (ek_plan_history){.counts = x->sums,
                             .forecast = x->of_experts[0],
                             .window = x->of_experts[1],
                             .load = x->of_experts[2]};
    return &x->h;
}

/* Horizon 2: with four micro-batches remembered, half is dropped. */
static void history_fades(void)
{
    const int64_t counts[] = {10, 0, 6, 1}, after_four[] = {40, 0, 24, 4};
    const int64_t after_five[] = {30, 0, 18, 3};
    small_history x;
    ek_plan_history *h = start_history(&x);
    fixture f;

    setup(&f, 2, 2, 1);
    f.l.horizon = 2;
    CHECK(!ek_plan_due(h, &f.l));
    ek_plan_remember(h, &f.l, counts);
    CHECK(!ek_plan_due(h, &f.l));
    ek_plan_remember(h, &f.l, counts);
    CHECK(ek_plan_due(h, &f.l));
    CHECK(!ek_plan_due(h, &f.l)); /* once */
    ek_plan_remember(h, &f.l, counts);
    CHECK(!ek_plan_due(h, &f.l));
    ek_plan_remember(h, &f.l, counts);
    CHECK(ek_plan_due(h, &f.l));
    check_all(x.sums, after_four, 4);
    CHECK_INT(h->of, 4);
    ek_plan_remember(h, &f.l, counts);
    check_all(x.sums, after_five, 4);
    CHECK_INT(h->of, 3);
    f.l.horizon = 0;
    h->due = 100;
    CHECK(!ek_plan_due(h, &f.l));
}

/* No sum exceeds 2^62, whatever is remembered. */
static void history_does_not_overflow(void)
{
    const int64_t counts[] = {(int64_t)1 << 61, (int64_t)1 << 60, 0, (int64_t)1 << 60};
    small_history x;
    ek_plan_history *h = start_history(&x);
    fixture f;

    setup(&f, 2, 2, 1);
    f.l.horizon = 1000;
    for (int i = 0; i < 70; i++) {
        int64_t sum = 0;

        ek_plan_remember(h, &f.l, counts);
        for (int c = 0; c < 4; c++) {
            CHECK(x.sums[c] >= counts[c]);
            sum += x.sums[c];
        }
        CHECK(sum <= (int64_t)1 << 62);
    }
    CHECK(h->of == 1); /* at the limit */
}

/* Remembers n micro-batches with these loads of the experts, half from each rank. */
static void remember_loads(ek_plan_history *h, const ek_plan_limits *l, int n, int64_t a, int64_t b)
{
    const int64_t counts[] = {a / 2, b / 2, a - a / 2, b - b / 2};

    for (int i = 0; i < n; i++)
        ek_plan_remember(h, l, counts);
}

/* The horizon is as long as loads have been constant, in whole windows. */
static void horizon_follows_constant_loads(void)
{
    small_history x;
    ek_plan_history *h = start_history(&x);
    fixture f;

    setup(&f, 2, 2, 1);
    f.l.horizon = 8;
    CHECK_INT(ek_plan_horizon(h, &f.l), 8);
    remember_loads(h, &f.l, 8, 600, 1000); /* the forecast */
    CHECK_INT(ek_plan_horizon(h, &f.l), 8);
    remember_loads(h, &f.l, 7, 60, 100); /* as forecast, with fewer assignments */
    CHECK_INT(ek_plan_horizon(h, &f.l), 8);
    remember_loads(h, &f.l, 1, 600, 1000);
    CHECK_INT(ek_plan_horizon(h, &f.l), 16);
    remember_loads(h, &f.l, 8, 700, 900); /* 1 / 16 of the assignments are for another expert */
    CHECK_INT(ek_plan_horizon(h, &f.l), 24);
    remember_loads(h, &f.l, 7, 600, 1000);
    remember_loads(h, &f.l, 1, 1000, 0); /* one of 8 is no change */
    CHECK_INT(ek_plan_horizon(h, &f.l), 32);
    remember_loads(h, &f.l, 6, 600, 1000);
    remember_loads(h, &f.l, 2, 1000, 0); /* two are */
    CHECK_INT(ek_plan_horizon(h, &f.l), 8);
    f.l.ep_groups = 2; /* both groups are remembered */
    remember_loads(h, &f.l, 56, 600, 1000);
    CHECK_INT(h->constant, 64 - 8);
    CHECK_INT(ek_plan_horizon(h, &f.l), 28);
    f.l.ep_groups = 1;
    f.l.horizon = 0; /* nothing may move */
    remember_loads(h, &f.l, 100, 600, 1000);
    CHECK_INT(ek_plan_horizon(h, &f.l), 0);
}

/* Drift that is within the limit from window to window ends a constant period, as it adds up; so
 * do loads that alternate, whose windows are equal. */
static void horizon_stays_short(void)
{
    small_history x;
    ek_plan_history *h = start_history(&x);
    fixture f;

    setup(&f, 2, 2, 1);
    f.l.horizon = 8;
    for (int i = 0; i < 40; i++) { /* 1 / 40 a window */
        remember_loads(h, &f.l, 8, 25 * i, 1000 - 25 * i);
        CHECK(ek_plan_horizon(h, &f.l) <= 3 * 8);
    }
    for (int i = 0; i < 80; i++) {
        remember_loads(h, &f.l, 1, 700, 300);
        remember_loads(h, &f.l, 1, 300, 700);
        CHECK(i < 4 || ek_plan_horizon(h, &f.l) == 8);
    }
    start_history(&x);
    for (int i = 0; i < 20; i++) /* without assignments, and then some */
        remember_loads(h, &f.l, 1, 0, i < 8 ? 0 : 100);
    CHECK_INT(ek_plan_horizon(h, &f.l), 8);
}

/* --- sums and slots --------------------------------------------------------------------------- */

static void totals_primaries_and_loads(void)
{
    const int64_t counts[] = {4, 0, 1, 6, 2, 0}, totals[] = {10, 2, 1}, loads[] = {12, 1};
    int64_t load[2];
    fixture f;

    setup(&f, 3, 2, 3); /* rank 0: experts 0 1 -, rank 1: 2 - - */
    set_counts(&f, counts);
    check_all(f.total, totals, 3);
    f.expert_of[4] = 0;
    f.quota[4] = f.quota[5] = 77; /* of an earlier plan */
    ek_plan_primaries_only(&f.l, f.total, &f.p);
    CHECK(is_valid(&f));
    CHECK_INT(f.quota[4], 0);
    CHECK_INT(ek_plan_loads(&f.l, &f.p, load), 12);
    check_all(load, loads, 2);
    f.quota[4] = 15;
    CHECK_INT(ek_plan_loads(&f.l, &f.p, load), 16); /* the last rank is the busiest */
    CHECK_INT(ek_plan_slot(&f.p.placement, 0, 1), 1);
    CHECK_INT(ek_plan_slot(&f.p.placement, 1, 0), 4);
    CHECK_INT(ek_plan_slot(&f.p.placement, 1, 1), -1);
    CHECK_INT(ek_plan_free_slot(&f.p.placement, 0), 2);
    CHECK_INT(ek_plan_free_slot(&f.p.placement, 1), 5);
    f.expert_of[5] = 1;
    CHECK_INT(ek_plan_free_slot(&f.p.placement, 1), -1);
}

/* --- serving counts that the plan was not made from ------------------------------------------- */

/* One expert on `ranks` ranks of one slot, with the quotas of a plan: quotas for `total`. */
static void serve_one(int32_t ranks, const int64_t *planned, int64_t total, int64_t *quota)
{
    fixture f;

    setup(&f, 1, ranks, 1);
    for (int32_t r = 0; r < ranks; r++) {
        f.expert_of[r] = 0;
        f.quota[r] = planned[r];
    }
    ek_plan_serve(&f.l, &total, &f.p, quota);
}

static void serves_in_proportion(void)
{
    static const struct {
        int64_t planned[3], total, want[3];
    } cases[] = {
        {{5, 3, 2}, 10, {5, 3, 2}},  /* the counts it was made from */
        {{5, 3, 2}, 20, {10, 6, 4}}, /* twice as many */
        {{5, 3, 2}, 7, {4, 2, 1}},   /* 3.5 2.1 1.4 */
        {{2, 3, 5}, 7, {1, 2, 4}},   /* the largest remainder is the last */
        {{3, 3, 4}, 9, {3, 3, 3}},   /* 2.7 2.7 3.6: two remain */
        {{1, 1, 1}, 2, {1, 1, 0}},   /* equal remainders: lower slots first */
        {{1, 0, 1}, 3, {2, 0, 1}},   /* a slot with quota 0 stays at 0 */
        {{0, 0, 9}, 1, {0, 0, 1}},   /* and so does the primary slot */
        {{5, 3, 2}, 0, {0, 0, 0}},   {{1, 1, 98}, 1, {0, 0, 1}},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int64_t quota[3] = {-5, -5, -5};

        serve_one(3, cases[i].planned, cases[i].total, quota);
        check_all(quota, cases[i].want, 3);
    }
}

static void unplanned_experts_use_primary(void)
{
    const int64_t total[] = {6, 5}, want[] = {3, 0, 0, 3, 0, 5};
    int64_t quota[6];
    fixture f;

    setup(&f, 2, 2, 3);
    f.expert_of[3] = 0; /* a replica */
    f.expert_of[4] = f.expert_of[5] = f.expert_of[1] = 1;
    f.expert_of[2] = -1;
    f.primary[1] = 5; /* after a second slot of its own */
    f.quota[0] = f.quota[3] = 1;
    ek_plan_serve(&f.l, total, &f.p, quota);
    check_all(quota, want, 6);
}

static void huge_counts_do_not_overflow(void)
{
    const int64_t most = (int64_t)1 << 40, planned[] = {most, most - 1, 1};
    int64_t quota[3];

    serve_one(3, planned, 2 * most, quota);
    check_all(quota, planned, 3);
    serve_one(3, planned, most, quota); /* a remainder of one half for the second and the third */
    CHECK_INT(quota[0], most / 2);
    CHECK_INT(quota[1], most / 2);
    CHECK_INT(quota[2], 0);
    serve_one(3, planned, 8 * most, quota);
    CHECK_INT(quota[0], 4 * most);
    CHECK_INT(quota[1], 4 * most - 4);
    CHECK_INT(quota[2], 4);
}

/* Floors, and one more for the largest remainders, lower slots first, as the header says. */
static void check_served(const fixture *f, int32_t expert, int64_t total, const int64_t *quota)
{
    wide sum = 0, rest[ALL];
    int64_t served = 0;
    int32_t all = f->l.ranks * f->l.slots;

    for (int32_t s = 0; s < all; s++)
        if (f->expert_of[s] == expert) {
            sum += f->quota[s];
            served += quota[s];
        }
    CHECK_INT(served, total);
    if (sum == 0) {
        CHECK_INT(quota[f->primary[expert]], total);
        return;
    }
    for (int32_t s = 0; s < all; s++) {
        rest[s] = (wide)total * f->quota[s] % sum;
        if (f->expert_of[s] == expert)
            CHECK(quota[s] == (int64_t)((wide)total * f->quota[s] / sum) ||
                  (rest[s] > 0 && quota[s] == (int64_t)((wide)total * f->quota[s] / sum) + 1));
    }
    for (int32_t up = 0; up < all; up++)
        for (int32_t down = 0; down < all; down++)
            if (f->expert_of[up] == expert && f->expert_of[down] == expert &&
                (wide)quota[up] * sum > (wide)total * f->quota[up] &&
                (wide)quota[down] * sum < (wide)total * f->quota[down])
                CHECK(rest[up] > rest[down] || (rest[up] == rest[down] && up < down));
}

/* --- who goes where --------------------------------------------------------------------------- */

enum { GUARD = 0x5a };

/* Splits an expert into n slots and rows, with uninitialised scratch; checks that nothing is
 * written beyond the documented sizes. */
static int32_t split(const fixture *f, int32_t expert, int fresh, int32_t *slots, int64_t *rows)
{
    int64_t memory[RANKS + ALL + 1], room[RANKS * ALL + 1];
    size_t asked = (size_t)(f->l.ranks + f->l.ranks * f->l.slots), used;
    int32_t n;

    memset(memory, fresh, sizeof(memory));
    memset(room, GUARD, sizeof(room));
    memory[asked] = GUARD;
    n = ek_plan_split(&f->l, f->counts, &f->p.placement, f->quota, expert, memory, slots, room);
    used = (size_t)f->l.ranks * (size_t)n;
    CHECK_INT(memory[asked], GUARD);
    for (size_t i = used * sizeof(*room); i < sizeof(room); i++)
        CHECK(((unsigned char *)room)[i] == GUARD);
    memcpy(rows, room, used * sizeof(*rows));
    return n;
}

/* Order of service: own rank, node, any. */
static void split_prefers_near_ranks(void)
{
    /* Own rank: 4, 6, 2.  Node: the last one of rank 0 to rank 2, one of rank 3 to rank 1.  Rest:
     * two of rank 3 to rank 2. */
    const int64_t counts[] = {5, 6, 2, 3}, near[] = {4, 0, 1, 0, 6, 0, 0, 0, 2, 0, 1, 2};
    const int64_t flat[] = {4, 1, 0, 0, 6, 0, 0, 0, 2, 0, 0, 3}; /* the first with quota left */
    int64_t rows[RANKS * ALL];
    int32_t slots[ALL];
    fixture f;

    setup(&f, 1, 4, 2); /* nodes {0, 2} and {1, 3}; slots on ranks 0, 1 and 2 */
    f.node_of[1] = f.node_of[3] = 7;
    f.l.node_of = f.node_of;
    f.expert_of[3] = f.expert_of[5] = 0;
    f.quota[0] = 4;
    f.quota[3] = 7;
    f.quota[5] = 5;
    set_counts(&f, counts);
    CHECK(is_valid(&f));
    CHECK_INT(split(&f, 0, 0, slots, rows), 3);
    CHECK(slots[0] == 0 && slots[1] == 3 && slots[2] == 5);
    check_all(rows, near, 12);
    f.l.node_of = NULL;
    CHECK_INT(split(&f, 0, 0xff, slots, rows), 3);
    check_all(rows, flat, 12);
}

/* Two slots of one expert on a rank, and a rank that holds it without assignments. */
static void split_over_slots_of_one_rank(void)
{
    const int64_t counts[] = {9, 7, 0, 1, 6, 2}, want[] = {3, 4, 2, 0, 0, 0, 0, 0, 6};
    const int64_t other[] = {7, 1, 2};
    int64_t rows[RANKS * ALL];
    int32_t slots[ALL];
    fixture f;

    setup(&f, 2, 3, 4); /* rank 0: expert 0, rank 1: expert 1 */
    f.expert_of[2] = f.expert_of[11] = 0;
    f.quota[0] = 3;
    f.quota[2] = 4;
    f.quota[11] = 8;
    f.quota[4] = 10;
    set_counts(&f, counts);
    CHECK(is_valid(&f));
    CHECK_INT(split(&f, 0, 0, slots, rows), 3);
    CHECK_INT(slots[1], 2);
    CHECK_INT(slots[2], 11);
    check_all(rows, want, 9);
    CHECK_INT(split(&f, 1, 0, slots, rows), 1);
    CHECK_INT(slots[0], 4);
    check_all(rows, other, 3);
}

/* Rows served within a rank or a node. */
static int64_t kept_within(const fixture *f, const int32_t *slots, int32_t n, const int64_t *rows,
                           const int *in)
{
    int64_t kept = 0;

    for (int32_t r = 0; r < f->l.ranks; r++)
        for (int32_t i = 0; i < n; i++)
            kept += in[r] && in[slots[i] / f->l.slots] ? rows[r * n + i] : 0;
    return kept;
}

/* As much as possible stays within a set of ranks: all its assignments, or all it serves. */
static void check_kept_within(const fixture *f, int32_t expert, const int32_t *slots, int32_t n,
                              const int64_t *rows, const int *in)
{
    int64_t asks = 0, serves = 0;

    for (int32_t r = 0; r < f->l.ranks; r++)
        asks += in[r] ? f->counts[r * f->l.experts + expert] : 0;
    for (int32_t i = 0; i < n; i++)
        serves += in[slots[i] / f->l.slots] ? f->quota[slots[i]] : 0;
    CHECK_INT(kept_within(f, slots, n, rows, in), asks < serves ? asks : serves);
}

static void check_near(const fixture *f, int32_t expert, const int32_t *slots, int32_t n,
                       const int64_t *rows)
{
    for (int32_t r = 0; r < f->l.ranks; r++) {
        int rank[RANKS] = {0}, node[RANKS] = {0};

        rank[r] = 1;
        for (int32_t o = 0; o < f->l.ranks; o++)
            node[o] = ek_plan_node(&f->l, o) == ek_plan_node(&f->l, r);
        check_kept_within(f, expert, slots, n, rows, rank);
        check_kept_within(f, expert, slots, n, rows, node);
    }
}

/* Returns the rows that change ranks, by sender and receiver. */
static void check_split(const fixture *f, int32_t expert, int64_t *sent, int64_t *got)
{
    int64_t rows[RANKS * ALL], again[RANKS * ALL];
    int32_t slots[ALL], others[ALL], n = split(f, expert, 0, slots, rows);

    CHECK_INT(split(f, expert, 0xff, others, again), n);
    check_all(again, rows, f->l.ranks * n);
    for (int32_t r = 0; r < f->l.ranks; r++) {
        int64_t sum = 0;

        for (int32_t i = 0; i < n; i++) {
            CHECK(rows[r * n + i] >= 0);
            sum += rows[r * n + i];
            sent[r] += slots[i] / f->l.slots != r ? rows[r * n + i] : 0;
            got[slots[i] / f->l.slots] += slots[i] / f->l.slots != r ? rows[r * n + i] : 0;
        }
        CHECK_INT(sum, f->counts[r * f->l.experts + expert]);
    }
    for (int32_t i = 0; i < n; i++) {
        int64_t sum = 0;

        CHECK(f->expert_of[slots[i]] == expert && (i == 0 || slots[i] > slots[i - 1]));
        for (int32_t r = 0; r < f->l.ranks; r++)
            sum += rows[r * n + i];
        CHECK_INT(sum, f->quota[slots[i]]);
    }
    check_near(f, expert, slots, n, rows);
}

/* --- what a layer takes ----------------------------------------------------------------------- */

static double time_of(const fixture *f)
{
    int64_t memory[4 * RANKS + (RANKS + 1) * ALL];
    int32_t slots[ALL];

    memset(memory, 0x5a, sizeof(memory));
    return ek_plan_time(&f->l, f->counts, &f->p, memory, slots);
}

/* Costs such that decimal digits separate the three terms: assignments, rows, replicas. */
static void time_by_hand(void)
{
    const int64_t counts[] = {4, 0, 1, 6, 2, 0, 5, 1, 3};
    fixture f;

    setup(&f, 3, 3, 2);
    f.l.costs = (ek_plan_costs){.compute_s_per_row = 1, .comm_s_per_row = 100, .replica_s = 10000};
    set_counts(&f, counts);
    ek_plan_primaries_only(&f.l, f.total, &f.p);
    CHECK(time_of(&f) == 15 + 1100); /* rank 0 receives 6 and 5 */
    f.expert_of[3] = 0;              /* a replica on rank 1 */
    f.quota[0] = 7;
    f.quota[3] = 8;
    CHECK(is_valid(&f));
    CHECK(time_of(&f) == 11 + 600 + 10000); /* rank 2 sends 3, 2 and 1 */
    f.expert_of[5] = 0;                     /* and one on rank 2: receivers forward it */
    f.quota[0] = 4;
    f.quota[3] = 6;
    f.quota[5] = 5;
    CHECK(time_of(&f) == 9 + 100 + 10000);
}

static void replicas_that_a_link_carries(void)
{
    fixture f;

    setup(&f, 4, 2, 4); /* 0 1 - - | 2 3 - - */
    f.l.costs = (ek_plan_costs){.replica_s = 1};
    CHECK(time_of(&f) == 0);
    f.expert_of[6] = 0;
    f.expert_of[2] = 2;
    CHECK(time_of(&f) == 1); /* links are full duplex */
    f.expert_of[7] = 1;
    CHECK(time_of(&f) == 2);
    setup(&f, 2, 3, 2); /* 0 - | 1 - | - - */
    f.l.costs = (ek_plan_costs){.replica_s = 1};
    f.expert_of[4] = 1;
    f.expert_of[5] = 0;
    CHECK(time_of(&f) == 2); /* two senders, one receiver of both */
    setup(&f, 2, 3, 2);
    f.l.costs = (ek_plan_costs){.replica_s = 1};
    f.expert_of[1] = 1;
    f.expert_of[2] = -1;
    f.primary[1] = 1; /* 0 1 | - - | - - */
    f.expert_of[2] = 0;
    f.expert_of[4] = 1;
    CHECK(time_of(&f) == 2); /* one sender of two */
}

/* --- validity --------------------------------------------------------------------------------- */

static void refused(const fixture *f, const char *word)
{
    CHECK_INT(ek_plan_check(&f->l, f->counts, &f->p), EK_EINVAL);
    if (strstr(ek_err_message(), word) == NULL)
        EK_T_FAIL("`%s` does not say `%s`", ek_err_message(), word);
}

static void setup_valid(fixture *f)
{
    const int64_t counts[] = {4, 0, 1, 6, 2, 0};

    setup(f, 3, 2, 3); /* 0 1 - | 2 0 - */
    set_counts(f, counts);
    f->expert_of[4] = 0;
    ek_plan_primaries_only(&f->l, f->total, &f->p);
    f->quota[0] = 7;
    f->quota[4] = 3;
    CHECK(is_valid(f));
}

static void invalid_plans_are_refused(void)
{
    fixture f;

    setup_valid(&f);
    f.primary[1] = 2; /* in a slot that does not hold it */
    refused(&f, "expert 1 is not in its primary slot 2");
    setup_valid(&f);
    f.primary[1] = -1;
    refused(&f, "primary slot -1");
    f.primary[1] = 6;
    refused(&f, "primary slot 6");
    setup_valid(&f);
    f.expert_of[5] = 3;
    refused(&f, "slot 5 holds expert 3");
    f.expert_of[5] = -2;
    refused(&f, "slot 5 holds expert -2");
    setup_valid(&f);
    f.quota[0] = 11;
    f.quota[4] = -1; /* still adds up */
    refused(&f, "serves -1");
    setup_valid(&f);
    f.quota[5] = 1;
    refused(&f, "slot 5, which holds expert -1");
    setup_valid(&f);
    f.quota[4]++;
    refused(&f, "expert 0 has 10 assignments, its slots serve 11");
    setup_valid(&f);
    f.quota[3]--;
    refused(&f, "expert 2 has 1 assignments, its slots serve 0");
    setup_valid(&f);
    f.quota[1]--; /* of another expert, so that the total is right */
    f.quota[3]++;
    refused(&f, "expert 1 has 2 assignments, its slots serve 1");
    setup_valid(&f);
    f.counts[4]++;
    refused(&f, "expert 1 has 3 assignments");
}

/* --- random shapes ---------------------------------------------------------------------------- */

typedef struct {
    uint64_t draw, next;
} dice;

static int32_t roll(dice *d, int32_t n)
{
    return (int32_t)(ek_random_bits(11, d->draw, d->next++) % (uint64_t)n);
}

/* Numbers of any magnitude up to 2^40, mostly small ones and zeros. */
static int64_t any_count(dice *d)
{
    int bits = roll(d, 4) ? roll(d, 6) : roll(d, 41);

    return (int64_t)(ek_random_bits(11, d->draw, d->next++) >> 1) & (((int64_t)1 << bits) - 1);
}

static void random_counts(fixture *f, dice *d)
{
    for (int32_t i = 0; i < f->l.ranks * f->l.experts; i++)
        f->counts[i] = any_count(d);
    ek_plan_totals(&f->l, f->counts, f->total);
}

/* Random replicas, sometimes several on a rank, random primary slots, random nodes. */
static void random_shape(fixture *f, dice *d)
{
    int32_t experts = 1 + roll(d, EXPERTS), ranks = 1 + roll(d, RANKS);
    int32_t full = 1 + roll(d, 4);

    setup(f, experts, ranks, (experts + ranks - 1) / ranks + roll(d, 5));
    for (int32_t s = 0; s < ranks * f->l.slots; s++)
        if (f->expert_of[s] < 0 && roll(d, 4) < full) {
            f->expert_of[s] = roll(d, experts);
            if (roll(d, 3) == 0)
                f->primary[f->expert_of[s]] = s;
        }
    for (int32_t r = 0; r < ranks; r++)
        f->node_of[r] = roll(d, 1 + ranks / 2);
    f->l.node_of = roll(d, 4) ? f->node_of : NULL;
}

/* Each replica takes a random part of what the primary copy has left. */
static void random_quotas(fixture *f, dice *d)
{
    ek_plan_primaries_only(&f->l, f->total, &f->p);
    for (int32_t s = 0; s < f->l.ranks * f->l.slots; s++) {
        int32_t e = f->expert_of[s];
        int64_t part;

        if (e < 0 || f->primary[e] == s)
            continue;
        part = roll(d, 4) ? any_count(d) : INT64_MAX; /* the primary copy keeps nothing */
        part = part < f->quota[f->primary[e]] ? part : f->quota[f->primary[e]];
        f->quota[s] = part;
        f->quota[f->primary[e]] -= part;
    }
}

static int64_t most_of(const int64_t *x, int32_t n)
{
    int64_t most = 0;

    for (int32_t i = 0; i < n; i++)
        most = x[i] > most ? x[i] : most;
    return most;
}

/* Each term of the time, recomputed from splits and loads. */
static void check_time(fixture *f)
{
    int64_t sent[RANKS] = {0}, got[RANKS] = {0}, load[RANKS], links, most, sum = 0, all = 0;

    for (int32_t e = 0; e < f->l.experts; e++) {
        check_split(f, e, sent, got);
        all += f->total[e];
    }
    links = most_of(sent, f->l.ranks);
    links = most_of(got, f->l.ranks) > links ? most_of(got, f->l.ranks) : links;
    f->l.costs = (ek_plan_costs){.comm_s_per_row = 1};
    CHECK(time_of(f) == (double)links);
    most = ek_plan_loads(&f->l, &f->p, load);
    for (int32_t r = 0; r < f->l.ranks; r++)
        sum += load[r];
    CHECK(sum == all && most == most_of(load, f->l.ranks));
    f->l.costs = (ek_plan_costs){.compute_s_per_row = 1};
    CHECK(time_of(f) == (double)most);
}

/* ek_plan_serve returns the plan's quotas for its own counts, and proportional ones for others. */
static void check_serve(fixture *f, dice *d)
{
    int64_t quota[ALL], planned[ALL];

    ek_plan_serve(&f->l, f->total, &f->p, quota);
    check_all(quota, f->quota, f->l.ranks * f->l.slots);
    random_counts(f, d);
    ek_plan_serve(&f->l, f->total, &f->p, quota);
    for (int32_t e = 0; e < f->l.experts; e++)
        check_served(f, e, f->total[e], quota);
    memcpy(planned, f->quota, sizeof(planned));
    memcpy(f->quota, quota, sizeof(quota));
    CHECK(is_valid(f));
    memcpy(f->quota, planned, sizeof(planned));
}

static void random_shapes(void)
{
    int uneven = 0;

    for (uint64_t i = 0; i < DRAWS; i++) {
        dice d = {i, 0};
        fixture f;

        random_shape(&f, &d);
        random_counts(&f, &d);
        random_quotas(&f, &d);
        CHECK(is_valid(&f));
        check_time(&f);
        check_serve(&f, &d);
        uneven += f.l.experts % f.l.ranks != 0;
    }
    CHECK(uneven > DRAWS / 4);
}

static const ek_case cases[] = {
    EK_CASE(planners_are_found_by_name),
    EK_CASE(history_fades),
    EK_CASE(history_does_not_overflow),
    EK_CASE(horizon_follows_constant_loads),
    EK_CASE(horizon_stays_short),
    EK_CASE(totals_primaries_and_loads),
    EK_CASE(serves_in_proportion),
    EK_CASE(unplanned_experts_use_primary),
    EK_CASE(huge_counts_do_not_overflow),
    EK_CASE(split_prefers_near_ranks),
    EK_CASE(split_over_slots_of_one_rank),
    EK_CASE(time_by_hand),
    EK_CASE(replicas_that_a_link_carries),
    EK_CASE(invalid_plans_are_refused),
    EK_CASE(random_shapes),
};
EK_TEST_MAIN(cases)
