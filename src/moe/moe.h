/* moe/moe.h - one mixture-of-experts layer: router, permute, experts, unpermute, and backward.
 *
 * Forward, for the n tokens of a micro-batch (x R [n, d] residual stream, y its norm):
 *
 *   router     logits = y Wr^T, the gate selects experts and weights        ids, weights [n, k]
 *   permute    assignments sorted by slot of the placement (stable)         row_of, token_of
 *   experts    gu = rows W13^T, h = weight silu(gate) up, out = h W2^T      grouped GEMMs
 *   unpermute  x += sum of a token's rows; the shared expert is added likewise
 *
 * The gate weight is folded into h, so unpermute only sums, and the weight's gradient is a
 * by-product of the SwiGLU's backward.  ek_moe_build_* append the ops to a step graph.
 *
 * Ranks        every rank of a pipeline stage has its own tokens.  Where the layer is distributed
 *              (ep * etp > 1), all-to-alls send rows to the ranks that serve them and back, in
 *              chunks that overlap with the products of other chunks (moe/dispatch_layout.h).  A
 *              gate weight is sent with its row, its gradient with the row's gradient.  Statistics
 *              of the micro-batch (balance loss, load, drops) cover all ranks of the stage and are
 *              identical on each.  On one rank there is neither an exchange nor a copy for one. */
#ifndef MOE_MOE_H
#define MOE_MOE_H

#include "moe/layer.h"
#include "moe/memory.h"

/* Clears the sums of the step, and reads the placement and m->step->traffic anew. */
void ek_moe_begin_step(ek_moe *m);

/* Appends the layer's forward ops for micro-batch `micro` after `dep`; returns the last one.
 * recompute: appends only what backward needs (activation recomputation). */
int32_t ek_moe_build_forward(ek_moe *m, ek_graph *g, int32_t micro, int64_t tokens, int recompute,
                             int32_t dep);

/* Appends the backward ops, which read scratch->dx, write the gradient of y to scratch->dy and add
 * to the weight gradients; returns the last one.  scratch->y_real must hold y as R unless C is R.
 */
int32_t ek_moe_build_backward(ek_moe *m, ek_graph *g, int32_t micro, int64_t tokens, int32_t dep);

/* Forgets the op ids of the previous graph.  Needed where a step has several graphs. */
void ek_moe_begin_graph(ek_moe *m);

#endif
