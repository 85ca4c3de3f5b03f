/* Counts what passes memory, and what is kept, where ops on rows are not fused. */
#include "sim/unfused.h"

#include <math.h>

/* Numbers of the type of products that pass memory more than in one kernel: read two, write one
 * forward; read three, write two backward. */
enum { SWIGLU_FORWARD = 5 - 3, SWIGLU_BACKWARD = 13 - 5 };

/* Of a token's queries, and of its keys and values. */
enum { QUERIES_FORWARD = 2, KEYS_FORWARD = 6, QUERIES_BACKWARD = 4, KEYS_BACKWARD = 6 };

/* Of a logit: one of the type of products and nine of the real type more than evenkeel's passes. */
static double loss_bytes(const ek_op *op, double c, double r)
{
    return op->work.rows.rows * op->work.rows.width * (c + 9 * r);
}

static double attention_bytes(const ek_attention_work *w, double c)
{
    double q = w->heads, kv = 2.0 * w->kv_heads;

    return w->queries * w->head_dim * c *
           (w->backward ? QUERIES_BACKWARD * q + KEYS_BACKWARD * kv
                        : QUERIES_FORWARD * q + KEYS_FORWARD * kv);
}

/* Numbers of the gradients of weights that an op computes; those of the head come at once, not for
 * each block of its rows. */
static double weight_gradients(const ek_op *op)
{
    double n = 0;

    if (op->work.kind != EK_WORK_PRODUCTS || op->kind == EK_OP_ROUTER_BACKWARD ||
        (op->kind == EK_OP_HEAD_BACKWARD && op->part > 0))
        return 0;
    for (int32_t i = 0; i < op->work.products.n; i++) {
        const ek_product *p = &op->work.products.product[i];

        if ((p->passes & EK_PRODUCT_WEIGHT) != 0)
            n += p->groups * p->out * p->in;
    }
    return n;
}

static double swiglu_bytes(const ek_op *op, double c)
{
    const ek_product_work *w = &op->work.products;

    switch (op->kind) {
    case EK_OP_SWIGLU: return SWIGLU_FORWARD * op->work.rows.rows * op->work.rows.width * c;
    case EK_OP_SWIGLU_BACKWARD:
        return SWIGLU_BACKWARD * op->work.rows.rows * op->work.rows.width * c;
    case EK_OP_SHARED_EXPERT: /* up, and down */
        return SWIGLU_FORWARD * w->product[0].rows * w->product[0].out / 2 * c;
    case EK_OP_SHARED_EXPERT_BACKWARD: /* down, and up */
        return SWIGLU_BACKWARD * w->product[0].rows * w->product[0].in * c;
    default: return 0;
    }
}

double ek_unfused_bytes(const ek_machine *m, const ek_op *op)
{
    double c = ek_machine_comp_bytes(m), r = ek_machine_real_bytes(m);

    if (op->kind == EK_OP_CROSS_ENTROPY)
        return loss_bytes(op, c, r);
    if (op->work.kind == EK_WORK_ATTENTION)
        return attention_bytes(&op->work.attention, c);
    return swiglu_bytes(op, c) + weight_gradients(op) * (c + 2 * r);
}

double ek_unfused_memory(const ek_machine *m, const ek_sim_class *c, int32_t n_stages)
{
    double comp = ek_machine_comp_bytes(m), real = ek_machine_real_bytes(m);
    double logits = 0, block = 0, gradients = 0;
    double flight = (c->memory - c->weights) / fmax(n_stages - c->stage, 1); /* of a micro-batch */

    for (int32_t i = 0; i < c->graph->n_ops; i++) {
        const ek_op *op = ek_graph_op(c->graph, i);
        double n = op->work.rows.rows * op->work.rows.width;

        if (ek_graph_micro(c->graph, i) != 0)
            continue;
        if (op->kind == EK_OP_CROSS_ENTROPY) {
            logits += n * 2 * real;
            block = fmax(block, n * (comp + real));
        } else {
            gradients += weight_gradients(op) * comp;
        }
    }
    return fmax(fmax(logits - block, gradients - flight), 0);
}
