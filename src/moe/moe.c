/* The MoE layer: its memory, and its forward and backward as ops of a step graph. */
#include "moe/moe.h"

#include "moe/dispatch.h"
#include "moe/gate.h"

#include <string.h>

int ek_moe_cols(const ek_model_spec *spec)
{
    return (int)(spec->gate.kind == EK_GATE_EXPERT_CHOICE ? spec->experts : spec->top_k);
}

static int64_t rows_of(const ek_model_spec *spec, int64_t tokens)
{
    return tokens * ek_moe_cols(spec);
}

/* Width of the dense layers; 0 where the model has none, whatever its config says. */
static int64_t dense_width(const ek_model_spec *spec)
{
    for (int64_t l = 0; l < spec->layers; l++)
        if (spec->dense[l])
            return spec->dense_ff;
    return 0;
}

/* The widest of shared expert and dense layers. */
static int64_t shared_width(const ek_model_spec *spec)
{
    int64_t dense = dense_width(spec);

    return spec->shared_ff > dense ? spec->shared_ff : dense;
}

static size_t max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Workspace of a shared expert, or dense layer, of width ff.  A wider one may need less. */
static size_t shared_workspace(const ek_kernels *k, int64_t tokens, int64_t d, int64_t ff)
{
    return ff == 0 ? 0
                   : max_size(k->linear_workspace(k, tokens, 1, 2 * ff, d),
                              k->linear_workspace(k, tokens, 1, d, ff));
}

void ek_moe_take_scratch(ek_moe_scratch *s, ek_arena *a, const ek_kernels *k,
                         const ek_model_spec *spec, int64_t max_tokens, int training)
{
    int64_t d = spec->hidden, rows = rows_of(spec, max_tokens);
    size_t real = ek_dtype_size(k->real), comp = ek_dtype_size(k->comp), ws;
    int64_t hidden = spec->ff * rows;
    int64_t shared = shared_width(spec);

    if (shared * max_tokens > hidden)
        hidden = shared * max_tokens;
    s->rows = ek_arena_take(a, rows * d, comp);
    s->rows2 = ek_arena_take(a, rows * d, comp);
    s->hidden = ek_arena_take(a, hidden, comp);
    ws = max_size(k->linear_workspace(k, rows, spec->experts, 2 * spec->ff, d),
                  k->linear_workspace(k, rows, spec->experts, d, spec->ff));
    ws = max_size(ws, shared_workspace(k, max_tokens, d, spec->shared_ff));
    ws = max_size(ws, shared_workspace(k, max_tokens, d, dense_width(spec)));
    s->ws = ek_arena_take(a, (int64_t)ws, 1);
    s->y_real = ek_arena_take(a, max_tokens * d, real);
    if (training) {
        s->dy = ek_arena_take(a, max_tokens * d, real);
        s->dlogits = ek_arena_take(a, max_tokens * spec->experts, real);
        s->dweights = ek_arena_take(a, rows, real);
        s->drow = ek_arena_take(a, rows > max_tokens ? rows : max_tokens, real);
    }
}

void ek_moe_take_weights(ek_moe_weights *w, ek_arena *a, const ek_model_spec *spec,
                         const ek_mesh *mesh, int layer)
{
    int64_t shared = spec->dense[layer] ? spec->dense_ff : spec->shared_ff;

    w->layer = layer;
    w->routed = !spec->dense[layer];
    w->shared = shared > 0;
    w->ff = ek_run_length(spec->ff, mesh->etp, mesh->etp_rank);
    w->shared_ff = ek_run_length(shared, mesh->tp, mesh->tp_rank);
    w->shared_gated = w->routed && w->shared && spec->shared_gated;
    ek_placement_take(&w->placement, a, (int32_t)spec->experts, 1, (int32_t)spec->experts);
    if (w->placement.home != NULL)
        ek_placement_block(&w->placement);
}

int32_t ek_moe_first_slot(const ek_moe_weights *w, const ek_mesh *mesh)
{
    return (mesh->edp_rank * mesh->ep + mesh->ep_rank) * w->placement.slots;
}

void ek_moe_take_state(ek_moe *m, ek_arena *a, int64_t max_seq)
{
    int32_t slots = m->w->placement.slots;

    m->cols = ek_moe_cols(m->spec);
    m->up_groups = ek_arena_take(a, slots, sizeof(*m->up_groups));
    m->down_groups = ek_arena_take(a, slots, sizeof(*m->down_groups));
    m->next_row = ek_arena_take(a, slots, sizeof(*m->next_row));
    m->order = ek_arena_take(a, max_seq * m->cols, sizeof(*m->order));
    m->load = ek_arena_take(a, m->spec->experts, sizeof(*m->load));
}

void ek_moe_take_saved(const ek_moe *m, ek_moe_saved *s, ek_arena *a, int64_t max_tokens, int any)
{
    const ek_model_spec *spec = m->spec;
    size_t real = ek_dtype_size(m->k->real), comp = ek_dtype_size(m->k->comp);
    int64_t rows = rows_of(spec, max_tokens), shared = m->w->shared_ff;

    if (any)
        shared = shared_width(spec);
    s->shared_gu = ek_arena_take(a, max_tokens * 2 * shared, comp);
    s->shared_scale = ek_arena_take(a, shared > 0 ? max_tokens : 0, real);
    if (!any && !m->w->routed)
        return;
    s->probs = ek_arena_take(a, max_tokens * spec->experts, real);
    s->lse = ek_arena_take(a, max_tokens, real);
    s->weights = ek_arena_take(a, rows, real);
    s->ids = ek_arena_take(a, rows, sizeof(*s->ids));
    s->row_of = ek_arena_take(a, rows, sizeof(*s->row_of));
    s->token_of = ek_arena_take(a, rows, sizeof(*s->token_of));
    s->row_weight = ek_arena_take(a, rows, real);
    s->offset = ek_arena_take(a, m->w->placement.slots + 1, sizeof(*s->offset));
    s->fraction = ek_arena_take(a, spec->experts, sizeof(*s->fraction));
    s->gu = ek_arena_take(a, rows * 2 * spec->ff, comp);
}

void ek_moe_begin_step(ek_moe *m)
{
    m->aux_loss = m->z_loss = 0;
    m->dropped = 0;
    memset(m->load, 0, (size_t)m->spec->experts * sizeof(*m->load));
}

/* --- typed access to small R arrays --------------------------------------------------------- */

static void scatter_weights(ek_moe *m, const ek_moe_saved *kept, int64_t n)
{
    for (int64_t i = 0; i < n * m->cols; i++) {
        if (kept->row_of[i] < 0)
            continue;
        if (m->k->real == EK_F64)
            ((double *)kept->row_weight)[kept->row_of[i]] = ((double *)kept->weights)[i];
        else
            ((float *)kept->row_weight)[kept->row_of[i]] = ((float *)kept->weights)[i];
    }
}

static void gather_weight_gradients(ek_moe *m, const ek_moe_saved *kept, int64_t n)
{
    const ek_moe_scratch *s = m->scratch;

    for (int64_t i = 0; i < n * m->cols; i++) {
        int32_t row = kept->row_of[i];

        if (m->k->real == EK_F64)
            ((double *)s->dweights)[i] = row >= 0 ? ((double *)s->drow)[row] : 0;
        else
            ((float *)s->dweights)[i] = row >= 0 ? ((float *)s->drow)[row] : 0;
    }
}

/* --- forward --------------------------------------------------------------------------------- */

static const ek_micro *micro_of(const ek_moe *m, const ek_op *op)
{
    return &m->step->micro[op->micro];
}

static ek_status op_route(void *self, const ek_op *op)
{
    ek_moe *m = self;
    ek_moe_saved *kept = ek_moe_saved_of(m, op);
    const ek_micro *mb = micro_of(m, op);
    const ek_kernels *k = m->k;
    const void *y = k->comp == k->real ? kept->y : m->scratch->y_real;
    int64_t d = m->spec->hidden, experts = m->spec->experts;
    double aux_loss = m->aux_loss, z_loss = m->z_loss;
    int64_t dropped = m->dropped;

    k->matmul_real(0, 1, mb->n, experts, d, y, d, m->w->router.p, d, 0, kept->probs, experts);
    if (k->real == EK_F64)
        ek_gate_forward_f64(m, mb, kept);
    else
        ek_gate_forward_f32(m, mb, kept);
    if (op->again) { /* counted before */
        m->aux_loss = aux_loss;
        m->z_loss = z_loss;
        m->dropped = dropped;
        for (int64_t e = 0; e < experts; e++)
            m->load[e] -= kept->fraction[e];
    }
    return EK_OK;
}

/* Points the groups at the rows of each slot, and at the weights of the expert that it holds. */
static void set_groups(ek_moe *m, const ek_moe_saved *kept, int backward)
{
    for (int32_t s = 0; s < m->w->placement.slots; s++) {
        int32_t e = m->w->placement.expert_of[s];
        int64_t row = kept->offset[s], rows = kept->offset[s + 1] - row;

        m->up_groups[s] = (ek_group){row, rows, NULL, NULL};
        m->down_groups[s] = (ek_group){row, rows, NULL, NULL};
        if (e < 0)
            continue;
        m->up_groups[s].w = backward ? m->w->up[e].backward : m->w->up[e].forward;
        m->down_groups[s].w = backward ? m->w->down[e].backward : m->w->down[e].forward;
        m->up_groups[s].dw = m->w->up[e].g;
        m->down_groups[s].dw = m->w->down[e].g;
    }
}

static ek_status op_dispatch(void *self, const ek_op *op)
{
    ek_moe *m = self;
    ek_moe_saved *kept = ek_moe_saved_of(m, op);
    const ek_micro *mb = micro_of(m, op);
    int64_t d = m->spec->hidden;
    int64_t rows = ek_dispatch_rows(&m->w->placement, mb->n, m->cols, kept->ids, kept->row_of,
                                    kept->token_of, kept->offset, m->next_row);

    scatter_weights(m, kept, mb->n);
    set_groups(m, kept, 0);
    m->k->gather_comp(rows, d, kept->token_of, kept->y, d, m->scratch->rows, d);
    return EK_OK;
}

static ek_status op_expert_up(void *self, const ek_op *op)
{
    ek_moe *m = self;
    ek_moe_saved *kept = ek_moe_saved_of(m, op);
    int64_t d = m->spec->hidden, f2 = 2 * m->w->ff;

    return m->k->linear_forward(m->k, m->up_groups, m->w->placement.slots, f2, d, m->scratch->rows,
                                d, kept->gu, f2, EK_OUT_COMP, m->scratch->ws);
}

static ek_status op_swiglu(void *self, const ek_op *op)
{
    ek_moe *m = self;
    ek_moe_saved *kept = ek_moe_saved_of(m, op);

    m->k->swiglu_forward(kept->offset[m->w->placement.slots], m->w->ff, kept->gu, kept->row_weight,
                         m->scratch->hidden);
    return EK_OK;
}

static ek_status op_expert_down(void *self, const ek_op *op)
{
    ek_moe *m = self;
    int64_t d = m->spec->hidden, f = m->w->ff;

    (void)op;
    return m->k->linear_forward(m->k, m->down_groups, m->w->placement.slots, d, f,
                                m->scratch->hidden, f, m->scratch->rows, d, EK_OUT_COMP,
                                m->scratch->ws);
}

static ek_status op_combine(void *self, const ek_op *op)
{
    ek_moe *m = self;
    ek_moe_saved *kept = ek_moe_saved_of(m, op);

    m->k->combine(micro_of(m, op)->n, m->spec->hidden, m->cols, kept->row_of, m->scratch->rows, 1,
                  kept->x);
    return EK_OK;
}

static void sigmoid_rows(const ek_kernels *k, int64_t n, void *x)
{
    if (k->real == EK_F64)
        ek_sigmoid_f64(x, n);
    else
        ek_sigmoid_f32(x, n);
}

/* NULL for a shared expert without a gate. */
static void *shared_scale(const ek_moe *m, const ek_moe_saved *kept)
{
    return m->w->shared_gated ? kept->shared_scale : NULL;
}

static ek_status op_shared(void *self, const ek_op *op)
{
    ek_moe *m = self;
    ek_moe_saved *kept = ek_moe_saved_of(m, op);
    const ek_kernels *k = m->k;
    int64_t n = micro_of(m, op)->n, d = m->spec->hidden, f = m->w->shared_ff;
    const void *y = k->comp == k->real ? kept->y : m->scratch->y_real;
    ek_group *g = &m->shared_group;

    if (m->w->shared_gated) {
        k->matmul_real(0, 1, n, 1, d, y, d, m->w->shared_router.p, d, 0, kept->shared_scale, 1);
        sigmoid_rows(k, n, kept->shared_scale);
    }
    *g = (ek_group){0, n, m->w->shared_up.forward, NULL};
    EK_TRY(k->linear_forward(k, g, 1, 2 * f, d, kept->y, d, kept->shared_gu, 2 * f, EK_OUT_COMP,
                             m->scratch->ws));
    if (op->again)
        return EK_OK;
    k->swiglu_forward(n, f, kept->shared_gu, shared_scale(m, kept), m->scratch->hidden);
    g->w = m->w->shared_down.forward;
    EK_TRY(k->linear_forward(k, g, 1, d, f, m->scratch->hidden, f, kept->x, d, EK_OUT_ADD,
                             m->scratch->ws));
    return EK_OK;
}

/* Appends one op after `dep`. */
static int32_t add(ek_moe *m, ek_graph *g, const char *name, ek_op_fn run, int32_t micro, int again,
                   double flops, double bytes, int32_t dep)
{
    ek_op op = {.name = name,
                .run = run,
                .self = m,
                .lane = EK_LANE_COMPUTE,
                .layer = m->w->layer,
                .micro = micro,
                .part = -1,
                .again = again,
                .flops = flops,
                .bytes = bytes};

    return ek_graph_after(g, &op, dep);
}

/* Sizes that costs are made of, as doubles. */
typedef struct {
    double n, rows, d, f, e, sf, comp, real;
} cost_sizes;

static cost_sizes sizes_of(const ek_moe *m, int64_t tokens)
{
    const ek_model_spec *s = m->spec;
    double per_token =
        s->gate.kind == EK_GATE_EXPERT_CHOICE ? (double)s->top_k : (double)m->step->top_k;

    return (cost_sizes){(double)tokens,
                        (double)tokens * per_token,
                        (double)s->hidden,
                        (double)s->ff,
                        (double)s->experts,
                        (double)m->w->shared_ff,
                        (double)ek_dtype_size(m->k->comp),
                        (double)ek_dtype_size(m->k->real)};
}

static int32_t build_routed_forward(ek_moe *m, ek_graph *g, int32_t micro, const cost_sizes *c,
                                    int again, int32_t dep)
{
    dep = add(m, g, "route", op_route, micro, again, 2 * c->n * c->d * c->e,
              c->n * (c->d + 3 * c->e) * c->real, dep);
    dep = add(m, g, "dispatch", op_dispatch, micro, again, 0, 2 * c->rows * c->d * c->comp, dep);
    dep = add(m, g, "expert up", op_expert_up, micro, again, 4 * c->rows * c->d * c->f,
              (c->rows * (c->d + 2 * c->f) + 2 * c->e * c->d * c->f) * c->comp, dep);
    if (again)
        return dep;
    dep = add(m, g, "swiglu", op_swiglu, micro, again, 0, 3 * c->rows * c->f * c->comp, dep);
    dep = add(m, g, "expert down", op_expert_down, micro, again, 2 * c->rows * c->d * c->f,
              (c->rows * (c->d + c->f) + c->e * c->d * c->f) * c->comp, dep);
    dep = add(m, g, "combine", op_combine, micro, again, 0,
              c->rows * c->d * c->comp + 2 * c->n * c->d * c->real, dep);
    return dep;
}

int32_t ek_moe_build_forward(ek_moe *m, ek_graph *g, int32_t micro, int64_t tokens, int again,
                             int32_t dep)
{
    cost_sizes c = sizes_of(m, tokens);

    if (m->w->routed)
        dep = build_routed_forward(m, g, micro, &c, again, dep);
    if (m->w->shared)
        dep = add(m, g, "shared expert", op_shared, micro, again, 6 * c.n * c.d * c.sf,
                  (c.n * (2 * c.d + 5 * c.sf) + 3 * c.d * c.sf) * c.comp, dep);
    return dep;
}
/* --- backward -------------------------------------------------------------------------------- */

static ek_status op_combine_backward(void *self, const ek_op *op)
{
    ek_moe *m = self;
    ek_moe_saved *kept = ek_moe_saved_of(m, op);
    int64_t d = m->spec->hidden;

    set_groups(m, kept, 1);
    m->k->gather_real(kept->offset[m->w->placement.slots], d, kept->token_of, m->dx, d,
                      m->scratch->rows, d);
    return EK_OK;
}

static ek_status op_down_input(void *self, const ek_op *op)
{
    ek_moe *m = self;
    int64_t d = m->spec->hidden, f = m->w->ff;

    (void)op;
    return m->k->linear_backward_input(m->k, m->down_groups, m->w->placement.slots, d, f,
                                       m->scratch->rows, d, m->scratch->hidden, f, EK_OUT_COMP,
                                       m->scratch->ws);
}

static ek_status op_swiglu_backward(void *self, const ek_op *op)
{
    ek_moe *m = self;
    ek_moe_saved *kept = ek_moe_saved_of(m, op);

    m->k->swiglu_backward(kept->offset[m->w->placement.slots], m->w->ff, kept->gu, kept->row_weight,
                          m->scratch->hidden, kept->gu, m->scratch->hidden, m->scratch->drow);
    return EK_OK;
}

static ek_status op_down_weight(void *self, const ek_op *op)
{
    ek_moe *m = self;
    int64_t d = m->spec->hidden, f = m->w->ff;

    (void)op;
    return m->k->linear_backward_weight(m->k, m->down_groups, m->w->placement.slots, d, f,
                                        m->scratch->rows, d, m->scratch->hidden, f, m->scratch->ws);
}

static ek_status op_up_input(void *self, const ek_op *op)
{
    ek_moe *m = self;
    ek_moe_saved *kept = ek_moe_saved_of(m, op);
    int64_t d = m->spec->hidden, f2 = 2 * m->w->ff;

    return m->k->linear_backward_input(m->k, m->up_groups, m->w->placement.slots, f2, d, kept->gu,
                                       f2, m->scratch->rows, d, EK_OUT_COMP, m->scratch->ws);
}

static ek_status op_up_weight(void *self, const ek_op *op)
{
    ek_moe *m = self;
    ek_moe_saved *kept = ek_moe_saved_of(m, op);
    int64_t d = m->spec->hidden, f2 = 2 * m->w->ff;

    m->k->gather_comp(kept->offset[m->w->placement.slots], d, kept->token_of, kept->y, d,
                      m->scratch->rows2, d);
    return m->k->linear_backward_weight(m->k, m->up_groups, m->w->placement.slots, f2, d, kept->gu,
                                        f2, m->scratch->rows2, d, m->scratch->ws);
}

static ek_status op_dispatch_backward(void *self, const ek_op *op)
{
    ek_moe *m = self;
    ek_moe_saved *kept = ek_moe_saved_of(m, op);

    m->k->combine(micro_of(m, op)->n, m->spec->hidden, m->cols, kept->row_of, m->scratch->rows, 0,
                  m->scratch->dy);
    return EK_OK;
}

static ek_status op_route_backward(void *self, const ek_op *op)
{
    ek_moe *m = self;
    ek_moe_saved *kept = ek_moe_saved_of(m, op);
    const ek_micro *mb = micro_of(m, op);
    const ek_kernels *k = m->k;
    const ek_moe_scratch *s = m->scratch;
    const void *y = k->comp == k->real ? kept->y : s->y_real;
    int64_t d = m->spec->hidden, experts = m->spec->experts;

    gather_weight_gradients(m, kept, mb->n);
    if (k->real == EK_F64)
        ek_gate_backward_f64(m, mb, kept);
    else
        ek_gate_backward_f32(m, mb, kept);
    k->matmul_real(1, 0, experts, d, mb->n, s->dlogits, experts, y, d, 1, m->w->router.g, d);
    k->matmul_real(0, 0, mb->n, d, experts, s->dlogits, experts, m->w->router.p, d, 1, s->dy, d);
    return EK_OK;
}

static ek_status op_shared_backward(void *self, const ek_op *op)
{
    ek_moe *m = self;
    ek_moe_saved *kept = ek_moe_saved_of(m, op);
    const ek_kernels *k = m->k;
    const ek_moe_scratch *s = m->scratch;
    int64_t n = micro_of(m, op)->n, d = m->spec->hidden, f = m->w->shared_ff;
    const void *y = k->comp == k->real ? kept->y : s->y_real;
    ek_group *g = &m->shared_group;

    k->to_comp(n, d, m->dx, s->rows);
    *g = (ek_group){0, n, m->w->shared_down.backward, m->w->shared_down.g};
    EK_TRY(k->linear_backward_input(k, g, 1, d, f, s->rows, d, s->hidden, f, EK_OUT_COMP, s->ws));
    k->swiglu_backward(n, f, kept->shared_gu, shared_scale(m, kept), s->hidden, kept->shared_gu,
                       s->hidden, m->w->shared_gated ? s->drow : NULL);
    EK_TRY(k->linear_backward_weight(k, g, 1, d, f, s->rows, d, s->hidden, f, s->ws));
    *g = (ek_group){0, n, m->w->shared_up.backward, m->w->shared_up.g};
    EK_TRY(k->linear_backward_weight(k, g, 1, 2 * f, d, kept->shared_gu, 2 * f, kept->y, d, s->ws));
    EK_TRY(k->linear_backward_input(k, g, 1, 2 * f, d, kept->shared_gu, 2 * f, s->dy, d,
                                    m->w->routed ? EK_OUT_ADD : EK_OUT_REAL, s->ws));
    if (m->w->shared_gated) {
        if (k->real == EK_F64)
            ek_sigmoid_backward_f64(kept->shared_scale, s->drow, n);
        else
            ek_sigmoid_backward_f32(kept->shared_scale, s->drow, n);
        k->matmul_real(1, 0, 1, d, n, s->drow, 1, y, d, 1, m->w->shared_router.g, d);
        k->matmul_real(0, 0, n, d, 1, s->drow, 1, m->w->shared_router.p, d, 1, s->dy, d);
    }
    return EK_OK;
}

static int32_t build_routed_backward(ek_moe *m, ek_graph *g, int32_t micro, const cost_sizes *c,
                                     int32_t dep)
{
    double down = 2 * c->rows * c->d * c->f, up = 2 * down;

    dep = add(m, g, "combine backward", op_combine_backward, micro, 0, 0,
              c->rows * c->d * (c->real + c->comp), dep);
    dep = add(m, g, "expert down input", op_down_input, micro, 0, down,
              (c->rows * (c->d + c->f) + c->e * c->d * c->f) * c->comp, dep);
    dep = add(m, g, "swiglu backward", op_swiglu_backward, micro, 0, 0,
              6 * c->rows * c->f * c->comp, dep);
    dep = add(m, g, "expert down weight", op_down_weight, micro, 0, down,
              c->rows * (c->d + c->f) * c->comp + 2 * c->e * c->d * c->f * c->real, dep);
    dep = add(m, g, "expert up input", op_up_input, micro, 0, up,
              (c->rows * (c->d + 2 * c->f) + 2 * c->e * c->d * c->f) * c->comp, dep);
    dep = add(m, g, "expert up weight", op_up_weight, micro, 0, up,
              c->rows * (3 * c->d + 2 * c->f) * c->comp + 4 * c->e * c->d * c->f * c->real, dep);
    dep = add(m, g, "dispatch backward", op_dispatch_backward, micro, 0, 0,
              c->rows * c->d * c->comp + c->n * c->d * c->real, dep);
    dep = add(m, g, "route backward", op_route_backward, micro, 0, 4 * c->n * c->d * c->e,
              c->n * (3 * c->d + 3 * c->e) * c->real, dep);
    return dep;
}

int32_t ek_moe_build_backward(ek_moe *m, ek_graph *g, int32_t micro, int64_t tokens, int32_t dep)
{
    cost_sizes c = sizes_of(m, tokens);

    if (m->w->routed)
        dep = build_routed_backward(m, g, micro, &c, dep);
    if (m->w->shared)
        dep =
            add(m, g, "shared expert backward", op_shared_backward, micro, 0, 12 * c.n * c.d * c.sf,
                (c.n * (4 * c.d + 11 * c.sf) + 3 * c.d * c.sf) * c.comp, dep);
    return dep;
}
