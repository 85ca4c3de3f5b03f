/* model/blocks/backward.h - what a pass over micro-batches adds to the forward of layers: the
 * embedding over ranks, the loss head, and the backward of all blocks.
 *
 * The gradient of the residual stream is in dx, which each backward updates in place. */
#ifndef MODEL_BLOCKS_BACKWARD_H
#define MODEL_BLOCKS_BACKWARD_H

#include "model/blocks/forward.h"

/* State of an embedding whose columns are sharded over data parallel ranks. */
typedef struct {
    int64_t total;         /* tokens of the largest micro-batch over all ranks */
    int32_t *ids;          /* [act slots][total]: of all data parallel ranks, by rank, relative to
                              this rank's first vocabulary row */
    void *own;             /* R [total, this rank's columns] */
    void *blocks;          /* R [max_all, d], in one block of columns per rank */
    int64_t *rows, *first; /* [dp][dp], [dp + 1]: arguments of the all-to-all, written by the thread
                              that starts network ops */
} ek_embed_columns;

/* Buffers of the loss head, which works on blocks of `rows` rows.  v: this rank's vocabulary. */
typedef struct {
    int64_t rows;
    void *y;            /* C [rows, d], final norm; NULL with several tensor parallel ranks */
    void *rstd;         /* R [rows]; [n] with several tensor parallel ranks */
    void *logits;       /* R [rows, v] */
    void *dlogits;      /* C [rows, v], at dlogits_ld */
    int64_t dlogits_ld; /* a multiple of 8, row alignment of some kernels */
    void *dy;           /* R [rows, d]; NULL with several tensor parallel ranks */
    double *loss_rows;  /* [max_tokens] */

    /* with several tensor parallel ranks */
    int32_t *ids;         /* [max_all], relative to this rank's vocabulary range */
    double *stats;        /* [tp, rows, 3] */
    double *factor, *hit; /* [rows] */
} ek_head_buffers;

/* Of the current step: the targets that its loss averages over, and the loss. */
typedef struct {
    int masked;      /* documents are masked (ek_micro) */
    double tokens;   /* number of targets, of all data parallel ranks, once op `counted` is done */
    int32_t counted; /* in the graph being built; -1: no such op, tokens is valid */
    double sum;      /* of this rank, nats */
} ek_loss;

typedef struct {
    ek_forward *forward;
    ek_moe *moe; /* [layers] */
    ek_recompute recompute;
    ek_embed_columns columns;
    ek_head_buffers head;

    /* of the backward, each used by one layer at a time */
    void *dx;           /* R [n, d], gradient of the residual stream */
    void *dy, *dy_comp; /* R, C [n, d], of the input and output of attention; NULL with several
                           tensor parallel ranks */
    void *d_o;          /* C [all, heads head_dim] */
    void *dqkv;         /* C [all, (heads + 2 kv_heads) head_dim] */

    /* of the step */
    int trains; /* it has a backward */
    ek_a2a a2a;
    ek_loss loss;
} ek_backward;

/* Appends the backward ops of one layer, with what they recompute of its forward; returns the last
 * one. */
int32_t ek_layer_build_backward(ek_backward *bw, ek_graph *g, int32_t l, int32_t micro,
                                int32_t dep);

/* Append the embedding, its backward, and the loss head (with its backward when training).  Ops of
 * one lane run in graph order, so a first compute op only needs dependencies on other lanes. */
int32_t ek_embed_build(ek_backward *bw, ek_graph *g, int32_t micro, int32_t dep);
int32_t ek_embed_build_backward(ek_backward *bw, ek_graph *g, int32_t micro, int32_t dep);
int32_t ek_head_build(ek_backward *bw, ek_graph *g, int32_t micro, int32_t dep);

#endif
