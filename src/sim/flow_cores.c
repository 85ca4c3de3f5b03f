/* Links of cores. */
#include "sim/flow_cores.h"

int ek_flow_cores_are_shared(const ek_cluster *c)
{
    return c->machine.rank_alone > 1;
}

ek_flow_cores ek_flow_cores_of(const ek_cluster *c, int32_t ranks, int32_t first)
{
    int64_t node = ek_cluster_node_ranks(c), host = c->machine.ranks;

    return (ek_flow_cores){.node = node,
                           .host = host,
                           .first = first,
                           .n_nodes = (int32_t)((ranks + node - 1) / node),
                           .n_hosts = (int32_t)((ranks + host - 1) / host),
                           .rank_alone = c->machine.rank_alone,
                           .node_alone = c->machine.node_alone > 1 ? c->machine.node_alone : 1};
}

void ek_flow_cores_uses(const ek_flow_cores *f, int32_t rank, ek_flow_use uses[EK_CORES_USES])
{
    uses[0] = (ek_flow_use){f->first + (int32_t)(rank / f->node),
                            f->rank_alone / (f->node_alone * (double)f->node)};
    uses[1] = (ek_flow_use){f->first + f->n_nodes + (int32_t)(rank / f->host),
                            f->rank_alone / (double)f->host};
}
