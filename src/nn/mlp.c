/* Dense MLPs and shared experts: forward and backward as ops. */
#include "nn/mlp.h"

#include "nn/sigmoid.h"

#include <string.h>

/* Width of the dense layers; 0 where the model has none, whatever its config says. */
static int64_t dense_width(const ek_model_spec *spec)
{
    for (int64_t l = 0; l < spec->layers; l++)
        if (spec->dense[l])
            return spec->dense_ff;
    return 0;
}

/* Width of this rank's slice. */
static int64_t local_width(int64_t width, const ek_mesh *mesh)
{
    return ek_range_length(width, mesh->tp, mesh->tp_rank);
}

/* The larger width of shared expert and dense layers. */
static int64_t max_width(const ek_model_spec *spec)
{
    int64_t dense = dense_width(spec);

    return spec->shared_ff > dense ? spec->shared_ff : dense;
}

void ek_mlp_set_sizes(ek_mlp_weights *w, const ek_model_spec *spec, const ek_mesh *mesh, int layer)
{
    int64_t width = spec->dense[layer] ? spec->dense_ff : spec->shared_ff;

    w->present = width > 0;
    w->gated = w->present && !spec->dense[layer] && spec->shared_gated;
    w->f = local_width(width, mesh);
}

int64_t ek_mlp_hidden(const ek_model_spec *spec, const ek_mesh *mesh, int64_t all)
{
    return local_width(max_width(spec), mesh) * all;
}

/* Workspace for one width; it does not grow monotonically with the width. */
static size_t workspace_bytes(const ek_kernels *k, int64_t tokens, int64_t d, int64_t f)
{
    size_t up = f > 0 ? k->linear_workspace(k, tokens, 1, 2 * f, d) : 0;
    size_t down = f > 0 ? k->linear_workspace(k, tokens, 1, d, f) : 0;

    return up > down ? up : down;
}

size_t ek_mlp_workspace(const ek_kernels *k, const ek_model_spec *spec, const ek_mesh *mesh,
                        int64_t all)
{
    size_t a = workspace_bytes(k, all, spec->hidden, local_width(dense_width(spec), mesh));
    size_t b = workspace_bytes(k, all, spec->hidden, local_width(spec->shared_ff, mesh));

    return a > b ? a : b;
}

void ek_mlp_reserve_activations(const ek_mlp *m, ek_mlp_activations *s, ek_arena *a,
                                const ek_model_spec *spec, const ek_mesh *mesh, int64_t all,
                                int any)
{
    int64_t width = any ? local_width(max_width(spec), mesh) : m->w->f;
    int exists = any ? max_width(spec) > 0 : m->w->present;

    s->gu = ek_arena_alloc(a, all * 2 * width, ek_dtype_size(m->k->comp));
    s->scale = ek_arena_alloc(a, exists ? all : 0, ek_dtype_size(m->k->real));
}

/* --- rows of the products --------------------------------------------------------------------- */

/* Tokens and buffers of the products: this rank's tokens, or the gathered ones of all tensor
 * parallel ranks. */
typedef struct {
    int64_t n;
    const void *y;       /* C [n, d], input */
    void *dy;            /* C [n, d], gradient of the output */
    void *hidden, *drow; /* C [n, f], R [n] */
    void *ws;
} token_rows;

static const ek_micro *micro_of(const ek_mlp *m, const ek_op *op)
{
    return &m->micro[op->micro];
}

static ek_mlp_activations *activations_of(const ek_mlp *m, const ek_op *op)
{
    return &m->activations[m->act_slot_of != NULL ? m->act_slot_of[op->micro] : 0];
}

static token_rows token_rows_of(const ek_mlp *m, const ek_op *op)
{
    const ek_mlp_scratch *s = m->scratch;
    const ek_tp *t = s->tp;
    const ek_micro *mb = micro_of(m, op);

    if (t != NULL)
        return (token_rows){mb->all, t->y, t->dy, s->hidden, t->dscale, s->ws};
    return (token_rows){mb->n, activations_of(m, op)->y, s->rows, s->hidden, s->drow, s->ws};
}

/* This rank's range of a column R [n] of token_rows; the gate runs on own tokens only. */
static void *own_range(const ek_mlp *m, const ek_op *op, void *column)
{
    const ek_tp *t = m->scratch->tp;

    return t != NULL ? ek_tp_own(t, op, column, 1, ek_dtype_size(m->k->real)) : column;
}

/* The input of this rank's tokens as R. */
static const void *y_real(const ek_mlp *m, const ek_mlp_activations *kept)
{
    return m->k->comp == m->k->real ? kept->y : m->scratch->y_real;
}

/* NULL for a shared expert without a gate. */
static void *scale_of(const ek_mlp *m, const ek_mlp_activations *kept)
{
    return m->w->gated ? kept->scale : NULL;
}

/* --- forward ---------------------------------------------------------------------------------- */

static void gate_forward(const ek_mlp *m, const ek_op *op)
{
    ek_mlp_activations *kept = activations_of(m, op);
    const ek_kernels *k = m->k;
    int64_t n = micro_of(m, op)->n, d = m->d;
    void *scale = own_range(m, op, kept->scale);

    if (n == 0)
        return;
    k->matmul_real(0, 1, n, 1, d, y_real(m, kept), d, m->w->gate.p, d, 0, scale, 1);
    if (k->real == EK_F64)
        ek_sigmoid_f64(scale, n);
    else
        ek_sigmoid_f32(scale, n);
}

/* Writes the output, or this rank's partial sum, to out by `mode`; recomputation: up only. */
static ek_status up_down(ek_mlp *m, const ek_op *op, void *out, ek_out mode)
{
    ek_mlp_activations *kept = activations_of(m, op);
    const ek_kernels *k = m->k;
    token_rows r = token_rows_of(m, op);
    int64_t d = m->d, f = m->w->f;
    ek_group *g = &m->group;

    *g = (ek_group){0, r.n, m->w->up.forward, NULL};
    EK_TRY(k->linear_forward(k, g, 1, 2 * f, d, r.y, d, kept->gu, 2 * f, EK_OUT_COMP, r.ws));
    if (op->recompute)
        return EK_OK;
    k->swiglu_forward(r.n, f, kept->gu, scale_of(m, kept), r.hidden);
    g->w = m->w->down.forward;
    return k->linear_forward(k, g, 1, d, f, r.hidden, f, out, d, mode, r.ws);
}

static ek_status op_mlp(void *self, const ek_op *op)
{
    ek_mlp *m = self;

    if (m->w->gated)
        gate_forward(m, op);
    return up_down(m, op, activations_of(m, op)->x, EK_OUT_ADD);
}

/* Copies this rank's tokens into the gather buffer, and computes their gate. */
static ek_status op_start(void *self, const ek_op *op)
{
    ek_mlp *m = self;
    const ek_tp *t = m->scratch->tp;

    ek_tp_put(t, op, t->y, activations_of(m, op)->y, m->k->comp);
    if (m->w->gated)
        gate_forward(m, op);
    return EK_OK;
}

static ek_status op_gather_scale(void *self, const ek_op *op)
{
    ek_mlp *m = self;

    return ek_tp_gather(m->scratch->tp, op, activations_of(m, op)->scale, 1, m->k->real);
}

static ek_status op_mlp_part(void *self, const ek_op *op)
{
    ek_mlp *m = self;
    const ek_tp *t = m->scratch->tp;

    if (m->w->f > 0)
        return up_down(m, op, t->sum, EK_OUT_REAL);
    ek_tp_no_sum(t, op);
    return EK_OK;
}

static ek_status op_add(void *self, const ek_op *op)
{
    ek_mlp *m = self;
    ek_mlp_activations *kept = activations_of(m, op);

    ek_tp_add_own(m->scratch->tp, op, kept->x, kept->x);
    return EK_OK;
}

/* --- backward --------------------------------------------------------------------------------- */

static ek_status down_backward(ek_mlp *m, const ek_op *op)
{
    ek_mlp_activations *kept = activations_of(m, op);
    const ek_kernels *k = m->k;
    token_rows r = token_rows_of(m, op);
    int64_t d = m->d, f = m->w->f;
    ek_group *g = &m->group;

    *g = (ek_group){0, r.n, m->w->down.backward, m->w->down.g};
    EK_TRY(k->linear_backward_input(k, g, 1, d, f, r.dy, d, r.hidden, f, EK_OUT_COMP, r.ws));
    k->swiglu_backward(r.n, f, kept->gu, scale_of(m, kept), r.hidden, kept->gu, r.hidden,
                       m->w->gated ? r.drow : NULL);
    return k->linear_backward_weight(k, g, 1, d, f, r.dy, d, r.hidden, f, r.ws);
}

static ek_status up_weight(ek_mlp *m, const ek_op *op)
{
    const void *dgu = activations_of(m, op)->gu;
    token_rows r = token_rows_of(m, op);
    int64_t d = m->d, f2 = 2 * m->w->f;

    m->group = (ek_group){0, r.n, m->w->up.backward, m->w->up.g};
    return m->k->linear_backward_weight(m->k, &m->group, 1, f2, d, dgu, f2, r.y, d, r.ws);
}

static ek_status up_input(ek_mlp *m, const ek_op *op, void *dy, ek_out mode)
{
    const void *dgu = activations_of(m, op)->gu;
    token_rows r = token_rows_of(m, op);
    int64_t d = m->d, f2 = 2 * m->w->f;

    m->group = (ek_group){0, r.n, m->w->up.backward, m->w->up.g};
    return m->k->linear_backward_input(m->k, &m->group, 1, f2, d, dgu, f2, dy, d, mode, r.ws);
}

static void gate_backward(const ek_mlp *m, const ek_op *op)
{
    ek_mlp_activations *kept = activations_of(m, op);
    const ek_kernels *k = m->k;
    int64_t n = micro_of(m, op)->n, d = m->d;
    void *scale = own_range(m, op, kept->scale),
         *dscale = own_range(m, op, token_rows_of(m, op).drow);
    ek_weight *w = &m->w->gate;

    if (n == 0)
        return;
    if (k->real == EK_F64)
        ek_sigmoid_backward_f64(scale, dscale, n);
    else
        ek_sigmoid_backward_f32(scale, dscale, n);
    k->matmul_real(1, 0, 1, d, n, dscale, 1, y_real(m, kept), d, 1, w->g, d);
    k->matmul_real(0, 0, n, d, 1, dscale, 1, w->p, d, 1, m->scratch->dy, d);
}

static ek_status op_mlp_backward(void *self, const ek_op *op)
{
    ek_mlp *m = self;

    m->k->to_comp(micro_of(m, op)->n, m->d, m->scratch->dx, m->scratch->rows);
    EK_TRY(down_backward(m, op));
    EK_TRY(up_weight(m, op));
    EK_TRY(up_input(m, op, m->scratch->dy, m->adds_dy ? EK_OUT_ADD : EK_OUT_REAL));
    if (m->w->gated)
        gate_backward(m, op);
    return EK_OK;
}

static ek_status op_start_backward(void *self, const ek_op *op)
{
    ek_mlp *m = self;
    const ek_tp *t = m->scratch->tp;

    ek_tp_put_comp(t, op, t->dy, m->scratch->dx);
    ek_tp_put(t, op, t->y, activations_of(m, op)->y, m->k->comp);
    return EK_OK;
}

static ek_status op_part_backward(void *self, const ek_op *op)
{
    ek_mlp *m = self;
    const ek_tp *t = m->scratch->tp;

    if (m->w->f > 0) {
        EK_TRY(down_backward(m, op));
        return up_input(m, op, t->sum, EK_OUT_REAL);
    }
    ek_tp_no_sum(t, op);
    if (m->w->gated)
        memset(t->dscale, 0, (size_t)micro_of(m, op)->all * ek_dtype_size(m->k->real));
    return EK_OK;
}

static ek_status op_reduce_dscale(void *self, const ek_op *op)
{
    ek_mlp *m = self;

    return ek_tp_reduce_scatter(m->scratch->tp, op, m->scratch->tp->dscale, 1);
}

static ek_status op_up_weight(void *self, const ek_op *op)
{
    ek_mlp *m = self;

    return m->w->f > 0 ? up_weight(m, op) : EK_OK;
}

static ek_status op_add_backward(void *self, const ek_op *op)
{
    ek_mlp *m = self;
    const ek_tp *t = m->scratch->tp;

    if (m->adds_dy)
        ek_tp_add_own(t, op, m->scratch->dy, m->scratch->dy);
    else
        ek_tp_get(t, op, m->scratch->dy);
    if (m->w->gated)
        gate_backward(m, op);
    return EK_OK;
}

/* --- the graph -------------------------------------------------------------------------------- */

/* Sizes for the FLOPs and bytes of ops. */
typedef struct {
    double n, all, d, f, comp, real;
} sizes;

static sizes sizes_of(const ek_mlp *m, int32_t micro)
{
    return (sizes){(double)m->micro[micro].n,
                   (double)m->micro[micro].all,
                   (double)m->d,
                   (double)m->w->f,
                   (double)ek_dtype_size(m->k->comp),
                   (double)ek_dtype_size(m->k->real)};
}

static ek_op op_of(ek_mlp *m, ek_op_kind kind, ek_op_fn run, int32_t micro, int recompute,
                   ek_work work, double bytes)
{
    return (ek_op){.kind = kind,
                   .run = run,
                   .self = m,
                   .lane = EK_LANE_COMPUTE,
                   .layer = m->layer,
                   .micro = micro,
                   .part = -1,
                   .recompute = recompute,
                   .flops = ek_work_flops(&work),
                   .bytes = bytes,
                   .work = work};
}

/* The products of the gate and up matrices together, and of the down matrix. */
static ek_product up_product(const sizes *c, int32_t passes)
{
    return ek_product_of(c->all, 2 * c->f, c->d, passes);
}

static ek_product down_product(const sizes *c, int32_t passes)
{
    return ek_product_of(c->all, c->d, c->f, passes);
}

/* Appends a network op over a column R [all]. */
static int32_t add_column(ek_mlp *m, ek_graph *g, ek_op_kind kind, ek_collective collective,
                          ek_op_fn run, int32_t micro, int recompute, int32_t dep)
{
    ek_op op = ek_tp_net_op(m->scratch->tp, kind, collective, run, m, m->layer, micro, 1,
                            ek_dtype_size(m->k->real));

    op.recompute = recompute;
    return ek_graph_after(g, &op, dep);
}

ek_mlp_start ek_mlp_start_forward(ek_mlp *m, ek_graph *g, int32_t micro, int recompute, int32_t dep)
{
    ek_mlp_start s = {dep, -1, -1, -1};
    sizes c;
    ek_op op;

    if (!m->w->present || m->scratch->tp == NULL)
        return s;
    c = sizes_of(m, micro);
    op = op_of(m, EK_OP_SHARED_EXPERT_TOKENS, op_start, micro, recompute, ek_work_of_rows(c.n, c.d),
               2 * c.n * c.d * c.comp);
    s.after = ek_graph_after(g, &op, dep);
    s.y = ek_tp_build_gather_y(m->scratch->tp, g, m->layer, micro, recompute, s.after);
    if (m->w->gated)
        s.scale = add_column(m, g, EK_OP_GATHER_GATE, EK_COLLECTIVE_ALL_GATHER, op_gather_scale,
                             micro, recompute, s.after);
    return s;
}

int32_t ek_mlp_build_forward(ek_mlp *m, ek_graph *g, int32_t micro, int recompute,
                             const ek_mlp_start *start, int32_t dep)
{
    ek_tp *t = m->scratch->tp;
    sizes c = sizes_of(m, micro);
    ek_product up = up_product(&c, EK_PRODUCT_FORWARD);
    ek_work work = recompute ? ek_work_of_product(up)
                             : ek_work_of_products(up, down_product(&c, EK_PRODUCT_FORWARD));
    ek_op op = op_of(m, EK_OP_SHARED_EXPERT, t == NULL ? op_mlp : op_mlp_part, micro, recompute,
                     work, (c.all * (2 * c.d + 6 * c.f) + 3 * c.d * c.f) * c.comp);
    ek_op sum = op_of(m, EK_OP_SHARED_EXPERT_ADD, op_add, micro, recompute,
                      ek_work_of_rows(c.n, c.d), 3 * c.n * c.d * c.real);

    dep = ek_graph_add(g, &op, (int32_t[]){dep, start->y, start->scale}, 3);
    if (t == NULL || recompute)
        return dep;
    dep = ek_tp_build_reduce_sum(t, g, m->layer, micro, recompute, dep);
    return ek_graph_after(g, &sum, dep);
}

ek_mlp_start ek_mlp_start_backward(ek_mlp *m, ek_graph *g, int32_t micro, int32_t dep)
{
    ek_mlp_start s = {dep, -1, -1, -1};
    ek_tp *t = m->scratch->tp;
    sizes c;
    ek_op op;

    if (!m->w->present || t == NULL)
        return s;
    c = sizes_of(m, micro);
    op = op_of(m, EK_OP_SHARED_EXPERT_TOKENS, op_start_backward, micro, 0,
               ek_work_of_rows(c.n, c.d), c.n * c.d * (3 * c.comp + c.real));
    s.after = ek_graph_after(g, &op, dep);
    s.dy = ek_tp_build_gather_dy(t, g, m->layer, micro, s.after);
    s.y = ek_tp_build_gather_y(t, g, m->layer, micro, 0, s.after);
    return s;
}

static int32_t build_part_backward(ek_mlp *m, ek_graph *g, int32_t micro, const ek_mlp_start *start,
                                   int32_t dep)
{
    sizes c = sizes_of(m, micro);
    const int32_t both = EK_PRODUCT_INPUT | EK_PRODUCT_WEIGHT;
    ek_op part =
        op_of(m, EK_OP_SHARED_EXPERT_BACKWARD, op_part_backward, micro, 0,
              ek_work_of_products(down_product(&c, both), up_product(&c, EK_PRODUCT_INPUT)),
              (c.all * (3 * c.d + 9 * c.f) + 3 * c.d * c.f) * c.comp + 2 * c.d * c.f * c.real);
    ek_op weight = op_of(m, EK_OP_SHARED_EXPERT_UP_WEIGHT, op_up_weight, micro, 0,
                         ek_work_of_product(up_product(&c, EK_PRODUCT_WEIGHT)),
                         c.all * (c.d + 2 * c.f) * c.comp + 4 * c.d * c.f * c.real);
    ek_op sum = op_of(m, EK_OP_SHARED_EXPERT_ADD, op_add_backward, micro, 0,
                      ek_work_of_rows(c.n, c.d), 3 * c.n * c.d * c.real);
    int32_t net[3];

    dep = ek_graph_add(g, &part, (int32_t[]){dep, start->dy}, 2);
    net[0] = ek_tp_build_reduce_sum(m->scratch->tp, g, m->layer, micro, 0, dep);
    net[1] = m->w->gated ? add_column(m, g, EK_OP_REDUCE_SCATTER_GATE, EK_COLLECTIVE_REDUCE_SCATTER,
                                      op_reduce_dscale, micro, 0, dep)
                         : -1;
    net[2] = ek_graph_add(g, &weight, (int32_t[]){dep, start->y}, 2);
    return ek_graph_add(g, &sum, net, 3);
}

int32_t ek_mlp_build_backward(ek_mlp *m, ek_graph *g, int32_t micro, const ek_mlp_start *start,
                              int32_t dep)
{
    sizes c = sizes_of(m, micro);
    const int32_t both = EK_PRODUCT_INPUT | EK_PRODUCT_WEIGHT;
    ek_op op =
        op_of(m, EK_OP_SHARED_EXPERT_BACKWARD, op_mlp_backward, micro, 0,
              ek_work_of_products(down_product(&c, both), up_product(&c, both)),
              (c.n * (4 * c.d + 11 * c.f) + 3 * c.d * c.f) * c.comp + 6 * c.d * c.f * c.real);

    if (m->scratch->tp != NULL)
        return build_part_backward(m, g, micro, start, dep);
    return ek_graph_after(g, &op, dep);
}
