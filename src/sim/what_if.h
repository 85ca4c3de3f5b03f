/* sim/what_if.h - changes of a cluster: what a step would take if a link were faster. */
#ifndef SIM_WHAT_IF_H
#define SIM_WHAT_IF_H

#include "sim/cluster.h"

/* Applies a change, "WHAT xFACTOR" with a factor from 1e-6 to 1e6:
 *   bandwidth[LEVEL]  latency[LEVEL]   of a level, or with [*] of all levels
 *   compute                            speed of all that a rank computes, and the peak
 * EK_EINVAL: not such a change; the message names what there is. */
EK_CHECKED ek_status ek_cluster_change(ek_cluster *c, const char *change);

#endif
