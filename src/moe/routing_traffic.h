/* moe/routing_traffic.h - what a micro-batch's routing makes ranks compute and links carry: counts
 * by expert rank, and their sums over a step (moe/stats.h). */
#ifndef MOE_ROUTING_TRAFFIC_H
#define MOE_ROUTING_TRAFFIC_H

#include "moe/planning.h"

/* Reserves ek_planning_scratch.traffic. */
int64_t *ek_routing_traffic_reserve(ek_arena *a, const ek_mesh *mesh);

/* Clears the counts of a micro-batch. */
void ek_routing_traffic_begin(ek_moe *m);

/* Counts replicas received by each rank, and sent: once per expert however many ranks receive it,
 * as a multicast does.  Persistent replicas are not sent.  late: how many were added after the gate
 * where the others were sent before it; -1: none was sent before it. */
void ek_routing_traffic_count_replicas(ek_moe *m, const ek_placement *p, int ep_group,
                                       int32_t late);

/* Adds the micro-batch to the sums of the step, after the gate's.  planned: its replicas, too, and
 * what the plan saves. */
void ek_routing_traffic_add(ek_moe *m, const ek_moe_route *route, int planned);

#endif
