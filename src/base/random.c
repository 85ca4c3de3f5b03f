/* Philox 4x32-10, and the distributions and permutations derived from it. */
#include "base/random.h"

#include <math.h>

static void philox(uint64_t seed, uint64_t stream, uint64_t index, uint32_t out[4])
{
    uint32_t c[4] = {(uint32_t)index, (uint32_t)(index >> 32), (uint32_t)stream,
                     (uint32_t)(stream >> 32)};
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);

    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c[0], p1 = (uint64_t)0xCD9E8D57u * c[2];

        c[0] = (uint32_t)(p1 >> 32) ^ c[1] ^ k0;
        c[2] = (uint32_t)(p0 >> 32) ^ c[3] ^ k1;
        c[1] = (uint32_t)p1;
        c[3] = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    for (int i = 0; i < 4; i++)
        out[i] = c[i];
}

uint64_t ek_random_bits(uint64_t seed, uint64_t stream, uint64_t index)
{
    uint32_t r[4];

    philox(seed, stream, index, r);
    return (uint64_t)r[0] << 32 | r[1];
}

static double uniform_53(uint32_t hi, uint32_t lo)
{
    return (double)(((uint64_t)hi << 32 | lo) >> 11) * 0x1p-53;
}

double ek_random_uniform(uint64_t seed, uint64_t stream, uint64_t index)
{
    uint32_t r[4];

    philox(seed, stream, index, r);
    return uniform_53(r[0], r[1]);
}

double ek_random_normal(uint64_t seed, uint64_t stream, uint64_t index)
{
    const double two_pi = 6.283185307179586476925;
    uint32_t r[4];

    philox(seed, stream, index, r);
    return sqrt(-2.0 * log(1.0 - uniform_53(r[0], r[1]))) * cos(two_pi * uniform_53(r[2], r[3]));
}

uint64_t ek_random_stream(const char *name)
{
    uint64_t h = 0xcbf29ce484222325u; /* FNV-1a */

    for (; *name != '\0'; name++)
        h = (h ^ (unsigned char)*name) * 0x100000001b3u;
    return h;
}

uint64_t ek_random_permute(uint64_t seed, uint64_t stream, uint64_t n, uint64_t index)
{
    int half = 1;
    uint64_t mask, x = index;

    while (half < 32 && (1ull << (2 * half)) < n)
        half++;
    mask = (1ull << half) - 1;
    do {
        uint64_t left = x >> half, right = x & mask;

        for (uint64_t round = 0; round < 6; round++) {
            uint64_t f = ek_random_bits(seed ^ (round << 56), stream, right) & mask;
            uint64_t next = left ^ f;

            left = right;
            right = next;
        }
        x = left << half | right;
    } while (x >= n); /* the domain is the smallest power of 4 >= n: at most 4 tries on average */
    return x;
}
