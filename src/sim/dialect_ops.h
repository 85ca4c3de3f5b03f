/* sim/dialect_ops.h - which ops dialects rewrite (private to the files of sim/dialect.h). */
#ifndef SIM_DIALECT_OPS_H
#define SIM_DIALECT_OPS_H

#include "schedule/graph.h"

static inline int ek_op_is_gradient_sum(const ek_op *op)
{
    return op->kind == EK_OP_REDUCE_GRADIENTS && op->work.kind == EK_WORK_NET;
}

#endif
