/* Where the ops of a forward find their activations. */
#include "model/blocks/forward.h"

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
