/* comm_segments.h - sums in the segments of one node and in those between nodes, for any back end.
 */
#ifndef COMM_SEGMENTS_H
#define COMM_SEGMENTS_H

#include "comm_cases.h"

/* The sums of a vector, by all_reduce, reduce_scatter and multireduce, and its pieces gathered. */
static inline void make_sums(peer *p, int64_t n, float *sums)
{
    float *reduced = sums, *scattered = sums + n, *chained = sums + 2 * n, *gathered = sums + 3 * n;
    int64_t first[65];
    int list[64];

    for (int64_t i = 0; i < 4 * n; i++)
        sums[i] = (float)(mix(5, (uint64_t)p->rank, i % n) % 100003) / 977;
    for (int r = 0; r <= p->size; r++) /* ragged: of these ranges the last is the longest */
        first[r] = r < p->size ? n * r * r / (p->size * p->size) : n;
    for (int r = 0; r < p->size; r++)
        list[r] = (r + 1) % p->size;
    DO(p, ek_comm_all_reduce(p->world, reduced, n, EK_SUM_F32, &op));
    DO(p, ek_comm_reduce_scatter(p->world, scattered, first, EK_SUM_F32, &op));
    DO(p, ek_comm_multireduce(p->world, chained, n, EK_SUM_F32, list, p->size, 3, &op));
    DO(p, ek_comm_all_gather(p->world, gathered, first, sizeof(float), &op));
    for (int64_t i = 0; i < n; i++) /* only these are sums */
        if (i < first[p->rank] || i >= first[p->rank + 1])
            scattered[i] = 0;
    for (int64_t i = 0; i < n && p->rank != list[0]; i++)
        chained[i] = 0;
}

/* Between nodes segments are shorter than within one.  Sums keep their bits, also of vectors that
 * are no whole number of segments.  The world's messages are left short. */
static inline void compare_segments(peer *p)
{
    static const int64_t sizes[] = {70001, 196608, 300007};
    int together[64] = {0}, apart[64];

    for (int r = 0; r < p->size; r++)
        apart[r] = r;
    ek_comm_set_message_max(p->world, 1 << 30);
    ek_comm_set_far_max(p->world, 16 << 10);
    for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
        size_t bytes = 4 * (size_t)sizes[s] * sizeof(float);
        float *whole = malloc(bytes), *split = malloc(bytes);

        ek_comm_set_nodes(p->world, together);
        make_sums(p, sizes[s], whole);
        ek_comm_set_nodes(p->world, apart);
        make_sums(p, sizes[s], split);
        EXPECT(p, memcmp(whole, split, bytes) == 0);
        free(whole);
        free(split);
    }
}

#endif
