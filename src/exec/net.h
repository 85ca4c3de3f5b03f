/* exec/net.h - network ops of a step graph: an op that starts a comm operation and polls it.
 *
 *   static ek_status op_gather(void *self, const ek_op *op)
 *   {
 *       if (!ek_net_started(op))
 *           EK_TRY(ek_comm_all_gather(group, buf, first, size, ek_net_cell(op)));
 *       return ek_net_test(op);
 *   }
 *
 * and is made by ek_net_op, from what it will ask of the communicator. */
#ifndef EXEC_NET_H
#define EXEC_NET_H

#include "comm/mesh.h"
#include "schedule/graph.h"

/* Where the op keeps its comm operation. */
static inline ek_coll **ek_net_cell(const ek_op *op)
{
    return (ek_coll **)op->state;
}

/* Whether the op has started its comm operation and not yet finished it. */
static inline int ek_net_started(const ek_op *op)
{
    return *op->state != NULL;
}

/* Tests the comm operation: EK_PENDING until it is finished, or its failure. */
static inline ek_status ek_net_test(const ek_op *op)
{
    return ek_coll_test(ek_net_cell(op));
}

/* The work of a collective over a group of the mesh, and of an all-to-all by an algorithm; bytes
 * and element as in ek_net_work.  The span is the whole group, and the peer -1: callers may change
 * them. */
ek_work ek_net_work_of(const ek_mesh *mesh, ek_mesh_group group, ek_collective collective,
                       double bytes, size_t element);
ek_work ek_net_work_of_a2a(const ek_mesh *mesh, ek_mesh_group group, ek_a2a how, double bytes,
                           size_t element);

/* A network op: its lane, the bytes of its work, and ek_net_describe.  layer, micro and part are
 * -1. */
ek_op ek_net_op(ek_op_kind kind, ek_op_fn run, void *self, ek_work work);

/* ek_op.describe: the message that the op waits for. */
static inline void ek_net_describe(void *self, const ek_op *op, char *text, size_t cap)
{
    (void)self;
    if (ek_net_started(op))
        ek_coll_describe(*ek_net_cell(op), text, cap);
}

/* The same for an op with n comm operations, which are NULL once they are finished: EK_PENDING
 * until all are, or the failure of one; and the message that the first unfinished one waits for. */
ek_status ek_net_test_all(ek_coll **coll, int32_t n);
void ek_net_describe_all(ek_coll *const *coll, int32_t n, char *text, size_t cap);

#endif
