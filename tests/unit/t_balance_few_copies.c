/* Quotas with few serving copies: no slower than those of all copies by the same time, computed
 * another way; and layers by hand. */
#include "balance/few_copies.h"
#include "balance/plan_time.h"
#include "base/random.h"
#include "ek_test.h"

#include <string.h>

enum { DRAWS = EK_T_SLOW ? 100 : 400, RANKS = 8, SLOTS = 8, EXPERTS = 24 };

typedef struct {
    ek_arena arena;
    ek_plan_limits l;
    ek_plan p;
    ek_quota_flow f;
    ek_few_copies few;
    int64_t *counts, *load, *memory; /* [ranks][experts], [ranks], of ek_plan_time */
    int32_t *slots, *cost;           /* [ranks * slots], [ranks] */
    unsigned char *served;           /* [ranks * slots] */
} layer;

static int64_t drawn(int draw, int i, int64_t below)
{
    return (int64_t)((ek_random_bits(97, (uint64_t)draw, (uint64_t)i) >> 9) % (uint64_t)below);
}

static void lay_out(layer *x)
{
    int64_t all = (int64_t)x->l.ranks * x->l.slots;

    ek_plan_reserve(&x->p, &x->arena, &x->l);
    ek_quota_flow_reserve(&x->f, &x->arena, &x->l);
    ek_few_copies_reserve(&x->few, &x->arena, &x->l);
    x->counts = ek_arena_alloc(&x->arena, (int64_t)x->l.ranks * x->l.experts, sizeof(*x->counts));
    x->load = ek_arena_alloc(&x->arena, x->l.ranks, sizeof(*x->load));
    x->memory = ek_arena_alloc(&x->arena, 4 * x->l.ranks + all + x->l.ranks * all, sizeof(int64_t));
    x->slots = ek_arena_alloc(&x->arena, all, sizeof(*x->slots));
    x->cost = ek_arena_alloc(&x->arena, x->l.ranks, sizeof(*x->cost));
    x->served = ek_arena_alloc(&x->arena, all, 1);
}

/* Expert e is on ranks e and e + 1, modulo their number; the last slot of each is empty. */
static void open_layer(layer *x, int32_t experts, int32_t ranks, ek_plan_costs costs)
{
    int32_t each = (experts + ranks - 1) / ranks;

    memset(x, 0, sizeof(*x));
    x->l =
        (ek_plan_limits){.experts = experts, .ranks = ranks, .slots = 2 * each + 1, .costs = costs};
    ek_arena_measure(&x->arena);
    lay_out(x);
    CHECK(ek_arena_reserve(&x->arena, "a layer") == EK_OK);
    lay_out(x);
    CHECK(ek_arena_check(&x->arena, "a layer") == EK_OK);
    for (int32_t s = 0; s < ranks * x->l.slots; s++)
        x->p.placement.expert_of[s] = -1;
    for (int32_t e = 0; e < experts; e++) {
        int32_t i = e / ranks, other = (e + 1 + i) % ranks;

        x->p.placement.primary[e] = e % ranks * x->l.slots + i;
        x->p.placement.expert_of[e % ranks * x->l.slots + i] = e;
        x->p.placement.expert_of[other * x->l.slots + each + i] = e;
    }
    x->l.served = x->served;
}

static void close_layer(layer *x)
{
    ek_arena_fini(&x->arena);
}

static int64_t serve_all(layer *x)
{
    ek_quota_flow_start(&x->f, &x->l, x->counts, &x->p.placement);
    return ek_quota_flow_least(&x->f, &x->l, &x->p.placement, x->p.quota);
}

static int64_t choose(layer *x)
{
    return ek_few_copies_choose(&x->few, &x->f, &x->l, x->counts, x->l.slots - 1, &x->p);
}

/* Gradients that are sent to be summed. */
static int32_t count_sums(const layer *x)
{
    int32_t n[EXPERTS] = {0}, sums = 0;
    unsigned char replica[EXPERTS] = {0}; /* its gradients come to the primary */

    for (int32_t r = 0; r < x->l.ranks; r++) {
        int32_t e = x->p.placement.expert_of[(r + 1) * x->l.slots - 1];

        if (e >= 0)
            replica[e] = 1;
    }
    for (int32_t s = 0; s < x->l.ranks * x->l.slots; s++) {
        int32_t e = x->p.placement.expert_of[s];

        if (s % x->l.slots < x->l.slots - 1 && e >= 0)
            n[e] +=
                x->p.quota[s] > 0 || x->served[s] || (replica[e] && x->p.placement.primary[e] == s);
    }
    for (int32_t e = 0; e < x->l.experts; e++)
        sums += n[e] > 1 ? n[e] - 1 : 0;
    return sums;
}

static double seconds(layer *x)
{
    ek_plan_limits l = x->l;

    l.costs.replica_s = 0;
    return ek_plan_time(&l, x->counts, &x->p, x->memory, x->slots) +
           count_sums(x) * l.costs.gradient_s / (double)l.ranks;
}

/* --- drawn ------------------------------------------------------------------------------------ */

/* Transient replicas, copies that have served, ranks that differ; dear and cheap gradients. */
static void check_draw(int draw, int *less, int *same)
{
    ek_plan_costs costs = {.compute_s_per_row = 1e-6,
                           .comm_s_per_row = draw % 3 == 0 ? 0 : 1e-6,
                           .gradient_s = draw % 5 == 0 ? 1e-5 : 1e-3};
    int32_t ranks = 2 + (int32_t)drawn(draw, 0, RANKS - 1), sums, all_sums;
    int64_t most, load;
    double s;
    layer x;

    open_layer(&x, ranks * (1 + (int32_t)drawn(draw, 1, 3)), ranks, costs);
    for (int32_t i = 0; i < ranks * x.l.experts; i++)
        x.counts[i] = drawn(draw, 10 + i, 3) == 0 ? 0 : drawn(draw, 1000 + i, 400);
    for (int32_t r = 0; r < ranks; r++) {
        int32_t e = (int32_t)drawn(draw, 2000 + r, x.l.experts);

        x.cost[r] = (int32_t)(EK_ROW_COST_ONE + drawn(draw, 2100 + r, 100));
        if (draw % 4 == 0 && ek_plan_slot(&x.p.placement, r, e) < 0)
            x.p.placement.expert_of[(r + 1) * x.l.slots - 1] = e;
    }
    for (int32_t i = 0; i < ranks * x.l.slots; i++)
        x.served[i] = draw % 7 == 0 && i % x.l.slots < x.l.slots - 1 &&
                      x.p.placement.expert_of[i] >= 0 && drawn(draw, 3000 + i, 3) == 0;
    x.l.row_cost = draw % 2 == 1 ? x.cost : NULL;
    (void)serve_all(&x);
    s = seconds(&x);
    all_sums = count_sums(&x);
    most = choose(&x);
    if (ek_plan_check(&x.l, x.counts, &x.p) != EK_OK)
        EK_T_FAIL("draw %d: %s", draw, ek_err_message());
    load = ek_plan_loads(&x.l, &x.p, x.load);
    CHECK(load >= 0 && most == ek_row_costs_largest(&x.l, x.load));
    sums = count_sums(&x);
    CHECK(seconds(&x) <= s * (1 + 1e-12));
    *less += sums < all_sums;
    *same += sums == all_sums;
    close_layer(&x);
}

static void no_slower_than_all_copies(void)
{
    int less = 0, same = 0;

    for (int draw = 0; draw < DRAWS; draw++)
        check_draw(draw, &less, &same);
    CHECK(less > DRAWS / 2 && same > DRAWS / 20);
}

/* --- by hand ---------------------------------------------------------------------------------- */

static const ek_plan_costs dear = {
    .compute_s_per_row = 1e-6, .comm_s_per_row = 1e-7, .gradient_s = 1};

static void fill(layer *x, int64_t each)
{
    for (int32_t i = 0; i < x->l.ranks * x->l.experts; i++)
        x->counts[i] = each;
}

static void one_copy_of_each_where_loads_are_even(void)
{
    layer x;

    open_layer(&x, 8, 4, dear);
    fill(&x, 10);
    CHECK_INT(serve_all(&x), 80);
    CHECK(count_sums(&x) == 8);
    CHECK_INT(choose(&x), 80);
    CHECK_INT(count_sums(&x), 0);
    close_layer(&x);
}

/* One expert has half of all rows, more than a rank: it is split while that pays. */
static void split_where_a_sum_costs_less(void)
{
    ek_plan_costs costs = {.compute_s_per_row = 1e-3, .gradient_s = 1e-3};
    layer x;

    open_layer(&x, 4, 4, costs);
    fill(&x, 10);
    for (int32_t r = 0; r < 4; r++)
        x.counts[r * 4] = 30;
    (void)serve_all(&x);
    CHECK_INT(choose(&x), 60);
    CHECK(count_sums(&x) == 1 || count_sums(&x) == 2);
    CHECK_INT(x.p.quota[0], 60);
    x.l.costs.gradient_s = 1;
    (void)serve_all(&x);
    CHECK_INT(choose(&x), 120);
    CHECK_INT(count_sums(&x), 0);
    close_layer(&x);
}

/* Rows that stay on their rank are worth more than gradients; and without their cost. */
static void all_copies_where_rows_are_dear(void)
{
    int64_t before[4 * 5];
    layer x;

    open_layer(&x, 8, 4, dear);
    x.l.costs.gradient_s = 1e-9;
    fill(&x, 10);
    (void)serve_all(&x);
    memcpy(before, x.p.quota, sizeof(before));
    (void)choose(&x);
    CHECK(memcmp(before, x.p.quota, sizeof(before)) == 0);
    x.l.costs.gradient_s = 0;
    (void)choose(&x);
    CHECK(memcmp(before, x.p.quota, sizeof(before)) == 0);
    close_layer(&x);
}

/* What has served already costs nothing more, so rows stay on their rank. */
static void served_copies_are_free(void)
{
    layer x;

    open_layer(&x, 8, 4, dear);
    fill(&x, 10);
    memset(x.served, 1, 4 * 5);
    (void)serve_all(&x);
    CHECK_INT(choose(&x), 80);
    for (int32_t s = 0; s < 4 * 5; s++)
        CHECK(x.p.placement.expert_of[s] < 0 || x.p.quota[s] > 0);
    close_layer(&x);
}

/* The gradients of a transient replica come to the primary, which then is a serving copy. */
static void a_primary_with_a_replica_is_free(void)
{
    layer x;

    open_layer(&x, 4, 4, dear);
    fill(&x, 10);
    for (int32_t r = 0; r < 4; r++) /* on ranks 0 and 3: rank 1 has less */
        x.counts[r * 4 + 3] = 15;
    x.p.placement.expert_of[2 * 3 + 2] = 0; /* on rank 2 */
    (void)serve_all(&x);
    (void)choose(&x);
    CHECK_INT(count_sums(&x), 0);
    CHECK(x.few.free[0] && x.p.quota[1 * 3 + 1] == 0);
    CHECK_INT(x.p.quota[0] + x.p.quota[2 * 3 + 2], 40);
    close_layer(&x);
}

static const ek_case cases[] = {
    EK_CASE(no_slower_than_all_copies),    EK_CASE(one_copy_of_each_where_loads_are_even),
    EK_CASE(split_where_a_sum_costs_less), EK_CASE(all_copies_where_rows_are_dear),
    EK_CASE(served_copies_are_free),       EK_CASE(a_primary_with_a_replica_is_free),
};
EK_TEST_MAIN(cases)
