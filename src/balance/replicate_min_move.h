/* balance/replicate_min_move.h - private to `replicate` and its test: a planned placement among
 * what lies where already, so that few replicas have to come.
 *
 * A plan is one of many that survive as much: experts with as many replicas can change places, and
 * so can contents of slots.  Of those in danger of no more, alone and together with other layers,
 * and with no more load than is allowed on any node, this looks for one for which few replicas
 * come.
 *
 * Source       ours.  Lazarus (arXiv 2407.04656v2) matches planned nodes to real ones, which stays
 *              the first step (plan_replicate.c), and moves what then differs.
 * Method       from the plan, and from what lies there with as many replicas as are planned:
 *              swaps of slots' contents and exchanges of experts, each that is better at once.
 *              Better is, until the danger is what is allowed, less danger; from there on nothing
 *              becomes fatal that was not, and better is less load above what is allowed, then
 *              fewer replicas that come.
 * Complexity   2^18 word operations and pairs looked at, each.
 *
 * Pure, and the same for all who know the same. */
#ifndef BALANCE_REPLICATE_MIN_MOVE_H
#define BALANCE_REPLICATE_MIN_MOVE_H

#include "balance/replicate_place.h"

/* What a placement is to come to. */
typedef struct {
    const ek_replicate_place *now; /* what lies where */
    const int32_t *need;           /* [experts] nodes that shall hold each */
    const int32_t *replicas;       /* [experts] */
    const int64_t *weight;         /* [experts] load of a replica */
    int64_t most;                  /* load of a node, for each of its ranks, that is allowed */
    ek_replicate_risk risk;        /* that is allowed */
} ek_replicate_aim;

/* Replicas that come to nodes which do not have their expert, one for each rank at most. */
int64_t ek_replicate_coming(const ek_replicate_nodes *s, const ek_replicate_place *now,
                            const ek_replicate_place *w);

/* Of them, those that the busiest rank gets or gives: its share of those of the node to which most
 * come, and of giving, which all do alike. */
double ek_replicate_busiest(const ek_replicate_nodes *s, const ek_replicate_place *now,
                            const ek_replicate_place *w);

/* What lies there, with as many replicas as there shall be: those that are too many go, those that
 * are missing come to nodes that lack the expert while it is on fewer than it needs, then lie where
 * several do, then come to nodes that have it already, the one with the least load first.  All
 * slots are filled.  left [experts] and load [nodes] are memory. */
void ek_replicate_nearest(const ek_replicate_nodes *s, const ek_replicate_aim *aim, int32_t *left,
                          int64_t *load, ek_replicate_place *w);

/* Improves a placement.  Returns whether the aim is reached: no more danger or load than is
 * allowed.  load [nodes] is memory. */
int ek_replicate_min_move(ek_replicate_nodes *s, const ek_replicate_aim *aim, int64_t *load,
                          ek_replicate_place *w);

#endif
