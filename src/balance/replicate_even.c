/* Evens out the loads of nodes by exchanges of experts with equal numbers of replicas, which leave
 * the risk unchanged.
 *
 * Complexity   Passes over all pairs of experts, O(their nodes) each, until no exchange helps. From
 *              the second pass on, pairs are skipped of whose nodes no load has changed since they
 *              were last tried: the outcome would be the same. */
#include "balance/replicate_place.h"

#include <string.h>

enum { WORK = 1 << 22 }; /* limit of word operations */

/* Exchanges two experts in all slots if that reduces the imbalance. */
static int try_exchange(ek_replicate_nodes *s, const int64_t *weight, ek_replicate_place *w,
                        int64_t *load, int32_t a, int32_t b)
{
    const uint64_t *of_a = ek_replicate_mask(s, w, a), *of_b = ek_replicate_mask(s, w, b);
    int64_t d = weight[b] - weight[a], change = 0;

    s->work += ek_replicate_words(s);
    for (int32_t i = 0; i < ek_replicate_words(s); i++)
        for (uint64_t m = of_a[i] | of_b[i]; m != 0; m &= m - 1) {
            int32_t n = i * 64 + __builtin_ctzll(m);
            int64_t more = d * (ek_replicate_count(s, w, n, a) - ek_replicate_count(s, w, n, b));

            s->work++;
            change += ek_replicate_imbalance(s, n, load[n] + more) -
                      ek_replicate_imbalance(s, n, load[n]);
        }
    if (change >= 0)
        return 0;
    for (int32_t i = 0; i < ek_replicate_words(s); i++)
        s->changed[0][i] |= of_a[i] | of_b[i];
    for (int32_t n = 0; n < s->nodes; n++)
        load[n] += d * (ek_replicate_count(s, w, n, a) - ek_replicate_count(s, w, n, b));
    ek_replicate_exchange(s, w, a, b);
    return 1;
}

/* Whether the load of a node of an expert changed in this pass or the last one. */
static int has_changed(const ek_replicate_nodes *s, const ek_replicate_place *w, int32_t expert)
{
    const uint64_t *mask = ek_replicate_mask(s, w, expert);

    for (int32_t i = 0; i < ek_replicate_words(s); i++)
        if ((mask[i] & (s->changed[0][i] | s->changed[1][i])) != 0)
            return 1;
    return 0;
}

/* Tries an expert with those after it; pairs that no change has affected since they were last tried
 * are skipped. */
static int exchange_expert(ek_replicate_nodes *s, const int32_t *replicas, const int64_t *weight,
                           ek_replicate_place *w, int64_t *load, int32_t a)
{
    int moved = 0;

    for (int32_t b = a + 1; b < s->experts; b++)
        if (replicas[a] == replicas[b] && weight[a] != weight[b] &&
            (has_changed(s, w, a) || has_changed(s, w, b)))
            moved |= try_exchange(s, weight, w, load, a, b);
    return moved;
}

void ek_replicate_even(ek_replicate_nodes *s, const int32_t *replicas, const int64_t *weight,
                       ek_replicate_place *w, int64_t *load)
{
    size_t bytes = (size_t)ek_replicate_words(s) * sizeof(**s->changed);
    int64_t end = s->work + WORK;
    int moved = 1;

    ek_replicate_loads(s, weight, w, load);
    memset(s->changed[0], -1, bytes); /* all */
    while (moved && s->work < end) {
        moved = 0;
        memcpy(s->changed[1], s->changed[0], bytes);
        memset(s->changed[0], 0, bytes);
        for (int32_t a = 0; a < s->experts && s->work < end; a++)
            moved |= exchange_expert(s, replicas, weight, w, load, a);
    }
}
