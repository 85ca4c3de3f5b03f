/* Evens out the loads of nodes by exchanges of experts with equal numbers of replicas, which leave
 * the risk unchanged.
 *
 * Complexity   Passes over all pairs of experts, O(their nodes) each, until no exchange helps. From
 *              the second pass on, pairs are skipped of whose nodes no load has changed since they
 *              were last tried: the outcome would be the same. */
#include "balance/replicate_place.h"

#include <string.h>

enum { WORK = 1 << 22 }; /* limit of word operations */

/* --- two experts ------------------------------------------------------------------------------ */

/* Change of the imbalance by an exchange of two experts whose weights differ by d. */
static int64_t imbalance_change(ek_replicate_nodes *s, const ek_replicate_place *w,
                                const int64_t *load, int32_t a, int32_t b, int64_t d)
{
    const uint64_t *of_a = ek_replicate_mask(s, w, a), *of_b = ek_replicate_mask(s, w, b);
    int64_t change = 0;

    s->work += ek_replicate_words(s);
    for (int32_t i = 0; i < ek_replicate_words(s); i++)
        for (uint64_t m = of_a[i] | of_b[i]; m != 0; m &= m - 1) {
            int32_t n = i * 64 + __builtin_ctzll(m);
            int64_t more = d * (ek_replicate_count(s, w, n, a) - ek_replicate_count(s, w, n, b));

            s->work++;
            change += ek_replicate_imbalance(s, n, load[n] + more) -
                      ek_replicate_imbalance(s, n, load[n]);
        }
    return change;
}

/* The number of nodes that hold both of two experts, mostly none or one. */
static int32_t common_nodes(const ek_replicate_nodes *s, const ek_replicate_place *w, int32_t a,
                            int32_t b)
{
    const uint64_t *of_a = ek_replicate_mask(s, w, a), *of_b = ek_replicate_mask(s, w, b);
    int32_t n = 0;

    for (int32_t i = 0; i < ek_replicate_words(s); i++)
        for (uint64_t m = of_a[i] & of_b[i]; m != 0; m &= m - 1)
            n++;
    return n;
}

/* Sum of the loads of the nodes that hold an expert. */
static int64_t load_of_nodes(const ek_replicate_nodes *s, const ek_replicate_place *w,
                             const int64_t *load, int32_t expert)
{
    const uint64_t *mask = ek_replicate_mask(s, w, expert);
    int64_t sum = 0;

    for (int32_t i = 0; i < ek_replicate_words(s); i++)
        for (uint64_t m = mask[i]; m != 0; m &= m - 1)
            sum += load[i * 64 + __builtin_ctzll(m)];
    return sum;
}

/* The same where ranks are alike and no node has two replicas of one of the experts, halved; on_a:
 * the load of the nodes of a. */
static int64_t half_change(ek_replicate_nodes *s, const ek_replicate_place *w, const int64_t *load,
                           int32_t a, int32_t b, int64_t d, int64_t on_a)
{
    int64_t nodes = w->distinct[a] - common_nodes(s, w, a, b);

    s->work += ek_replicate_words(s) + w->distinct[a] + nodes;
    return d * (on_a - load_of_nodes(s, w, load, b) + d * nodes);
}

/* Exchanges two experts in all slots. */
static void exchange_two(ek_replicate_nodes *s, const int64_t *weight, ek_replicate_place *w,
                         int64_t *load, int32_t a, int32_t b)
{
    const uint64_t *of_a = ek_replicate_mask(s, w, a), *of_b = ek_replicate_mask(s, w, b);
    int64_t d = weight[b] - weight[a];
    int32_t only = s->only[a];

    for (int32_t i = 0; i < ek_replicate_words(s); i++)
        s->changed[0][i] |= of_a[i] | of_b[i];
    for (int32_t n = 0; n < s->nodes; n++)
        load[n] += d * (ek_replicate_count(s, w, n, a) - ek_replicate_count(s, w, n, b));
    ek_replicate_exchange(s, w, a, b);
    s->only[a] = s->only[b];
    s->only[b] = only;
}

/* Whether the load of a node changed in this pass or the last one. */
static int has_node_changed(const ek_replicate_nodes *s, int32_t node)
{
    return (int)((s->changed[0][node / 64] | s->changed[1][node / 64]) >> (node % 64) & 1);
}

/* Whether that of some node of an expert did. */
static int has_changed(const ek_replicate_nodes *s, const ek_replicate_place *w, int32_t expert)
{
    const uint64_t *mask = ek_replicate_mask(s, w, expert);

    for (int32_t i = 0; i < ek_replicate_words(s); i++)
        if ((mask[i] & (s->changed[0][i] | s->changed[1][i])) != 0)
            return 1;
    return 0;
}

/* --- passes ----------------------------------------------------------------------------------- */

/* The first expert from b on whose exchange with a evens out the loads; s->experts: none.  Skips
 * pairs that no change has affected since they were last tried. */
static int32_t next_exchange(ek_replicate_nodes *s, const int32_t *replicas, const int64_t *weight,
                             const ek_replicate_place *w, const int64_t *load, int32_t a, int32_t b)
{
    int changed = has_changed(s, w, a), apart = s->alike && w->distinct[a] == replicas[a];
    int64_t on_a = load_of_nodes(s, w, load, a);

    for (; b < s->experts; b++) {
        if (replicas[a] != replicas[b] || weight[a] == weight[b] ||
            (!changed && !has_changed(s, w, b)))
            continue;
        if ((apart && w->distinct[b] == replicas[b]
                 ? half_change(s, w, load, a, b, weight[b] - weight[a], on_a)
                 : imbalance_change(s, w, load, a, b, weight[b] - weight[a])) < 0)
            break;
    }
    return b;
}

/* The same for an expert with one replica, without a look at masks. */
static int32_t next_of_singles(ek_replicate_nodes *s, const int32_t *replicas,
                               const int64_t *weight, const int64_t *load, int32_t a, int32_t b)
{
    const int32_t *node = s->only, experts = s->experts, words = ek_replicate_words(s);
    int changed = has_node_changed(s, node[a]);
    int32_t x = node[a];
    int64_t tried = 0, of_a = weight[a];

    for (; b < experts; b++) {
        int64_t more = weight[b] - of_a;
        int32_t y = node[b];

        if (replicas[b] != 1 || more == 0 || (!changed && !has_node_changed(s, y)))
            continue;
        tried += words + 1 + (x != y);
        if (x != y && ek_replicate_evens_out(s, load, x, y, more))
            break;
    }
    s->work += tried;
    return b;
}

/* Exchanges an expert with those after it where that evens out the loads. */
static int exchange_expert(ek_replicate_nodes *s, const int32_t *replicas, const int64_t *weight,
                           ek_replicate_place *w, int64_t *load, int32_t a)
{
    int moved = 0;

    for (int32_t b = a + 1;; b++) {
        b = replicas[a] == 1 ? next_of_singles(s, replicas, weight, load, a, b)
                             : next_exchange(s, replicas, weight, w, load, a, b);
        if (b == s->experts)
            return moved;
        exchange_two(s, weight, w, load, a, b);
        moved = 1;
    }
}

void ek_replicate_even(ek_replicate_nodes *s, const int32_t *replicas, const int64_t *weight,
                       ek_replicate_place *w, int64_t *load)
{
    size_t bytes = (size_t)ek_replicate_words(s) * sizeof(**s->changed);
    int64_t end = s->work + WORK;
    int moved = 1;

    ek_replicate_loads(s, weight, w, load);
    ek_replicate_find_only_nodes(s, w);
    memset(s->changed[0], -1, bytes); /* all */
    while (moved && s->work < end) {
        moved = 0;
        memcpy(s->changed[1], s->changed[0], bytes);
        memset(s->changed[0], 0, bytes);
        for (int32_t a = 0; a < s->experts && s->work < end; a++)
            moved |= exchange_expert(s, replicas, weight, w, load, a);
    }
}
