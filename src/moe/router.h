/* moe/router.h - router, gate, the all-gather of gate statistics over the stage, the layout of
 * rows, and the gradient back, as ops. */
#ifndef MOE_ROUTER_H
#define MOE_ROUTER_H

#include "moe/build.h"

/* Logits, gate, and the all-gather of gate statistics: *counts_op, -1 on one rank. */
int32_t ek_moe_build_router(const ek_moe_builder *b, int32_t *counts_op, int32_t dep);
/* Statistics of the micro-batch and, if distributed, plan and layout of rows, after counts_op. */
int32_t ek_moe_build_layout(const ek_moe_builder *b, int32_t counts_op);
/* From the gradients of the gate weights to scratch->dy (added) and the router's gradient. */
int32_t ek_moe_build_router_backward(const ek_moe_builder *b, int32_t dep);

#endif
