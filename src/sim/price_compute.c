/* Seconds of products, attention and rows by a machine's tables. */
#include "sim/price_compute.h"

#include "cost/cost.h"

#include <math.h>

/* The kernel of rows that ops of a kind call, alone or besides their products, and how they store
 * the results of products; ops of other kinds copy, and store C. */
enum { STORE_C, STORE_R, ADD_R };

static const struct {
    ek_cost_kernel kernel;
    int store;
} kinds[EK_OP_KINDS] = {
    [EK_OP_ROUTER] = {EK_KERNEL_GATE, STORE_R},
    [EK_OP_ROUTER_BACKWARD] = {EK_KERNEL_GATE_BACKWARD, ADD_R},
    [EK_OP_TOPK] = {EK_KERNEL_GATE},
    [EK_OP_PERMUTE] = {EK_KERNEL_GATHER},
    [EK_OP_UNPACK] = {EK_KERNEL_GATHER},
    [EK_OP_REPACK] = {EK_KERNEL_GATHER},
    [EK_OP_UNPERMUTE] = {EK_KERNEL_COMBINE},
    [EK_OP_UNPERMUTE_BACKWARD] = {EK_KERNEL_GATHER},
    [EK_OP_PERMUTE_BACKWARD] = {EK_KERNEL_COMBINE},
    [EK_OP_SWIGLU] = {EK_KERNEL_SWIGLU},
    [EK_OP_SWIGLU_BACKWARD] = {EK_KERNEL_SWIGLU_BACKWARD},
    [EK_OP_EXPERT_UP_WEIGHT] = {EK_KERNEL_GATHER},
    [EK_OP_SHARED_EXPERT] = {EK_KERNEL_SWIGLU},
    [EK_OP_SHARED_EXPERT_BACKWARD] = {EK_KERNEL_SWIGLU_BACKWARD},
    [EK_OP_NORM] = {EK_KERNEL_NORM},
    [EK_OP_NORM_RECOMPUTE] = {EK_KERNEL_NORM},
    [EK_OP_NORM_BACKWARD] = {EK_KERNEL_NORM_BACKWARD},
    [EK_OP_QKV_BACKWARD] = {EK_KERNEL_COPY, STORE_R},
    [EK_OP_QKV_INPUT] = {EK_KERNEL_COPY, STORE_R},
    [EK_OP_ROPE] = {EK_KERNEL_ROPE},
    [EK_OP_ROPE_BACKWARD] = {EK_KERNEL_ROPE},
    [EK_OP_ATTENTION_OUT] = {EK_KERNEL_COPY, ADD_R},
    [EK_OP_ATTENTION_OUT_BACKWARD] = {EK_KERNEL_CONVERT},
    [EK_OP_EMBED] = {EK_KERNEL_EMBED},
    [EK_OP_EMBED_BACKWARD] = {EK_KERNEL_EMBED_BACKWARD},
    [EK_OP_FINAL_NORM] = {EK_KERNEL_NORM},
    [EK_OP_FINAL_NORM_BACKWARD] = {EK_KERNEL_NORM_BACKWARD},
    [EK_OP_LOGITS] = {EK_KERNEL_NORM, STORE_R},
    [EK_OP_CROSS_ENTROPY] = {EK_KERNEL_CROSS_ENTROPY},
    [EK_OP_HEAD_BACKWARD] = {EK_KERNEL_NORM_BACKWARD, STORE_R},
    [EK_OP_PACK] = {EK_KERNEL_PACK},
    [EK_OP_PACK_FORWARD] = {EK_KERNEL_PACK},
    [EK_OP_PACK_BACKWARD] = {EK_KERNEL_PACK},
    [EK_OP_GRADIENT_NORM] = {EK_KERNEL_SUM_SQUARES},
    [EK_OP_ADAMW] = {EK_KERNEL_ADAMW},
};

/* --- rows ------------------------------------------------------------------------------------- */

static double price_bytes(const ek_machine *m, ek_cost_kernel kernel, double bytes)
{
    static const int32_t none[EK_KERNEL_SIZES] = {0};
    double rate = ek_kernel_rate(&m->kernels, kernel, none, bytes);

    if (bytes <= 0)
        return 0;
    return rate > 0 ? bytes / rate : ek_cost_copies(m, bytes);
}

/* Kinds that are not in the table copy. */
static ek_cost_kernel kernel_of(ek_op_kind kind)
{
    return kinds[kind].kernel != EK_KERNEL_PRODUCT ? kinds[kind].kernel : EK_KERNEL_COPY;
}

/* An update of masters, gradients and moments, and what else the op moves: packed forms. */
static double price_update(const ek_machine *m, const ek_op *op)
{
    double update = 8 * op->work.rows.rows * ek_machine_real_bytes(m);

    return price_bytes(m, EK_KERNEL_ADAMW, fmin(update, op->bytes)) +
           price_bytes(m, EK_KERNEL_PACK, op->bytes - update);
}

static double price_rows(const ek_machine *m, const ek_op *op)
{
    if (op->kind == EK_OP_ADAMW)
        return price_update(m, op);
    return price_bytes(m, kernel_of(op->kind), op->bytes);
}

/* --- products --------------------------------------------------------------------------------- */

static const struct {
    ek_cost_product table;
    ek_cost_kernel kernel;
} passes[] = {{EK_COST_FORWARD, EK_KERNEL_PRODUCT},
              {EK_COST_BACKWARD_INPUT, EK_KERNEL_PRODUCT_INPUT},
              {EK_COST_BACKWARD_WEIGHT, EK_KERNEL_PRODUCT_WEIGHT}};

/* Of pass number i, EK_PRODUCT_FORWARD << i. */
static double rate_of_pass(const ek_machine *m, const ek_product *p, int i)
{
    const int32_t size[EK_KERNEL_SIZES] = {p->out, p->in};
    double rows = p->rows / fmax(p->groups, 1);
    double rate = ek_kernel_rate(&m->kernels, passes[i].kernel, size, rows);

    return rate > 0 ? rate : ek_cost_rate_at(&m->rate[passes[i].table], rows);
}

double ek_price_product(const ek_machine *m, const ek_product *p)
{
    double flops = 2 * p->rows * p->out * p->in; /* of a pass */
    double seconds = 0;

    for (int i = 0; i < 3 && flops > 0; i++)
        if ((p->passes & EK_PRODUCT_FORWARD << i) != 0)
            seconds += flops / rate_of_pass(m, p, i);
    return seconds;
}

/* Bytes of the operands and results of a product's passes; the router's are all R. */
static double product_bytes(const ek_machine *m, const ek_product *p, int store, int router)
{
    double r = ek_machine_real_bytes(m), c = router ? r : ek_machine_comp_bytes(m);
    double result = store == STORE_C ? c : store == STORE_R ? r : 2 * r;
    double weight = router ? 0 : p->groups * p->out * p->in;
    double bytes = 0;

    if ((p->passes & EK_PRODUCT_FORWARD) != 0)
        bytes += p->rows * (p->in * c + p->out * result) + weight * c;
    if ((p->passes & EK_PRODUCT_INPUT) != 0)
        bytes += p->rows * (p->out * c + p->in * result) + weight * c;
    if ((p->passes & EK_PRODUCT_WEIGHT) != 0)
        bytes += p->rows * (p->in + p->out) * c + 2 * weight * r;
    return bytes;
}

static double price_products(const ek_machine *m, const ek_op *op)
{
    const ek_product_work *w = &op->work.products;
    int router = op->kind == EK_OP_ROUTER || op->kind == EK_OP_ROUTER_BACKWARD;
    double seconds = 0, other = op->bytes;

    for (int32_t i = 0; i < w->n; i++) {
        seconds += ek_price_product(m, &w->product[i]);
        other -= product_bytes(m, &w->product[i], kinds[op->kind].store, router);
    }
    return seconds + price_bytes(m, kernel_of(op->kind), other);
}

/* --- attention -------------------------------------------------------------------------------- */

/* Tokens of a causal sequence whose queries see as many keys in the mean. */
static double tokens_of(const ek_attention_work *w)
{
    return w->queries > 0 ? fmax(2 * w->pairs / w->queries - 1, 1) : 1;
}

static double price_attention(const ek_machine *m, const ek_op *op)
{
    const ek_attention_work *w = &op->work.attention;
    const int32_t size[EK_KERNEL_SIZES] = {w->heads, w->kv_heads, w->head_dim};
    double rate = ek_kernel_rate(&m->kernels,
                                 w->backward ? EK_KERNEL_ATTENTION_BACKWARD : EK_KERNEL_ATTENTION,
                                 size, tokens_of(w));

    return ek_work_flops(&op->work) / (rate > 0 ? rate : ek_cost_best_product(m)) +
           price_bytes(m, EK_KERNEL_COPY,
                       w->score_passes * w->heads * w->pairs * ek_machine_comp_bytes(m));
}

double ek_price_compute(const ek_machine *m, const ek_op *op)
{
    switch (op->work.kind) {
    case EK_WORK_PRODUCTS: return price_products(m, op);
    case EK_WORK_ATTENTION: return price_attention(m, op);
    case EK_WORK_ROWS: return price_rows(m, op);
    case EK_WORK_NONE:
    case EK_WORK_NET:
    case EK_WORK_DISK: break;
    }
    return 0;
}
