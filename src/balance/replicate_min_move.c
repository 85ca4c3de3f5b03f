/* Local search by slot swaps and exchanges of experts, for fewer incoming replicas. */
#include "balance/replicate_min_move.h"

#include <string.h>

enum { WORK = 1 << 18 }; /* limit of word operations and of pairs tried */

typedef struct {
    ek_replicate_nodes *s;
    const ek_replicate_aim *aim;
    ek_replicate_place *w;
    int64_t *load; /* [nodes] */
    int64_t over;  /* load above the allowed one, over all nodes */
    ek_replicate_risk risk;
    int reached; /* the risk is within the allowed one */
    int64_t end; /* limit of s->work */
    int32_t
        n_stacked; /* experts with several replicas on some node, in s->stacked; -1: not listed */
} climb;

/* Effect of a change; a later member is filled in only where the earlier ones do not decide whether
 * it is an improvement. */
typedef struct {
    int64_t over; /* load above the allowed one, over all nodes */
    int64_t come;
    int64_t stacked; /* see stacked_count */
} difference;

/* --- risk ------------------------------------------------------------------------------------- */

static int compare_sets(const ek_replicate_nodes *s, const int64_t *a, const int64_t *b)
{
    for (int32_t k = 1; k <= s->most; k++)
        if (a[k] != b[k])
            return a[k] < b[k] ? -1 : 1;
    return 0;
}

static int meets_risk(const ek_replicate_nodes *s, const ek_replicate_risk *r,
                      const ek_replicate_risk *allowed)
{
    return r->lack <= allowed->lack && compare_sets(s, r->alone, allowed->alone) <= 0 &&
           compare_sets(s, r->joint, allowed->joint) <= 0;
}

static int compare_risks(const ek_replicate_nodes *s, const ek_replicate_risk *a,
                         const ek_replicate_risk *b)
{
    int sign;

    if (a->lack != b->lack)
        return a->lack < b->lack ? -1 : 1;
    sign = compare_sets(s, a->alone, b->alone);
    return sign != 0 ? sign : compare_sets(s, a->joint, b->joint);
}

/* --- incoming replicas ------------------------------------------------------------------------ */

/* Incoming replicas of a node with `count` replicas of an expert: at most one per rank. */
static int32_t incoming_count(const ek_replicate_nodes *s, const ek_replicate_place *now,
                              int32_t node, int32_t expert, int32_t count)
{
    if (ek_replicate_count(s, now, node, expert) > 0)
        return 0;
    return count < s->ranks[node] ? count : s->ranks[node];
}

static int64_t incoming_to(const ek_replicate_nodes *s, const ek_replicate_place *now,
                           const ek_replicate_place *w, int32_t node)
{
    int64_t n = 0;

    for (int32_t e = 0; e < s->experts; e++)
        n += incoming_count(s, now, node, e, ek_replicate_count(s, w, node, e));
    return n;
}

int64_t ek_replicate_coming(const ek_replicate_nodes *s, const ek_replicate_place *now,
                            const ek_replicate_place *w)
{
    int64_t n = 0;

    for (int32_t node = 0; node < s->nodes; node++)
        n += incoming_to(s, now, w, node);
    return n;
}

double ek_replicate_busiest(const ek_replicate_nodes *s, const ek_replicate_place *now,
                            const ek_replicate_place *w)
{
    double most = 0, all = 0;
    int32_t ranks = 0;

    for (int32_t node = 0; node < s->nodes; node++) {
        double n = (double)incoming_to(s, now, w, node) / s->ranks[node];

        most = n > most ? n : most;
        all += n * s->ranks[node];
        ranks += s->ranks[node];
    }
    return most + all / ranks;
}

/* Change of incoming replicas with `more` replicas of an expert on a node. */
static int64_t incoming_change(const climb *c, int32_t node, int32_t expert, int32_t more)
{
    int32_t n = ek_replicate_count(c->s, c->w, node, expert);

    return incoming_count(c->s, c->aim->now, node, expert, n + more) -
           incoming_count(c->s, c->aim->now, node, expert, n);
}

/* Replicas of an expert on a node beyond one per rank and beyond its present ones. */
static int32_t stacked_count(const climb *c, int32_t node, int32_t expert, int32_t count)
{
    int32_t had = ek_replicate_count(c->s, c->aim->now, node, expert);
    int32_t most = had > c->s->ranks[node] ? had : c->s->ranks[node];

    return count > most ? count - most : 0;
}

/* Change of stacked replicas with `more` replicas of an expert on a node. */
static int64_t stacked_change(const climb *c, int32_t node, int32_t expert, int32_t more)
{
    int32_t n = ek_replicate_count(c->s, c->w, node, expert);

    return stacked_count(c, node, expert, n + more) - stacked_count(c, node, expert, n);
}

static int64_t excess_of(const climb *c, int32_t node, int64_t load)
{
    int64_t most = c->aim->most * c->s->ranks[node];

    return load > most ? load - most : 0;
}

/* Change of a node's excess with `more` load. */
static int64_t excess_change(const climb *c, int32_t node, int64_t more)
{
    return excess_of(c, node, c->load[node] + more) - excess_of(c, node, c->load[node]);
}

/* --- changes ---------------------------------------------------------------------------------- */

static int is_improvement(const difference *d)
{
    return d->over < 0 || (d->over == 0 && d->come < 0 && d->stacked <= 0);
}

/* Whether to keep a swap already made.  Once the risk is within the allowed one, no set may become
 * fatal, so other layers' joint risk cannot change and only the two experts need a check. */
static int keep_swap(climb *c, const difference *d, int64_t lack, int32_t e, int32_t g)
{
    ek_replicate_risk risk;
    int sign;

    if (c->reached)
        return c->w->lack <= lack && ek_replicate_is_safe(c->s, c->w, e) &&
               ek_replicate_is_safe(c->s, c->w, g);
    ek_replicate_risk_of(c->s, c->aim->need, c->w, &risk);
    sign = compare_risks(c->s, &risk, &c->risk);
    if (sign > 0 || (sign == 0 && !is_improvement(d)))
        return 0;
    c->risk = risk;
    c->reached = meets_risk(c->s, &risk, &c->aim->risk);
    return 1;
}

static int try_slots(climb *c, int32_t i, int32_t j)
{
    const int32_t *at = c->w->at;
    int32_t e = at[i], g = at[j], a = c->s->node_of[i], b = c->s->node_of[j];
    int64_t more = c->aim->weight[g] - c->aim->weight[e], lack = c->w->lack;
    difference d = {0};

    c->s->work++;
    if (!ek_replicate_may_swap(c->s, c->w, i, j))
        return 0;
    d.over = excess_change(c, a, more) + excess_change(c, b, -more);
    if (d.over == 0)
        d.come = incoming_change(c, a, e, -1) + incoming_change(c, a, g, 1) +
                 incoming_change(c, b, g, -1) + incoming_change(c, b, e, 1);
    if (d.come < 0)
        d.stacked = stacked_change(c, a, e, -1) + stacked_change(c, a, g, 1) +
                    stacked_change(c, b, g, -1) + stacked_change(c, b, e, 1);
    if (c->reached && !is_improvement(&d))
        return 0;
    ek_replicate_swap(c->s, c->aim->need, c->w, i, j);
    if (!keep_swap(c, &d, lack, e, g)) {
        ek_replicate_swap(c->s, c->aim->need, c->w, i, j);
        return 0;
    }
    c->load[a] += more;
    c->load[b] -= more;
    c->over += d.over;
    c->s->only[e] = ek_replicate_only_node(c->s, c->w, e);
    c->s->only[g] = ek_replicate_only_node(c->s, c->w, g);
    c->n_stacked = -1;
    return 1;
}

/* What an exchange of two experts with equal numbers of replicas changes. */
static difference exchange_difference(climb *c, int32_t a, int32_t b)
{
    int32_t words = ek_replicate_words(c->s);
    const uint64_t *of_a = ek_replicate_mask(c->s, c->w, a);
    const uint64_t *of_b = ek_replicate_mask(c->s, c->w, b);
    int64_t more = c->aim->weight[b] - c->aim->weight[a];
    difference d = {0};

    c->s->work += words;
    for (int32_t i = 0; i < words; i++)
        for (uint64_t m = of_a[i] | of_b[i]; m != 0; m &= m - 1) {
            int32_t n = i * 64 + __builtin_ctzll(m);

            c->s->work++;
            d.over += excess_change(c, n,
                                    more * (ek_replicate_count(c->s, c->w, n, a) -
                                            ek_replicate_count(c->s, c->w, n, b)));
        }
    for (int32_t i = 0; i < words && d.over == 0; i++)
        for (uint64_t m = of_a[i] | of_b[i]; m != 0; m &= m - 1) {
            int32_t n = i * 64 + __builtin_ctzll(m);
            int32_t diff =
                ek_replicate_count(c->s, c->w, n, a) - ek_replicate_count(c->s, c->w, n, b);

            d.come += incoming_change(c, n, a, -diff) + incoming_change(c, n, b, diff);
        }
    return d;
}

/* The same where all replicas, `count` each, are on one node, x and y. */
static difference difference_of_two(climb *c, int32_t a, int32_t b, int32_t x, int32_t y,
                                    int32_t count)
{
    const ek_replicate_place *now = c->aim->now;
    int64_t more = (c->aim->weight[b] - c->aim->weight[a]) * count;
    difference d = {0};

    c->s->work += ek_replicate_words(c->s) + (x == y ? 1 : 2);
    if (x == y)
        return d;
    d.over = excess_change(c, x, more) + excess_change(c, y, -more);
    if (d.over == 0)
        d.come = incoming_count(c->s, now, x, b, count) - incoming_count(c->s, now, x, a, count) +
                 incoming_count(c->s, now, y, a, count) - incoming_count(c->s, now, y, b, count);
    return d;
}

/* Exchanges two experts with equal numbers of replicas, which leaves the risk unchanged. */
static int try_experts(climb *c, int32_t a, int32_t b)
{
    int32_t *only = c->s->only, x = only[a], y = only[b];
    int64_t more = c->aim->weight[b] - c->aim->weight[a];
    difference d = x >= 0 && y >= 0 ? difference_of_two(c, a, b, x, y, c->aim->replicas[a])
                                    : exchange_difference(c, a, b);

    if (!is_improvement(&d))
        return 0;
    for (int32_t n = 0; n < c->s->nodes; n++)
        c->load[n] +=
            more * (ek_replicate_count(c->s, c->w, n, a) - ek_replicate_count(c->s, c->w, n, b));
    c->over += d.over;
    ek_replicate_exchange(c->s, c->w, a, b);
    only[a] = y;
    only[b] = x;
    c->n_stacked = -1;
    return 1;
}

/* Whether some node that holds an expert is above the allowed load. */
static int is_overloaded(const climb *c, int32_t expert)
{
    int32_t n = c->over > 0 ? ek_replicate_nodes_with(c->s, c->w, expert, c->s->some) : 0;

    for (int32_t i = 0; i < n; i++)
        if (excess_of(c, c->s->some[i], c->load[c->s->some[i]]) > 0)
            return 1;
    return 0;
}

static int try_pair(climb *c, int32_t a, int32_t b)
{
    return a != b && c->aim->replicas[a] == c->aim->replicas[b] && try_experts(c, a, b);
}

/* Whether an expert leaves a node, where w has n of them, without saving an incoming replica. */
static int is_free(const climb *c, int32_t node, int32_t expert, int32_t n)
{
    return ek_replicate_count(c->s, c->aim->now, node, expert) > 0 || n > c->s->ranks[node];
}

/* Lists the experts with several replicas on some node, ascending. */
static void list_stacked(climb *c)
{
    if (c->n_stacked >= 0)
        return;
    c->n_stacked = 0;
    for (int32_t e = 0; e < c->s->experts; e++) {
        c->s->stacked[c->n_stacked] = e;
        c->n_stacked += c->w->distinct[e] < c->aim->replicas[e];
    }
}

/* Whether some node that holds an expert lacks it now. */
static int is_coming(const climb *c, int32_t expert)
{
    int32_t words = ek_replicate_words(c->s);
    const uint64_t *is = ek_replicate_mask(c->s, c->w, expert);
    const uint64_t *was = ek_replicate_mask(c->s, c->aim->now, expert);

    for (int32_t i = 0; i < words; i++)
        if ((is[i] & ~was[i]) != 0)
            return 1;
    return 0;
}

/* Exchanges an expert with those of which a node has several. */
static int search_stacked(climb *c, int32_t a)
{
    int moved = 0;
    int32_t n;

    list_stacked(c);
    n = c->n_stacked;
    for (int32_t i = 0; i < n && c->s->work < c->end; i++)
        moved |= try_pair(c, a, c->s->stacked[i]);
    return moved;
}

/* Exchanges an expert with others, where that may improve: with any if it is on an overloaded node;
 * if replicas of it come, with those on its present nodes and those of which a node has several. */
static int search_experts(climb *c, int32_t a)
{
    const ek_replicate_nodes *s = c->s;
    int any = is_overloaded(c, a), moved = 0;

    if (!any && !is_coming(c, a))
        return 0;
    for (int32_t n = 0; n < s->nodes && !any && s->work < c->end; n++)
        if (ek_replicate_count(s, c->aim->now, n, a) > 0)
            for (int32_t i = s->first[n]; i < s->first[n + 1]; i++)
                moved |= try_pair(c, a, c->w->at[i]);
    if (!any)
        return moved | search_stacked(c, a);
    for (int32_t b = 0; b < s->experts && s->work < c->end; b++)
        moved |= try_pair(c, a, b);
    return moved;
}

/* Swaps a slot with others, where that may improve: with those of its expert's present nodes if the
 * expert leaves its own as one that came, or with any if its node is overloaded or the risk is
 * still too high. */
static int search_slots(climb *c, int32_t i)
{
    const ek_replicate_nodes *s = c->s;
    int32_t e = c->w->at[i], node = s->node_of[i];
    int any = !c->reached || excess_of(c, node, c->load[node]) > 0;

    if (!any && is_free(c, node, e, ek_replicate_count(s, c->w, node, e)))
        return 0;
    for (int32_t n = 0; n < s->nodes && s->work < c->end; n++) {
        if (!any && ek_replicate_count(s, c->aim->now, n, e) == 0)
            continue;
        for (int32_t j = s->first[n]; j < s->first[n + 1] && s->work < c->end; j++)
            if (try_slots(c, i, j))
                return 1;
    }
    return 0;
}

static int search_pass(climb *c)
{
    const ek_replicate_nodes *s = c->s;
    int moved = 0;

    for (int32_t a = 0; a < s->experts && s->work < c->end; a++)
        moved |= search_experts(c, a);
    for (int32_t i = 0; i < s->slots && s->work < c->end; i++)
        moved |= search_slots(c, i);
    return moved;
}

int ek_replicate_min_move(ek_replicate_nodes *s, const ek_replicate_aim *aim, int64_t *load,
                          ek_replicate_place *w)
{
    climb c = {.s = s, .aim = aim, .w = w, .load = load, .n_stacked = -1};

    ek_replicate_loads(s, aim->weight, w, load);
    ek_replicate_find_only_nodes(s, w);
    ek_replicate_risk_of(s, aim->need, w, &c.risk);
    c.end = s->work + WORK;
    c.reached = meets_risk(s, &c.risk, &aim->risk);
    for (int32_t n = 0; n < s->nodes; n++)
        c.over += excess_of(&c, n, load[n]);
    while (s->work < c.end && search_pass(&c))
        continue;
    return c.reached && c.over == 0;
}

/* --- the nearest start ------------------------------------------------------------------------ */

static void add_replica(const ek_replicate_nodes *s, const ek_replicate_aim *aim, int32_t node,
                        int32_t expert, int32_t *left, int64_t *load, ek_replicate_place *w)
{
    ek_replicate_put(s, w, node, expert);
    load[node] += aim->weight[expert];
    left[expert]--;
}

/* The least loaded node with a vacant slot among those that hold the expert (has), or lack it; -1:
 * none. */
static int32_t least_loaded(const ek_replicate_nodes *s, const ek_replicate_place *w,
                            const int64_t *load, int32_t expert, int has)
{
    int32_t best = -1;

    for (int32_t n = 0; n < s->nodes; n++)
        if (w->vacant[n] > 0 && (ek_replicate_count(s, w, n, expert) > 0) == has &&
            (best < 0 || load[n] * s->ranks[best] < load[best] * s->ranks[n]))
            best = n;
    return best;
}

/* Whether the present placement has more replicas of the expert on a node than w, and w a vacant
 * slot there. */
static int can_stay(const ek_replicate_nodes *s, const ek_replicate_aim *aim, int32_t node,
                    int32_t expert, const ek_replicate_place *w)
{
    return w->vacant[node] > 0 &&
           ek_replicate_count(s, w, node, expert) < ek_replicate_count(s, aim->now, node, expert);
}

void ek_replicate_nearest(const ek_replicate_nodes *s, const ek_replicate_aim *aim, int32_t *left,
                          int64_t *load, ek_replicate_place *w)
{
    ek_replicate_place_clear(s, w);
    memset(load, 0, (size_t)s->nodes * sizeof(*load));
    memcpy(left, aim->replicas, (size_t)s->experts * sizeof(*left));
    for (int32_t e = 0; e < s->experts; e++) /* one on each node that holds it */
        for (int32_t n = 0; n < s->nodes && left[e] > 0; n++)
            if (can_stay(s, aim, n, e, w))
                add_replica(s, aim, n, e, left, load, w);
    for (int32_t e = 0; e < s->experts; e++)
        while (left[e] > 0 && w->distinct[e] < aim->need[e]) {
            int32_t n = least_loaded(s, w, load, e, 0);

            if (n < 0)
                break;
            add_replica(s, aim, n, e, left, load, w);
        }
    for (int32_t e = 0; e < s->experts; e++) /* further ones where they are */
        for (int32_t n = 0; n < s->nodes && left[e] > 0; n++)
            while (left[e] > 0 && can_stay(s, aim, n, e, w))
                add_replica(s, aim, n, e, left, load, w);
    for (int32_t e = 0; e < s->experts; e++)
        while (left[e] > 0) {
            int32_t n = least_loaded(s, w, load, e, 1);

            add_replica(s, aim, n >= 0 ? n : least_loaded(s, w, load, e, 0), e, left, load, w);
        }
}
