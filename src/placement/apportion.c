/* Largest-remainder apportionment: first entries that reach the limit are fixed, then the rest is
 * shared.  O(n log n), plus O(n) for each pass that lifts further entries to the limit. */
#include "placement/apportion.h"

/* Holds the product of two 64-bit integers. */
__extension__ typedef __int128 wide;

/* What remains to be shared among the entries not yet fixed. */
typedef struct {
    const ek_apportion_scratch *scratch;
    const int64_t *weight;
    int64_t *share;
    int32_t open;
    int64_t left, sum; /* of `open` weights, or `open` itself where all of them are 0 */
    int even;
} remaining_share;

void ek_apportion_reserve(ek_apportion_scratch *scratch, ek_arena *a, int64_t n)
{
    scratch->remainder = ek_arena_alloc(a, n, sizeof(*scratch->remainder));
    scratch->open = ek_arena_alloc(a, n, sizeof(*scratch->open));
}

static int64_t weight_of(const remaining_share *p, int32_t i)
{
    return p->even ? 1 : p->weight[i];
}

/* Where all remaining weights are 0, they count as 1 each. */
static void count_even(remaining_share *p)
{
    if (p->sum > 0)
        return;
    p->even = 1;
    p->sum = p->open;
}

/* Fixes at `most` the entries whose share would reach it; returns how many.  Each one fixed raises
 * the share of the others. */
static int32_t fix_at_limit(remaining_share *p, int64_t most)
{
    int32_t *open = p->scratch->open, kept = 0, before = p->open;

    for (int32_t j = 0; j < before; j++) {
        int32_t i = open[j];
        int64_t w = weight_of(p, i);

        if (p->left > 0 && p->sum > 0 && (wide)w * p->left >= (wide)most * p->sum) {
            p->share[i] = most;
            p->left -= most;
            p->sum -= w;
        } else {
            open[kept++] = i;
        }
    }
    p->open = kept;
    return before - kept;
}

static int has_larger_remainder(const remaining_share *p, int32_t a, int32_t b)
{
    const int64_t *r = p->scratch->remainder;

    return r[a] > r[b] || (r[a] == r[b] && a < b);
}

/* Sifts entry i of a heap down; the root is the entry that sorts last. */
static void sift_down(const remaining_share *p, int32_t n, int32_t i)
{
    int32_t *heap = p->scratch->open, entry = heap[i];

    for (int32_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && has_larger_remainder(p, heap[child], heap[child + 1]))
            child++;
        if (!has_larger_remainder(p, entry, heap[child]))
            break;
        heap[i] = heap[child];
    }
    heap[i] = entry;
}

/* Heap sort of the open entries, largest remainders first. */
static void sort_by_remainder(const remaining_share *p)
{
    int32_t *heap = p->scratch->open;

    for (int32_t i = p->open / 2; i-- > 0;)
        sift_down(p, p->open, i);
    for (int32_t end = p->open; end-- > 1;) {
        int32_t last = heap[end];

        heap[end] = heap[0];
        heap[0] = last;
        sift_down(p, end, 0);
    }
}

static void share_by_remainder(remaining_share *p)
{
    int64_t left = p->left;

    for (int32_t j = 0; j < p->open; j++) {
        int32_t i = p->scratch->open[j];
        wide part = (wide)weight_of(p, i) * p->left;

        p->share[i] = (int64_t)(part / p->sum);
        p->scratch->remainder[i] = (int64_t)(part % p->sum);
        left -= p->share[i];
    }
    if (left > 0)
        sort_by_remainder(p);
    for (int32_t j = 0; j < left; j++)
        p->share[p->scratch->open[j]]++;
}

void ek_apportion(const ek_apportion_scratch *scratch, const int64_t *weight, int32_t n,
                  int64_t total, int64_t most, int64_t *share)
{
    remaining_share p = {
        .scratch = scratch, .weight = weight, .share = share, .open = n, .left = total};

    for (int32_t i = 0; i < n; i++) {
        scratch->open[i] = i;
        share[i] = 0;
        p.sum += weight[i];
    }
    do
        count_even(&p);
    while (fix_at_limit(&p, most) > 0);
    if (p.left > 0)
        share_by_remainder(&p);
}
