/* Sums of counts and favourites of sources; ek_plan_totals of planner.h.
 *
 * Method       Four sources at a time, so that totals are read and written once for four counts,
 *              in blocks of experts, while the same block of the next four is being fetched.
 *              The bits of a block of counts, or-ed, are not below its largest: where they are not
 *              above the largest count so far, the block is not searched.  A source's search starts
 *              just below what it has for the favourite of the source before, as sources are often
 *              alike; so few blocks are searched.
 * Complexity   O(ranks experts), most of which is reading the counts. */
#include "balance/count_sums.h"

#include <string.h>

enum { TOGETHER = 4, BLOCK = 32 };

/* Asks for n counts of each of the four sources after these, as hardware follows a row only to the
 * end of a page. */
static inline void ask_for_next(const int64_t *counts, int32_t experts, int32_t n)
{
    enum { LINE = 8 };

    for (int k = TOGETHER; k < 2 * TOGETHER; k++)
        for (int32_t e = 0; e < n; e += LINE)
            __builtin_prefetch(counts + (int64_t)k * experts + e, 0, 1);
}

/* --- with sources ----------------------------------------------------------------------------- */

/* Sources that are added up together. */
typedef struct {
    int64_t tokens[TOGETHER], most[TOGETHER];
    int32_t favourite[TOGETHER];
} sources;

/* Adds n counts of four sources to totals; their sums and bits to sum and bits. */
static inline void add_four(const int64_t *restrict counts, int32_t experts, int32_t n,
                            int64_t *restrict total, int64_t *restrict sum, int64_t *restrict bits)
{
    const int64_t *a = counts, *b = a + experts, *c = b + experts, *d = c + experts;
    int64_t sum_a = 0, sum_b = 0, sum_c = 0, sum_d = 0;
    int64_t bits_a = 0, bits_b = 0, bits_c = 0, bits_d = 0;

    for (int32_t e = 0; e < n; e++) {
        total[e] += a[e] + b[e] + c[e] + d[e];
        sum_a += a[e];
        sum_b += b[e];
        sum_c += c[e];
        sum_d += d[e];
        bits_a |= a[e];
        bits_b |= b[e];
        bits_c |= c[e];
        bits_d |= d[e];
    }
    sum[0] += sum_a;
    sum[1] += sum_b;
    sum[2] += sum_c;
    sum[3] += sum_d;
    bits[0] = bits_a;
    bits[1] = bits_b;
    bits[2] = bits_c;
    bits[3] = bits_d;
}

static inline void add_one(const int64_t *restrict counts, int32_t n, int64_t *restrict total,
                           int64_t *restrict sum, int64_t *restrict bits)
{
    int64_t sum_a = 0, bits_a = 0;

    for (int32_t e = 0; e < n; e++) {
        total[e] += counts[e];
        sum_a += counts[e];
        bits_a |= counts[e];
    }
    *sum += sum_a;
    *bits = bits_a;
}

/* The first largest of a block, if that is above *most. */
static void search_block(const int64_t *counts, int32_t n, int32_t first, int64_t *most,
                         int32_t *favourite)
{
    int64_t largest = *most;
    int32_t at = *favourite;

#pragma GCC unroll 4
    for (int32_t e = 0; e < n; e++) {
        at = counts[e] > largest ? first + e : at;
        largest = counts[e] > largest ? counts[e] : largest;
    }
    *most = largest;
    *favourite = at;
}

/* Sets *x for n sources; `like`: the favourite of the source before, or -1. */
static void start_sources(sources *x, const int64_t *counts, int32_t experts, int32_t n,
                          int32_t like, int64_t worth)
{
    for (int32_t k = 0; k < n; k++) {
        int64_t known = like >= 0 ? counts[(int64_t)k * experts + like] - 1 : 0;

        x->tokens[k] = 0;
        x->favourite[k] = -1;
        x->most[k] = known > worth ? known : worth;
    }
}

/* Adds up n sources, TOGETHER or 1; `left`: the sources from these on. */
static void add_sources(sources *x, const int64_t *counts, int32_t experts, int32_t n, int32_t left,
                        int64_t *total)
{
    for (int32_t first = 0; first < experts; first += BLOCK) {
        int32_t some = experts - first < BLOCK ? experts - first : BLOCK;
        int64_t bits[TOGETHER];

        if (left >= 2 * TOGETHER)
            ask_for_next(counts + first, experts, some);
        if (n == TOGETHER)
            add_four(counts + first, experts, some, total + first, x->tokens, bits);
        else
            add_one(counts + first, some, total + first, x->tokens, bits);
        for (int32_t k = 0; k < n; k++)
            if (bits[k] > x->most[k])
                search_block(counts + (int64_t)k * experts + first, some, first, &x->most[k],
                             &x->favourite[k]);
    }
}

void ek_count_sums(const ek_plan_limits *l, const int64_t *counts, int64_t worth, int64_t *total,
                   int64_t *tokens, int32_t *favourite)
{
    int32_t n = 0, like = -1;

    memset(total, 0, (size_t)l->experts * sizeof(*total));
    for (int32_t r = 0; r < l->ranks; r += n, counts += (int64_t)n * l->experts) {
        sources x;

        n = l->ranks - r < TOGETHER ? 1 : TOGETHER;
        start_sources(&x, counts, l->experts, n, like, worth);
        add_sources(&x, counts, l->experts, n, l->ranks - r, total);
        memcpy(tokens + r, x.tokens, (size_t)n * sizeof(*tokens));
        memcpy(favourite + r, x.favourite, (size_t)n * sizeof(*favourite));
        like = x.favourite[n - 1];
    }
}

/* --- totals alone ----------------------------------------------------------------------------- */

static inline void add_four_to_totals(const int64_t *restrict counts, int32_t experts, int32_t n,
                                      int64_t *restrict total)
{
    const int64_t *a = counts, *b = a + experts, *c = b + experts, *d = c + experts;

    for (int32_t e = 0; e < n; e++)
        total[e] += a[e] + b[e] + c[e] + d[e];
}

static void add_one_to_totals(const int64_t *restrict counts, int32_t experts,
                              int64_t *restrict total)
{
    for (int32_t e = 0; e < experts; e++)
        total[e] += counts[e];
}

void ek_plan_totals(const ek_plan_limits *l, const int64_t *counts, int64_t *total)
{
    int32_t left = l->ranks, experts = l->experts;

    memset(total, 0, (size_t)experts * sizeof(*total));
    for (; left >= TOGETHER; left -= TOGETHER, counts += (int64_t)TOGETHER * experts)
        for (int32_t first = 0; first < experts; first += BLOCK) {
            int32_t some = experts - first < BLOCK ? experts - first : BLOCK;

            if (left >= 2 * TOGETHER)
                ask_for_next(counts + first, experts, some);
            add_four_to_totals(counts + first, experts, some, total + first);
        }
    for (; left > 0; left--, counts += experts)
        add_one_to_totals(counts, experts, total);
}
