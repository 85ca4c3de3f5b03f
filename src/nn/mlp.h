/* nn/mlp.h - the SwiGLU MLP that every token passes: of a dense layer, or the shared expert of a
 * MoE layer.
 *
 *   x += g * (swiglu(y Wup^T) Wdown^T),   g = sigmoid(y wg) where it is gated, else 1
 *
 * It computes every token, so its inner width is split over tensor parallel ranks
 * (nn/tensor_parallel.h): up, SwiGLU and down run on the tokens of all of them, gate and sums on
 * the rank's own.  The gathers start before the routed experts, to overlap with their work.
 *
 * n, all: tokens of this rank, of its data parallel rank (ek_micro).  d, f: hidden, this rank's
 * inner width.  R, C: the real and the compute type of the kernels. */
#ifndef NN_MLP_H
#define NN_MLP_H

#include "nn/tensor_parallel.h"
#include "spec/model.h"
#include "tensor/weight.h"

/* Lives as long as the model. */
typedef struct {
    int present; /* 0: the layer has no such MLP */
    int gated;
    int64_t f;          /* width of this rank's slice; 0 on ranks beyond the width */
    ek_weight up, down; /* [2 f, d] gate over up, [d, f] */
    ek_weight gate;     /* [1, d] */
} ek_mlp_weights;

/* What forward saves for backward, of one micro-batch in flight. */
typedef struct {
    void *x;     /* R [n, d], residual stream, to which the output is added; not owned */
    void *y;     /* C [n, d], input, its norm; not owned */
    void *gu;    /* C [all, 2 f] */
    void *scale; /* R [all], value of the gate */
} ek_mlp_activations;

/* Buffers that all layers share, borrowed; their contents live for one layer's forward or
 * backward. */
typedef struct {
    void *rows;    /* C [n, d] */
    void *hidden;  /* C [all, f] */
    void *drow;    /* R [n], gradient of the gate */
    void *y_real;  /* R [n, d], y as R, of the micro-batch at work, unless C is R */
    void *dx, *dy; /* R [n, d], gradients of x and y */
    void *ws;      /* kernel workspace */
    ek_tp *tp;     /* NULL: one tensor parallel rank */
} ek_mlp_scratch;

typedef struct {
    const ek_kernels *k;
    ek_mlp_weights *w;
    ek_mlp_scratch *scratch;
    int64_t d;
    int32_t layer;
    int adds_dy;                     /* backward adds to dy, which holds the gradient of the routed
                                        experts' input; 0: sets it */
    ek_mlp_activations *activations; /* [activation slots] */
    ek_group group;                  /* of the running op */

    /* of the step; borrowed */
    const ek_micro *micro;      /* indexed by op->micro */
    const int32_t *act_slot_of; /* activation slot of each micro-batch; NULL: always 0 */
} ek_mlp;

/* Sets whether layer `layer` has such an MLP, of which kind, and this rank's width. */
void ek_mlp_set_sizes(ek_mlp_weights *w, const ek_model_spec *spec, const ek_mesh *mesh, int layer);

/* The largest sizes that an MLP of the model needs, for a micro-batch of `all` tokens: of
 * scratch->hidden in elements, of scratch->ws in bytes. */
int64_t ek_mlp_hidden(const ek_model_spec *spec, const ek_mesh *mesh, int64_t all);
size_t ek_mlp_workspace(const ek_kernels *k, const ek_model_spec *spec, const ek_mesh *mesh,
                        int64_t all);

/* Reserves gu and scale for up to `all` tokens; any: large enough for every MLP of the spec, so
 * that all layers can share them. */
void ek_mlp_reserve_activations(const ek_mlp *m, ek_mlp_activations *s, ek_arena *a,
                                const ek_model_spec *spec, const ek_mesh *mesh, int64_t all,
                                int any);

/* Ops to wait for; -1: none. */
typedef struct {
    int32_t after;        /* last op of the compute lane: the layer continues after it */
    int32_t y, dy, scale; /* gathers in flight */
} ek_mlp_start;

/* Append the gathers from other ranks.  On one tensor parallel rank, or if there is no MLP, nothing
 * is appended. */
ek_mlp_start ek_mlp_start_forward(ek_mlp *m, ek_graph *g, int32_t micro, int recompute,
                                  int32_t dep);
ek_mlp_start ek_mlp_start_backward(ek_mlp *m, ek_graph *g, int32_t micro, int32_t dep);

/* Append the MLP itself after `dep`; return the last op.  recompute: only what backward needs. */
int32_t ek_mlp_build_forward(ek_mlp *m, ek_graph *g, int32_t micro, int recompute,
                             const ek_mlp_start *start, int32_t dep);
int32_t ek_mlp_build_backward(ek_mlp *m, ek_graph *g, int32_t micro, const ek_mlp_start *start,
                              int32_t dep);

#endif
