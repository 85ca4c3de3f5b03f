/* moe/shared.h - the shared expert of a layer; dense layers have a shared expert alone.
 *
 *   x += g * (swiglu(y Wup^T) Wdown^T),   g = sigmoid(y wg) where the expert is gated, else 1
 *
 * It computes every token, so its inner width is split over tensor parallel ranks
 * (nn/tensor_parallel.h): up, SwiGLU and down run on the tokens of all of them, gate and sums on
 * the rank's own.  The gathers start before the routed experts, to overlap with their work. */
#ifndef MOE_SHARED_H
#define MOE_SHARED_H

#include "moe/moe.h"

/* Sizes that the model's shared experts and dense layers need: of scratch->hidden in elements, of
 * scratch->ws in bytes. */
int64_t ek_shared_hidden(const ek_model_spec *spec, const ek_mesh *mesh,
                         const ek_moe_limits *limits);
size_t ek_shared_workspace(const ek_kernels *k, const ek_model_spec *spec, const ek_mesh *mesh,
                           const ek_moe_limits *limits);

/* The part of ek_moe_reserve_activations for the shared expert. */
void ek_shared_reserve_activations(const ek_moe *m, ek_moe_activations *s, ek_arena *a,
                                   const ek_moe_limits *limits, int any);

/* Ops to wait for; -1: none. */
typedef struct {
    int32_t after;        /* last op of the compute lane: the layer continues after it */
    int32_t y, dy, scale; /* gathers in flight */
} ek_shared_start;

/* Appends the gathers from other ranks.  On one tensor parallel rank nothing is appended. */
ek_shared_start ek_shared_start_forward(ek_moe *m, ek_graph *g, int32_t micro, int recompute,
                                        int32_t dep);
ek_shared_start ek_shared_start_backward(ek_moe *m, ek_graph *g, int32_t micro, int32_t dep);

/* Appends the expert itself after `dep`; returns the last op.  Backward adds to the scratch->dy of
 * the routed experts, or sets it in a dense layer. */
int32_t ek_shared_build_forward(ek_moe *m, ek_graph *g, int32_t micro, int recompute,
                                const ek_shared_start *start, int32_t dep);
int32_t ek_shared_build_backward(ek_moe *m, ek_graph *g, int32_t micro,
                                 const ek_shared_start *start, int32_t dep);

#endif
