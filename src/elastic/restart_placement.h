/* elastic/restart_placement.h - the initial expert placement of a layer at a restart: experts stay
 * on the hosts that hold them, so that no state crosses the network and no replica is lost.
 *
 * Each rank adopts what earlier ranks of its host have left, as far as it has slots.  Primary
 * copies of experts that several ranks hold are spread evenly.  As many primary copies as possible
 * are placed on hosts that hold the expert (bipartite matching, Kuhn 1955), so that the fewest
 * experts cross the network.  Whether the placement suits the loads is left to the planner in the
 * next step.
 *
 * Pure: all ranks that have the same input get the same placement.  O(experts ranks
 * (ranks + n_survivors) slots); O(experts^2 ranks n_survivors) at worst, with augmenting paths. */
#ifndef ELASTIC_RESTART_PLACEMENT_H
#define ELASTIC_RESTART_PLACEMENT_H

#include <stdint.h>

typedef struct {
    int32_t experts;
    int32_t n_survivors;          /* earlier ranks whose state is there */
    const int32_t *survivor_host; /* [n_survivors] */
    const unsigned char *has;     /* [n_survivors][experts]: all of its state */
    int32_t ranks, slots;         /* new ranks; expert slots of each */
    const int32_t *host;          /* [ranks] */
} ek_restart_placement;

/* Fills expert_of [ranks * slots] (-1: empty) and primary [experts] (slot indices).  An expert that
 * no survivor holds goes to a rank with the fewest experts.  scratch [ranks * (experts + 1)]. */
void ek_restart_placement_layer(const ek_restart_placement *x, unsigned char *scratch,
                                int32_t *expert_of, int32_t *primary);

#endif
