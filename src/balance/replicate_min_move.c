/* Local search by slot swaps and exchanges of experts, for fewer incoming replicas. */
#include "balance/replicate_min_move.h"

#include <string.h>

enum { WORK = 1 << 18 }; /* limit of word operations and of pairs tried */

typedef struct {
    ek_replicate_nodes *s;
    const ek_replicate_aim *aim;
    ek_replicate_place *w;
    int64_t *load; /* [nodes] */
    ek_replicate_risk risk;
    int reached; /* the risk is within the allowed one */
    int64_t end; /* limit of s->work */
} climb;

/* Effect of a change. */
typedef struct {
    int64_t over; /* load above the allowed one, over all nodes */
    int64_t come;
} difference;

static int32_t count_of(const ek_replicate_nodes *s, const ek_replicate_place *w, int32_t node,
                        int32_t expert)
{
    return w->count[(int64_t)expert * s->nodes + node];
}

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
    if (count_of(s, now, node, expert) > 0)
        return 0;
    return count < s->ranks[node] ? count : s->ranks[node];
}

static int64_t incoming_to(const ek_replicate_nodes *s, const ek_replicate_place *now,
                           const ek_replicate_place *w, int32_t node)
{
    int64_t n = 0;

    for (int32_t e = 0; e < s->experts; e++)
        n += incoming_count(s, now, node, e, count_of(s, w, node, e));
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
    int32_t n = count_of(c->s, c->w, node, expert);

    return incoming_count(c->s, c->aim->now, node, expert, n + more) -
           incoming_count(c->s, c->aim->now, node, expert, n);
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
    return d->over < 0 || (d->over == 0 && d->come < 0);
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
    difference d;

    c->s->work++;
    if (!ek_replicate_may_swap(c->s, c->w, i, j))
        return 0;
    d.over = excess_change(c, a, more) + excess_change(c, b, -more);
    d.come = incoming_change(c, a, e, -1) + incoming_change(c, a, g, 1) +
             incoming_change(c, b, g, -1) + incoming_change(c, b, e, 1);
    if (c->reached && !is_improvement(&d))
        return 0;
    ek_replicate_swap(c->s, c->aim->need, c->w, i, j);
    if (!keep_swap(c, &d, lack, e, g)) {
        ek_replicate_swap(c->s, c->aim->need, c->w, i, j);
        return 0;
    }
    c->load[a] += more;
    c->load[b] -= more;
    return 1;
}

/* Exchanges two experts with equal numbers of replicas, which leaves the risk unchanged. */
static int try_experts(climb *c, int32_t a, int32_t b)
{
    int64_t more = c->aim->weight[b] - c->aim->weight[a];
    difference d = {0};

    c->s->work += c->s->nodes;
    for (int32_t n = 0; n < c->s->nodes; n++) {
        int32_t of_a = count_of(c->s, c->w, n, a), of_b = count_of(c->s, c->w, n, b);

        d.over += excess_change(c, n, more * (of_a - of_b));
        d.come += incoming_change(c, n, a, of_b - of_a) + incoming_change(c, n, b, of_a - of_b);
    }
    if (!is_improvement(&d))
        return 0;
    for (int32_t n = 0; n < c->s->nodes; n++)
        c->load[n] += more * (count_of(c->s, c->w, n, a) - count_of(c->s, c->w, n, b));
    ek_replicate_exchange(c->s, c->w, a, b);
    return 1;
}

static int search_pass(climb *c)
{
    const ek_replicate_nodes *s = c->s;
    int moved = 0;

    for (int32_t a = 0; a < s->experts; a++)
        for (int32_t b = a + 1; b < s->experts && s->work < c->end; b++)
            if (c->aim->replicas[a] == c->aim->replicas[b])
                moved |= try_experts(c, a, b);
    for (int32_t i = 0; i < s->slots; i++)
        for (int32_t j = i + 1; j < s->slots && s->work < c->end; j++)
            moved |= try_slots(c, i, j);
    return moved;
}

int ek_replicate_min_move(ek_replicate_nodes *s, const ek_replicate_aim *aim, int64_t *load,
                          ek_replicate_place *w)
{
    climb c = {.s = s, .aim = aim, .w = w, .load = load};
    int64_t over = 0;

    ek_replicate_loads(s, aim->weight, w, load);
    ek_replicate_risk_of(s, aim->need, w, &c.risk);
    c.end = s->work + WORK;
    c.reached = meets_risk(s, &c.risk, &aim->risk);
    while (s->work < c.end && search_pass(&c))
        continue;
    for (int32_t n = 0; n < s->nodes; n++)
        over += excess_of(&c, n, load[n]);
    return c.reached && over == 0;
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
        if (w->vacant[n] > 0 && (count_of(s, w, n, expert) > 0) == has &&
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
           count_of(s, w, node, expert) < count_of(s, aim->now, node, expert);
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
        while (left[e] > 0 && ek_replicate_distinct(s, w, e) < aim->need[e]) {
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
