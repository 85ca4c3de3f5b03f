/* base/random.h - counter-based random numbers: (seed, stream, index) -> value.
 *
 * Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).  There
 * is no state, so a value does not depend on the caller, the order of calls, or any layout. */
#ifndef BASE_RANDOM_H
#define BASE_RANDOM_H

#include <stdint.h>

/* 64 random bits. */
uint64_t ek_random_bits(uint64_t seed, uint64_t stream, uint64_t index);

/* Uniform in [0, 1), 53 bits. */
double ek_random_uniform(uint64_t seed, uint64_t stream, uint64_t index);

/* Standard normal (Box-Muller on one pair of words per index). */
double ek_random_normal(uint64_t seed, uint64_t stream, uint64_t index);

/* A stream number from a name (FNV-1a), such as a tensor's. */
uint64_t ek_random_stream(const char *name);

/* Position of `index` in a seeded permutation of [0, n): a bijection without a table (Feistel
 * network with cycle walking).  0 <= index < n. */
uint64_t ek_random_permute(uint64_t seed, uint64_t stream, uint64_t n, uint64_t index);
/* The same for indices 0 ... k - 1 at once, in less time: images [k]. */
void ek_random_permute_first(uint64_t seed, uint64_t stream, int32_t n, int32_t k, int32_t *images);

#endif
