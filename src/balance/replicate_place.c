/* Replicas of experts on nodes: how many (Lazarus, arXiv 2407.04656v2, eq. 1), where (maximum rank
 * overlap, MRO, and the spread placement that the paper compares it with), and which failures they
 * survive.  replicate_min_move.c takes the present placement into account.
 *
 * Score        The number of fatal sets of k nodes, those that hold all replicas of some expert,
 *              for k = 1, 2, ...; of two placements, the one with fewer for the smallest k where
 *              they differ is better.  Up to 16 nodes every set is tried.  Above, k goes to 16, and
 *              at most 1,024 sets of each k are drawn, always the same ones; single nodes are all
 *              tried.  A set is one bit; each node has a bit vector of the sets that it is in.  The
 *              sets that lose an expert are the AND over its nodes, the fatal ones the OR over
 *              experts.  An expert whose nodes include all nodes of another expert is skipped.
 * Departures   The paper proves MRO optimal, but it is not where the last segment is cut short: one
 *              failure can then lose an expert with f replicas.  So a placement is repaired and
 *              then improved by hill-climbing (plan_replicate.c).  Nodes may differ in slots:
 *              groups are as large as the smallest node; the extra slots of larger ones take the
 *              remaining replicas.
 * Complexity   Allocation O(E^2) (its sort); MRO and spread O(S N); a score O(E^2 + W sum r) word
 *              operations, W <= 1,039 up to 16 nodes, <= 256 above (and N / 64). */
#include "balance/replicate_place.h"

#include "base/random.h"
#include "placement/subsets.h"

#include <string.h>

enum {
    EXACT_NODES = 16, /* up to so many nodes all sets are tried: 65,536 */
    DRAWN = 1024,     /* sets drawn for each k above that */
    TRIALS = 1 << 13, /* swaps tried by each phase of the climb */
    WORK = 1 << 22    /* limit of word operations of each phase, and of ek_replicate_even */
};

__extension__ typedef __int128 wide;

static const uint64_t seed = UINT64_C(0x7265706c69636173); /* of drawn sets and swaps */
static const uint64_t swap_stream = UINT64_C(1) << 63;     /* drawn sets use smaller stream
                                                              numbers */

/* --- failures --------------------------------------------------------------------------------- */

/* C(n, k), or more than `most` where it is more. */
static int64_t binomial(int32_t n, int32_t k, int64_t most)
{
    int64_t c = 1;

    if (k > n - k)
        k = n - k;
    for (int32_t i = 0; i < k && c <= most; i++)
        c = c * (n - i) / (i + 1);
    return c;
}

/* The number of sets of k nodes that are tried. */
static int64_t sets_of(int32_t nodes, int32_t k)
{
    int64_t most = nodes <= EXACT_NODES ? INT64_C(1) << EXACT_NODES : k == 1 ? nodes : DRAWN;
    int64_t all = binomial(nodes, k, most);

    return all < most ? all : most;
}

static int32_t most_failures(int32_t nodes)
{
    return nodes <= EXACT_NODES ? nodes - 1 : EK_REPLICATE_FAILURES;
}

static int32_t mask_words(const ek_replicate_nodes *s)
{
    return (s->nodes + 63) / 64;
}

void ek_replicate_nodes_reserve(ek_replicate_nodes *s, ek_arena *a, int32_t nodes, int32_t experts,
                                int32_t slots)
{
    memset(s, 0, sizeof(*s));
    s->nodes = nodes;
    s->experts = experts;
    s->slots = slots;
    s->most = most_failures(nodes);
    for (int32_t k = 1; k <= s->most; k++)
        s->words += (int32_t)((sets_of(nodes, k) + 63) / 64);
    s->node_slots = ek_arena_alloc(a, nodes, sizeof(*s->node_slots));
    s->ranks = ek_arena_alloc(a, nodes, sizeof(*s->ranks));
    s->first = ek_arena_alloc(a, nodes + 1, sizeof(*s->first));
    s->node_of = ek_arena_alloc(a, slots, sizeof(*s->node_of));
    s->word_of = ek_arena_alloc(a, s->most + 2, sizeof(*s->word_of));
    s->sets = ek_arena_alloc(a, s->most + 1, sizeof(*s->sets));
    s->dead = ek_arena_alloc(a, (int64_t)nodes * s->words, sizeof(*s->dead));
    s->fallen = ek_arena_alloc(a, s->words, sizeof(*s->fallen));
    s->replica_sets = ek_arena_alloc(a, (int64_t)experts * mask_words(s), sizeof(*s->replica_sets));
    s->core = ek_arena_alloc(a, experts, sizeof(*s->core));
}

static void fail_nodes(ek_replicate_nodes *s, int32_t k)
{
    int32_t set[EK_REPLICATE_FAILURES];
    int64_t all = binomial(s->nodes, k, s->sets[k]);

    for (int32_t i = 0; i < k; i++)
        set[i] = i;
    s->exact &= all == s->sets[k];
    for (int64_t n = 0; n < s->sets[k]; n++) {
        int64_t word = s->word_of[k] + n / 64;

        if (all > s->sets[k])
            ek_subset_draw(seed, set, k, s->nodes, n);
        for (int32_t i = 0; i < k; i++)
            s->dead[(int64_t)set[i] * s->words + word] |= UINT64_C(1) << (n % 64);
        if (all == s->sets[k] && n + 1 < all)
            ek_subset_next(set, k, s->nodes);
    }
}

void ek_replicate_nodes_ready(ek_replicate_nodes *s)
{
    s->first[0] = 0;
    for (int32_t n = 0; n < s->nodes; n++) {
        s->first[n + 1] = s->first[n] + s->node_slots[n];
        for (int32_t i = s->first[n]; i < s->first[n + 1]; i++)
            s->node_of[i] = n;
    }
    memset(s->dead, 0, (size_t)s->nodes * (size_t)s->words * sizeof(*s->dead));
    s->exact = 1;
    s->word_of[0] = s->word_of[1] = 0;
    s->sets[0] = 0;
    for (int32_t k = 1; k <= s->most; k++) {
        s->sets[k] = sets_of(s->nodes, k);
        s->word_of[k + 1] = s->word_of[k] + (int32_t)((s->sets[k] + 63) / 64);
        fail_nodes(s, k);
    }
}

/* --- placements ------------------------------------------------------------------------------- */

void ek_replicate_place_reserve(ek_replicate_place *w, ek_arena *a, const ek_replicate_nodes *s)
{
    memset(w, 0, sizeof(*w));
    w->at = ek_arena_alloc(a, s->slots, sizeof(*w->at));
    w->count = ek_arena_alloc(a, (int64_t)s->experts * s->nodes, sizeof(*w->count));
    w->vacant = ek_arena_alloc(a, s->nodes, sizeof(*w->vacant));
    w->mask = ek_arena_alloc(a, (int64_t)s->experts * mask_words(s), sizeof(*w->mask));
    w->fatal = ek_arena_alloc(a, s->most + 1, sizeof(*w->fatal));
}

void ek_replicate_place_clear(const ek_replicate_nodes *s, ek_replicate_place *w)
{
    size_t experts = (size_t)s->experts;

    for (int32_t i = 0; i < s->slots; i++)
        w->at[i] = -1;
    memset(w->count, 0, experts * (size_t)s->nodes * sizeof(*w->count));
    memcpy(w->vacant, s->node_slots, (size_t)s->nodes * sizeof(*w->vacant));
    memset(w->mask, 0, experts * (size_t)mask_words(s) * sizeof(*w->mask));
}

void ek_replicate_place_copy(const ek_replicate_nodes *s, ek_replicate_place *to,
                             const ek_replicate_place *from)
{
    size_t experts = (size_t)s->experts;

    memcpy(to->at, from->at, (size_t)s->slots * sizeof(*to->at));
    memcpy(to->count, from->count, experts * (size_t)s->nodes * sizeof(*to->count));
    memcpy(to->vacant, from->vacant, (size_t)s->nodes * sizeof(*to->vacant));
    memcpy(to->mask, from->mask, experts * (size_t)mask_words(s) * sizeof(*to->mask));
    memcpy(to->fatal, from->fatal, (size_t)(s->most + 1) * sizeof(*to->fatal));
    to->lack = from->lack;
}

static int32_t *count_at(const ek_replicate_nodes *s, const ek_replicate_place *w, int32_t node,
                         int32_t expert)
{
    return &w->count[(int64_t)expert * s->nodes + node];
}

static uint64_t *mask_of(const ek_replicate_nodes *s, const ek_replicate_place *w, int32_t expert)
{
    return w->mask + (int64_t)expert * mask_words(s);
}

/* Puts an expert into a slot in place of what it holds. */
static void fill_slot(const ek_replicate_nodes *s, ek_replicate_place *w, int32_t slot,
                      int32_t expert)
{
    int32_t node = s->node_of[slot], was = w->at[slot];
    uint64_t bit = UINT64_C(1) << (node % 64);

    if (was >= 0 && --*count_at(s, w, node, was) == 0)
        mask_of(s, w, was)[node / 64] &= ~bit;
    w->at[slot] = expert;
    ++*count_at(s, w, node, expert);
    mask_of(s, w, expert)[node / 64] |= bit;
}

void ek_replicate_put(const ek_replicate_nodes *s, ek_replicate_place *w, int32_t node,
                      int32_t expert)
{
    fill_slot(s, w, s->first[node + 1] - w->vacant[node], expert);
    w->vacant[node]--;
}

void ek_replicate_place_as(const ek_replicate_nodes *s, const ek_replicate_place *from,
                           const int32_t *image, ek_replicate_place *to)
{
    ek_replicate_place_clear(s, to);
    for (int32_t i = 0; i < s->slots; i++)
        if (from->at[i] >= 0)
            ek_replicate_put(s, to, image[s->node_of[i]], from->at[i]);
}

int32_t ek_replicate_distinct(const ek_replicate_nodes *s, const ek_replicate_place *w,
                              int32_t expert)
{
    const uint64_t *mask = mask_of(s, w, expert);
    int32_t n = 0;

    for (int32_t i = 0; i < mask_words(s); i++)
        n += __builtin_popcountll(mask[i]);
    return n;
}

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
        if (w->vacant[n] == 0 || (apart && *count_at(s, w, n, expert) > 0))
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
            if (w->vacant[node] > 0 && *count_at(s, w, node, e) == 0) {
                ek_replicate_put(s, w, node, e);
                left[e]--;
                tried = -1;
            }
            node = (node + 1) % s->nodes;
        }
    place_remaining(s, order, left, 0, w);
}

/* --- scoring ---------------------------------------------------------------------------------- */

static int is_subset(const uint64_t *a, const uint64_t *b, int32_t words)
{
    for (int32_t i = 0; i < words; i++)
        if ((a[i] & ~b[i]) != 0)
            return 0;
    return 1;
}

/* Fills s->core with the experts whose nodes include all nodes of no other expert; returns their
 * number. */
static int32_t find_core(ek_replicate_nodes *s, const ek_replicate_place *w)
{
    int32_t n = 0, words = mask_words(s);

    for (int32_t e = 0; e < s->experts; e++) {
        const uint64_t *mine = mask_of(s, w, e);
        int32_t kept = 0, i = 0;

        while (i < n && !is_subset(mask_of(s, w, s->core[i]), mine, words))
            i++;
        s->work += i;
        if (i < n)
            continue;
        for (i = 0; i < n; i++)
            if (!is_subset(mine, mask_of(s, w, s->core[i]), words))
                s->core[kept++] = s->core[i];
        s->core[kept] = e;
        n = kept + 1;
    }
    return n;
}

/* The sets of a word that include all nodes of a mask. */
static uint64_t sets_including(const ek_replicate_nodes *s, const uint64_t *mask, int32_t word)
{
    uint64_t sets = ~UINT64_C(0);

    for (int32_t i = 0; i < mask_words(s); i++)
        for (uint64_t m = mask[i]; m != 0 && sets != 0; m &= m - 1)
            sets &= s->dead[(int64_t)(i * 64 + __builtin_ctzll(m)) * s->words + word];
    return sets;
}

/* The fatal sets of a word, for the first n experts of the core. */
static uint64_t fatal_sets(const ek_replicate_nodes *s, const ek_replicate_place *w, int32_t n,
                           int32_t word)
{
    uint64_t lost = 0;

    for (int32_t i = 0; i < n; i++)
        lost |= sets_including(s, mask_of(s, w, s->core[i]), word);
    return lost;
}

/* Counts fatal sets.  Returns the sign of the first difference from `than` (NULL: 0); stops as soon
 * as it is positive. */
static int count_fatal(ek_replicate_nodes *s, const ek_replicate_place *w, const int64_t *than,
                       int64_t *fatal)
{
    int32_t n = find_core(s, w);
    int sign = 0;

    for (int32_t k = 1; k <= s->most && sign <= 0; k++) {
        fatal[k] = 0;
        for (int32_t word = s->word_of[k]; word < s->word_of[k + 1]; word++)
            fatal[k] += __builtin_popcountll(fatal_sets(s, w, n, word));
        s->work += (int64_t)n * 3 * (s->word_of[k + 1] - s->word_of[k]);
        if (than != NULL && sign == 0)
            sign = (fatal[k] > than[k]) - (fatal[k] < than[k]);
    }
    return sign;
}

void ek_replicate_regard(ek_replicate_nodes *s, const ek_replica_sets *others)
{
    memset(s->fallen, 0, (size_t)s->words * sizeof(*s->fallen));
    for (int64_t h = 0; others != NULL && h < others->n; h++)
        for (int32_t word = 0; word < s->words; word++)
            s->fallen[word] |= sets_including(s, others->mask + h * others->words, word);
}

static int64_t lack_of(const ek_replicate_nodes *s, const int32_t *need,
                       const ek_replicate_place *w, int32_t expert)
{
    int32_t n = ek_replicate_distinct(s, w, expert);

    return n < need[expert] ? need[expert] - n : 0;
}

static void find_lack(const ek_replicate_nodes *s, const int32_t *need, ek_replicate_place *w)
{
    w->lack = 0;
    for (int32_t e = 0; e < s->experts; e++)
        w->lack += lack_of(s, need, w, e);
}

void ek_replicate_score(ek_replicate_nodes *s, const int32_t *need, ek_replicate_place *w)
{
    find_lack(s, need, w);
    w->fatal[0] = 0;
    count_fatal(s, w, NULL, w->fatal);
}

void ek_replicate_risk_of(ek_replicate_nodes *s, const int32_t *need, ek_replicate_place *w,
                          ek_replicate_risk *r)
{
    size_t bytes = (size_t)mask_words(s) * sizeof(*s->replica_sets);
    int32_t n = find_core(s, w);

    memset(r, 0, sizeof(*r));
    find_lack(s, need, w);
    r->lack = w->lack;
    for (int32_t k = 1; k <= s->most; k++)
        for (int32_t word = s->word_of[k]; word < s->word_of[k + 1]; word++) {
            uint64_t lost = fatal_sets(s, w, n, word);

            r->alone[k] += __builtin_popcountll(lost);
            r->joint[k] += __builtin_popcountll(lost | s->fallen[word]);
        }
    s->work += (int64_t)n * 3 * s->words;
    for (s->n_replica_sets = 0; s->n_replica_sets < n; s->n_replica_sets++)
        memcpy(s->replica_sets + s->n_replica_sets * mask_words(s),
               mask_of(s, w, s->core[s->n_replica_sets]), bytes);
}

int ek_replicate_is_safe(ek_replicate_nodes *s, const ek_replicate_place *w, int32_t expert)
{
    int32_t words = mask_words(s);

    for (int32_t i = 0; i < s->n_replica_sets; i++) {
        s->work += words;
        if (is_subset(s->replica_sets + (int64_t)i * words, mask_of(s, w, expert), words))
            return 1;
    }
    return 0;
}

int ek_replicate_compare(const ek_replicate_nodes *s, const ek_replicate_place *a,
                         const ek_replicate_place *b)
{
    if (a->lack != b->lack)
        return a->lack < b->lack ? -1 : 1;
    for (int32_t k = 1; k <= s->most; k++)
        if (a->fatal[k] != b->fatal[k])
            return a->fatal[k] < b->fatal[k] ? -1 : 1;
    return 0;
}

/* --- improvement ------------------------------------------------------------------------------ */

void ek_replicate_swap(const ek_replicate_nodes *s, const int32_t *need, ek_replicate_place *w,
                       int32_t i, int32_t j)
{
    int32_t a = w->at[i], b = w->at[j];

    w->lack -= lack_of(s, need, w, a) + lack_of(s, need, w, b);
    fill_slot(s, w, i, b);
    fill_slot(s, w, j, a);
    w->lack += lack_of(s, need, w, a) + lack_of(s, need, w, b);
}

int ek_replicate_may_swap(const ek_replicate_nodes *s, const ek_replicate_place *w, int32_t i,
                          int32_t j)
{
    return w->at[i] != w->at[j] && s->node_of[i] != s->node_of[j];
}

/* Moves the replica of a slot, one of several on its node, by the first swap that reduces the lack.
 */
static int spread_slot(ek_replicate_nodes *s, const int32_t *need, ek_replicate_place *w, int32_t i)
{
    int64_t before = w->lack;

    for (int32_t j = 0; j < s->slots; j++) {
        if (!ek_replicate_may_swap(s, w, i, j) || *count_at(s, w, s->node_of[j], w->at[i]) > 0)
            continue;
        ek_replicate_swap(s, need, w, i, j);
        if (w->lack < before)
            return 1;
        ek_replicate_swap(s, need, w, i, j);
    }
    return 0;
}

void ek_replicate_repair(ek_replicate_nodes *s, const int32_t *need, ek_replicate_place *w)
{
    int moved = 1;

    while (w->lack > 0 && moved) {
        moved = 0;
        for (int32_t i = 0; i < s->slots && w->lack > 0; i++)
            if (*count_at(s, w, s->node_of[i], w->at[i]) > 1 && lack_of(s, need, w, w->at[i]) > 0)
                moved |= spread_slot(s, need, w, i);
    }
    count_fatal(s, w, NULL, w->fatal);
}

/* A node's term of the imbalance: its load squared, per rank. */
static int64_t imbalance_of(const ek_replicate_nodes *s, int32_t node, int64_t load)
{
    return load * load / s->ranks[node];
}

void ek_replicate_loads(const ek_replicate_nodes *s, const int64_t *weight,
                        const ek_replicate_place *w, int64_t *load)
{
    memset(load, 0, (size_t)s->nodes * sizeof(*load));
    for (int32_t i = 0; i < s->slots; i++)
        load[s->node_of[i]] += weight[w->at[i]];
}

static int reduces_imbalance(const ek_replicate_nodes *s, const ek_replicate_place *w,
                             const int64_t *weight, const int64_t *load, int32_t i, int32_t j)
{
    int32_t a = s->node_of[i], b = s->node_of[j];
    int64_t d = weight[w->at[j]] - weight[w->at[i]];

    return imbalance_of(s, a, load[a] + d) + imbalance_of(s, b, load[b] - d) <
           imbalance_of(s, a, load[a]) + imbalance_of(s, b, load[b]);
}

void ek_replicate_exchange(const ek_replicate_nodes *s, ek_replicate_place *w, int32_t a, int32_t b)
{
    for (int32_t i = 0; i < s->slots; i++)
        if (w->at[i] == a || w->at[i] == b)
            fill_slot(s, w, i, w->at[i] == a ? b : a);
}

/* Exchanges two experts in all slots if that reduces the imbalance. */
static int try_exchange(ek_replicate_nodes *s, const int64_t *weight, ek_replicate_place *w,
                        int64_t *load, int32_t a, int32_t b)
{
    int64_t d = weight[b] - weight[a], change = 0;

    s->work += s->nodes;
    for (int32_t n = 0; n < s->nodes; n++)
        change +=
            imbalance_of(s, n, load[n] + d * (*count_at(s, w, n, a) - *count_at(s, w, n, b))) -
            imbalance_of(s, n, load[n]);
    if (change >= 0)
        return 0;
    for (int32_t n = 0; n < s->nodes; n++)
        load[n] += d * (*count_at(s, w, n, a) - *count_at(s, w, n, b));
    ek_replicate_exchange(s, w, a, b);
    return 1;
}

void ek_replicate_even(ek_replicate_nodes *s, const int32_t *replicas, const int64_t *weight,
                       ek_replicate_place *w, int64_t *load)
{
    int64_t end = s->work + WORK;
    int moved = 1;

    ek_replicate_loads(s, weight, w, load);
    while (moved && s->work < end) {
        moved = 0;
        for (int32_t a = 0; a < s->experts && s->work < end; a++)
            for (int32_t b = a + 1; b < s->experts; b++)
                if (replicas[a] == replicas[b] && weight[a] != weight[b])
                    moved |= try_exchange(s, weight, w, load, a, b);
    }
}

/* Swaps two slots unless that scores worse.  Returns whether it did. */
static int try_swap(ek_replicate_nodes *s, const int32_t *need, ek_replicate_place *w,
                    int64_t *fatal, int32_t i, int32_t j)
{
    int64_t lack = w->lack;
    int sign;

    ek_replicate_swap(s, need, w, i, j);
    sign = (w->lack > lack) - (w->lack < lack);
    if (sign == 0)
        sign = count_fatal(s, w, w->fatal, fatal);
    else if (sign < 0)
        count_fatal(s, w, NULL, fatal);
    if (sign > 0)
        ek_replicate_swap(s, need, w, i, j);
    if (sign < 0)
        memcpy(w->fatal + 1, fatal + 1, (size_t)s->most * sizeof(*fatal));
    return sign <= 0;
}

/* One phase of the climb; load not NULL: only swaps that even it out. */
static void climb_phase(ek_replicate_nodes *s, const int32_t *need, const int64_t *weight,
                        ek_replicate_place *w, int64_t *fatal, int64_t *load)
{
    int64_t end = s->work + WORK;

    for (uint64_t trial = 0; trial < TRIALS && s->work < end; trial++) {
        uint64_t bits = ek_random_bits(seed, swap_stream + (load != NULL), trial);
        int32_t i = (int32_t)((bits >> 32) * (uint64_t)s->slots >> 32);
        int32_t j = (int32_t)((bits & UINT32_MAX) * (uint64_t)s->slots >> 32);
        int64_t d;

        if (!ek_replicate_may_swap(s, w, i, j) ||
            (load != NULL && !reduces_imbalance(s, w, weight, load, i, j)))
            continue;
        d = weight[w->at[j]] - weight[w->at[i]];
        if (try_swap(s, need, w, fatal, i, j) && load != NULL) {
            load[s->node_of[i]] += d;
            load[s->node_of[j]] -= d;
        }
    }
}

void ek_replicate_climb(ek_replicate_nodes *s, const int32_t *need, const int64_t *weight,
                        ek_replicate_place *w, int64_t *fatal, int64_t *load)
{
    climb_phase(s, need, weight, w, fatal, NULL);
    ek_replicate_loads(s, weight, w, load);
    climb_phase(s, need, weight, w, fatal, load);
}
