/* The forward ops of attention: norm, query/key/value, rotation, attention, output. */
#include "exec/net.h"
#include "model/blocks/layer_priv.h"

#include <math.h>
#include <string.h>

/* --- ops -------------------------------------------------------------------------------------- */

ek_attention ek_attention_of(const ek_layer_args *a)
{
    return (ek_attention){a->mb->seqs,
                          a->mb->seq,
                          a->local->heads,
                          a->local->kv_heads,
                          a->s->head_dim,
                          a->width,
                          1.0 / sqrt((double)a->s->head_dim),
                          a->mb->starts};
}

const void *ek_attention_input(const ek_layer_args *a)
{
    return a->tp != NULL ? a->tp->y : a->y->y1;
}

static ek_status op_norm1(void *self, const ek_op *op)
{
    ek_forward *f = self;
    ek_layer_args a = ek_layer_args_of(f, op);

    a.k->rmsnorm_forward(a.mb->n, a.d, a.s->rms_eps, a.x_in, a.w->norm1.p, a.y->y1, NULL,
                         a.y->rstd1);
    if (a.tp != NULL)
        ek_tp_put(a.tp, op, a.tp->y, a.y->y1, a.k->comp);
    return EK_OK;
}

static ek_status op_qkv(void *self, const ek_op *op)
{
    ek_forward *f = self;
    ek_layer_args a = ek_layer_args_of(f, op);

    if (ek_attention_has_no_heads(&a))
        return EK_OK;
    f->group = (ek_group){0, a.mb->all, a.w->qkv.forward, NULL};
    EK_TRY(a.k->linear_forward(a.k, &f->group, 1, a.width, a.d, ek_attention_input(&a), a.d,
                               a.y->qkv, a.width, EK_OUT_COMP, f->ws));
    if (a.s->qkv_bias)
        a.k->bias_forward(a.mb->all, a.width, a.w->qkv_bias.p, a.y->qkv, a.width);
    return EK_OK;
}

int64_t ek_attention_norm_heads(const ek_layer_args *a, int64_t heads)
{
    return a->s->qk_norm == EK_QK_NORM_HEAD ? heads : 1;
}

int ek_attention_norms_are_sharded(const ek_forward *f)
{
    return f->tp != NULL && f->model->spec.qk_norm == EK_QK_NORM_FULL;
}

double *ek_attention_key_sums(const ek_forward *f, const ek_layer_args *a)
{
    return f->norm_sums + a->mb->all;
}

static ek_status op_norm_squares(void *self, const ek_op *op)
{
    ek_forward *f = self;
    ek_layer_args a = ek_layer_args_of(f, op);

    memset(f->norm_sums, 0, (size_t)(2 * a.mb->all) * sizeof(double));
    if (ek_attention_has_no_heads(&a))
        return EK_OK;
    a.k->widenorm_squares(a.mb->all, a.q, a.y->qkv, a.width, f->norm_sums);
    a.k->widenorm_squares(a.mb->all, a.kv, ek_layer_element(&a, a.y->qkv, a.q), a.width,
                          ek_attention_key_sums(f, &a));
    return EK_OK;
}

static ek_status op_reduce_norms(void *self, const ek_op *op)
{
    ek_forward *f = self;
    ek_layer_args a = ek_layer_args_of(f, op);

    if (!ek_net_started(op))
        EK_TRY(ek_comm_all_reduce(a.tp->mesh->tp_group, f->norm_sums, 2 * a.mb->all, EK_SUM_F64,
                                  ek_net_cell(op)));
    return ek_net_test(op);
}

static void qk_norms(ek_forward *f, const ek_layer_args *a)
{
    void *keys = ek_layer_element(a, a->y->qkv, a->q);
    int64_t n = a->mb->all;

    if (ek_attention_norms_are_sharded(f)) {
        a->k->widenorm_forward(n, a->q, a->s->heads * a->s->head_dim, a->s->rms_eps, f->norm_sums,
                               a->w->q_norm.p, a->y->qkv, a->width, a->y->q_raw, a->y->q_rstd);
        a->k->widenorm_forward(n, a->kv, a->s->kv_heads * a->s->head_dim, a->s->rms_eps,
                               ek_attention_key_sums(f, a), a->w->k_norm.p, keys, a->width,
                               a->y->k_raw, a->y->k_rstd);
        return;
    }
    a->k->headnorm_forward(n, ek_attention_norm_heads(a, a->local->heads), a->w->q_norm.out,
                           a->s->rms_eps, a->w->q_norm.p, a->y->qkv, a->width, a->y->q_raw,
                           a->y->q_rstd);
    a->k->headnorm_forward(n, ek_attention_norm_heads(a, a->local->kv_heads), a->w->k_norm.out,
                           a->s->rms_eps, a->w->k_norm.p, keys, a->width, a->y->k_raw,
                           a->y->k_rstd);
}

/* Copies new keys and values to the cache, from the token at f->first on. */
static void write_cache(const ek_forward *f, const ek_layer_args *a, const ek_kv_cache *cache)
{
    int64_t size = (int64_t)ek_dtype_size(a->k->comp), row = a->kv * size, from = a->width * size;
    int64_t at = f->first * a->kv;

    a->k->copy_rows(a->mb->all, row, ek_layer_element(a, a->y->qkv, a->q), from,
                    ek_layer_element(a, cache->k, at), row);
    a->k->copy_rows(a->mb->all, row, ek_layer_element(a, a->y->qkv, a->q + a->kv), from,
                    ek_layer_element(a, cache->v, at), row);
}

/* Norm and rotation of queries and keys. */
static ek_status op_rope(void *self, const ek_op *op)
{
    ek_forward *f = self;
    ek_layer_args a = ek_layer_args_of(f, op);

    if (ek_attention_has_no_heads(&a))
        return EK_OK;
    if (a.s->qk_norm != EK_QK_NORM_NONE)
        qk_norms(f, &a);
    a.k->rope(a.mb->all, a.mb->seq, f->first, a.local->heads + a.local->kv_heads, a.s->head_dim,
              f->cos_sin, 0, a.y->qkv, a.width);
    if (f->cache != NULL)
        write_cache(f, &a, &f->cache[op->layer]);
    return EK_OK;
}

static ek_status op_attention(void *self, const ek_op *op)
{
    ek_forward *f = self;
    ek_layer_args a = ek_layer_args_of(f, op);
    ek_attention shape = ek_attention_of(&a);

    if (ek_attention_has_no_heads(&a))
        return EK_OK;
    if (f->cache != NULL)
        a.k->attention_cached(&shape, a.mb->n, f->first, a.y->qkv, f->cache[op->layer].k,
                              f->cache[op->layer].v, a.y->o, f->ws);
    else
        a.k->attention_forward(&shape, a.y->qkv, a.y->o, a.y->lse, f->ws);
    return EK_OK;
}

static ek_status op_out(void *self, const ek_op *op)
{
    ek_forward *f = self;
    ek_layer_args a = ek_layer_args_of(f, op);

    ek_layer_copy(&a, a.x_mid, a.x_in);
    f->group = (ek_group){0, a.mb->n, a.w->out.forward, NULL};
    return a.k->linear_forward(a.k, &f->group, 1, a.d, a.q, a.y->o, a.q, a.x_mid, a.d, EK_OUT_ADD,
                               f->ws);
}

/* This rank's heads only. */
static ek_status op_out_part(void *self, const ek_op *op)
{
    ek_forward *f = self;
    ek_layer_args a = ek_layer_args_of(f, op);

    if (ek_attention_has_no_heads(&a)) {
        ek_tp_no_sum(a.tp, op);
        return EK_OK;
    }
    f->group = (ek_group){0, a.mb->all, a.w->out.forward, NULL};
    return a.k->linear_forward(a.k, &f->group, 1, a.d, a.q, a.y->o, a.q, a.tp->sum, a.d,
                               EK_OUT_REAL, f->ws);
}

static ek_status op_out_add(void *self, const ek_op *op)
{
    ek_forward *f = self;
    ek_layer_args a = ek_layer_args_of(f, op);

    ek_tp_add_own(a.tp, op, a.x_in, a.x_mid);
    return EK_OK;
}

/* Unmasked pairs of a query and a key, of one head. */
static double count_pairs(const ek_forward *f, int32_t micro)
{
    const ek_micro *mb = &f->micro[micro];
    int64_t n = mb->all * (mb->seq + 1) / 2 + mb->all * f->first;

    for (int64_t i = 0; mb->starts != NULL && i < mb->all; i++)
        n -= mb->starts[i];
    return (double)n;
}

ek_work ek_attention_work_of(const ek_forward *f, int32_t micro, int backward)
{
    const ek_local_sizes *local = &f->model->local;

    return ek_work_of_attention(
        &(ek_attention_work){.heads = (int32_t)local->heads,
                             .kv_heads = (int32_t)local->kv_heads,
                             .head_dim = (int32_t)f->model->spec.head_dim,
                             .backward = backward,
                             .queries = (double)f->micro[micro].all,
                             .pairs = count_pairs(f, micro),
                             .cached = f->cache != NULL ? (double)f->first : 0});
}

int32_t ek_attention_build_reduce_norms(ek_forward *f, ek_graph *g, int32_t l, int32_t micro,
                                        int recompute, int32_t dep)
{
    ek_op op = ek_tp_net_op(f->tp, EK_OP_ALL_REDUCE_NORMS, EK_COLLECTIVE_ALL_REDUCE,
                            op_reduce_norms, f, l, micro, 2, sizeof(double));

    op.recompute = recompute;
    return ek_graph_after(g, &op, dep);
}

/* --- builders --------------------------------------------------------------------------------- */

static int32_t add_op(ek_forward *f, ek_graph *g, ek_op_kind kind, ek_op_fn run, int32_t l,
                      int32_t micro, int recompute, ek_work work, double bytes, int32_t dep)
{
    ek_op op = ek_layer_op(f, f, kind, run, l, micro, work, bytes);

    op.recompute = recompute;
    return ek_graph_after(g, &op, dep);
}

int32_t ek_attention_build_norm(ek_forward *f, ek_graph *g, int32_t l, int32_t micro, int recompute,
                                int32_t dep)
{
    ek_layer_sizes z = ek_layer_sizes_of(f, micro);

    return add_op(f, g, EK_OP_NORM, op_norm1, l, micro, recompute, ek_work_of_rows(z.n, z.d),
                  z.n * z.d * (z.r + z.c), dep);
}

int32_t ek_attention_build_heads(ek_forward *f, ek_graph *g, int32_t l, int32_t micro,
                                 int recompute, int32_t dep)
{
    ek_layer_sizes z = ek_layer_sizes_of(f, micro);
    double cached = f->cache != NULL ? (double)f->first : 0;
    double written = f->cache != NULL ? z.all : 0; /* rows of keys and values */

    if (f->tp != NULL)
        dep = ek_tp_build_gather_y(f->tp, g, l, micro, recompute, dep);
    dep = add_op(f, g, EK_OP_QKV, op_qkv, l, micro, recompute,
                 ek_work_of_product(ek_product_of(z.all, z.width, z.d, EK_PRODUCT_FORWARD)),
                 (z.all * (z.d + z.width) + z.d * z.width) * z.c, dep);
    if (ek_attention_norms_are_sharded(f)) {
        dep = add_op(f, g, EK_OP_NORM_SQUARES, op_norm_squares, l, micro, recompute,
                     ek_work_of_rows(z.all, z.width), z.all * z.width * z.c, dep);
        dep = ek_attention_build_reduce_norms(f, g, l, micro, recompute, dep);
    }
    dep = add_op(f, g, EK_OP_ROPE, op_rope, l, micro, recompute, ek_work_of_rows(z.all, z.width),
                 (2 * z.all * z.width + 4 * written * z.kv) * z.c, dep);
    return add_op(f, g, EK_OP_ATTENTION, op_attention, l, micro, recompute,
                  ek_attention_work_of(f, micro, 0),
                  (z.all * (z.width + z.q) + 2 * cached * z.kv) * z.c, dep);
}

int32_t ek_attention_build_out(ek_forward *f, ek_graph *g, int32_t l, int32_t micro, int recompute,
                               int32_t dep)
{
    ek_tp *tp = f->tp;
    ek_layer_sizes z = ek_layer_sizes_of(f, micro);
    int in_place = ek_forward_x(f, 2 * l, micro) == ek_forward_x(f, 2 * l + 1, micro);

    dep = add_op(f, g, EK_OP_ATTENTION_OUT, tp == NULL ? op_out : op_out_part, l, micro, recompute,
                 ek_work_of_product(ek_product_of(z.all, z.d, z.q, EK_PRODUCT_FORWARD)),
                 z.all * z.q * z.c + (in_place ? 2 : 4) * z.all * z.d * z.r + z.d * z.q * z.c, dep);
    if (tp == NULL)
        return dep;
    dep = ek_tp_build_reduce_sum(tp, g, l, micro, recompute, dep);
    return add_op(f, g, EK_OP_ATTENTION_ADD, op_out_add, l, micro, recompute,
                  ek_work_of_rows(z.n, z.d), 3 * z.n * z.d * z.r, dep);
}

size_t ek_attention_workspace(const ek_model *m, int64_t rows)
{
    const ek_kernels *k = m->k;
    int64_t q = m->local.heads * m->spec.head_dim;
    int64_t width = q + 2 * m->local.kv_heads * m->spec.head_dim;
    size_t in, out;

    if (width == 0)
        return 0;
    in = k->linear_workspace(k, rows, 1, width, m->spec.hidden);
    out = k->linear_workspace(k, rows, 1, m->spec.hidden, q);
    return in > out ? in : out;
}
