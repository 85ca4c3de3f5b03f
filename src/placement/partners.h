/* placement/partners.h - which rank keeps a copy of the state that another rank, or host, has
 * alone.
 *
 * Each rank of a group gets a partner on another host, in another rack where there is one; ranks
 * have about equally many copies.  O(n^2).
 *
 * Pure and deterministic. */
#ifndef PLACEMENT_PARTNERS_H
#define PLACEMENT_PARTNERS_H

#include "base/ranks.h"

#include <stddef.h>
#include <stdint.h>

/* Fills partner [n]; -1: all ranks are on one host, or the rank needs none.  host [n]; rack [n],
 * NULL: not known; needs [n], NULL: all do.  copies [n]: receives how many ranks have each rank as
 * partner. */
void ek_partners_choose(int32_t n, const int *host, const int *rack, const unsigned char *needs,
                        int32_t *partner, int32_t *copies);

/* The same for all groups of n ranks with this stride among `ranks` (base/ranks.h): host, rack and
 * partner [ranks] are of ranks of the world.  scratch [4 * n]. */
void ek_partners_choose_groups(int32_t ranks, int32_t stride, int32_t n, const int *host,
                               const int *rack, int32_t *partner, int32_t *scratch);

/* Whether all ranks of a group are on one host.  host: of all ranks of the world. */
int ek_ranks_on_one_host(ek_ranks group, const int *host);

/* A layout, as in comm/mesh.h. */
typedef struct {
    int32_t ranks, dp, tp, edp, ep, etp;
    int shards; /* 1: ranks of a group keep parts of their own of what it has (ZeRO) */
} ek_partner_layout;

/* For layouts in which one host has all ranks of a data-parallel group, and so weights that no
 * other has: who keeps a copy of all that a rank keeps, for ranks of which the data-parallel group
 * is on one host, or the group of ranks with the same experts.  Of ranks that keep the same one is
 * enough. Fills partner [ranks], -1: nobody; copies and needs [ranks]: as of ek_partners_choose,
 * needs is filled.  Returns whether there is any such rank: not if all ranks are on one host, nor
 * if only experts are on one host, for which planners make copies. */
int ek_partners_choose_ranks(const ek_partner_layout *l, const int *host, const int *rack,
                             unsigned char *needs, int32_t *partner, int32_t *copies);

#endif
