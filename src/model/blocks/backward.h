/* model/blocks/backward.h - the ops of a training pass: embedding, layers' backward, loss head.
 *
 * The forward of a layer is in model/blocks/forward.h.  Gradients of the residual stream are in
 * p->backward.dx, which each backward updates in place. */
#ifndef MODEL_BLOCKS_BACKWARD_H
#define MODEL_BLOCKS_BACKWARD_H

#include "model/pass.h"

/* Appends the backward ops of one layer, with what they recompute of its forward; returns the last
 * one. */
int32_t ek_layer_build_backward(ek_pass *p, ek_graph *g, int32_t l, int32_t micro, int32_t dep);

/* Append the embedding, its backward, and the loss head (with its backward when training).  Ops of
 * one lane run in graph order, so a first compute op only needs dependencies on other lanes. */
int32_t ek_embed_build(ek_pass *p, ek_graph *g, int32_t micro, int32_t dep);
int32_t ek_embed_build_backward(ek_pass *p, ek_graph *g, int32_t micro, int32_t dep);
int32_t ek_head_build(ek_pass *p, ek_graph *g, int32_t micro, int32_t dep);

#endif
