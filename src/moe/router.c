/* Router and gate, the all-gather of gate statistics over the stage, layout of rows, and the
 * gradient back. */
#include "moe/router.h"

#include "exec/net.h"
#include "moe/cosine.h"
#include "moe/gate.h"
#include "moe/routing_plan.h"
#include "moe/token_dispatcher.h"

#include <string.h>

/* Whether the gate needs whole sequences that are split over tensor parallel ranks. */
static int needs_whole_sequences(const ek_moe *m)
{
    return m->mesh->tp > 1 && ek_gate_needs_sequences(m);
}

static void gate_forward(ek_moe *m, const ek_micro *mb, ek_moe_activations *kept)
{
    if (m->k->real == EK_F64)
        ek_gate_forward_f64(m, mb, kept);
    else
        ek_gate_forward_f32(m, mb, kept);
}

static ek_status op_route(void *self, const ek_op *op)
{
    ek_moe *m = self;
    ek_moe_activations *kept = ek_moe_activations_of(m, op);
    const ek_micro *mb = ek_moe_micro(m, op);
    const ek_kernels *k = m->k;
    const void *y = k->comp == k->real ? kept->y : m->scratch->y_real;
    int64_t d = m->spec->hidden, experts = m->spec->experts;
    void *logits = kept->probs;

    if (needs_whole_sequences(m))
        logits = ek_moe_at(k->real, m->scratch->whole.probs, mb->first * experts);
    if (m->spec->router_dim > 0)
        ek_cosine_forward(m, mb->n, y, logits);
    else
        k->matmul_real(0, 1, mb->n, experts, d, y, d, m->w->router.p, d, 0, logits, experts);
    if (needs_whole_sequences(m))
        return EK_OK;
    gate_forward(m, mb, kept);
    ek_gate_count_stats(m, mb, kept);
    if (m->x.ranks == 1)
        ek_gate_sum_stats(m, mb, kept, op->recompute);
    return EK_OK;
}

static ek_status op_gather_logits(void *self, const ek_op *op)
{
    ek_moe *m = self;
    const ek_moe_scratch *s = m->scratch;
    const ek_micro *mb = ek_moe_micro(m, op);

    if (!ek_net_started(op)) {
        for (int r = 0; r <= m->mesh->tp; r++)
            s->tp_first[r] = ek_range_first(mb->all, m->mesh->tp, r);
        EK_TRY(ek_comm_all_gather(m->mesh->tp_group, s->whole.probs, s->tp_first,
                                  (size_t)m->spec->experts * ek_dtype_size(m->k->real),
                                  ek_net_cell(op)));
    }
    return ek_net_test(op);
}

/* Copies this rank's range of an array over all tokens. */
static void copy_own(const ek_micro *mb, void *to, const void *whole, int64_t width, size_t size)
{
    size_t row = (size_t)width * size;

    memcpy(to, (const char *)whole + (size_t)mb->first * row, (size_t)mb->n * row);
}

/* Runs the gate on whole sequences and copies the results of this rank's tokens. */
static ek_status op_topk(void *self, const ek_op *op)
{
    ek_moe *m = self;
    ek_moe_activations *kept = ek_moe_activations_of(m, op);
    ek_moe_activations whole = m->scratch->whole;
    const ek_micro *mb = ek_moe_micro(m, op);
    ek_micro all = *mb;
    size_t real = ek_dtype_size(m->k->real);

    all.first = 0;
    all.n = mb->all;
    gate_forward(m, &all, &whole);
    copy_own(mb, kept->probs, whole.probs, m->spec->experts, real);
    copy_own(mb, kept->lse, whole.lse, 1, real);
    copy_own(mb, kept->weights, whole.weights, m->cols, real);
    copy_own(mb, kept->ids, whole.ids, m->cols, sizeof(*kept->ids));
    ek_gate_count_stats(m, mb, kept);
    return EK_OK;
}

static ek_status op_gather_counts(void *self, const ek_op *op)
{
    ek_moe *m = self;

    if (!ek_net_started(op))
        EK_TRY(ek_comm_all_gather(m->mesh->stage, ek_moe_activations_of(m, op)->gate_stats,
                                  m->scratch->each, (size_t)m->x.words * sizeof(ek_gate_stats),
                                  ek_net_cell(op)));
    return ek_net_test(op);
}

/* Appends an op of the router and the gate. */
static int32_t add(const ek_moe_builder *b, ek_op_kind kind, ek_op_fn run, ek_work work,
                   double bytes, int32_t dep)
{
    int kernels = ek_gate_is_plain(b->m) && b->m->spec->router_dim == 0;

    return (kernels ? ek_moe_add_kernels : ek_moe_add)(b, kind, run, -1, work, bytes, dep);
}

/* The product of the router; of a cosine router two, of rows with its projection and of those with
 * the experts, of which backward computes the first again. */
static ek_work router_work(const ek_moe_builder *b, int32_t passes)
{
    const ek_moe_cost *c = &b->c;
    double p = (double)b->m->spec->router_dim;

    if (p == 0)
        return ek_work_of_product(ek_product_of(c->n, c->experts, c->d, passes));
    return ek_work_of_products(ek_product_of(c->n, p, c->d, passes | EK_PRODUCT_FORWARD),
                               ek_product_of(c->n, c->experts, p, passes));
}

int32_t ek_moe_build_router(const ek_moe_builder *b, int32_t *counts_op, int32_t dep)
{
    const ek_moe_cost *c = &b->c;
    ek_moe *m = b->m;

    dep = add(b, EK_OP_ROUTER, op_route, router_work(b, EK_PRODUCT_FORWARD),
              c->n * (c->d + 3 * c->experts) * c->real, dep);
    if (needs_whole_sequences(m)) {
        double all = (double)m->step->micro[b->micro].all;
        ek_work gather = ek_net_work_of(m->mesh, EK_MESH_TP, EK_COLLECTIVE_ALL_GATHER,
                                        all * c->experts * c->real, (size_t)(c->experts * c->real));

        dep = ek_moe_add_net(b, EK_OP_GATHER_LOGITS, op_gather_logits, -1, gather, dep, -1);
        dep = ek_moe_add(b, EK_OP_TOPK, op_topk, -1, ek_work_of_rows(all, c->experts),
                         3 * all * c->experts * c->real, dep);
    }
    *counts_op = -1;
    if (m->x.ranks > 1)
        *counts_op =
            ek_moe_add_net(b, EK_OP_GATHER_COUNTS, op_gather_counts, -1,
                           ek_net_work_of(m->mesh, EK_MESH_STAGE, EK_COLLECTIVE_ALL_GATHER,
                                          (double)(m->x.ranks * m->x.words) * sizeof(ek_gate_stats),
                                          (size_t)m->x.words * sizeof(ek_gate_stats)),
                           dep, -1);
    return dep;
}

static ek_status op_layout(void *self, const ek_op *op)
{
    ek_moe *m = self;
    ek_moe_activations *kept = ek_moe_activations_of(m, op);
    ek_moe_route *route = ek_moe_route_of(m, op);
    const ek_micro *mb = ek_moe_micro(m, op);

    ek_gate_sum_stats(m, mb, kept, op->recompute);
    if (!ek_moe_is_distributed(m))
        return EK_OK;
    if (!op->recompute)
        ek_routing_plan_make(m, kept->gate_stats, route);
    ek_dispatch_layout_list_slots(&m->x, route->expert_of);
    ek_dispatch_sort(&m->x, route->row_counts, mb->n, m->cols, kept->ids, kept->row_of,
                     kept->token_of, kept->send_first);
    ek_dispatch_receive(&m->x, route->row_counts, kept->offset, kept->from_recv,
                        kept->from_experts);
    return EK_OK;
}

int32_t ek_moe_build_layout(const ek_moe_builder *b, int32_t counts_op)
{
    double words = (double)(b->m->x.ranks * b->m->x.words) * sizeof(ek_gate_stats);

    return ek_moe_add(
        b, EK_OP_LAYOUT, op_layout, -1, ek_work_of_rows(b->m->x.ranks, (double)b->m->x.words),
        words + (ek_moe_is_distributed(b->m) ? 8 * (b->c.sent + b->c.rows) : 0), counts_op);
}

/* --- backward --------------------------------------------------------------------------------- */

static ek_status op_route_backward(void *self, const ek_op *op)
{
    ek_moe *m = self;
    ek_moe_activations *kept = ek_moe_activations_of(m, op);
    const ek_micro *mb = ek_moe_micro(m, op);
    const ek_kernels *k = m->k;
    const ek_moe_scratch *s = m->scratch;
    const void *y = k->comp == k->real ? kept->y : s->y_real;
    int64_t d = m->spec->hidden, experts = m->spec->experts;

    ek_moe_gather_weight_gradients(m, kept, mb->n);
    ek_gate_backward(m, mb, kept);
    if (m->spec->router_dim > 0) {
        ek_cosine_backward(m, mb->n, y);
        return EK_OK;
    }
    k->matmul_real(1, 0, experts, d, mb->n, s->dlogits, experts, y, d, 1, m->w->router.g, d);
    k->matmul_real(0, 0, mb->n, d, experts, s->dlogits, experts, m->w->router.p, d, 1, s->dy, d);
    return EK_OK;
}

int32_t ek_moe_build_router_backward(const ek_moe_builder *b, int32_t dep)
{
    const ek_moe_cost *c = &b->c;

    return add(b, EK_OP_ROUTER_BACKWARD, op_route_backward,
               router_work(b, EK_PRODUCT_INPUT | EK_PRODUCT_WEIGHT),
               c->n * (3 * c->d + 3 * c->experts) * c->real, dep);
}
