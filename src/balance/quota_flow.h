/* balance/quota_flow.h - the quotas with the least maximum load for a placement as it is.
 *
 * Problem      Given a placement and counts [source][expert], how many assignments each slot
 *              serves, in integers, so that
 *                1. the largest weighted load of a rank (row_costs.h: assignments, or what they
 *                   cost where ranks differ) is the least that the placement allows, and
 *                2. among these quotas, the most assignments stay on the rank that they come from
 *                   (a slot serves its own rank's first, as ek_plan_split does).
 * Method       A flow from experts to ranks, through slots, with the capacity of each rank within a
 *              weighted load, the same where ranks are equal.
 *              Of each slot, as many assignments as its rank sends to its expert cost 0, the
 *              others 1.  Successive shortest paths (Busacker and Gowen, 1960), many paths a
 *              phase, give a flow of the least cost.  If some assignments are not served, the
 *              experts X that they reach in the residual graph are on ranks N(X) alone, so no
 *              quotas get below what lets N(X) serve total(X), ceil(total(X) / |N(X)|) where
 *              ranks are equal: the next weighted load (Newton's method on the cut, as
 *              Dinkelbach, 1967).  It begins at the level of all ranks; the first that serves
 *              all is the least.
 * Complexity   O(ranks slots) to relax all arcs once, a few times a phase; few phases a
 *              weighted load, few of these.
 *
 * Pure and deterministic: all ranks get the same quotas from the same counts. */
#ifndef BALANCE_QUOTA_FLOW_H
#define BALANCE_QUOTA_FLOW_H

#include "balance/row_costs.h"

/* Scratch and results.  Nodes of the graph: experts, then ranks. */
typedef struct {
    int64_t *load;       /* out: [ranks] assignments */
    int64_t *capacity;   /* [ranks] assignments */
    int64_t *unserved;   /* out: [experts] assignments that no slot serves within the capacity */
    int64_t *total;      /* out: [experts] assignments */
    int64_t *local;      /* [ranks * slots] assignments that cost 0 in the slot: of its rank to its
                            expert; 0 in a further slot of the rank with the expert, which serves
                            none */
    int32_t *first;      /* [experts + 1] of the expert's slots in `slots` */
    int32_t *slots;      /* [ranks * slots] slots with an expert, by expert, without further ones */
    int32_t *distance;   /* [experts + ranks] from experts that are not served in full */
    int32_t *cursor;     /* [experts + ranks] the next arc to try */
    int32_t *from;       /* [experts + ranks] the slot that leads to the node on the path */
    int32_t *queue;      /* [experts + ranks] */
    unsigned char *mark; /* [experts + ranks] queued; tried in this phase */
    unsigned char *used; /* [ranks * slots] whether the slot is in `slots` */
} ek_quota_flow;

void ek_quota_flow_reserve(ek_quota_flow *f, ek_arena *a, const ek_plan_limits *l);

/* Reads counts [ranks][experts] and the placement, for the two functions below. */
void ek_quota_flow_start(ek_quota_flow *f, const ek_plan_limits *l, const int64_t *counts,
                         const ek_placement *p);

/* The same, with the slots alone that are open [ranks * slots]: the others serve nothing. */
void ek_quota_flow_start_in(ek_quota_flow *f, const ek_plan_limits *l, const int64_t *counts,
                            const ek_placement *p, const unsigned char *open);

/* After ek_quota_flow_start: all assignments of open slots cost 0, and all others 1, so that these
 * serve as few as possible. */
void ek_quota_flow_prefer(ek_quota_flow *f, const ek_plan_limits *l, const ek_placement *p,
                          const unsigned char *open);

/* The least weighted load of the ranks that any placement could allow. */
int64_t ek_quota_flow_level(const ek_quota_flow *f, const ek_plan_limits *l);

/* Fills quota [ranks * slots] with the most assignments that the slots can serve if no rank has
 * more than a weighted load, and among these with the most that stay on their rank.  Returns how
 * many are not served: f->unserved. */
int64_t ek_quota_flow_within(ek_quota_flow *f, const ek_plan_limits *l, const ek_placement *p,
                             int64_t weighted, int64_t *quota);

/* After ek_quota_flow_within has left some unserved: whether a further slot for the expert, on a
 * rank with room, would let it serve more. */
int ek_quota_flow_is_short(const ek_quota_flow *f, int32_t expert);

/* Fills quota with the least maximum of weighted loads, which is returned. */
int64_t ek_quota_flow_least(ek_quota_flow *f, const ek_plan_limits *l, const ek_placement *p,
                            int64_t *quota);

#endif
