/* How many replicas experts get (Lazarus, arXiv 2407.04656v2, eq. 1), and the two placements that
 * the search of replicate_place.c starts from: maximum rank overlap, MRO, and the spread placement
 * that the paper compares it with.
 *
 * Departures   The paper proves MRO optimal, but it is not where the last segment is cut short: one
 *              failure can then lose an expert with f replicas.  So a placement is repaired and
 *              then improved by hill-climbing (plan_replicate.c).  Nodes may differ in slots:
 *              groups are as large as the smallest node; the extra slots of larger ones take the
 *              remaining replicas.
 * Complexity   Allocation O(E^2) (its sort); MRO and spread O(S N). */
#include "balance/replicate_place.h"

#include <string.h>

__extension__ typedef __int128 wide;

/* --- allocation ------------------------------------------------------------------------------- */

void ek_replicate_ascending(int32_t experts, const int64_t *key, int32_t *order)
{
    for (int32_t e = 0; e < experts; e++) {
        int32_t i = e;

        for (; i > 0 && key[order[i - 1]] > key[e]; i--)
            order[i] = order[i - 1];
        order[i] = e;
    }
}

int32_t ek_replicate_least(int32_t experts, int32_t slots, int32_t least)
{
    if (least > slots / experts)
        least = slots / experts;
    return least > 1 ? least : 1;
}

ek_status ek_replicate_allocate(int32_t experts, int32_t slots, int32_t least, const int64_t *total,
                                int32_t *order, int32_t *replicas)
{
    int64_t rest = 0;
    int equal;

    EK_REQUIRE(slots >= experts, EK_EINVAL, "replicate: %d experts do not go into %d slots",
               (int)experts, (int)slots);
    least = ek_replicate_least(experts, slots, least);
    ek_replicate_ascending(experts, total, order);
    for (int32_t e = 0; e < experts; e++)
        rest += total[e];
    equal = rest == 0; /* no assignments: as if all were equal */
    rest = equal ? experts : rest;
    for (int32_t i = 0; i < experts; i++) {
        int64_t t = equal ? 1 : total[order[i]];
        int32_t r = (int32_t)((wide)t * slots / rest);

        r = r > least ? r : least;
        replicas[order[i]] = r;
        slots -= r;
        rest -= t;
    }
    return EK_OK;
}

/* --- initial placements ----------------------------------------------------------------------- */

/* The node for one more replica of an expert: without the expert if `apart`; the first one if
 * `first`, else the one with most vacant slots.  -1: none. */
static int32_t vacant_node(const ek_replicate_nodes *s, const ek_replicate_place *w, int32_t expert,
                           int apart, int first)
{
    int32_t best = -1;

    for (int32_t n = 0; n < s->nodes; n++) {
        if (w->vacant[n] == 0 || (apart && ek_replicate_count(s, w, n, expert) > 0))
            continue;
        if (best < 0 || (!first && w->vacant[n] > w->vacant[best]))
            best = n;
    }
    return best;
}

/* Places the replicas left, on nodes without the expert if possible, then on any. */
static void place_remaining(const ek_replicate_nodes *s, const int32_t *order, int32_t *left,
                            int first, ek_replicate_place *w)
{
    for (int apart = 1; apart >= 0; apart--)
        for (int32_t i = 0; i < s->experts; i++)
            for (int32_t e = order[i]; left[e] > 0; left[e]--) {
                int32_t n = vacant_node(s, w, e, apart, first);

                if (n < 0)
                    break;
                ek_replicate_put(s, w, n, e);
            }
}

void ek_replicate_mro(const ek_replicate_nodes *s, const int32_t *order, const int32_t *replicas,
                      int32_t *left, ek_replicate_place *w)
{
    int32_t group = s->node_slots[0], node = 0;

    ek_replicate_place_clear(s, w);
    memcpy(left, replicas, (size_t)s->experts * sizeof(*left));
    for (int32_t n = 1; n < s->nodes; n++)
        group = s->node_slots[n] < group ? s->node_slots[n] : group;
    for (int32_t i = 0; i < s->experts; i += group) { /* one segment of nodes per group */
        int32_t end = node + replicas[order[i]];

        for (; node < end && node < s->nodes; node++)
            for (int32_t j = i; j < i + group && j < s->experts; j++) {
                ek_replicate_put(s, w, node, order[j]);
                left[order[j]]--;
            }
    }
    /* With a single group the node sets must be nested, so the first node is taken. */
    place_remaining(s, order, left, s->experts <= group, w);
}

void ek_replicate_spread(const ek_replicate_nodes *s, const int32_t *order, const int32_t *replicas,
                         int32_t *left, ek_replicate_place *w)
{
    int32_t node = 0;

    ek_replicate_place_clear(s, w);
    memcpy(left, replicas, (size_t)s->experts * sizeof(*left));
    for (int32_t i = 0; i < s->experts; i++)
        for (int32_t e = order[i], tried = 0; left[e] > 0 && tried < s->nodes; tried++) {
            if (w->vacant[node] > 0 && ek_replicate_count(s, w, node, e) == 0) {
                ek_replicate_put(s, w, node, e);
                left[e]--;
                tried = -1;
            }
            node = (node + 1) % s->nodes;
        }
    place_remaining(s, order, left, 0, w);
}
