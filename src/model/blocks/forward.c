/* Where the ops of a forward find their activations, sizes and weights. */
#include "model/blocks/forward.h"

#include "model/blocks/layer_priv.h"

int ek_forward_slot(const ek_forward *f, int32_t l, int32_t micro)
{
    int32_t layer = l >= 0                         ? l
                    : ek_model_has_embed(f->model) ? 0
                                                   : (int32_t)f->model->spec.layers - 1;

    if (f->act_slot_of == NULL)
        return 0;
    return f->act_slot_of[ek_model_vstage_of(f->model, layer) / f->model->cfg.mesh->pp * f->micros +
                          micro];
}

ek_layer_activations *ek_forward_activations(const ek_forward *f, int32_t l, int32_t micro)
{
    return &f->activations[ek_forward_slot(f, l, micro) * f->model->spec.layers + l];
}

/* Entry 2l+2 may be the input of a layer on another stage: then it is the output of layer l. */
void *ek_forward_x(const ek_forward *f, int32_t i, int32_t micro)
{
    int32_t l = i / 2;

    if (l == (int32_t)f->model->spec.layers || !ek_model_has_layer(f->model, l))
        l = (i - 1) / 2;
    return f->x[ek_forward_slot(f, l, micro) * (2 * f->model->spec.layers + 1) + i];
}

ek_layer_args ek_layer_args_of(const ek_forward *f, const ek_op *op)
{
    const ek_model_spec *s = &f->model->spec;
    const ek_local_sizes *local = &f->model->local;
    int64_t q = local->heads * s->head_dim, kv = local->kv_heads * s->head_dim;

    return (ek_layer_args){f->model->k,
                           s,
                           local,
                           f->scratch->tp,
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
                  int32_t micro, double flops, double bytes)
{
    return (ek_op){.kind = kind,
                   .run = run,
                   .self = self,
                   .lane = EK_LANE_COMPUTE,
                   .layer = l,
                   .micro = micro,
                   .part = -1,
                   .async = f->scratch->tp == NULL,
                   .flops = flops,
                   .bytes = bytes};
}
