/* sim/flow.h - the time of a step, with links that ranks share.
 *
 * Takes what ek_sim_replay takes, and answers as it does.  What differs:
 *
 *   time      advances from event to event (starts and ends of ops, collectives and messages) on
 *             all ranks together, so that an op can slow down one that began before it;
 *   links     of all levels are shared by the ranks below them (sim/flow_links.h) at max-min fair
 *             rates (sim/flow_rates.h).  So the price of a network op is that of one rank alone
 *             (ek_cluster_alone), and other ranks, of its group or not, slow it down where they use
 *             the same link at the same time: stages that share a node's adapter, ranks that send
 *             to one, groups that are not at the same place of the step;
 *   flows     of a rank that are in flight share its link all the time;
 *   messages  of a rank to another go one after the other, as over a connection;
 *   cores     that ranks share by the machine file are shared by those that compute
 *             (sim/flow_cores.h).
 *
 * The rest is as in sim/replay.h.  Ranks of a class are one entity where nothing distinguishes
 * them, so that symmetric flows are one.
 *
 * Complexity   an event takes time with the flows that it changes; entities times network ops of
 *              them. */
#ifndef SIM_FLOW_H
#define SIM_FLOW_H

#include "sim/cluster.h"
#include "sim/replay.h"

/* As ek_sim_replay; cfg->price is of ek_cluster_alone(c). */
EK_CHECKED ek_status ek_sim_flow(const ek_sim_config *cfg, const ek_cluster *c, ek_sim_result *out);

#endif
