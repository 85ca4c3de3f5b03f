/* placement/survivability.h - which losses of failure domains (nodes, racks) leave a copy of every
 * expert of all layers.
 *
 * An expert's state is lost when all domains that hold it are lost.  A lost domain affects every
 * layer, so layers are evaluated jointly: a run survives if no expert of any layer is lost.
 *
 * Source       Ours; Lazarus (arXiv 2407.04656v2) counts one layer at a time.
 * Formula      Replica sets H_1, H_2, ... (the domains that hold an expert, for each expert of each
 *              layer); k of N domains are lost, all C(N, k) sets F with equal probability:
 *                P(k) = 1 - |{F : some H_i is a subset of F}| / C(N, k)
 *              Only minimal H_i matter.  With m the size of the smallest, P(k) = 1 for k < m, and
 *              P(m) = 1 - (number of that size) / C(N, m): exact for any N.  For larger k all F are
 *              tried while that takes at most 2^26 word operations, else n = 2^16 drawn ones
 *              (fewer if that takes more, at least 2^10), always the same; then
 *              |P - estimate| <= sqrt(ln 40 / 2 n) with probability 0.95 (Hoeffding): 0.0053 for
 *              2^16.
 * Complexity   Adding: O(n words) with n minimal sets; P(k): O(n words) up to k = m, the operations
 *              above beyond.
 *
 * Pure and deterministic. */
#ifndef PLACEMENT_SURVIVABILITY_H
#define PLACEMENT_SURVIVABILITY_H

#include "placement/placement.h"

/* The minimal replica sets. */
typedef struct {
    int32_t domains, words;
    int64_t n, capacity; /* number of sets, and the most that fit */
    uint64_t *mask;      /* [2 capacity + 1][words]; those beyond `capacity` are scratch */
    int32_t *lost;       /* [domains] scratch */
} ek_replica_sets;

/* Reserves memory for up to `capacity` sets: the experts of all layers. */
void ek_replica_sets_reserve(ek_replica_sets *h, ek_arena *a, int32_t domains, int64_t capacity);
void ek_replica_sets_clear(ek_replica_sets *h);
/* Adds the replica set of an expert: mask [words]. */
void ek_replica_sets_add(ek_replica_sets *h, const uint64_t *mask);
/* Adds the experts of a layer, without those on fewer than `least` domains.  domain_of [ranks],
 * from 0 to domains - 1. */
void ek_replica_sets_add_placement(ek_replica_sets *h, const ek_placement *p,
                                   const int32_t *domain_of, int32_t least);
/* Whether the loss of the domains in mask [words] loses an expert. */
int ek_replica_sets_cover(const ek_replica_sets *h, const uint64_t *mask);

/* The number of domains that can be lost, whichever they are; all of them without experts; -1: some
 * expert is nowhere. */
int32_t ek_replica_sets_survive(const ek_replica_sets *h);

typedef struct {
    double p;     /* probability that all experts survive */
    double error; /* bound of |p - true value| with probability 0.95; 0: p is exact */
} ek_survivability;

/* Survival of the loss of k random domains, 0 <= k <= domains. */
ek_survivability ek_replica_sets_survivability(const ek_replica_sets *h, int32_t k);

/* Writes a line such as "survives any 1 of 4 nodes; any 2 with probability 0.93", up to two more
 * losses than it always survives.  domain: "node", "rack".  Returns text [cap]. */
const char *ek_replica_sets_text(const ek_replica_sets *h, const char *domain, char *text,
                                 size_t cap);

#endif
