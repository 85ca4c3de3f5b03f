/* Links of a cluster as tables of a machine. */
#include "sim/plan_machine.h"

#include <stdio.h>
#include <string.h>

/* A level's bandwidth is that of each rank while all ranks of a node use it, so costs are those of
 * links that were measured with as many ranks a node as the group has. */
static void make_link(const ek_cluster_level *level, int32_t ranks_a_node, ek_link_cost *link)
{
    link->ranks_a_node = ranks_a_node;
    for (double bytes = 1024; bytes < 1e9; bytes *= 16) {
        ek_cost_table *t[] = {&link->message, &link->hop};

        for (int i = 0; i < 2; i++) {
            t[i]->x[t[i]->n] = bytes;
            t[i]->y[t[i]->n++] = level->latency_s + level->overhead_s + bytes / level->bytes_s;
        }
    }
}

void ek_plan_machine(const ek_cluster *c, const char *dtype, int32_t ranks, int32_t nodes,
                     ek_machine *out)
{
    int64_t node = ek_cluster_node_ranks(c);
    int32_t a_node = (ranks + nodes - 1) / nodes;

    *out = c->machine;
    (void)snprintf(out->dtype, sizeof(out->dtype), "%s", dtype);
    memset(out->link, 0, sizeof(out->link));
    if (node > 1)
        make_link(&c->level[ek_cluster_level_between(c, 0, node - 1)], a_node,
                  &out->link[EK_LINK_NODE]);
    if (ranks > node)
        make_link(&c->level[ek_cluster_level_between(c, 0, ranks - 1)], a_node,
                  &out->link[EK_LINK_NET]);
}
