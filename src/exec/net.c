/* Network ops, from their work. */
#include "exec/net.h"

ek_work ek_net_work_of(const ek_mesh *mesh, ek_mesh_group group, ek_collective collective,
                       double bytes, size_t element)
{
    ek_ranks ranks = ek_mesh_ranks(mesh, group);

    return (ek_work){.kind = EK_WORK_NET,
                     .net = {.collective = collective,
                             .group = ranks,
                             .span = ranks.n,
                             .peer = -1,
                             .element = (int32_t)element,
                             .bytes = bytes}};
}

_Static_assert((int)EK_COLLECTIVE_A2A_PAIRWISE - (int)EK_COLLECTIVE_A2A_LINEAR == EK_A2A_PAIRWISE &&
                   (int)EK_COLLECTIVE_A2A_2DH - (int)EK_COLLECTIVE_A2A_LINEAR == EK_A2A_2DH,
               "all-to-alls are in the order of ek_a2a");

ek_work ek_net_work_of_a2a(const ek_mesh *mesh, ek_mesh_group group, ek_a2a how, double bytes,
                           size_t element)
{
    return ek_net_work_of(mesh, group, EK_COLLECTIVE_A2A_LINEAR + (ek_collective)how, bytes,
                          element);
}

ek_op ek_net_op(ek_op_kind kind, ek_op_fn run, void *self, ek_work work)
{
    return (ek_op){.kind = kind,
                   .run = run,
                   .self = self,
                   .lane = EK_LANE_NET,
                   .layer = -1,
                   .micro = -1,
                   .part = -1,
                   .bytes = ek_work_net_bytes(&work),
                   .work = work,
                   .describe = ek_net_describe};
}

ek_status ek_net_test_all(ek_coll **coll, int32_t n)
{
    ek_status all = EK_OK;

    for (int32_t i = 0; i < n; i++) {
        ek_status st = coll[i] != NULL ? ek_coll_test(&coll[i]) : EK_OK;

        if (st < 0)
            return st;
        all = st == EK_PENDING ? EK_PENDING : all;
    }
    return all;
}

void ek_net_describe_all(ek_coll *const *coll, int32_t n, char *text, size_t cap)
{
    for (int32_t i = 0; i < n; i++)
        if (coll[i] != NULL) {
            ek_coll_describe(coll[i], text, cap);
            return;
        }
}
