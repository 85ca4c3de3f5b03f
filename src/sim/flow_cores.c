/* Links of cores. */
#include "sim/flow_cores.h"

#include <math.h>
#include <stdlib.h>

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

/* --- work that begins together ---------------------------------------------------------------- */

static ek_status begin_work(const ek_flow_cores *c, ek_flows *f, int32_t ranks,
                            const double *seconds, int32_t *flow)
{
    for (int32_t r = 0; r < ranks; r++) {
        ek_flow_use uses[EK_CORES_USES];

        ek_flow_cores_uses(c, r, uses);
        EK_TRY(ek_flows_begin(f, seconds[r] / c->rank_alone, 1, uses,
                              seconds[r] > 0 ? EK_CORES_USES : 0, &flow[r]));
    }
    return EK_OK;
}

/* flow [ranks]: -1 once it has ended. */
static ek_status run_until_done(ek_flows *f, int32_t ranks, int32_t *flow, double *done)
{
    double now = 0;

    for (;;) {
        const int32_t *changed;
        double next = INFINITY;
        int32_t n;

        EK_TRY(ek_flows_update(f, now, &changed, &n));
        for (int32_t r = 0; r < ranks; r++)
            if (flow[r] >= 0)
                next = fmin(next, ek_flows_due(f, flow[r]));
        if (isinf(next))
            return EK_OK;
        now = next;
        for (int32_t r = 0; r < ranks; r++)
            if (flow[r] >= 0 && ek_flows_due(f, flow[r]) <= now) {
                done[r] = now;
                ek_flows_end(f, flow[r]);
                flow[r] = -1;
            }
    }
}

ek_status ek_flow_cores_finish(const ek_flow_cores *c, int32_t ranks, const double *seconds,
                               double *done)
{
    int32_t *flow = calloc((size_t)ranks, sizeof(*flow));
    ek_flows *f = NULL;
    ek_status st;

    EK_REQUIRE_OUT(flow != NULL, EK_ENOMEM, "no memory for the work of %d ranks", (int)ranks);
    EK_TRY_OUT(ek_flows_open(c->first + ek_flow_cores_count(c), &f));
    EK_TRY_OUT(begin_work(c, f, ranks, seconds, flow));
    EK_TRY_OUT(run_until_done(f, ranks, flow, done));
out:
    ek_flows_close(&f);
    free(flow);
    return st;
}
