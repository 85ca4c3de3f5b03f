/* The forward of one transformer layer: attention, then norm and experts. */
#include "model/blocks/layer_priv.h"

/* The experts' input norm, also as R for the router. */
static void norm2(ek_forward *f, const ek_layer_args *a)
{
    void *y_real = a->k->comp == a->k->real ? NULL : f->scratch->y_real;

    a->k->rmsnorm_forward(a->mb->n, a->d, a->s->rms_eps, a->x_mid, a->w->norm2.p, a->y->y2, y_real,
                          a->y->rstd2);
}

static ek_status op_norm2(void *self, const ek_op *op)
{
    ek_forward *f = self;
    ek_layer_args a = ek_layer_args_of(f, op);

    norm2(f, &a);
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
    ek_op norm = ek_layer_op(f, f, EK_OP_NORM, op_norm2, l, micro, 0,
                             z.n * z.d * ((in_place ? 1 : 4) * z.r + z.c));

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
