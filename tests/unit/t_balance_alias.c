/* The alias method's search against a plain one, which looks at every rank and every expert for
 * each move: the same moves, in the same order; and plans that heed the links of nodes, which are
 * as good otherwise. */
#include "balance/alias_balance.h"
#include "base/random.h"
#include "ek_test.h"

#include <string.h>

enum { RANKS = 150, EXPERTS = 300, SLOTS = 8, DRAWS = 150 };

typedef struct {
    ek_arena arena;
    ek_plan_limits l;
    ek_plan p;
    ek_alias m;
} layer;

static int64_t drawn(int draw, int i, int64_t below)
{
    return (int64_t)(ek_random_bits(33, (uint64_t)draw, (uint64_t)i) % (uint64_t)below);
}

static void lay_out(layer *x)
{
    ek_plan_reserve(&x->p, &x->arena, &x->l);
    ek_alias_reserve(&x->m, &x->arena, &x->l);
}

/* Few and many ranks; skewed totals, many of them equal in every third draw. */
static void setup(layer *x, int draw)
{
    int32_t ranks = 1 + (int32_t)drawn(draw, 0, draw % 2 ? RANKS : 12);
    int32_t experts = 1 + (int32_t)drawn(draw, 1, draw % 2 ? EXPERTS : 40);
    int32_t own = (experts + ranks - 1) / ranks;

    memset(x, 0, sizeof(*x));
    ranks = own > SLOTS - 2 ? (experts + SLOTS - 3) / (SLOTS - 2) : ranks;
    own = (experts + ranks - 1) / ranks;
    x->l = (ek_plan_limits){
        .experts = experts, .ranks = ranks, .slots = own + (int32_t)drawn(draw, 2, 3)};
    ek_arena_measure(&x->arena);
    lay_out(x);
    CHECK(ek_arena_reserve(&x->arena, "a plan") == EK_OK);
    lay_out(x);
    CHECK(ek_arena_check(&x->arena, "a plan") == EK_OK);
    ek_placement_block(&x->p.placement, 1);
    for (int32_t e = 0; e < experts; e++)
        x->m.total[e] = draw % 3 == 0 ? 50 * drawn(draw, 10 + e, 5)
                                      : 1 + 100000 / (1 + drawn(draw, 10 + e, experts));
    (void)ek_alias_start(&x->m, &x->l, &x->p.placement);
}

/* --- the plain search ------------------------------------------------------------------------- */

typedef struct {
    const ek_alias *m;
    const ek_plan_limits *l;
    int32_t budget;
    int by_nodes;
    int64_t load[RANKS], left[EXPERTS];
    int32_t slots_left[RANKS], gives[RANKS];
    int given[EXPERTS];
    ek_alias_move moves[RANKS * SLOTS], best[RANKS * SLOTS];
    int32_t n, n_best;
    int64_t least;
} plain;

/* The expert with most left of those that a rank may give of; -1: none. */
static int32_t largest_expert(const plain *x, int32_t rank)
{
    int32_t best = -1;

    for (int32_t e = 0; e < x->l->experts; e++)
        if (x->m->rank_of[e] == rank && (x->gives[rank] < x->budget || x->given[e]) &&
            x->left[e] > (best < 0 ? 0 : x->left[best]))
            best = e;
    return best;
}

static int64_t gap_at(const plain *x, int64_t target, int32_t rank)
{
    return x->load[rank] < target && x->slots_left[rank] > 0 ? target - x->load[rank] : 0;
}

/* The rank of a node that lacks most; -1: none lacks any. */
static int32_t receiver_on(const plain *x, int64_t target, int32_t node)
{
    int32_t best = -1;

    for (int32_t r = x->m->node_first[node]; r < x->m->node_first[node + 1]; r++)
        if (gap_at(x, target, r) > (best < 0 ? 0 : gap_at(x, target, best)))
            best = r;
    return best;
}

/* The receiver by the links of nodes. */
static int32_t receiver_plainly(const plain *x, int64_t target, int32_t expert)
{
    const ek_alias *m = x->m;
    unsigned char has[RANKS] = {0};
    int32_t with = receiver_on(x, target, m->node_of[m->rank_of[expert]]), other = -1;
    int64_t rows = m->total[expert] / m->nodes;

    has[m->node_of[m->rank_of[expert]]] = 1;
    for (int32_t i = x->n; i-- > 0;)
        if (x->moves[i].expert == expert) {
            int32_t node = m->node_of[x->moves[i].slot / x->l->slots];
            int32_t r = receiver_on(x, target, node);

            has[node] = 1;
            if (r >= 0 && gap_at(x, target, r) > (with < 0 ? 0 : gap_at(x, target, with)))
                with = r;
        }
    for (int32_t node = 0; node < m->nodes; node++) {
        int32_t r = has[node] ? -1 : receiver_on(x, target, node);

        if (r >= 0 && gap_at(x, target, r) > (other < 0 ? 0 : gap_at(x, target, other)))
            other = r;
    }
    if (other < 0)
        return with;
    rows = x->left[expert] < rows ? x->left[expert] : rows;
    rows = gap_at(x, target, other) < rows ? gap_at(x, target, other) : rows;
    if ((double)rows * x->l->costs.comm_s_per_row > x->l->costs.replica_s)
        return other;
    return with;
}

/* The next move; 0: there is none. */
static int move_plainly(plain *x, int64_t target)
{
    int32_t from = -1, to = -1, expert = -1;
    int64_t amount, excess;

    for (int32_t r = 0; r < x->l->ranks; r++) {
        int32_t e = x->load[r] > target ? largest_expert(x, r) : -1;

        if (e >= 0 && (expert < 0 || x->left[e] > x->left[expert])) {
            from = r;
            expert = e;
        }
        if (gap_at(x, target, r) > (to < 0 ? 0 : gap_at(x, target, to)))
            to = r;
    }
    if (from < 0 || to < 0)
        return 0;
    if (x->by_nodes) {
        int32_t by_links = receiver_plainly(x, target, expert);

        to = by_links < 0 ? to : by_links;
    }
    excess = x->load[from] - target;
    amount = target - x->load[to] < x->left[expert] ? target - x->load[to] : x->left[expert];
    if (amount > excess && (x->slots_left[from] == 0 || x->slots_left[to] > 1))
        amount = excess;
    x->slots_left[to]--;
    x->moves[x->n++] =
        (ek_alias_move){expert, x->m->spare[to * x->l->slots + x->slots_left[to]], amount};
    x->gives[from] += !x->given[expert];
    x->given[expert] = 1;
    x->left[expert] -= amount;
    x->load[from] -= amount;
    x->load[to] += amount;
    return 1;
}

static int64_t most_load(const plain *x)
{
    int64_t most = 0;

    for (int32_t r = 0; r < x->l->ranks; r++)
        most = x->load[r] > most ? x->load[r] : most;
    return most;
}

static void drop_plainly(plain *x, int64_t bound)
{
    int32_t n = 0;

    for (int32_t i = 0; i < x->n; i++) {
        ek_alias_move v = x->moves[i];
        int32_t from = x->m->rank_of[v.expert];

        if (x->load[from] + v.amount > bound) {
            x->moves[n++] = v;
            continue;
        }
        x->load[from] += v.amount;
        x->load[v.slot / x->l->slots] -= v.amount;
    }
    x->n = n;
}

/* Makes all moves for a target. */
static void fill_plainly(plain *x, int64_t target)
{
    x->n = 0;
    memset(x->given, 0, sizeof(x->given));
    memset(x->gives, 0, sizeof(x->gives));
    memcpy(x->left, x->m->total, (size_t)x->l->experts * sizeof(*x->left));
    memcpy(x->load, x->m->start, (size_t)x->l->ranks * sizeof(*x->load));
    for (int32_t r = 0; r < x->l->ranks; r++)
        x->slots_left[r] = x->m->n_spare[r] < x->budget ? x->m->n_spare[r] : x->budget;
    while (move_plainly(x, target))
        continue;
}

static int64_t try_plainly(plain *x, int64_t target, int64_t slack)
{
    int64_t most;

    fill_plainly(x, target);
    most = most_load(x);
    drop_plainly(x, most > target + slack ? most : target + slack);
    most = most_load(x);
    if (most < x->least || (most == x->least && x->n < x->n_best)) {
        x->least = most;
        x->n_best = x->n;
        memcpy(x->best, x->moves, sizeof(x->best));
    }
    return most;
}

static void search_plainly(plain *x, int64_t mean)
{
    int64_t slack = (int64_t)(0.0005 * (double)mean), low = mean, high, most;

    x->least = INT64_MAX;
    most = try_plainly(x, mean, slack);
    high = x->least;
    for (int i = 0; i < EK_ALIAS_SEARCH && most > low + slack && high - low > slack; i++) {
        int64_t target = low + (high - low) / 2, reached = try_plainly(x, target, slack);

        if (reached > target + slack)
            low = target;
        else
            high = target;
        high = reached < high ? reached : high;
    }
}

/* Replicas on the busiest link. */
static int32_t links_plainly(const plain *x, const ek_alias_move *moves, int32_t n)
{
    int32_t gets[RANKS] = {0}, gives[RANKS] = {0}, most = 0;
    unsigned char given[EXPERTS] = {0};

    for (int32_t i = 0; i < n; i++) {
        int32_t from = x->m->rank_of[moves[i].expert], to = moves[i].slot / x->l->slots;

        gets[to]++;
        gives[from] += !given[moves[i].expert];
        given[moves[i].expert] = 1;
        most = gets[to] > most ? gets[to] : most;
        most = gives[from] > most ? gives[from] : most;
    }
    return most;
}

/* The moves by the links of nodes, if they are as good otherwise.  Returns whether they are used.
 */
static int heed_nodes_plainly(plain *x)
{
    if (x->m->nodes == 1 || x->m->nodes == x->l->ranks || x->n_best == 0)
        return 0;
    x->by_nodes = 1;
    fill_plainly(x, x->least);
    x->by_nodes = 0;
    drop_plainly(x, x->least);
    if (x->n > x->n_best || most_load(x) > x->least ||
        links_plainly(x, x->moves, x->n) > links_plainly(x, x->best, x->n_best))
        return 0;
    x->n_best = x->n;
    memcpy(x->best, x->moves, sizeof(x->best));
    return 1;
}

/* --- the cases -------------------------------------------------------------------------------- */

/* Whether both searches found the same moves, in the same order. */
static void compare_moves(const layer *x, const plain *y, int draw)
{
    CHECK_INT(x->m.least, y->least);
    CHECK_INT(x->m.n_best, y->n_best);
    for (int32_t i = 0; i < y->n_best && i < x->m.n_best; i++)
        if (x->m.best[i].expert != y->best[i].expert || x->m.best[i].slot != y->best[i].slot ||
            x->m.best[i].amount != y->best[i].amount)
            EK_T_FAIL("draw %d: another move %d than a plain search", draw, (int)i);
}

/* Draws with nodes: nodes of as many ranks, the last one smaller; costs for which copies go to
 * nodes without the expert, to nodes with it, or to some of both. */
static void set_nodes(layer *x, int draw, int32_t *node_of)
{
    int32_t of_node = 1 + (int32_t)drawn(draw, 3, 12);

    for (int32_t r = 0; r < x->l.ranks; r++)
        node_of[r] = r / of_node;
    x->l.node_of = node_of;
    x->l.costs = (ek_plan_costs){.comm_s_per_row = 1,
                                 .replica_s = draw % 3 == 0 ? 0 : (double)drawn(draw, 4, 500)};
    (void)ek_alias_start(&x->m, &x->l, &x->p.placement);
}

static void search_both(int with_nodes, int64_t *moves, int *many, int *heeded)
{

    for (int draw = 0; draw < DRAWS; draw++) {
        static plain y;
        int32_t node_of[RANKS];
        int64_t sum = 0, mean;
        layer x;

        setup(&x, draw);
        if (with_nodes)
            set_nodes(&x, draw, node_of);
        memset(&y, 0, sizeof(y));
        y.m = &x.m;
        y.l = &x.l;
        y.budget = draw % 4 == 0 ? 1 : INT32_MAX;
        for (int32_t e = 0; e < x.l.experts; e++)
            sum += x.m.total[e];
        mean = (sum + x.l.ranks - 1) / x.l.ranks;
        search_plainly(&y, mean);
        CHECK_INT(ek_alias_search(&x.m, &x.l, mean, y.budget, INT64_MAX), 1);
        *heeded += heed_nodes_plainly(&y);
        compare_moves(&x, &y, draw);
        *moves += y.n_best;
        *many += x.l.ranks > 64 && y.n_best > 10;
        ek_arena_fini(&x.arena);
    }
}

static void moves_are_plain_ones(void)
{
    int64_t moves = 0;
    int many = 0, heeded = 0;

    search_both(0, &moves, &many, &heeded);
    CHECK(moves > 1000 && many > 20 && heeded == 0);
}

static void moves_by_the_links_of_nodes_are_plain_ones(void)
{
    int64_t moves = 0;
    int many = 0, heeded = 0;

    search_both(1, &moves, &many, &heeded);
    CHECK(moves > 1000 && many > 20 && heeded > 40);
}

/* --- nodes of several ranks ------------------------------------------------------------------- */

typedef struct {
    int64_t least;
    int32_t n, links;
    int64_t copies; /* of experts on nodes that had none */
} outcome;

/* Whether moves take what there is, into slots of their own, and reach what the search says. */
static int are_sound(const layer *x)
{
    int64_t load[RANKS], left[EXPERTS], most = 0;
    unsigned char taken[RANKS * SLOTS] = {0};

    memcpy(load, x->m.start, (size_t)x->l.ranks * sizeof(*load));
    memcpy(left, x->m.total, (size_t)x->l.experts * sizeof(*left));
    for (int32_t i = 0; i < x->m.n_best; i++) {
        const ek_alias_move *v = &x->m.best[i];

        left[v->expert] -= v->amount;
        load[x->m.rank_of[v->expert]] -= v->amount;
        load[v->slot / x->l.slots] += v->amount;
        if (v->amount <= 0 || left[v->expert] < 0 || taken[v->slot]++ > 0 ||
            x->p.placement.expert_of[v->slot] >= 0)
            return 0;
    }
    for (int32_t r = 0; r < x->l.ranks; r++)
        most = load[r] > most ? load[r] : most;
    return most <= x->m.least;
}

static outcome search_with(layer *x, const int32_t *node_of, double comm_s, double replica_s,
                           int32_t budget)
{
    static unsigned char has[RANKS][EXPERTS];
    int64_t sum = 0;
    outcome o = {0};

    memset(has, 0, sizeof(has));
    x->l.node_of = node_of;
    x->l.costs = (ek_plan_costs){.comm_s_per_row = comm_s, .replica_s = replica_s};
    (void)ek_alias_start(&x->m, &x->l, &x->p.placement);
    for (int32_t e = 0; e < x->l.experts; e++)
        sum += x->m.total[e];
    CHECK_INT(ek_alias_search(&x->m, &x->l, (sum + x->l.ranks - 1) / x->l.ranks, budget, INT64_MAX),
              1);
    CHECK(are_sound(x));
    for (int32_t i = 0; i < x->m.n_best; i++) {
        int32_t e = x->m.best[i].expert, at = x->m.best[i].slot / x->l.slots;
        int32_t node = node_of != NULL ? node_of[at] : 0;

        o.copies += node_of != NULL && node != node_of[x->m.rank_of[e]] && !has[node][e];
        has[node][e] = 1;
    }
    o.least = x->m.least;
    o.n = x->m.n_best;
    o.links = ek_alias_busiest_link(&x->m, &x->l);
    return o;
}

/* Cheap copies go to nodes without the expert, expensive ones to nodes with it; nothing else gets
 * worse, and without nodes nothing changes. */
static void copies_are_placed_by_the_links_of_nodes(void)
{
    int64_t cheap = 0, dear = 0;

    for (int draw = 0; draw < DRAWS; draw++) {
        int32_t budget = draw % 4 == 0 ? 1 : INT32_MAX, node_of[RANKS], all[RANKS] = {0};
        outcome plain_one, one_node, o[2];
        layer x;

        setup(&x, draw);
        for (int32_t r = 0; r < x.l.ranks; r++)
            node_of[r] = r / (2 + draw % 3);
        plain_one = search_with(&x, NULL, 1, 0, budget);
        one_node = search_with(&x, all, 1, 0, budget);
        CHECK(one_node.n == plain_one.n && one_node.least == plain_one.least);
        for (int i = 0; i < 2; i++) {
            o[i] = search_with(&x, node_of, 1, i == 0 ? 0 : 1e9, budget);
            CHECK(o[i].least == plain_one.least && o[i].n <= plain_one.n &&
                  o[i].links <= plain_one.links);
        }
        cheap += o[0].copies;
        dear += o[1].copies;
        ek_arena_fini(&x.arena);
    }
    CHECK(dear > 0 && 10 * cheap > 11 * dear);
}

static const ek_case cases[] = {
    EK_CASE(moves_are_plain_ones),
    EK_CASE(moves_by_the_links_of_nodes_are_plain_ones),
    EK_CASE(copies_are_placed_by_the_links_of_nodes),
};

EK_TEST_MAIN(cases)
