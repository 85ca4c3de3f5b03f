/* placement/placement.h - which slots hold the experts of one MoE layer.
 *
 * A rank has `slots` slots; slot s of rank r has number r * slots + s.  A slot holds one expert or
 * none (-1).  An expert is in at least one slot, and exactly one of them is its primary copy, where
 * its optimizer state is.  Tokens are routed by the placement and the quotas; a placement never
 * changes what the model computes. */
#ifndef PLACEMENT_PLACEMENT_H
#define PLACEMENT_PLACEMENT_H

#include "evenkeel/err.h"

#include "base/arena.h"

#include <stdint.h>

typedef struct {
    int32_t experts, ranks, slots;
    int32_t *expert_of; /* [ranks * slots], -1: empty */
    int32_t *primary;   /* [experts] slot number of the primary copy */
} ek_placement;

/* The first of n slots that holds an expert (-1: that is empty); -1: none. */
static inline int32_t ek_slot_find(const int32_t *expert_of, int32_t n, int32_t expert)
{
    for (int32_t s = 0; s < n; s++)
        if (expert_of[s] == expert)
            return s;
    return -1;
}

/* Reserves the arrays of a placement in an arena (which may be measuring). */
void ek_placement_reserve(ek_placement *p, ek_arena *a, int32_t experts, int32_t ranks,
                          int32_t slots);

/* Copies a placement of the same sizes. */
void ek_placement_copy(ek_placement *to, const ek_placement *from);

/* Copies a placement of the same experts and ranks, but other slots per rank: slots that `from`
 * lacks are empty, and what is in slots that `to` lacks is left out (primary -1). */
void ek_placement_resize(ek_placement *to, const ek_placement *from);

/* Fills a placement in block order: the ranks form `groups` groups of equal size, and each group
 * holds every expert once, in order; where its ranks do not divide the experts, its first ranks
 * hold one more.  Primary copies are on the first group.  Slots left over are empty. */
void ek_placement_block(ek_placement *p, int32_t groups);

/* The fewest spare slots of a rank, beyond experts / ranks rounded up, with which every expert can
 * be on `copies` domains; -1: there are too few domains.  domain_of [ranks]: any numbering.  A
 * domain holds as many experts as its ranks have slots, each once. */
int32_t ek_placement_spare_slots_for(const int32_t *domain_of, int32_t ranks, int32_t experts,
                                     int32_t copies);

/* Checks that each primary slot holds its expert and that slots hold existing experts.  EK_EINVAL
 * names the first violation. */
EK_CHECKED ek_status ek_placement_check(const ek_placement *p);

#endif
