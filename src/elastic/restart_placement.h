/* elastic/restart_placement.h - where the experts of a layer begin when ranks go on from what
 * others have left: where they lie, so that nothing has to cross the network and no replica is
 * lost.
 *
 * Every rank takes over what ranks of its host have left, as far as it has slots, and of the
 * experts that several ranks have then, the homes are spread evenly.  As many homes as can be lie
 * on hosts that have their expert (a matching, Kuhn 1955), so the fewest experts cross the network.
 * Whether that is a good placement for the loads is the planner's business, in the next step.
 *
 * Pure, and the same for all who know the same.  O(experts ranks (ranks + n_left) slots), and at
 * worst O(experts^2 ranks n_left) where homes have to be pushed about. */
#ifndef ELASTIC_RESTART_PLACEMENT_H
#define ELASTIC_RESTART_PLACEMENT_H

#include <stdint.h>

typedef struct {
    int32_t experts;
    int32_t n_left;           /* ranks that have left something */
    const int32_t *left_host; /* [n_left] */
    const unsigned char *has; /* [n_left][experts]: all of its state */
    int32_t ranks, slots;     /* those who go on; of each */
    const int32_t *host;      /* [ranks] */
} ek_restart_placement;

/* Fills expert_of [ranks * slots] (-1: empty) and home [experts] (slots).  An expert that nobody
 * has left comes to lie on a rank with the fewest homes.  scratch [ranks * (experts + 1)]. */
void ek_restart_placement_layer(const ek_restart_placement *x, unsigned char *scratch,
                                int32_t *expert_of, int32_t *primary);

#endif
