/* placement/partners.h - which rank keeps a copy of the state that another rank has alone.
 *
 * Each rank of a group gets a partner on another host, in another rack where there is one; ranks
 * have about equally many copies.  O(n^2).
 *
 * Pure and deterministic. */
#ifndef PLACEMENT_PARTNERS_H
#define PLACEMENT_PARTNERS_H

#include <stddef.h>
#include <stdint.h>

/* Fills partner [n]; -1: all ranks are on one host.  host [n]; rack [n], NULL: not known.  copies
 * [n]: receives how many ranks have each rank as partner. */
void ek_partners_choose(int32_t n, const int *host, const int *rack, int32_t *partner,
                        int32_t *copies);

/* The same for all groups of n ranks with this stride among `ranks` (base/ranks.h): host, rack and
 * partner [ranks] are of ranks of the world.  scratch [4 * n]. */
void ek_partners_choose_groups(int32_t ranks, int32_t stride, int32_t n, const int *host,
                               const int *rack, int32_t *partner, int32_t *scratch);

#endif
