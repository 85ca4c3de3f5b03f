/* balance/replicate_min_move.h - private to `replicate` and its tests: from a planned placement to
 * one that is as good and needs fewer moves from the present placement.
 *
 * Many placements survive as much as the plan: experts with equal numbers of replicas can be
 * exchanged, and slots can be swapped.  Among those with no more risk, alone and together with
 * other layers, and with no node above the allowed load, this searches one with few incoming
 * replicas.
 *
 * Source       Ours.  Lazarus (arXiv 2407.04656v2) maps planned nodes to real ones, which stays the
 *              first step (plan_replicate.c), and moves what then differs.
 * Method       Local search from the plan, and from the present placement with the planned numbers
 *              of replicas: slot swaps and exchanges of experts, each taken as soon as it improves.
 *              Tried are the pairs that can improve: those that bring an expert to a node that
 *              holds it now, and all pairs with an overloaded node or until the risk is within the
 *              allowed one.  Until then, less risk is better.  From then on no set may become
 *              fatal, and less load above the allowed one is better, then fewer incoming replicas.
 *              A slot swap that only saves moves puts no second replica on a rank: that one would
 *              serve none of the rank's own rows, a cost of every micro-batch for one saved move.
 * Complexity   2^18 word operations and 2^18 pairs at most.
 *
 * Pure and deterministic. */
#ifndef BALANCE_REPLICATE_MIN_MOVE_H
#define BALANCE_REPLICATE_MIN_MOVE_H

#include "balance/replicate_place.h"

/* The constraints that a placement must meet. */
typedef struct {
    const ek_replicate_place *now; /* the present placement */
    const int32_t *need;           /* [experts] nodes that must hold each */
    const int32_t *replicas;       /* [experts] */
    const int64_t *weight;         /* [experts] load of a replica */
    int64_t most;                  /* allowed load of a node, per rank of the node */
    ek_replicate_risk risk;        /* allowed risk */
} ek_replicate_aim;

/* Incoming replicas: those on nodes that lack their expert now, at most one per rank. */
int64_t ek_replicate_coming(const ek_replicate_nodes *s, const ek_replicate_place *now,
                            const ek_replicate_place *w);

/* Incoming replicas that the busiest rank receives or sends: its share of those of the node that
 * receives most, plus an equal share of sending. */
double ek_replicate_busiest(const ek_replicate_nodes *s, const ek_replicate_place *now,
                            const ek_replicate_place *w);

/* The present placement with the planned numbers of replicas: surplus replicas are removed; missing
 * ones go to nodes that lack the expert while it is on fewer nodes than it needs, then stay where
 * several are, then go to nodes that hold it, the least loaded first.  Fills all slots.  left
 * [experts] and load [nodes] are scratch. */
void ek_replicate_nearest(const ek_replicate_nodes *s, const ek_replicate_aim *aim, int32_t *left,
                          int64_t *load, ek_replicate_place *w);

/* Improves a placement in place.  Returns whether it meets the aim: no more risk or load than
 * allowed.  load [nodes] is scratch. */
int ek_replicate_min_move(ek_replicate_nodes *s, const ek_replicate_aim *aim, int64_t *load,
                          ek_replicate_place *w);

#endif
