/* moe/experts.h - the products of one chunk of rows, as ops. */
#ifndef MOE_EXPERTS_H
#define MOE_EXPERTS_H

#include "moe/build.h"

/* Up, swiglu, down of a chunk: from the experts' input to scratch->rows; recompute: up alone. */
int32_t ek_moe_build_products(const ek_moe_builder *b, int32_t part, int32_t dep);
/* From scratch->rows, the gradient of the experts' output, to that of their input and to weight
 * gradients.  If distributed, weight gradients are separate, so that they overlap with the
 * all-to-alls of input gradients; where experts come in waves, part 0 appends those of all chunks,
 * and the others nothing. */
int32_t ek_moe_build_products_backward(const ek_moe_builder *b, int32_t part, int32_t dep);
int32_t ek_moe_build_weight_gradients(const ek_moe_builder *b, int32_t part, int32_t dep);

#endif
