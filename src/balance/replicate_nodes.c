/* The nodes of a placement of replicas, the node sets whose failure is tried, and the random swaps
 * of the climb (replicate_place.c). */
#include "balance/replicate_place.h"
#include "base/random.h"
#include "placement/subsets.h"

#include <string.h>

enum {
    EXACT_NODES = 16, /* up to so many nodes all sets are tried: 65,536 */
    DRAWN = 1024      /* sets drawn for each k above that */
};

static const uint64_t seed = UINT64_C(0x7265706c69636173); /* of drawn sets and swaps */
static const uint64_t swap_stream = UINT64_C(1) << 63;     /* drawn sets use smaller stream
                                                              numbers */

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
    s->all = ek_arena_alloc(a, s->words, sizeof(*s->all));
    s->fallen = ek_arena_alloc(a, s->words, sizeof(*s->fallen));
    s->replica_sets =
        ek_arena_alloc(a, (int64_t)experts * ek_replicate_words(s), sizeof(*s->replica_sets));
    s->core = ek_arena_alloc(a, experts, sizeof(*s->core));
    s->singles = ek_arena_alloc(a, ek_replicate_words(s), sizeof(*s->singles));
    s->some = ek_arena_alloc(a, nodes, sizeof(*s->some));
    s->trial = ek_arena_alloc(a, 2 * (int64_t)EK_REPLICATE_TRIALS, sizeof(*s->trial));
    s->stacked = ek_arena_alloc(a, experts, sizeof(*s->stacked));
    s->only = ek_arena_alloc(a, experts, sizeof(*s->only));
    s->climb.n_alone = ek_arena_alloc(a, nodes, sizeof(*s->climb.n_alone));
    s->climb.with_one = ek_arena_alloc(a, ek_replicate_words(s), sizeof(*s->climb.with_one));
    s->climb.with_three = ek_arena_alloc(a, ek_replicate_words(s), sizeof(*s->climb.with_three));
    s->climb.mask =
        ek_arena_alloc(a, (int64_t)experts * ek_replicate_words(s), sizeof(*s->climb.mask));
    s->climb.experts = ek_arena_alloc(a, experts, sizeof(*s->climb.experts));
    s->climb.lost = ek_arena_alloc(a, s->words, sizeof(*s->climb.lost));
    s->climb.swapped = ek_arena_alloc(a, 2 * ek_replicate_words(s), sizeof(*s->climb.swapped));
    for (int i = 0; i < 2; i++)
        s->changed[i] = ek_arena_alloc(a, ek_replicate_words(s), sizeof(**s->changed));
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

        s->all[word] |= UINT64_C(1) << (n % 64);
        if (all > s->sets[k])
            ek_subset_draw(seed, set, k, s->nodes, n);
        for (int32_t i = 0; i < k; i++)
            s->dead[(int64_t)set[i] * s->words + word] |= UINT64_C(1) << (n % 64);
        if (all == s->sets[k] && n + 1 < all)
            ek_subset_next(set, k, s->nodes);
    }
}

/* Draws the random swaps of the climb. */
static void draw_trials(ek_replicate_nodes *s)
{
    for (int32_t t = 0; t < EK_REPLICATE_TRIALS; t++) {
        uint64_t bits = ek_random_bits(seed, swap_stream, (uint64_t)t);

        s->trial[2 * t] = (int32_t)((bits >> 32) * (uint64_t)s->slots >> 32);
        s->trial[2 * t + 1] = (int32_t)((bits & UINT32_MAX) * (uint64_t)s->slots >> 32);
    }
}

void ek_replicate_nodes_ready(ek_replicate_nodes *s)
{
    draw_trials(s);
    s->first[0] = 0;
    for (int32_t n = 0; n < s->nodes; n++) {
        s->first[n + 1] = s->first[n] + s->node_slots[n];
        for (int32_t i = s->first[n]; i < s->first[n + 1]; i++)
            s->node_of[i] = n;
    }
    s->alike = 1;
    for (int32_t n = 1; n < s->nodes; n++)
        s->alike &= s->ranks[n] == s->ranks[0];
    memset(s->all, 0, (size_t)s->words * sizeof(*s->all));
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
