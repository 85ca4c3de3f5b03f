/* moe/moe.h - one mixture-of-experts layer: gate, dispatch, experts, combine, and back.
 *
 * Forward, for the n tokens of a micro-batch (x R [n, d] residual stream, y its norm):
 *
 *   route     logits = y Wr^T, the gate picks experts and weights          ids, weights [n, k]
 *   dispatch  assignments sorted by slot of the placement (stable)         row_of, token_of
 *   experts   gu = rows W13^T, h = weight silu(gate) up, out = h W2^T      grouped products
 *   combine   x += sum of a token's rows                                   shared expert likewise
 *
 * The gate weight is folded into h, so the combine only sums, and its gradient falls out of the
 * SwiGLU's.  The ops are appended to a step graph by ek_moe_build_*.
 *
 * Ownership    arrays live in the arenas given to ek_moe_take_*. */
#ifndef MOE_MOE_H
#define MOE_MOE_H

#include "balance/placement.h"
#include "base/arena.h"
#include "schedule/graph.h"
#include "spec/model.h"
#include "tensor/kernels.h"
#include "tensor/weight.h"

/* The tokens of one micro-batch, as every op of it sees them. */
typedef struct {
    int64_t seqs, seq, n;    /* n = seqs * seq */
    double share;            /* of the step's tokens */
    uint64_t first_sequence; /* counted within the step */
    const int32_t *inputs, *targets;
} ek_micro;

/* Settings of a training step that the layer needs. */
typedef struct {
    int training;
    double aux_coef, z_coef;
    double capacity_factor; /* 0 dropless, else |f| */
    int64_t top_k;          /* of this step, at most the spec's */
    uint64_t seed, step;
    const ek_micro *micro; /* indexed by op->micro */
} ek_moe_step;

/* Room that all layers share: nothing in it lives longer than one layer's forward or backward. */
typedef struct {
    void *rows;     /* C [rows, d] */
    void *rows2;    /* C [rows, d] */
    void *hidden;   /* C [rows, ff] */
    void *y_real;   /* R [n, d] */
    void *dy;       /* R [n, d], gradient of the norm's output; the norm's owner reads it */
    void *dlogits;  /* R [n, experts] */
    void *dweights; /* R [n, k] */
    void *drow;     /* R [rows] */
    void *ws;       /* kernel workspace */
} ek_moe_scratch;

/* Where the experts are, and their weights: what outlives a step. */
typedef struct {
    int layer;
    int routed;        /* 0: a dense layer, which has the shared expert alone */
    int64_t shared_ff; /* 0: no shared expert */
    int shared_gated;
    ek_placement placement;
    ek_weight router;     /* [experts, d] */
    ek_weight bias;       /* [experts], sigmoid gate only */
    ek_weight *up, *down; /* per expert: [2 ff, d] gate over up, [d, ff] */
    ek_weight shared_up, shared_down, shared_router;
} ek_moe_weights;

/* What forward leaves for backward. */
typedef struct {
    void *probs;        /* R [n, experts] */
    void *lse;          /* R [n] */
    void *weights;      /* R [n, cols] */
    int32_t *ids;       /* [n, cols], negative: none, or over capacity (moe/gate_body.h) */
    int32_t *row_of;    /* [n, cols], negative likewise */
    int32_t *token_of;  /* [rows] */
    void *row_weight;   /* R [rows] */
    int64_t *offset;    /* [slots + 1] */
    int64_t *fraction;  /* [experts], assignments before drops */
    int64_t assigned;   /* their sum */
    void *gu;           /* C [rows, 2 ff] */
    void *shared_gu;    /* C [n, 2 shared_ff] */
    void *shared_scale; /* R [n] */
} ek_moe_saved;

typedef struct {
    const ek_kernels *k;
    const ek_model_spec *spec;
    ek_moe_weights *w;
    const ek_moe_step *step;
    const ek_moe_scratch *scratch;
    int cols; /* assignments a token can have */

    void *x;  /* R [n, d], residual stream: combine adds to it */
    void *y;  /* C [n, d], its norm; as R it is in scratch->y_real unless C is R */
    void *dx; /* R [n, d], gradient of x */

    ek_moe_saved saved;
    ek_group *up_groups, *down_groups; /* per slot of this rank */
    ek_group shared_group;
    int64_t *next_row; /* [slots], of the dispatch */
    int32_t *order;    /* [max_seq * cols], of capacity and expert choice */

    /* sums over the step's micro-batches, cleared by ek_moe_begin_step */
    double aux_loss, z_loss; /* without coefficients */
    int64_t *load;           /* [experts], assignments before drops */
    int64_t dropped;
} ek_moe;

/* Sizes of the scratch for a layer of this spec; shared by all layers. */
void ek_moe_take_scratch(ek_moe_scratch *s, ek_arena *a, const ek_kernels *k,
                         const ek_model_spec *spec, int64_t max_tokens, int training);

/* What kind of layer `layer` is, and its placement: block order over one rank. */
void ek_moe_take_weights(ek_moe_weights *w, ek_arena *a, const ek_model_spec *spec, int layer);

/* The arrays of m itself (m->k, spec, w are set), but for `saved`. */
void ek_moe_take_state(ek_moe *m, ek_arena *a, int64_t max_seq);

/* What forward saves.  any: room for a layer of any kind of this spec, to be shared by all. */
void ek_moe_take_saved(ek_moe *m, ek_arena *a, int64_t max_tokens, int any);

/* Assignments a token can have under a gate. */
int ek_moe_cols(const ek_model_spec *spec);

/* Clears the step sums. */
void ek_moe_begin_step(ek_moe *m);

/* Appends the layer's forward ops for micro-batch `micro` after `dep`; returns the last one.
 * again: only what backward needs is computed, a second time (activation recomputation). */
int32_t ek_moe_build_forward(ek_moe *m, ek_graph *g, int32_t micro, int64_t tokens, int again,
                             int32_t dep);

/* Appends the backward ops: reads dx, leaves the gradient of y in scratch->dy and adds weight
 * gradients.  scratch->y_real must hold y as R unless C is R. */
int32_t ek_moe_build_backward(ek_moe *m, ek_graph *g, int32_t micro, int64_t tokens, int32_t dep);

/* Sigmoid gate: moves the bias against the load of the step (bias_rate * sign(mean - load)). */
void ek_moe_update_bias(ek_moe *m);

#endif
