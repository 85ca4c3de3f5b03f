/* model/blocks/forward.h - the forward of embedding, layers and head, which training and generation
 * share.
 *
 * An ek_forward says where the ops find weights, tokens and memory.  A pass keeps the activations
 * of each layer and micro-batch in flight for backward.  A session has one set of activations for
 * all layers, adds to the residual stream in place, and attends to a cache of keys and values.
 *
 * Residual stream of a micro-batch: x[0] embeddings, x[2l+1] after attention of layer l, x[2l+2]
 * after its experts.  Entries may share memory.  n counts the tokens of this rank, `all` those of
 * its data parallel rank (ek_micro). */
#ifndef MODEL_BLOCKS_FORWARD_H
#define MODEL_BLOCKS_FORWARD_H

#include "model/model.h"
#include "nn/tensor_parallel.h"
#include "schedule/graph.h"

typedef enum {
    EK_RECOMPUTE_OFF,
    EK_RECOMPUTE_ATTENTION, /* recompute norm, query/key/value and attention of each layer */
    EK_RECOMPUTE_FULL       /* recompute each layer from its input */
} ek_recompute;

/* Activations of one layer that its backward reads. */
typedef struct {
    void *rstd1, *rstd2;                   /* R [n] */
    void *y1, *y2;                         /* C [n, d], the two norms */
    void *qkv;                             /* C [all, (heads + 2 kv_heads) head_dim], rotated */
    void *q_raw, *k_raw, *q_rstd, *k_rstd; /* before query and key norms; raw NULL: not kept */
    void *o;                               /* C [all, heads head_dim] */
    void *lse;                             /* R [seqs, heads, seq]; unused with a cache */
} ek_layer_activations;

/* One layer's keys (rotated) and values, each C [capacity, kv_heads head_dim]. */
typedef struct {
    void *k, *v;
} ek_kv_cache;

typedef struct {
    ek_model *model;
    ek_moe_scratch *scratch; /* of the experts: the norm writes y_real, its backward reads dy */
    ek_tp *tp;               /* NULL: one tensor parallel rank */
    int64_t micros;          /* most micro-batches of a step */
    int32_t *act_slot_of; /* [model chunks][micros], activation slot of each; NULL: always slot 0 */
    ek_layer_activations *activations; /* [act slots][layers] */
    void **x;                          /* [act slots][2 layers + 1], each R [n, d] */
    void *cos_sin;                     /* R [positions, head_dim] */
    double *norm_sums;  /* [2 max all], sums of query and key norms that are sharded over ranks */
    void *ws;           /* kernel workspace */
    ek_group group;     /* of the running dense product */
    ek_kv_cache *cache; /* [layers], of one sequence; NULL: tokens attend to their micro-batch */

    /* of the step */
    const ek_micro *micro; /* [n_micro], by op->micro */
    int64_t n_micro;
    int64_t first; /* tokens in the cache before those of the micro-batch */
} ek_forward;

/* Activation slot, and activations, of an op of layer l (-1: embed, head) and this micro-batch. */
int ek_forward_slot(const ek_forward *f, int32_t l, int32_t micro);
ek_layer_activations *ek_forward_activations(const ek_forward *f, int32_t l, int32_t micro);
/* Entry i of the residual stream, R [n, d]. */
void *ek_forward_x(const ek_forward *f, int32_t i, int32_t micro);

/* Workspace of attention's products for up to `rows` rows. */
size_t ek_attention_workspace(const ek_model *m, int64_t rows);

/* Appends the look-up of the tokens' rows in the whole embedding, to x[0]. */
int32_t ek_embed_build_lookup(ek_forward *f, ek_graph *g, int32_t micro, int32_t dep);

/* Appends the forward ops of layer l, whose experts are moe, from x[2l] to x[2l+2].  recompute:
 * other than EK_RECOMPUTE_OFF, only what backward needs with that setting.  Returns the last op. */
int32_t ek_layer_build_forward(ek_forward *f, ek_moe *moe, ek_graph *g, int32_t l, int32_t micro,
                               ek_recompute recompute, int32_t dep);

/* Final norm y C [rows, d] of x R [rows, d], with rstd R [rows], and its logits R [rows, vocab] in
 * the whole vocabulary. */
EK_CHECKED ek_status ek_lm_head_logits(ek_forward *f, int64_t rows, const void *x, void *y,
                                       void *rstd, void *logits);

#endif
