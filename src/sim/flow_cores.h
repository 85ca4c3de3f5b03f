/* sim/flow_cores.h - cores that ranks share, for sim/flow.h: ops of the compute lane are flows,
 * too.
 *
 * A machine file says how much faster a rank computes while no other does (rank_alone), and while
 * the other nodes do not (node_alone), than with all ranks busy, as its kernels were measured.  So
 * a node and the ranks that were measured together, which may share a host, are links of what all
 * their ranks need, or a node node_alone times as much; each rank may use rank_alone times its
 * share.  Ranks that compute share both at max-min fair rates. */
#ifndef SIM_FLOW_CORES_H
#define SIM_FLOW_CORES_H

#include "sim/cluster.h"
#include "sim/flow_rates.h"

/* Links of nodes and of hosts come one after the other from `first` on. */
typedef struct {
    int64_t node, host; /* ranks */
    int32_t first, n_nodes, n_hosts;
    double rank_alone, node_alone;
} ek_flow_cores;

enum { EK_CORES_USES = 2 };

int ek_flow_cores_are_shared(const ek_cluster *c);

/* Of the first `ranks` ranks. */
ek_flow_cores ek_flow_cores_of(const ek_cluster *c, int32_t ranks, int32_t first);

static inline int32_t ek_flow_cores_count(const ek_flow_cores *f)
{
    return f->n_nodes + f->n_hosts;
}

/* All ranks begin work at time 0, which takes rank r seconds[r] with all ranks busy.  done[r]: when
 * it has finished, as ranks that finish leave cores to the others.  EK_ENOMEM. */
EK_CHECKED ek_status ek_flow_cores_finish(const ek_flow_cores *c, int32_t ranks,
                                          const double *seconds, double *done);

/* What an op of a rank uses at full speed, rank_alone times that of its price. */
void ek_flow_cores_uses(const ek_flow_cores *f, int32_t rank, ek_flow_use uses[EK_CORES_USES]);

#endif
