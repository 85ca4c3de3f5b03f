/* The forward of one transformer layer: attention, then norm and experts; and what the ops of a
 * layer have in common. */
#include "model/blocks/layer_priv.h"
#include "moe/replica_prefetch.h"

ek_layer_args ek_layer_args_of(const ek_forward *f, const ek_op *op)
{
    const ek_model_spec *s = &f->model->spec;
    const ek_local_sizes *local = &f->model->local;
    int64_t q = local->heads * s->head_dim, kv = local->kv_heads * s->head_dim;

    return (ek_layer_args){f->model->k,
                           s,
                           local,
                           f->tp,
                           &f->micro[op->micro],
                           &f->model->layers[op->layer],
                           ek_forward_activations(f, op->layer, op->micro),
                           s->hidden,
                           q,
                           kv,
                           q + 2 * kv,
                           ek_forward_x(f, 2 * op->layer, op->micro),
                           ek_forward_x(f, 2 * op->layer + 1, op->micro),
                           ek_forward_x(f, 2 * op->layer + 2, op->micro)};
}

ek_layer_sizes ek_layer_sizes_of(const ek_forward *f, int32_t micro)
{
    const ek_model_spec *s = &f->model->spec;
    const ek_micro *mb = &f->micro[micro];
    double q = (double)(f->model->local.heads * s->head_dim);
    double kv = (double)(f->model->local.kv_heads * s->head_dim);

    return (ek_layer_sizes){(double)mb->n,
                            (double)mb->all,
                            (double)s->hidden,
                            q,
                            kv,
                            q + 2 * kv,
                            (double)ek_dtype_size(f->model->k->comp),
                            (double)ek_dtype_size(f->model->k->real)};
}

ek_op ek_layer_op(const ek_forward *f, void *self, ek_op_kind kind, ek_op_fn run, int32_t l,
                  int32_t micro, ek_work work, double bytes)
{
    return (ek_op){.kind = kind,
                   .run = run,
                   .self = self,
                   .lane = EK_LANE_COMPUTE,
                   .layer = l,
                   .micro = micro,
                   .part = -1,
                   .async = f->tp == NULL,
                   .flops = ek_work_flops(&work),
                   .bytes = bytes,
                   .work = work};
}

/* The experts' input norm, also as R for the router. */
static ek_status op_norm2(void *self, const ek_op *op)
{
    ek_forward *f = self;
    ek_layer_args a = ek_layer_args_of(f, op);
    void *y_real = a.k->comp == a.k->real ? NULL : f->scratch->y_real;

    a.k->rmsnorm_forward(a.mb->n, a.d, a.s->rms_eps, a.x_mid, a.w->norm2.p, a.y->y2, y_real,
                         a.y->rstd2);
    if (!op->recompute)
        ek_layer_copy(&a, a.x_out, a.x_mid);
    return EK_OK;
}

int32_t ek_layer_build_forward(ek_forward *f, ek_moe *moe, ek_graph *g, int32_t l, int32_t micro,
                               ek_recompute recompute, int32_t dep)
{
    ek_layer_sizes z = ek_layer_sizes_of(f, micro);
    int in_place = ek_forward_x(f, 2 * l + 1, micro) == ek_forward_x(f, 2 * l + 2, micro);
    int recomputes = recompute != EK_RECOMPUTE_OFF;
    ek_op norm = ek_layer_op(f, f, EK_OP_NORM, op_norm2, l, micro, ek_work_of_rows(z.n, z.d),
                             z.n * z.d * ((in_place ? 2 : 4) * z.r + z.c));

    norm.recompute = recomputes;
    dep = ek_attention_build_norm(f, g, l, micro, recomputes, dep);
    if (!recomputes)
        ek_moe_build_forward_prefetch(moe, g, micro, dep);
    dep = ek_attention_build_heads(f, g, l, micro, recomputes, dep);
    if (recompute == EK_RECOMPUTE_ATTENTION)
        return dep;
    dep = ek_attention_build_out(f, g, l, micro, recomputes, dep);
    dep = ek_graph_after(g, &norm, dep);
    return ek_moe_build_forward(moe, g, micro, f->micro[micro].n, recomputes, dep);
}
