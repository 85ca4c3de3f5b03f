/* The op that multiplies rows by experts while a store brings them. */
#include "moe/expert_stream.h"

#include "moe/expert_lookahead.h"
#include "moe/expert_store.h"
#include "moe/replica_weights.h"

/* The running op. */
typedef struct {
    ek_moe *m;
    ek_moe_activations *kept;
    int64_t rows;          /* tokens */
    const int64_t *offset; /* [slots + 1] */
} streamed;

/* Sets the groups of the experts of a wave that are values, or of those that are packed; returns
 * their number.  apart: of some values the gate's rows and the others are in two pieces. */
static int64_t set_groups(const streamed *s, int32_t n, const int32_t *slot,
                          const ek_expert_form *forms, int values, int *apart)
{
    ek_moe *m = s->m;
    int64_t half = m->w->ff * m->spec->hidden, found = 0;

    *apart = 0;
    for (int32_t i = 0; i < n; i++) {
        int64_t first = s->offset[slot[i]], rows = s->offset[slot[i] + 1] - first;

        if ((forms[i].to_rest != NULL) != values)
            continue;
        m->groups.up[found] = (ek_group){.row = first, .rows = rows, .w = forms[i].to_up};
        m->groups.down[found] = (ek_group){.row = first, .rows = rows, .w = forms[i].to_down};
        *apart =
            *apart || (values && forms[i].to_rest != ek_moe_at(m->k->comp, forms[i].to_up, half));
        found++;
    }
    return found;
}

/* The up product of weights as values: all rows, or the gate's and then the others. */
static ek_status multiply_up_values(const streamed *s, int64_t groups, int32_t n,
                                    const ek_expert_form *forms, int apart)
{
    ek_moe *m = s->m;
    const ek_kernels *k = m->k;
    int64_t d = m->spec->hidden, f = m->w->ff, i = 0;
    void *gu = s->kept->gu, *x = m->scratch->rows, *ws = m->scratch->ws;

    EK_TRY(k->linear_forward_values(k, m->groups.up, groups, apart ? f : 2 * f, d, x, d, gu, 2 * f,
                                    EK_OUT_COMP, ws));
    if (!apart)
        return EK_OK;
    for (int32_t e = 0; e < n; e++)
        if (forms[e].to_rest != NULL)
            m->groups.up[i++].w = forms[e].to_rest;
    return k->linear_forward_values(k, m->groups.up, groups, f, d, x, d, ek_moe_at(k->comp, gu, f),
                                    2 * f, EK_OUT_COMP, ws);
}

/* The products of the experts of a wave that are values, or of those that are packed. */
static ek_status run_forms(const streamed *s, int32_t n, const int32_t *slot,
                           const ek_expert_form *forms, int values)
{
    ek_moe *m = s->m;
    const ek_kernels *k = m->k;
    int64_t d = m->spec->hidden, f = m->w->ff, groups;
    void *gu = s->kept->gu, *hidden = m->scratch->hidden;
    int apart;

    groups = set_groups(s, n, slot, forms, values, &apart);
    if (groups == 0)
        return EK_OK;
    if (values)
        EK_TRY(multiply_up_values(s, groups, n, forms, apart));
    else
        EK_TRY(k->linear_forward(k, m->groups.up, groups, 2 * f, d, m->scratch->rows, d, gu, 2 * f,
                                 EK_OUT_COMP, m->scratch->ws));
    for (int64_t i = 0; i < groups; i++) {
        const ek_group *g = &m->groups.up[i];

        k->swiglu_forward(g->rows, f, ek_moe_at(k->comp, gu, 2 * f * g->row),
                          ek_moe_at(k->real, s->kept->row_weight, g->row),
                          ek_moe_at(k->comp, hidden, f * g->row));
    }
    return (values ? k->linear_forward_values : k->linear_forward)(k, m->groups.down, groups, d, f,
                                                                   hidden, f, m->scratch->rows, d,
                                                                   EK_OUT_COMP, m->scratch->ws);
}

static ek_status run_wave(void *context, int32_t n, const int32_t *slot,
                          const ek_expert_form *forms)
{
    const streamed *s = context;

    EK_TRY(run_forms(s, n, slot, forms, 0));
    EK_TRY(run_forms(s, n, slot, forms, 1));
    return ek_kernels_wait(s->m->k); /* slots may be filled anew */
}

static int32_t predict(void *context, const ek_expert_layer *next, int32_t *expert)
{
    const streamed *s = context;

    return ek_expert_lookahead_guess(ek_expert_store_lookahead(s->m->w->store, s->rows), s->rows,
                                     s->kept->x, next, expert);
}

static ek_status op_stream(void *self, const ek_op *op)
{
    ek_moe *m = self;
    int64_t rows = ek_moe_micro(m, op)->n;
    int looks = ek_expert_store_lookahead(m->w->store, rows) != NULL;
    streamed s = {m, ek_moe_activations_of(m, op), rows, NULL};
    ek_expert_wave call = {.w = m->w,
                           .held = ek_moe_experts_held(m, op),
                           .slots = m->x.slots,
                           .run = run_wave,
                           .predict = looks ? predict : NULL,
                           .context = &s};

    call.offset = s.offset = ek_moe_offset(m, s.kept, 0);
    return ek_expert_store_run(m->w->store, &call);
}

int32_t ek_moe_build_streamed_products(const ek_moe_builder *b, int32_t dep)
{
    const ek_moe_cost *c = &b->c;
    ek_product up = {c->rows, c->here, 2 * (int32_t)c->f, (int32_t)c->d, EK_PRODUCT_FORWARD};
    ek_product down = {c->rows, c->here, (int32_t)c->d, (int32_t)c->f, EK_PRODUCT_FORWARD};

    return ek_moe_add(b, EK_OP_STREAM_EXPERTS, op_stream, -1, ek_work_of_products(up, down),
                      (c->rows * (2 * c->d + 3 * c->f) + 3 * c->here * c->d * c->f) * c->comp, dep);
}
