/* placement/survivability.h - which losses of failure domains (nodes, racks) the experts of all
 * layers outlive together.
 *
 * An expert's state is gone when all domains that hold it are.  One lost domain hits every layer,
 * so layers are judged jointly: the run goes on if no expert of any layer is gone.
 *
 * Source       ours; Lazarus (arXiv 2407.04656v2) counts one layer at a time.
 * Formula      holders H_1, H_2, ... (sets of domains, one for each expert of each layer); of N
 *              domains k are lost, all C(N, k) sets F alike:
 *                P(k) = 1 - |{F : some H_i is a subset of F}| / C(N, k)
 *              Only the minimal H_i count: who has lost a set has lost the sets within it.  With m
 *              the size of the smallest, P(k) = 1 for k < m, and P(m) = 1 - (how many have that
 *              size) / C(N, m): exact for any N.  For larger k every F is tried while that takes
 *              no more than 2^26 words to look at, else the same 2^16 drawn ones (fewer where that
 *              is more, 2^10 at least), n of them: then |P - found| <= sqrt(ln 40 / 2 n) in 95 of
 *              100 draws (Hoeffding), 0.0053 of 2^16.
 * Complexity   adding O(n words) of n minimal sets; P(k) O(n words) up to the smallest set, the
 *              words above beyond it.
 *
 * Pure, and the same for all who know the same. */
#ifndef PLACEMENT_SURVIVABILITY_H
#define PLACEMENT_SURVIVABILITY_H

#include "placement/placement.h"

/* The minimal sets of domains that hold an expert. */
typedef struct {
    int32_t domains, words;
    int64_t n, room;
    uint64_t *mask; /* [room + 1][words]; the last one is memory of ek_replica_sets_add_placement */
    int32_t *lost;  /* [domains], memory */
} ek_replica_sets;

/* Room for the experts of all layers together. */
void ek_replica_sets_reserve(ek_replica_sets *h, ek_arena *a, int32_t domains, int64_t room);
void ek_replica_sets_clear(ek_replica_sets *h);
/* An expert lies on the domains of this mask [words]. */
void ek_replica_sets_add(ek_replica_sets *h, const uint64_t *mask);
/* The experts of a layer, but those that lie on fewer than `least` domains.  domain_of [ranks],
 * from 0 to domains - 1. */
void ek_replica_sets_add_placement(ek_replica_sets *h, const ek_placement *p,
                                   const int32_t *domain_of, int32_t least);
/* Whether who loses the domains of this mask loses one of these experts. */
int ek_replica_sets_cover(const ek_replica_sets *h, const uint64_t *mask);

/* So many domains may be lost, whichever they are; -1: some expert lies nowhere.  Without experts
 * all of them. */
int32_t ek_replica_sets_survive(const ek_replica_sets *h);

typedef struct {
    double p;     /* that all experts survive */
    double error; /* of p, in 95 of 100 draws; 0: counted */
} ek_survivability;

/* The loss of k domains, 0 to all. */
ek_survivability ek_replica_sets_survivability(const ek_replica_sets *h, int32_t k);

/* Says it in words: "survives any 1 of 4 nodes; any 2 with probability 0.93", up to two more than
 * it survives whichever they are.  domain: "node", "rack".  Returns text. */
const char *ek_replica_sets_text(const ek_replica_sets *h, const char *domain, char *text,
                                 size_t cap);

#endif
