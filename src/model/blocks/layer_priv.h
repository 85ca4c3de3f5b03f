/* model/blocks/layer_priv.h - shared by the ops of a layer, forward and backward.
 *
 * Attention processes all tokens of the data parallel rank with this rank's heads; norms and the
 * residual stream process this rank's tokens.  With one tensor parallel rank both are the same, and
 * the network ops between them are not built (ek_forward.tp is NULL). */
#ifndef MODEL_BLOCKS_LAYER_PRIV_H
#define MODEL_BLOCKS_LAYER_PRIV_H

#include "model/blocks/forward.h"

/* Sizes, weights and activations that the ops of a layer use. */
typedef struct {
    const ek_kernels *k;
    const ek_model_spec *s;
    const ek_local_sizes *local;
    const ek_tp *tp; /* NULL: one tensor parallel rank */
    const ek_micro *mb;
    ek_layer *w;
    ek_layer_activations *y;
    int64_t d, q, kv, width; /* hidden; of this rank: query width, key width, q + 2 kv */
    void *x_in, *x_mid, *x_out;
} ek_layer_args;

ek_layer_args ek_layer_args_of(const ek_forward *f, const ek_op *op);

/* Sizes for the ops' FLOPs and bytes. */
typedef struct {
    double n, all, d, q, kv, width, c, r;
} ek_layer_sizes;

ek_layer_sizes ek_layer_sizes_of(const ek_forward *f, int32_t micro);

/* A compute op of layer l. */
ek_op ek_layer_op(const ek_forward *f, void *self, ek_op_kind kind, ek_op_fn run, int32_t l,
                  int32_t micro, ek_work work, double bytes);

/* Whether this rank has no attention heads: with more ranks than key heads some have none. */
static inline int ek_attention_has_no_heads(const ek_layer_args *a)
{
    return a->width == 0 || a->mb->all == 0;
}

/* x C advanced by `elements`. */
static inline char *ek_layer_element(const ek_layer_args *a, void *x, int64_t elements)
{
    return (char *)x + elements * (int64_t)ek_dtype_size(a->k->comp);
}

/* y = x, both R [n, d], which may be the same. */
static inline void ek_layer_copy(const ek_layer_args *a, void *y, const void *x)
{
    int64_t row = a->d * (int64_t)ek_dtype_size(a->k->real);

    if (y != x)
        a->k->copy_rows(a->mb->n, row, x, row, y, row);
}

/* --- attention (attention.c) ------------------------------------------------------------------ */

/* Append norm; query, key, value and heads; output.  recompute: the ops are a recomputation. */
int32_t ek_attention_build_norm(ek_forward *f, ek_graph *g, int32_t l, int32_t micro, int recompute,
                                int32_t dep);
int32_t ek_attention_build_heads(ek_forward *f, ek_graph *g, int32_t l, int32_t micro,
                                 int recompute, int32_t dep);
int32_t ek_attention_build_out(ek_forward *f, ek_graph *g, int32_t l, int32_t micro, int recompute,
                               int32_t dep);

ek_attention ek_attention_of(const ek_layer_args *a);
/* The input of the query, key and value product. */
const void *ek_attention_input(const ek_layer_args *a);
/* Segments that query or key norms work on: OLMoE's full width counts as one head. */
int64_t ek_attention_norm_heads(const ek_layer_args *a, int64_t heads);
/* Whether that head is sharded over ranks, so that its sums are all-reduced. */
int ek_attention_norms_are_sharded(const ek_forward *f);
/* Sums of the key rows, stored after those of the query rows. */
double *ek_attention_key_sums(const ek_forward *f, const ek_layer_args *a);
/* The work of the heads. */
ek_work ek_attention_work_of(const ek_forward *f, int32_t micro, int backward);
/* Appends the all-reduce of f->norm_sums. */
int32_t ek_attention_build_reduce_norms(ek_forward *f, ek_graph *g, int32_t l, int32_t micro,
                                        int recompute, int32_t dep);

#endif
