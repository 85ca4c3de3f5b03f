/* moe/shared.h - the shared expert of a layer, and dense layers, which are that alone.
 *
 *   x += g * (swiglu(y Wup^T) Wdown^T),   g = sigmoid(y wg) where the expert is gated, else 1
 *
 * Every token meets it, so it is cut by its inner width over tensor parallel ranks (moe/tp.h): up,
 * SwiGLU and down on the tokens of all of them, gate and sums on the rank's own.  The gathers start
 * before the routed experts, so that they travel while those work. */
#ifndef MOE_SHARED_H
#define MOE_SHARED_H

#include "moe/moe.h"

/* What a model's shared experts and dense layers, where it has any, need of scratch->hidden, in
 * elements, and of scratch->ws. */
int64_t ek_shared_hidden(const ek_model_spec *spec, const ek_mesh *mesh,
                         const ek_moe_limits *limits);
size_t ek_shared_workspace(const ek_kernels *k, const ek_model_spec *spec, const ek_mesh *mesh,
                           const ek_moe_limits *limits);

/* What forward saves, the shared part of ek_moe_reserve_activations. */
void ek_shared_reserve_activations(const ek_moe *m, ek_moe_activations *s, ek_arena *a,
                                   const ek_moe_limits *limits, int any);

/* What is on its way: ops to wait for, -1 for none. */
typedef struct {
    int32_t after; /* what the layer goes on with */
    int32_t y, dy, scale;
} ek_shared_start;

/* Gathers what the ops need from other ranks.  They add nothing on one tensor parallel rank. */
ek_shared_start ek_shared_start_forward(ek_moe *m, ek_graph *g, int32_t micro, int recompute,
                                        int32_t dep);
ek_shared_start ek_shared_start_backward(ek_moe *m, ek_graph *g, int32_t micro, int32_t dep);

/* The expert itself, after `dep`; returns the last op.  Backward adds to scratch->dy what the
 * routed experts left there, or sets it in a dense layer. */
int32_t ek_shared_build_forward(ek_moe *m, ek_graph *g, int32_t micro, int recompute,
                                const ek_shared_start *start, int32_t dep);
int32_t ek_shared_build_backward(ek_moe *m, ek_graph *g, int32_t micro,
                                 const ek_shared_start *start, int32_t dep);

#endif
