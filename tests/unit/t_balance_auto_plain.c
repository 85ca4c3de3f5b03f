/* auto against a plain reference: every packing made without lists and searched in full, every
 * number of replicas per link tried.  The shortcuts of auto must not cost more than documented. */
#include "balance/alias_balance.h"
#include "base/random.h"
#include "plan_fixture.h"

#include <math.h>

enum { DRAWS = 800, EXPERTS = 72, RANKS = 13, PLAIN = 4 };

static const struct {
    double level;
    int with_heaviest;
} levels[PLAIN] = {{0.8, 0}, {0.8, 1}, {1.1, 0}, {1.5, 0}};

/* The current layer, and placements made by the reference. */
typedef struct {
    fixture f, judge;
    int64_t total[EXPERTS], sum[RANKS];
    int32_t order[EXPERTS], primary[EXPERTS], rank_of[EXPERTS];
    double mean;
} layer;

static int64_t drawn(int draw, int i, uint64_t below)
{
    return (int64_t)(ek_random_bits(21, (uint64_t)draw, (uint64_t)i) % below);
}

/* Upper bound of an expert's count from a source: skewed; or about equal on a rank, which may have
 * several times the tokens of another. */
static uint64_t most_for(const layer *x, int draw, int32_t e)
{
    const ek_plan_limits *l = &x->f.l;
    uint64_t size = (uint64_t)1 << drawn(draw, 3, 30);
    int32_t r = x->f.p.placement.primary[e] / l->slots;

    if (draw % 2)
        return 1 + 4 * size / (1 + (uint64_t)drawn(draw, 100 + e, (uint64_t)l->experts));
    return 1 + (size + (uint64_t)drawn(draw, 100 + e, size)) * (uint64_t)drawn(draw, 200 + r, 5);
}

/* Few and many assignments. */
static void draw_counts(layer *x, int draw)
{
    const ek_plan_limits *l = &x->f.l;

    for (int32_t e = 0; e < l->experts; e++)
        for (int32_t r = 0; r < l->ranks; r++) {
            uint64_t most = most_for(x, draw, e);
            int64_t n = draw % 2 ? drawn(draw, 1000 + r * l->experts + e, most) : (int64_t)most;

            x->f.counts[(int64_t)r * l->experts + e] = n;
            x->total[e] += n;
        }
}

static void setup(layer *x, int draw)
{
    int32_t ranks = 1 + (int32_t)drawn(draw, 0, RANKS), slots;
    int32_t experts = 1 + (int32_t)drawn(draw, 1, EXPERTS);
    ek_plan_costs costs = {.compute_s_per_row = 1, .comm_s_per_row = drawn(draw, 4, 2) ? 0.5 : 0};

    slots = (experts + ranks - 1) / ranks + (int32_t)drawn(draw, 2, 3);
    memset(x, 0, sizeof(*x));
    plan_setup(&x->f, &ek_planner_auto, experts, ranks, slots, costs);
    plan_setup(&x->judge, &ek_planner_auto, experts, ranks, slots, costs);
    draw_counts(x, draw);
    for (int32_t e = 0; e < experts; e++) {
        x->mean += (double)x->total[e] / ranks;
        x->primary[e] = x->f.p.placement.primary[e] / slots;
    }
    x->f.l.costs.replica_s = x->mean * (double)drawn(draw, 5, 100) * 0.003;
    x->f.l.costs.migrate_s_per_expert = x->mean * (double)drawn(draw, 6, 100) * 0.01;
    x->f.l.horizon = 1 << drawn(draw, 7, 10);
    x->judge.l = x->f.l;
}

static void fini_layer(layer *x)
{
    teardown(&x->judge);
    teardown(&x->f);
}

/* --- persistent ------------------------------------------------------------------------------- */

static void sort(layer *x)
{
    for (int32_t e = 0; e < x->f.l.experts; e++) {
        int32_t i = e;

        for (; i > 0 && x->total[x->order[i - 1]] < x->total[e]; i--)
            x->order[i] = x->order[i - 1];
        x->order[i] = e;
    }
}

static void pack(layer *x, double level, int with_heaviest)
{
    int64_t heaviest[RANKS] = {0};
    int32_t room[RANKS] = {0};

    memset(x->sum, 0, sizeof(x->sum));
    for (int32_t e = 0; e < x->f.l.experts; e++)
        room[x->primary[e]]++;
    for (int32_t i = 0; i < x->f.l.experts; i++) {
        int32_t e = x->order[i], to = x->primary[e];
        int64_t others = x->sum[to] - (with_heaviest ? 0 : heaviest[to]);

        if (room[to] == 0 || (x->sum[to] > 0 && (double)(others + x->total[e]) > level)) {
            to = -1;
            for (int32_t r = 0; r < x->f.l.ranks; r++)
                if (room[r] > 0 && (to < 0 || x->sum[r] < x->sum[to]))
                    to = r;
        }
        x->rank_of[e] = to;
        heaviest[to] = x->sum[to] > 0 ? heaviest[to] : x->total[e];
        x->sum[to] += x->total[e];
        room[to]--;
    }
}

static int alike(const layer *x, int32_t a, int32_t b)
{
    int64_t more = x->total[a] - x->total[b];
    double of_a = (double)x->sum[x->rank_of[a]], of_b = (double)x->sum[x->rank_of[b]];
    double most = fmax(fmax(of_a, of_b), x->mean);

    return fabs((double)more) <= x->mean / 32 && of_a - (double)more <= most &&
           of_b + (double)more <= most;
}

/* Compares every moved expert with every other, lightest first. */
static void send_primary(layer *x)
{
    int32_t n = x->f.l.experts;

    for (int32_t i = n; i-- > 0;)
        for (int32_t k = n, a = x->order[i]; k-- > 0;) {
            int32_t b = x->order[k], at = x->rank_of[a];

            if (at == x->primary[a] || x->rank_of[b] != x->primary[a] ||
                x->primary[b] == x->primary[a] || !alike(x, a, b))
                continue;
            x->sum[at] -= x->total[a] - x->total[b];
            x->sum[x->rank_of[b]] += x->total[a] - x->total[b];
            x->rank_of[a] = x->rank_of[b];
            x->rank_of[b] = at;
        }
}

/* Time of x->rank_of with transient replicas, moves included. */
static double cost(layer *x)
{
    fixture *j = &x->judge;
    int32_t links = 0, come[RANKS] = {0};

    for (int32_t i = 0; i < j->l.ranks * j->l.slots; i++)
        j->p.placement.expert_of[i] = -1;
    for (int32_t e = 0; e < j->l.experts; e++) {
        int32_t r = x->rank_of[e], slot = ek_plan_free_slot(&j->p.placement, r);

        j->p.placement.expert_of[slot] = e;
        j->p.placement.primary[e] = slot;
        come[r] += r != x->primary[e];
        links = come[r] > links ? come[r] : links;
    }
    CHECK(j->planner->plan_transient(j->memory, &j->l, x->f.counts, &j->p) == EK_OK);
    return j->p.after_s * (double)j->l.horizon +
           2 * links * j->l.costs.migrate_s_per_expert; /* pays_factor 2 */
}

/* The least time of the present placement and four packings, of which auto's must be one. */
static double plain_primaries(layer *x, const int32_t *chosen)
{
    size_t size = (size_t)x->f.l.experts * sizeof(*chosen);
    int met = memcmp(chosen, x->primary, size) == 0;
    double least;

    memcpy(x->rank_of, x->primary, size);
    least = cost(x);
    sort(x);
    for (int i = 0; i < PLAIN; i++) {
        pack(x, levels[i].level * x->mean, levels[i].with_heaviest);
        send_primary(x);
        met = met || memcmp(chosen, x->rank_of, size) == 0;
        least = fmin(least, cost(x));
    }
    CHECK(met);
    return least;
}

/* Allowed excess over the best placement.  With communication costs plan_transient models links
 * more closely than plan_persistent and may add locality replicas. */
static double margin(const layer *x)
{
    const ek_plan_limits *l = &x->f.l;

    for (int64_t i = 0; i < (int64_t)l->ranks * l->experts; i++)
        if ((double)x->f.counts[i] * l->costs.comm_s_per_row > l->costs.replica_s)
            return 1.0 / 8;
    return l->costs.comm_s_per_row > 0 ? 1.0 / 32 : 1.0 / 512;
}

/* The placement is one of the reference's, hardly slower than the best of them. */
static void persistent_matches_reference(void)
{
    int32_t some = 0;

    for (int draw = 0; draw < DRAWS; draw++) {
        int32_t chosen[EXPERTS];
        double least, now;
        layer x;

        setup(&x, draw);
        CHECK(x.f.planner->plan_persistent(x.f.memory, &x.f.l, x.f.counts, &x.f.p) == EK_OK);
        for (int32_t e = 0; e < x.f.l.experts; e++)
            chosen[e] = x.f.p.placement.primary[e] / x.f.l.slots;
        some += memcmp(chosen, x.primary, (size_t)x.f.l.experts * sizeof(*chosen)) != 0;
        least = plain_primaries(&x, chosen);
        memcpy(x.rank_of, chosen, sizeof(chosen));
        now = cost(&x);
        if (now > least * (1 + margin(&x)) + 1e-9)
            EK_T_FAIL("draw %d: %.9g, plainly %.9g: 1 + %.3g", draw, now, least, now / least - 1);
        fini_layer(&x);
    }
    if (some < DRAWS / 10 || some > DRAWS * 9 / 10)
        EK_T_FAIL("homes move in %d of %d draws", (int)some, (int)DRAWS);
}

/* --- transient -------------------------------------------------------------------------------- */

static double time_of(const layer *x, int64_t most, int32_t links)
{
    const ek_plan_costs *c = &x->f.l.costs;
    int64_t busiest = most;

    for (int32_t r = 0; r < x->f.l.ranks; r++) {
        int64_t sent = 0;

        for (int32_t e = 0; e < x->f.l.experts; e++)
            sent += x->f.counts[(int64_t)r * x->f.l.experts + e];
        busiest = sent > busiest ? sent : busiest;
    }
    return (double)most * c->compute_s_per_row + (double)busiest * c->comm_s_per_row +
           links * c->replica_s;
}

/* The maximum number of replicas per link, then every smaller one, each searched in full. */
static double plain_search(layer *x)
{
    const ek_plan_limits *l = &x->f.l;
    ek_arena arena;
    int64_t sum = 0, floor;
    int32_t links;
    double least;
    ek_alias m;

    ek_arena_measure(&arena);
    ek_alias_reserve(&m, &arena, l);
    CHECK(ek_arena_reserve(&arena, "a search") == EK_OK);
    ek_alias_reserve(&m, &arena, l);
    memcpy(m.total, x->total, (size_t)l->experts * sizeof(*m.total));
    least = time_of(x, ek_alias_start(&m, l, &x->judge.p.placement), 0);
    for (int32_t e = 0; e < l->experts; e++)
        sum += x->total[e];
    (void)ek_alias_search(&m, l, (sum + l->ranks - 1) / l->ranks, INT32_MAX, INT64_MAX);
    links = ek_alias_busiest_link(&m, l);
    floor = m.least;
    least = fmin(least, time_of(x, floor, links));
    for (int32_t n = 1; n < links; n++) {
        (void)ek_alias_search(&m, l, floor, n, INT64_MAX);
        least = fmin(least, time_of(x, m.least, ek_alias_busiest_link(&m, l)));
    }
    ek_arena_fini(&arena);
    return least;
}

/* What the shortcuts skip saves no more than the search resolution. */
static void replicas_are_plain_ones(void)
{
    for (int draw = 0; draw < DRAWS; draw++) {
        double least, now;
        layer x;

        setup(&x, draw);
        CHECK(x.f.planner->plan_transient(x.f.memory, &x.f.l, x.f.counts, &x.f.p) == EK_OK);
        now = x.f.p.after_s;
        least = plain_search(&x);
        if (now > least * 1.0005)
            EK_T_FAIL("draw %d: %.9g, plainly %.9g", draw, now, least);
        fini_layer(&x);
    }
}

static const ek_case cases[] = {
    EK_CASE(persistent_matches_reference),
    EK_CASE(replicas_are_plain_ones),
};

EK_TEST_MAIN(cases)
