/* placement/placement.h - where the experts of one MoE layer are.
 *
 * A rank has `slots` places for experts; slot s of rank r has number r * slots + s.  A slot holds
 * one expert or none (-1); an expert lies in one slot or more, and one of them is its home, where
 * its optimizer state lives.  Tokens are routed by the placement, never by counts, and what the
 * model computes does not change with it. */
#ifndef PLACEMENT_PLACEMENT_H
#define PLACEMENT_PLACEMENT_H

#include "evenkeel/err.h"

#include "base/arena.h"

#include <stdint.h>

typedef struct {
    int32_t experts, ranks, slots;
    int32_t *expert_of; /* [ranks * slots], -1: empty */
    int32_t *primary;   /* [experts], a slot number */
} ek_placement;

/* Of n slots, the first that holds an expert (-1: that is empty); -1: none does. */
static inline int32_t ek_slot_find(const int32_t *expert_of, int32_t n, int32_t expert)
{
    for (int32_t s = 0; s < n; s++)
        if (expert_of[s] == expert)
            return s;
    return -1;
}

/* Takes the arrays of a placement from an arena (which may be measuring). */
void ek_placement_reserve(ek_placement *p, ek_arena *a, int32_t experts, int32_t ranks,
                          int32_t slots);

/* Copies one of the same sizes. */
void ek_placement_copy(ek_placement *to, const ek_placement *from);

/* Fills a placement in block order: the ranks form `runs` runs of equal length, and on each run
 * every expert lies once, in order, as evenly as can be, the first ranks of a run holding one more;
 * an expert's home is on the first run.  Slots left over are empty. */
void ek_placement_block(ek_placement *p, int32_t runs);

/* Every expert has a home that holds it, and slots name experts that exist. */
EK_CHECKED ek_status ek_placement_check(const ek_placement *p);

#endif
