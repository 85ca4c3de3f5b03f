/* Replicas of experts on nodes: which failures they survive, and the search for placements that
 * survive more or have evener loads.  replicate_start.c makes the placements that it starts from,
 * replicate_even.c exchanges experts, replicate_min_move.c takes the present placement into
 * account.
 *
 * Score        The number of fatal sets of k nodes, those that hold all replicas of some expert,
 *              for k = 1, 2, ...; of two placements, the one with fewer for the smallest k where
 *              they differ is better.  Up to 16 nodes every set is tried.  Above, k goes to 16, and
 *              at most 1,024 sets of each k are drawn, always the same ones; single nodes are all
 *              tried.  A set is one bit; each node has a bit vector of the sets that it is in.  The
 *              sets that lose an expert are the AND over its nodes, the fatal ones the OR over
 *              experts.  An expert whose nodes include all nodes of another expert is skipped.
 * Climb        First random swaps of two slots that score no worse, then all pairs of slots, in
 *              turns, whose swap evens out the loads and scores no worse.  Only a swap that takes
 *              an expert from a minimal node set that no other expert has needs a new score, unless
 *              more single nodes become fatal; of the others, it is enough to look at the sets that
 *              become fatal.
 * Complexity   A score O(E^2 + W sum r) word operations, W <= 1,039 up to 16 nodes, <= 256 above
 *              (and N / 64); most swaps O(minimal sets). */
#include "balance/replicate_place.h"

#include <string.h>

enum { WORK = 1 << 22 }; /* limit of word operations of each phase of the climb */

/* --- placements ------------------------------------------------------------------------------- */

void ek_replicate_place_reserve(ek_replicate_place *w, ek_arena *a, const ek_replicate_nodes *s)
{
    memset(w, 0, sizeof(*w));
    w->at = ek_arena_alloc(a, s->slots, sizeof(*w->at));
    w->count = ek_arena_alloc(a, (int64_t)s->experts * s->nodes, sizeof(*w->count));
    w->vacant = ek_arena_alloc(a, s->nodes, sizeof(*w->vacant));
    w->distinct = ek_arena_alloc(a, s->experts, sizeof(*w->distinct));
    w->mask = ek_arena_alloc(a, (int64_t)s->experts * ek_replicate_words(s), sizeof(*w->mask));
    w->fatal = ek_arena_alloc(a, s->most + 1, sizeof(*w->fatal));
}

void ek_replicate_place_clear(const ek_replicate_nodes *s, ek_replicate_place *w)
{
    size_t experts = (size_t)s->experts;

    for (int32_t i = 0; i < s->slots; i++)
        w->at[i] = -1;
    memset(w->count, 0, experts * (size_t)s->nodes * sizeof(*w->count));
    memcpy(w->vacant, s->node_slots, (size_t)s->nodes * sizeof(*w->vacant));
    memset(w->distinct, 0, experts * sizeof(*w->distinct));
    memset(w->mask, 0, experts * (size_t)ek_replicate_words(s) * sizeof(*w->mask));
}

void ek_replicate_place_copy(const ek_replicate_nodes *s, ek_replicate_place *to,
                             const ek_replicate_place *from)
{
    size_t experts = (size_t)s->experts;

    memcpy(to->at, from->at, (size_t)s->slots * sizeof(*to->at));
    memcpy(to->count, from->count, experts * (size_t)s->nodes * sizeof(*to->count));
    memcpy(to->vacant, from->vacant, (size_t)s->nodes * sizeof(*to->vacant));
    memcpy(to->distinct, from->distinct, experts * sizeof(*to->distinct));
    memcpy(to->mask, from->mask, experts * (size_t)ek_replicate_words(s) * sizeof(*to->mask));
    memcpy(to->fatal, from->fatal, (size_t)(s->most + 1) * sizeof(*to->fatal));
    to->lack = from->lack;
}

static int32_t *count_at(const ek_replicate_nodes *s, const ek_replicate_place *w, int32_t node,
                         int32_t expert)
{
    return &w->count[(int64_t)expert * s->nodes + node];
}

/* Puts an expert into a slot in place of what it holds. */
static void fill_slot(const ek_replicate_nodes *s, ek_replicate_place *w, int32_t slot,
                      int32_t expert)
{
    int32_t node = s->node_of[slot], was = w->at[slot];
    uint64_t bit = UINT64_C(1) << (node % 64);

    if (was >= 0 && --*count_at(s, w, node, was) == 0) {
        ek_replicate_mask(s, w, was)[node / 64] &= ~bit;
        w->distinct[was]--;
    }
    w->at[slot] = expert;
    if (++*count_at(s, w, node, expert) == 1) {
        ek_replicate_mask(s, w, expert)[node / 64] |= bit;
        w->distinct[expert]++;
    }
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

int32_t ek_replicate_nodes_with(const ek_replicate_nodes *s, const ek_replicate_place *w,
                                int32_t expert, int32_t *nodes)
{
    const uint64_t *mask = ek_replicate_mask(s, w, expert);
    int32_t n = 0;

    for (int32_t i = 0; i < ek_replicate_words(s); i++)
        for (uint64_t m = mask[i]; m != 0; m &= m - 1)
            nodes[n++] = i * 64 + __builtin_ctzll(m);
    return n;
}

/* The node of a mask with one; -1: it has several. */
static int32_t only_node(const uint64_t *mask, int32_t words)
{
    int32_t node = -1;

    for (int32_t i = 0; i < words; i++) {
        if (mask[i] == 0)
            continue;
        if (node >= 0 || (mask[i] & (mask[i] - 1)) != 0)
            return -1;
        node = i * 64 + __builtin_ctzll(mask[i]);
    }
    return node;
}

int32_t ek_replicate_only_node(const ek_replicate_nodes *s, const ek_replicate_place *w,
                               int32_t expert)
{
    return only_node(ek_replicate_mask(s, w, expert), ek_replicate_words(s));
}

void ek_replicate_find_only_nodes(ek_replicate_nodes *s, const ek_replicate_place *w)
{
    for (int32_t e = 0; e < s->experts; e++)
        s->only[e] = ek_replicate_only_node(s, w, e);
}

/* --- scoring ---------------------------------------------------------------------------------- */

static int is_subset(const uint64_t *a, const uint64_t *b, int32_t words)
{
    for (int32_t i = 0; i < words; i++)
        if ((a[i] & ~b[i]) != 0)
            return 0;
    return 1;
}

static int is_equal(const uint64_t *a, const uint64_t *b, int32_t words)
{
    for (int32_t i = 0; i < words; i++)
        if (a[i] != b[i])
            return 0;
    return 1;
}

/* Begins s->core with one expert for each node that is the only one of some expert, and sets those
 * nodes in s->singles; returns their number. */
static int32_t find_singles(ek_replicate_nodes *s, const ek_replicate_place *w)
{
    int32_t n = 0, words = ek_replicate_words(s);

    memset(s->singles, 0, (size_t)words * sizeof(*s->singles));
    for (int32_t e = 0; e < s->experts; e++) {
        const uint64_t *mine = ek_replicate_mask(s, w, e);

        if (w->distinct[e] != 1 || is_subset(mine, s->singles, words))
            continue;
        for (int32_t i = 0; i < words; i++)
            s->singles[i] |= mine[i];
        s->core[n++] = e;
    }
    return n;
}

static int has_common_node(const uint64_t *a, const uint64_t *b, int32_t words)
{
    for (int32_t i = 0; i < words; i++)
        if ((a[i] & b[i]) != 0)
            return 1;
    return 0;
}

/* Fills s->core with the experts whose nodes include all nodes of no other expert; returns their
 * number. */
static int32_t find_core(ek_replicate_nodes *s, const ek_replicate_place *w)
{
    int32_t words = ek_replicate_words(s), singles = find_singles(s, w), n = singles;

    s->work += s->experts / 4;
    for (int32_t e = 0; e < s->experts; e++) {
        const uint64_t *mine = ek_replicate_mask(s, w, e);
        int32_t kept = singles, i = singles;

        if (has_common_node(mine, s->singles, words))
            continue;
        while (i < n && !is_subset(ek_replicate_mask(s, w, s->core[i]), mine, words))
            i++;
        s->work += i;
        if (i < n)
            continue;
        for (i = singles; i < n; i++)
            if (!is_subset(mine, ek_replicate_mask(s, w, s->core[i]), words))
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

    for (int32_t i = 0; i < ek_replicate_words(s); i++)
        for (uint64_t m = mask[i]; m != 0 && sets != 0; m &= m - 1)
            sets &= s->dead[(int64_t)(i * 64 + __builtin_ctzll(m)) * s->words + word];
    return sets;
}

/* The fatal sets of a word, for the first n experts of the core. */
static uint64_t fatal_sets(const ek_replicate_nodes *s, const ek_replicate_place *w, int32_t n,
                           int32_t word)
{
    uint64_t lost = 0;

    for (int32_t i = 0; i < n && lost != s->all[word]; i++)
        lost |= sets_including(s, ek_replicate_mask(s, w, s->core[i]), word);
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

static int64_t lack_of(const int32_t *need, const ek_replicate_place *w, int32_t expert)
{
    int32_t n = w->distinct[expert];

    return n < need[expert] ? need[expert] - n : 0;
}

static void find_lack(const ek_replicate_nodes *s, const int32_t *need, ek_replicate_place *w)
{
    w->lack = 0;
    for (int32_t e = 0; e < s->experts; e++)
        w->lack += lack_of(need, w, e);
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
    size_t bytes = (size_t)ek_replicate_words(s) * sizeof(*s->replica_sets);
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
        memcpy(s->replica_sets + s->n_replica_sets * ek_replicate_words(s),
               ek_replicate_mask(s, w, s->core[s->n_replica_sets]), bytes);
}

int ek_replicate_is_safe(ek_replicate_nodes *s, const ek_replicate_place *w, int32_t expert)
{
    int32_t words = ek_replicate_words(s);

    for (int32_t i = 0; i < s->n_replica_sets; i++) {
        s->work += words;
        if (is_subset(s->replica_sets + (int64_t)i * words, ek_replicate_mask(s, w, expert), words))
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

    w->lack -= lack_of(need, w, a) + lack_of(need, w, b);
    fill_slot(s, w, i, b);
    fill_slot(s, w, j, a);
    w->lack += lack_of(need, w, a) + lack_of(need, w, b);
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
        if (!ek_replicate_may_swap(s, w, i, j) ||
            ek_replicate_count(s, w, s->node_of[j], w->at[i]) > 0)
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
    int moved = 1, any = 0;

    while (w->lack > 0 && moved) {
        moved = 0;
        for (int32_t i = 0; i < s->slots && w->lack > 0; i++)
            if (ek_replicate_count(s, w, s->node_of[i], w->at[i]) > 1 &&
                lack_of(need, w, w->at[i]) > 0)
                moved |= spread_slot(s, need, w, i);
        any |= moved;
    }
    if (any)
        count_fatal(s, w, NULL, w->fatal);
}

void ek_replicate_loads(const ek_replicate_nodes *s, const int64_t *weight,
                        const ek_replicate_place *w, int64_t *load)
{
    memset(load, 0, (size_t)s->nodes * sizeof(*load));
    for (int32_t i = 0; i < s->slots; i++)
        load[s->node_of[i]] += weight[w->at[i]];
}

void ek_replicate_exchange(const ek_replicate_nodes *s, ek_replicate_place *w, int32_t a, int32_t b)
{
    const uint64_t *of_a = ek_replicate_mask(s, w, a), *of_b = ek_replicate_mask(s, w, b);

    for (int32_t k = 0; k < ek_replicate_words(s); k++)
        for (uint64_t m = of_a[k] | of_b[k]; m != 0; m &= m - 1) {
            int32_t n = k * 64 + __builtin_ctzll(m);

            for (int32_t i = s->first[n]; i < s->first[n + 1]; i++)
                if (w->at[i] == a || w->at[i] == b)
                    fill_slot(s, w, i, w->at[i] == a ? b : a);
        }
}

static void set_bit(uint64_t *mask, int32_t bit, int to)
{
    uint64_t b = UINT64_C(1) << (bit % 64);

    mask[bit / 64] = to ? mask[bit / 64] | b : mask[bit / 64] & ~b;
}

/* Counts an expert with this mask, or one less, if the mask is a minimal set. */
static void add_to_core(ek_replicate_nodes *s, const uint64_t *mask, int32_t more)
{
    int32_t words = ek_replicate_words(s), node = only_node(mask, words);

    if (node >= 0) {
        s->climb.n_alone[node] += more;
        set_bit(s->climb.with_one, node, s->climb.n_alone[node] > 0);
        set_bit(s->climb.with_three, node, s->climb.n_alone[node] > 2);
        return;
    }
    for (int32_t i = 0; i < s->climb.n; i++)
        if (is_equal(s->climb.mask + (int64_t)i * words, mask, words)) {
            s->climb.experts[i] += more;
            return;
        }
}

/* Keeps the minimal node sets of a placement, and how many experts have each. */
static void keep_core(ek_replicate_nodes *s, const ek_replicate_place *w)
{
    int32_t words = ek_replicate_words(s), n = find_core(s, w);
    size_t bytes = (size_t)words * sizeof(*s->climb.mask);

    s->climb.has_lost = 0;
    s->climb.n = 0;
    for (int32_t i = 0; i < n; i++)
        if (w->distinct[s->core[i]] > 1)
            memcpy(s->climb.mask + (int64_t)s->climb.n++ * words,
                   ek_replicate_mask(s, w, s->core[i]), bytes);
    memset(s->climb.n_alone, 0, (size_t)s->nodes * sizeof(*s->climb.n_alone));
    memset(s->climb.with_one, 0, bytes);
    memset(s->climb.with_three, 0, bytes);
    memset(s->climb.experts, 0, (size_t)s->experts * sizeof(*s->climb.experts));
    for (int32_t e = 0; e < s->experts; e++)
        add_to_core(s, ek_replicate_mask(s, w, e), 1);
    s->work += (int64_t)n * 3 * s->words + (int64_t)s->climb.n * s->experts / 4;
}

/* Whether a mask includes the only node of an expert other than the two whose masks were `was`. */
static int includes_only_node(const ek_replicate_nodes *s, const uint64_t *mask,
                              uint64_t *const was[2])
{
    int32_t words = ek_replicate_words(s), node[2];

    if (has_common_node(mask, s->climb.with_three, words))
        return 1;
    if (!has_common_node(mask, s->climb.with_one, words))
        return 0;
    for (int i = 0; i < 2; i++)
        node[i] = only_node(was[i], words);
    for (int32_t i = 0; i < words; i++)
        for (uint64_t m = mask[i] & s->climb.with_one[i]; m != 0; m &= m - 1) {
            int32_t n = i * 64 + __builtin_ctzll(m);

            if (s->climb.n_alone[n] > (node[0] == n) + (node[1] == n))
                return 1;
        }
    return 0;
}

/* Whether a mask includes all nodes of an expert other than the two whose masks were `was`. */
static int includes_core(ek_replicate_nodes *s, const uint64_t *mask, uint64_t *const was[2])
{
    int32_t words = ek_replicate_words(s);

    if (includes_only_node(s, mask, was))
        return 1;
    if (s->climb.n == 0 || only_node(mask, words) >= 0)
        return 0;
    s->work += s->climb.n / 4;
    for (int32_t i = 0; i < s->climb.n; i++) {
        const uint64_t *core = s->climb.mask + (int64_t)i * words;

        if (is_subset(core, mask, words) &&
            s->climb.experts[i] > is_equal(core, was[0], words) + is_equal(core, was[1], words))
            return 1;
    }
    return 0;
}

/* The sets of a word that are fatal to the minimal node sets. */
static uint64_t fatal_to_core(const ek_replicate_nodes *s, int32_t word)
{
    int32_t words = ek_replicate_words(s);
    uint64_t lost = 0;

    for (int32_t i = 0; i < words; i++)
        for (uint64_t m = s->climb.with_one[i]; m != 0 && lost != s->all[word]; m &= m - 1)
            lost |= s->dead[(int64_t)(i * 64 + __builtin_ctzll(m)) * s->words + word];
    for (int32_t i = 0; i < s->climb.n && lost != s->all[word]; i++)
        lost |= sets_including(s, s->climb.mask + (int64_t)i * words, word);
    return lost;
}

/* Whether a set is fatal with a mask that was not. */
static int adds_fatal(ek_replicate_nodes *s, const uint64_t *mask)
{
    for (int32_t word = 0; word < s->words && !s->climb.has_lost; word++)
        s->climb.lost[word] = fatal_to_core(s, word);
    s->climb.has_lost = 1;
    for (int32_t word = 0; word < s->words; word++)
        if ((sets_including(s, mask, word) & ~s->climb.lost[word]) != 0)
            return 1;
    return 0;
}

/* Whether more nodes than before are the only one of some expert, after a swap of two experts that
 * had the masks `was` and have the masks `is`. */
static int adds_only_node(const ek_replicate_nodes *s, const uint64_t *const is[2],
                          uint64_t *const was[2])
{
    int32_t words = ek_replicate_words(s), node[4], change = 0;

    for (int i = 0; i < 2; i++) {
        node[i] = only_node(was[i], words);
        node[2 + i] = only_node(is[i], words);
    }
    for (int i = 0; i < 4; i++) {
        int32_t n = node[i], more = 0;

        for (int j = 0; j < 4; j++) {
            n = node[j] == n && j < i ? -1 : n; /* seen */
            more += node[j] == n ? j < 2 ? -1 : 1 : 0;
        }
        if (n >= 0)
            change += (s->climb.n_alone[n] + more > 0) - (s->climb.n_alone[n] > 0);
    }
    return change > 0;
}

/* The sign of the change of the number of fatal sets by a swap already made of two experts that had
 * the masks `was`.  Without counting where no set ceases to be fatal, or more single nodes are
 * fatal, which are compared first. */
static int compare_swap(ek_replicate_nodes *s, const ek_replicate_place *w, int32_t a, int32_t b,
                        uint64_t *const was[2], int64_t *fatal)
{
    const uint64_t *is[2] = {ek_replicate_mask(s, w, a), ek_replicate_mask(s, w, b)};

    s->work++;
    if (!includes_core(s, was[0], was) || !includes_core(s, was[1], was))
        return adds_only_node(s, is, was) ? 1 : count_fatal(s, w, w->fatal, fatal);
    for (int i = 0; i < 2; i++) {
        if (includes_core(s, is[i], was))
            continue;
        s->work += s->words;
        if (adds_fatal(s, is[i]))
            return 1;
    }
    return 0;
}

/* Updates what keep_core keeps after a swap. */
static void update_core(ek_replicate_nodes *s, const ek_replicate_place *w, int32_t a, int32_t b,
                        uint64_t *const was[2])
{
    const uint64_t *is[2] = {ek_replicate_mask(s, w, a), ek_replicate_mask(s, w, b)};

    for (int i = 0; i < 2; i++)
        if (!includes_core(s, was[i], was) || !includes_core(s, is[i], was)) {
            keep_core(s, w);
            return;
        }
    for (int i = 0; i < 2; i++) {
        add_to_core(s, was[i], -1);
        add_to_core(s, is[i], 1);
    }
}

/* Swaps two slots whose experts are nowhere else, if each node alone holds at least two other
 * experts: the minimal node sets, and how many experts have each, stay the same.  With fewer they
 * do as well, but finding that out counts as more work, which limits the climb.  Returns whether it
 * did. */
static int swap_singles(ek_replicate_nodes *s, ek_replicate_place *w, int32_t i, int32_t j)
{
    int32_t a = w->at[i], b = w->at[j], x = s->node_of[i], y = s->node_of[j];

    if (w->distinct[a] > 1 || w->distinct[b] > 1 || s->climb.n_alone[x] < 3 ||
        s->climb.n_alone[y] < 3 || *count_at(s, w, x, a) > 1 || *count_at(s, w, y, b) > 1)
        return 0;
    s->work++;
    w->at[i] = b;
    w->at[j] = a;
    *count_at(s, w, x, a) = *count_at(s, w, y, b) = 0;
    *count_at(s, w, y, a) = *count_at(s, w, x, b) = 1;
    set_bit(ek_replicate_mask(s, w, a), x, 0);
    set_bit(ek_replicate_mask(s, w, a), y, 1);
    set_bit(ek_replicate_mask(s, w, b), y, 0);
    set_bit(ek_replicate_mask(s, w, b), x, 1);
    return 1;
}

/* Swaps two slots unless that scores worse.  Returns whether it did. */
static int try_swap(ek_replicate_nodes *s, const int32_t *need, ek_replicate_place *w,
                    int64_t *fatal, int32_t i, int32_t j)
{
    int32_t a = w->at[i], b = w->at[j];
    size_t bytes = (size_t)ek_replicate_words(s) * sizeof(*s->climb.swapped);
    uint64_t *const was[2] = {s->climb.swapped, s->climb.swapped + ek_replicate_words(s)};
    int64_t lack = w->lack;
    int sign;

    if (swap_singles(s, w, i, j))
        return 1;
    memcpy(was[0], ek_replicate_mask(s, w, a), bytes);
    memcpy(was[1], ek_replicate_mask(s, w, b), bytes);
    ek_replicate_swap(s, need, w, i, j);
    sign = (w->lack > lack) - (w->lack < lack);
    if (sign == 0)
        sign = compare_swap(s, w, a, b, was, fatal);
    else if (sign < 0)
        count_fatal(s, w, NULL, fatal);
    if (sign > 0) {
        ek_replicate_swap(s, need, w, i, j);
        return 0;
    }
    if (sign < 0)
        memcpy(w->fatal + 1, fatal + 1, (size_t)s->most * sizeof(*fatal));
    update_core(s, w, a, b, was);
    return 1;
}

/* Random swaps that score no worse. */
static void climb_score(ek_replicate_nodes *s, const int32_t *need, ek_replicate_place *w,
                        int64_t *fatal)
{
    int64_t end = s->work + WORK;

    for (int32_t t = 0; t < EK_REPLICATE_TRIALS && s->work < end; t++) {
        int32_t i = s->trial[2 * t], j = s->trial[2 * t + 1];

        if (ek_replicate_may_swap(s, w, i, j))
            (void)try_swap(s, need, w, fatal, i, j);
    }
}

/* Swaps that even out the loads and score no worse, until there are none. */
static void climb_load(ek_replicate_nodes *s, const int32_t *need, const int64_t *weight,
                       ek_replicate_place *w, int64_t *fatal, int64_t *load)
{
    int64_t end = s->work + WORK;
    int moved = 1;

    ek_replicate_loads(s, weight, w, load);
    while (moved && s->work < end) {
        moved = 0;
        for (int32_t i = 0; i < s->slots && s->work < end; i++) {
            s->work += s->slots / 4;
            for (int32_t j = i + 1; j < s->slots; j++) {
                int64_t d = weight[w->at[j]] - weight[w->at[i]];

                if (d == 0 || s->node_of[i] == s->node_of[j] ||
                    !ek_replicate_evens_out(s, load, s->node_of[i], s->node_of[j], d) ||
                    !try_swap(s, need, w, fatal, i, j))
                    continue;
                load[s->node_of[i]] += d;
                load[s->node_of[j]] -= d;
                moved = 1;
            }
        }
    }
}

void ek_replicate_climb(ek_replicate_nodes *s, const int32_t *need, const int64_t *weight,
                        ek_replicate_place *w, int64_t *fatal, int64_t *load)
{
    keep_core(s, w);
    climb_score(s, need, w, fatal);
    climb_load(s, need, weight, w, fatal, load);
}
