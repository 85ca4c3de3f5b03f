/* Apportionment: those over the limit are settled first, then the others by largest remainder.
 * O(n log n), and O(n) more each time that settling some lifts others over the limit. */
#include "placement/apportion.h"

/* A product of two numbers. */
__extension__ typedef __int128 wide;

/* What is to be shared among those that are open. */
typedef struct {
    const ek_apportion_scratch *room;
    const int64_t *weight;
    int64_t *share;
    int32_t open;
    int64_t left, sum; /* of weights, or their number where none has any */
    int even;
} pot;

void ek_apportion_reserve(ek_apportion_scratch *room, ek_arena *a, int64_t n)
{
    room->remainder = ek_arena_alloc(a, n, sizeof(*room->remainder));
    room->open = ek_arena_alloc(a, n, sizeof(*room->open));
}

static int64_t weight_of(const pot *p, int32_t i)
{
    return p->even ? 1 : p->weight[i];
}

/* Where no weight is left, all that are open count the same. */
static void weigh(pot *p)
{
    if (p->sum > 0)
        return;
    p->even = 1;
    p->sum = p->open;
}

/* Gives `most` to those whose share would not be less, and takes them out; returns how many.  Each
 * only leaves more for the others. */
static int32_t share_out_over(pot *p, int64_t most)
{
    int32_t *open = p->room->open, kept = 0, before = p->open;

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

static int larger(const pot *p, int32_t a, int32_t b)
{
    const int64_t *r = p->room->remainder;

    return r[a] > r[b] || (r[a] == r[b] && a < b);
}

/* Lets entry i of a heap whose root is the last of its order sink to where it belongs. */
static void sink(const pot *p, int32_t n, int32_t i)
{
    int32_t *heap = p->room->open, entry = heap[i];

    for (int32_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && larger(p, heap[child], heap[child + 1]))
            child++;
        if (!larger(p, entry, heap[child]))
            break;
        heap[i] = heap[child];
    }
    heap[i] = entry;
}

/* Those with the largest remainders first. */
static void sort(const pot *p)
{
    int32_t *heap = p->room->open;

    for (int32_t i = p->open / 2; i-- > 0;)
        sink(p, p->open, i);
    for (int32_t end = p->open; end-- > 1;) {
        int32_t last = heap[end];

        heap[end] = heap[0];
        heap[0] = last;
        sink(p, end, 0);
    }
}

static void share_rest(pot *p)
{
    int64_t left = p->left;

    for (int32_t j = 0; j < p->open; j++) {
        int32_t i = p->room->open[j];
        wide part = (wide)weight_of(p, i) * p->left;

        p->share[i] = (int64_t)(part / p->sum);
        p->room->remainder[i] = (int64_t)(part % p->sum);
        left -= p->share[i];
    }
    if (left > 0)
        sort(p);
    for (int32_t j = 0; j < left; j++)
        p->share[p->room->open[j]]++;
}

void ek_apportion(const ek_apportion_scratch *room, const int64_t *weight, int32_t n, int64_t total,
                  int64_t most, int64_t *share)
{
    pot p = {.room = room, .weight = weight, .share = share, .open = n, .left = total};

    for (int32_t i = 0; i < n; i++) {
        room->open[i] = i;
        share[i] = 0;
        p.sum += weight[i];
    }
    do
        weigh(&p);
    while (share_out_over(&p, most) > 0);
    if (p.left > 0)
        share_rest(&p);
}
