/* The step of a session as ops: embedding, layers, logits of the last row (model/blocks/forward.h);
 * and what a step reads. */
#include "infer/session_priv.h"

static ek_status op_logits(void *self, const ek_op *op)
{
    ek_session *s = self;
    const ek_model *m = s->model;
    ek_layer_activations *y = &s->forward.activations[m->spec.layers - 1];
    int64_t last = (s->micro.n - 1) * m->spec.hidden * (int64_t)ek_dtype_size(m->k->real);

    (void)op;
    return ek_lm_head_logits(&s->forward, 1, (char *)s->forward.x[2 * m->spec.layers] + last, y->y2,
                             y->rstd2, s->logits);
}

static int32_t build_logits(ek_session *s, int32_t dep)
{
    const ek_model *m = s->model;
    double d = (double)m->spec.hidden, v = (double)m->spec.vocab;
    double r = (double)ek_dtype_size(m->k->real), c = (double)ek_dtype_size(m->k->comp);
    ek_work work = ek_work_of_product(ek_product_of(1, v, d, EK_PRODUCT_FORWARD));
    ek_op op = {.kind = EK_OP_LOGITS,
                .run = op_logits,
                .self = s,
                .lane = EK_LANE_COMPUTE,
                .layer = -1,
                .part = -1,
                .async = 1,
                .flops = ek_work_flops(&work),
                .work = work,
                .bytes = d * (r + 2 * c) + v * r + d * v * c};

    return ek_graph_after(&s->graph, &op, dep);
}

ek_status ek_session_build(ek_session *s, int head)
{
    int32_t dep;

    ek_graph_reset(&s->graph);
    dep = ek_embed_build_lookup(&s->forward, &s->graph, 0, -1);
    for (int32_t l = 0; l < (int32_t)s->model->spec.layers; l++) {
        ek_moe_begin_step(&s->moe[l]);
        dep =
            ek_layer_build_forward(&s->forward, &s->moe[l], &s->graph, l, 0, EK_RECOMPUTE_OFF, dep);
    }
    if (head)
        build_logits(s, dep);
    return ek_graph_check(&s->graph);
}

/* --- bytes read per token --------------------------------------------------------------------- */

/* Bytes of the form of a weight that forward reads; 0 if the model lacks it. */
static double read_bytes(const ek_kernels *k, const ek_weight *w)
{
    int product = w->forward != NULL || w->p == NULL; /* the latter: an expert in a store */
    size_t packed = product ? k->packed_bytes(k, w->out, w->in, EK_PACKED_FORWARD) : 0;

    return packed > 0 ? (double)packed
                      : (double)ek_weight_elements(w) * (double)ek_dtype_size(k->real);
}

static double layer_bytes(const ek_kernels *k, const ek_model_spec *m, const ek_layer *y)
{
    const ek_moe_weights *e = &y->experts;
    const ek_weight *each[] = {&e->router_projection,
                               &e->router_scale,
                               &y->norm1,
                               &y->qkv,
                               &y->qkv_bias,
                               &y->q_norm,
                               &y->k_norm,
                               &y->out,
                               &y->norm2,
                               &e->router,
                               &e->bias,
                               &e->mlp.up,
                               &e->mlp.down,
                               &e->mlp.gate};
    double sum = 0;

    for (size_t i = 0; i < sizeof(each) / sizeof(each[0]); i++)
        sum += read_bytes(k, each[i]);
    if (e->routed)
        sum += (double)m->top_k * (read_bytes(k, &e->up[0]) + read_bytes(k, &e->down[0]));
    return sum;
}

double ek_session_active_bytes(const ek_session *s, int64_t position)
{
    const ek_model *m = s->model;
    const ek_model_spec *spec = &m->spec;
    double kv = (double)(spec->kv_heads * spec->head_dim);
    double cache = 2 * (double)(position + 1) * kv * (double)ek_dtype_size(m->k->comp);
    double sum = (double)spec->hidden * (double)ek_dtype_size(m->k->real) +
                 read_bytes(m->k, &m->final_norm) + read_bytes(m->k, &m->head);

    for (int64_t l = 0; l < spec->layers; l++)
        sum += cache + layer_bytes(m->k, spec, &m->layers[l]);
    return sum;
}
