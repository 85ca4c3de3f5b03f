/* sim/cluster_measured.h - the cluster that a machine was measured on. */
#ifndef SIM_CLUSTER_MEASURED_H
#define SIM_CLUSTER_MEASURED_H

#include "sim/cluster.h"

/* Levels "node" and "net", each where the machine has links of its class.  The numbers of a level
 * are fitted to its tables of messages: the bandwidth is that between the two largest sizes, and a
 * constant has the least relative errors over all sizes.  n messages of x bytes that a rank sends
 * at once take
 *
 *     latency + n (overhead + x / bandwidth)
 *
 * and a hop of a multicast latency + overhead + x / b', with a b' of its own, as bytes then go one
 * way.  Ranks of a node share its link to the others where that b' of one rank is more than the
 * bandwidth of each while all send: by the divisor of their number nearest to the ratio.
 *
 * With one message at once, or without hops, latency and overhead cannot be told apart, and
 * all is latency.  EK_EINVAL: the machine was measured with one rank, and has no links. */
EK_CHECKED ek_status ek_cluster_of_machine(const ek_machine *m, ek_cluster *out);

#endif
