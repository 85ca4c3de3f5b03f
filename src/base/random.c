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

/* A permutation of 0 ... 4^half - 1: a Feistel network of half-words.  With few of them the values
 * of its round function are kept. */
enum { ROUNDS = 6, KEPT_HALF = 5 };

typedef struct {
    uint64_t seed, stream, mask;
    int half;
    uint32_t known[ROUNDS]; /* bits: kept values */
    uint32_t kept[ROUNDS][1 << KEPT_HALF];
} permutation;

static void start_permutation(permutation *p, uint64_t seed, uint64_t stream, uint64_t n)
{
    int half = 1;

    while (half < 32 && (1ull << (2 * half)) < n)
        half++;
    p->seed = seed;
    p->stream = stream;
    p->half = half;
    p->mask = (1ull << half) - 1;
    for (int round = 0; round < ROUNDS; round++)
        p->known[round] = 0;
}

static uint64_t round_value(permutation *p, uint64_t round, uint64_t right)
{
    uint32_t bit = 1u << (right % 32), value;

    if (p->half <= KEPT_HALF && (p->known[round] & bit) != 0)
        return p->kept[round][right];
    value = (uint32_t)(ek_random_bits(p->seed ^ (round << 56), p->stream, right) & p->mask);
    if (p->half <= KEPT_HALF) {
        p->known[round] |= bit;
        p->kept[round][right] = value;
    }
    return value;
}

/* The image of an index below n: the domain is the smallest power of 4 >= n, at most 4 tries on
 * average. */
static uint64_t permute_index(permutation *p, uint64_t n, uint64_t index)
{
    uint64_t x = index;

    do {
        uint64_t left = x >> p->half, right = x & p->mask;

        for (uint64_t round = 0; round < ROUNDS; round++) {
            uint64_t next = left ^ round_value(p, round, right);

            left = right;
            right = next;
        }
        x = left << p->half | right;
    } while (x >= n);
    return x;
}

uint64_t ek_random_permute(uint64_t seed, uint64_t stream, uint64_t n, uint64_t index)
{
    permutation p;

    start_permutation(&p, seed, stream, n);
    return permute_index(&p, n, index);
}

void ek_random_permute_first(uint64_t seed, uint64_t stream, int32_t n, int32_t k, int32_t *images)
{
    permutation p;

    start_permutation(&p, seed, stream, (uint64_t)n);
    for (int32_t i = 0; i < k; i++)
        images[i] = (int32_t)permute_index(&p, (uint64_t)n, (uint64_t)i);
}
