/* The experts' products on one chunk of rows, forward and backward.
 *
 * Where rows do not travel, scratch->rows holds in turn the input, the output, the gradient of the
 * output and that of the input, and the input is gathered once more for its weights' gradient.
 * Where they do, the input is kept->rows, which is saved, and its gradient goes to scratch->rows2:
 * so the gradients of the weights can wait until all other chunks are on their way. */
#include "moe/replicas.h"

/* Points the groups at the chunk's rows of each slot, and at the weights of its expert. */
static void set_groups(ek_moe *m, const ek_op *op, const ek_moe_saved *kept, int backward)
{
    const int64_t *offset = ek_moe_offset(m, kept, ek_moe_chunk(op));
    const int32_t *held = ek_slots_held(m, op);
    int64_t n = 0;

    for (int32_t s = 0; s < m->x.slots; s++) {
        int64_t rows = offset[s + 1] - offset[s];
        ek_slot_weights w;

        if (!ek_slot_weights_of(m, held, s, backward, &w))
            continue;
        m->up_groups[n] = (ek_group){offset[s], rows, w.up, w.up_grad};
        m->down_groups[n] = (ek_group){offset[s], rows, w.down, w.down_grad};
        n++;
    }
    m->n_groups = n;
}

static void *input_of(const ek_moe *m, const ek_moe_saved *kept)
{
    return ek_moe_travels(m) ? kept->rows : m->scratch->rows;
}

/* What an op works on, with the groups set. */
static ek_moe_saved *enter(ek_moe *m, const ek_op *op, int backward)
{
    ek_moe_saved *kept = ek_moe_saved_of(m, op);

    set_groups(m, op, kept, backward);
    return kept;
}

/* --- forward --------------------------------------------------------------------------------- */

static ek_status op_up(void *self, const ek_op *op)
{
    ek_moe *m = self;
    ek_moe_saved *kept = enter(m, op, 0);
    int64_t d = m->spec->hidden, f2 = 2 * m->w->ff;

    return m->k->linear_forward(m->k, m->up_groups, m->n_groups, f2, d, input_of(m, kept), d,
                                kept->gu, f2, EK_OUT_COMP, m->scratch->ws);
}

static ek_status op_swiglu(void *self, const ek_op *op)
{
    ek_moe *m = self;
    ek_moe_saved *kept = ek_moe_saved_of(m, op);
    const ek_kernels *k = m->k;
    int chunk = ek_moe_chunk(op);
    int64_t first = ek_moe_first_row(m, kept, chunk), f = m->w->ff;

    k->swiglu_forward(ek_moe_rows(m, kept, chunk), f, ek_moe_at(k->comp, kept->gu, first * 2 * f),
                      ek_moe_at(k->real, kept->row_weight, first),
                      ek_moe_at(k->comp, m->scratch->hidden, first * f));
    return EK_OK;
}

static ek_status op_down(void *self, const ek_op *op)
{
    ek_moe *m = self;
    int64_t d = m->spec->hidden, f = m->w->ff;

    enter(m, op, 0);
    return m->k->linear_forward(m->k, m->down_groups, m->n_groups, d, f, m->scratch->hidden, f,
                                m->scratch->rows, d, EK_OUT_COMP, m->scratch->ws);
}

int32_t ek_moe_build_products(const ek_moe_builder *b, int32_t part, int32_t dep)
{
    const ek_moe_cost *c = &b->c;
    double rows = c->rows / b->m->x.chunks;

    dep = ek_moe_add(b, "expert up", op_up, part, 4 * rows * c->d * c->f,
                     (rows * (c->d + 2 * c->f) + 2 * c->here * c->d * c->f) * c->comp, dep);
    if (b->again)
        return dep;
    dep = ek_moe_add(b, "swiglu", op_swiglu, part, 0, 3 * rows * c->f * c->comp, dep);
    return ek_moe_add(b, "expert down", op_down, part, 2 * rows * c->d * c->f,
                      (rows * (c->d + c->f) + c->here * c->d * c->f) * c->comp, dep);
}

/* --- backward -------------------------------------------------------------------------------- */

static ek_status op_down_input(void *self, const ek_op *op)
{
    ek_moe *m = self;
    int64_t d = m->spec->hidden, f = m->w->ff;

    enter(m, op, 1);
    return m->k->linear_backward_input(m->k, m->down_groups, m->n_groups, d, f, m->scratch->rows, d,
                                       m->scratch->hidden, f, EK_OUT_COMP, m->scratch->ws);
}

static ek_status op_swiglu_backward(void *self, const ek_op *op)
{
    ek_moe *m = self;
    ek_moe_saved *kept = ek_moe_saved_of(m, op);
    const ek_kernels *k = m->k;
    int chunk = ek_moe_chunk(op);
    int64_t first = ek_moe_first_row(m, kept, chunk), f = m->w->ff;
    void *gu = ek_moe_at(k->comp, kept->gu, first * 2 * f);
    void *hidden = ek_moe_at(k->comp, m->scratch->hidden, first * f);

    k->swiglu_backward(ek_moe_rows(m, kept, chunk), f, gu,
                       ek_moe_at(k->real, kept->row_weight, first), hidden, gu, hidden,
                       ek_moe_at(k->real, m->scratch->drow, first));
    return EK_OK;
}

static ek_status op_down_weight(void *self, const ek_op *op)
{
    ek_moe *m = self;
    int64_t d = m->spec->hidden, f = m->w->ff;

    enter(m, op, 1);
    return m->k->linear_backward_weight(m->k, m->down_groups, m->n_groups, d, f, m->scratch->rows,
                                        d, m->scratch->hidden, f, m->scratch->ws);
}

static ek_status op_up_input(void *self, const ek_op *op)
{
    ek_moe *m = self;
    ek_moe_saved *kept = enter(m, op, 1);
    int64_t d = m->spec->hidden, f2 = 2 * m->w->ff;
    void *to = ek_moe_travels(m) ? m->scratch->rows2 : m->scratch->rows;

    return m->k->linear_backward_input(m->k, m->up_groups, m->n_groups, f2, d, kept->gu, f2, to, d,
                                       EK_OUT_COMP, m->scratch->ws);
}

static ek_status op_up_weight(void *self, const ek_op *op)
{
    ek_moe *m = self;
    ek_moe_saved *kept = enter(m, op, 1);
    int64_t d = m->spec->hidden, f2 = 2 * m->w->ff;
    void *x = kept->rows;

    if (!ek_moe_travels(m)) {
        x = m->scratch->rows2;
        m->k->gather_comp(ek_moe_rows(m, kept, 0), d, kept->token_of, kept->y, d, x, d);
    }
    return m->k->linear_backward_weight(m->k, m->up_groups, m->n_groups, f2, d, kept->gu, f2, x, d,
                                        m->scratch->ws);
}

static int32_t add_down_weight(const ek_moe_builder *b, int32_t part, int32_t dep)
{
    const ek_moe_cost *c = &b->c;
    double rows = c->rows / b->m->x.chunks;

    return ek_moe_add(b, "expert down weight", op_down_weight, part, 2 * rows * c->d * c->f,
                      rows * (c->d + c->f) * c->comp + 2 * c->here * c->d * c->f * c->real, dep);
}

static int32_t add_up_weight(const ek_moe_builder *b, int32_t part, int32_t dep)
{
    const ek_moe_cost *c = &b->c;
    double rows = c->rows / b->m->x.chunks, gathered = ek_moe_travels(b->m) ? 1 : 3;

    return ek_moe_add(
        b, "expert up weight", op_up_weight, part, 4 * rows * c->d * c->f,
        rows * (gathered * c->d + 2 * c->f) * c->comp + 4 * c->here * c->d * c->f * c->real, dep);
}

int32_t ek_moe_build_products_backward(const ek_moe_builder *b, int32_t part, int32_t dep)
{
    const ek_moe_cost *c = &b->c;
    double rows = c->rows / b->m->x.chunks;

    dep = ek_moe_add(b, "expert down input", op_down_input, part, 2 * rows * c->d * c->f,
                     (rows * (c->d + c->f) + c->here * c->d * c->f) * c->comp, dep);
    dep = ek_moe_add(b, "swiglu backward", op_swiglu_backward, part, 0, 6 * rows * c->f * c->comp,
                     dep);
    if (!ek_moe_travels(b->m)) /* before its rows are overwritten */
        dep = add_down_weight(b, part, dep);
    dep = ek_moe_add(b, "expert up input", op_up_input, part, 4 * rows * c->d * c->f,
                     (rows * (c->d + 2 * c->f) + 2 * c->here * c->d * c->f) * c->comp, dep);
    return ek_moe_travels(b->m) ? dep : add_up_weight(b, part, dep);
}

int32_t ek_moe_build_weight_gradients(const ek_moe_builder *b, int32_t part, int32_t dep)
{
    return add_up_weight(b, part, add_down_weight(b, part, dep));
}
