/* The experts' products on one chunk of rows, forward and backward.
 *
 * Not distributed: scratch->rows holds in turn the input, the output, the gradient of the output
 * and that of the input; the input is gathered again for the gradient of the up weights.
 * Distributed: the input is kept->rows, which is saved, and its gradient goes to scratch->rows2, so
 * that weight gradients can wait until the all-to-alls of all chunks have started.
 *
 * Where shards gather slices (moe/replica_weights.h), products run slice by slice: kept->gu and
 * scratch->hidden hold a chunk's rows of the first slice, then those of the second, ..., and sums
 * over slices are accumulated as R.
 *
 * Where experts come in waves (moe/expert_waves.h), each product of a chunk is appended once for
 * every wave, on the rows of its slots, and once for the slots of replicas, which lie behind those
 * of all waves.  An op's part then stands for both (wave_part). */
#include "moe/experts.h"

#include "moe/expert_stream.h"
#include "moe/expert_waves.h"
#include "moe/replica_weights.h"

/* The slots of an op: [first, end), with the first row of each; those of a wave, those behind the
 * last wave, which hold replicas, or all slots with the rows of a chunk. */
typedef struct {
    const int64_t *offset; /* [slots + 1] */
    int32_t first, end;
} slot_range;

/* The part of an op for a chunk's rows of a wave; wave w->n: those behind all waves, of replicas or
 * of experts of which this rank's shards are empty. */
static int32_t wave_part(const ek_expert_waves *w, int32_t chunk, int32_t wave)
{
    return chunk * (w->n + 1) + wave;
}

static slot_range slots_of(const ek_moe *m, const ek_op *op, const ek_moe_activations *kept)
{
    const ek_expert_waves *w = m->w->waves;
    int32_t wave;

    if (w == NULL)
        return (slot_range){ek_moe_offset(m, kept, ek_moe_chunk(op)), 0, m->x.slots};
    wave = op->part % (w->n + 1);
    return (slot_range){ek_moe_offset(m, kept, op->part / (w->n + 1)), w->first[wave],
                        wave < w->n ? w->first[wave + 1] : m->x.slots};
}

/* Points the groups at the op's rows of each slot, and at a slice of its expert's weights. */
static void set_groups(ek_moe *m, const ek_op *op, const ek_moe_activations *kept, int slice,
                       int backward)
{
    slot_range r = slots_of(m, op, kept);
    const int64_t *offset = r.offset;
    const int32_t *held = ek_moe_experts_held(m, op);
    int64_t n = 0;

    for (int32_t s = r.first; s < r.end; s++) {
        int64_t rows = offset[s + 1] - offset[s];
        ek_slot_weights w;

        if (!ek_slot_weights_of(m, op->micro, held, s, slice, backward, &w))
            continue;
        m->groups.up[n] = (ek_group){offset[s], rows, w.up, w.up_grad};
        m->groups.down[n] = (ek_group){offset[s], rows, w.down, w.down_grad};
        n++;
    }
    m->groups.n = n;
}

static void *input_of(const ek_moe *m, const ek_moe_activations *kept)
{
    return ek_moe_is_distributed(m) ? kept->rows : m->scratch->rows;
}

/* A slice of the experts' width, for an op's rows. */
typedef struct {
    int64_t first, rows; /* of the op */
    int64_t f;           /* width of the slice */
    void *gu, *hidden;   /* C [rows, 2 f], C [rows, f] */
    void *gu_of_row_0,
        *hidden_of_row_0; /* bases for row numbers that count from row 0, not first */
} slice;

static slice slice_of(const ek_moe *m, const ek_op *op, const ek_moe_activations *kept, int i)
{
    slot_range r = slots_of(m, op, kept);
    int64_t first = r.offset[r.first], rows = r.offset[r.end] - first;
    int64_t f = ek_slice_width(m, i);
    int64_t at = first * ek_slice_first(m, m->x.members) + rows * ek_slice_first(m, i);
    ek_dtype comp = m->k->comp;

    return (slice){.first = first,
                   .rows = rows,
                   .f = f,
                   .gu = ek_moe_at(comp, kept->gu, 2 * at),
                   .hidden = ek_moe_at(comp, m->scratch->hidden, at),
                   .gu_of_row_0 = ek_moe_at(comp, kept->gu, 2 * (at - first * f)),
                   .hidden_of_row_0 = ek_moe_at(comp, m->scratch->hidden, at - first * f)};
}

/* Output mode of slice i's product: the first slice sets the sum over slices, the others add. */
static ek_out output_mode(const ek_moe *m, int i)
{
    if (m->x.members == 1)
        return EK_OUT_COMP;
    return i == 0 ? EK_OUT_REAL : EK_OUT_ADD;
}

/* --- forward ---------------------------------------------------------------------------------- */

static ek_status op_up(void *self, const ek_op *op)
{
    ek_moe *m = self;
    ek_moe_activations *kept = ek_moe_activations_of(m, op);
    int64_t d = m->spec->hidden;

    for (int i = 0; i < m->x.members; i++) {
        slice s = slice_of(m, op, kept, i);

        set_groups(m, op, kept, i, 0);
        EK_TRY(m->k->linear_forward(m->k, m->groups.up, m->groups.n, 2 * s.f, d, input_of(m, kept),
                                    d, s.gu_of_row_0, 2 * s.f, EK_OUT_COMP, m->scratch->ws));
    }
    return EK_OK;
}

static ek_status op_swiglu(void *self, const ek_op *op)
{
    ek_moe *m = self;
    ek_moe_activations *kept = ek_moe_activations_of(m, op);

    for (int i = 0; i < m->x.members; i++) {
        slice s = slice_of(m, op, kept, i);

        m->k->swiglu_forward(s.rows, s.f, s.gu, ek_moe_at(m->k->real, kept->row_weight, s.first),
                             s.hidden);
    }
    return EK_OK;
}

static ek_status op_down(void *self, const ek_op *op)
{
    ek_moe *m = self;
    ek_moe_activations *kept = ek_moe_activations_of(m, op);
    int64_t d = m->spec->hidden;

    for (int i = 0; i < m->x.members; i++) {
        slice s = slice_of(m, op, kept, i);

        set_groups(m, op, kept, i, 0);
        EK_TRY(m->k->linear_forward(m->k, m->groups.down, m->groups.n, d, s.f, s.hidden_of_row_0,
                                    s.f, m->scratch->rows, d, output_mode(m, i), m->scratch->ws));
    }
    return EK_OK;
}

/* Rows and experts of an op in an even spread. */
typedef struct {
    double rows, experts;
} op_share;

static op_share share_of(const ek_moe_builder *b)
{
    const ek_expert_waves *w = b->m->w->waves;
    int32_t parts;

    if (w == NULL)
        return (op_share){b->c.rows / b->m->x.chunks, b->c.here};
    parts = (w->n > 0 ? w->n + ek_replicas_in_waves(b->m) : 1) * b->m->x.chunks;
    return (op_share){b->c.rows / parts, b->c.here / parts * b->m->x.chunks};
}

/* Appends the products of a chunk's rows, of all slots or of a wave. */
typedef int32_t (*add_products)(const ek_moe_builder *b, int32_t part, int32_t dep);

static int64_t rows_of_slots(const void *owner, int32_t micro, int32_t chunk, int32_t first,
                             int32_t end)
{
    const ek_moe *m = owner;
    const ek_op op = {.micro = micro};
    int64_t rows = chunk <= 0 ? ek_replicas_of_slots(m, &op, first, end) : 0;
    int32_t from = chunk < 0 ? 0 : chunk, to = chunk < 0 ? m->x.chunks : chunk + 1;

    for (int32_t c = from; c < to; c++) {
        const int64_t *offset = ek_moe_offset(m, ek_moe_activations_of(m, &op), c);

        rows += offset[end] - offset[first];
    }
    return rows;
}

/* Appends the products of a wave with a chunk's rows, or with those of all chunks (-1) in turn. */
static int32_t add_rows(const ek_moe_builder *b, add_products add, int32_t chunk, int32_t wave,
                        int32_t dep)
{
    const ek_expert_waves *w = b->m->w->waves;

    if (chunk >= 0)
        return add(b, wave_part(w, chunk, wave), dep);
    for (int32_t c = 0; c < b->m->x.chunks; c++)
        dep = add(b, wave_part(w, c, wave), dep);
    return dep;
}

/* Appends the products of the wave at a place in the order of a pass, and what replicas of its
 * experts on other ranks need, or have for it.  *sent: the op of the latter; -1: none. */
static int32_t add_wave(const ek_moe_builder *b, add_products add, ek_wave_use use, int32_t chunk,
                        int32_t place, int32_t *sent, int32_t dep)
{
    const ek_expert_waves *w = b->m->w->waves;
    int32_t wave = ek_wave_at(use, chunk, place, w->most);
    ek_wave_call call = {.g = b->g,
                         .layer = b->m->w->layer,
                         .micro = b->micro,
                         .chunk = chunk,
                         .use = use,
                         .wave = wave,
                         .rows = rows_of_slots,
                         .owner = b->m};
    int has = wave < w->n, sends = chunk <= 0 && ek_replicas_in_waves(b->m);
    int32_t before = dep;

    *sent = -1;
    if (has)
        dep = w->begin(w->context, &call, dep);
    if (sends && use != EK_WAVE_WEIGHT_GRADIENT)
        *sent = ek_replicas_build_wave(b, use, place, before, dep);
    if (has)
        dep = add_rows(b, add, chunk, wave, dep);
    if (sends && use == EK_WAVE_WEIGHT_GRADIENT && w->gradients) {
        *sent = ek_replicas_build_wave(b, use, place, -1, dep);
        dep = ek_moe_add_wait(b, *sent, dep); /* gradients are written when they are complete */
    }
    return has ? w->end(w->context, &call, dep, *sent) : dep;
}

/* Appends the products of all waves with a chunk's rows; -1: with all rows.  Backward takes waves
 * in the opposite order, so that it begins with experts that forward has left in memory.  Rows
 * behind the waves are those of replicas, when all their weights have been sent, and before the
 * first wave that their gradients are reduced in; or those of experts of which this rank's shards
 * are empty. */
static int32_t add_waves(const ek_moe_builder *b, add_products add, ek_wave_use use, int32_t chunk,
                         int32_t dep)
{
    const ek_expert_waves *w = b->m->w->waves;
    int32_t *sent = b->m->ids.sent;
    int behind = ek_replicas_in_waves(b->m) || w->n == 0;

    if (behind && use == EK_WAVE_WEIGHT_GRADIENT)
        dep = add_rows(b, add, chunk, w->n, dep);
    for (int32_t i = 0; i < w->most; i++)
        dep = add_wave(b, add, use, chunk, i, &sent[i], dep);
    if (!behind)
        return dep;
    for (int32_t i = 0; i < w->most; i++)
        if (sent[i] >= 0)
            dep = ek_moe_add_wait(b, sent[i], dep);
    return use == EK_WAVE_WEIGHT_GRADIENT ? dep : add_rows(b, add, chunk, w->n, dep);
}

/* The chunk of a part that ek_moe_build_* are called with: layers that are not distributed have
 * one. */
static int32_t chunk_of_part(int32_t part)
{
    return part > 0 ? part : 0;
}

/* The products of an op's rows: with the gate and up matrices of its experts, or the down ones. */
static ek_work up_work(const ek_moe_builder *b, const op_share *n, int32_t pass)
{
    return ek_work_of_product(
        (ek_product){n->rows, n->experts, 2 * (int32_t)b->c.f, (int32_t)b->c.d, pass});
}

static ek_work down_work(const ek_moe_builder *b, const op_share *n, int32_t pass)
{
    return ek_work_of_product(
        (ek_product){n->rows, n->experts, (int32_t)b->c.d, (int32_t)b->c.f, pass});
}

/* An op whose time counts as that of expert products. */
static int32_t add_product(const ek_moe_builder *b, ek_op_kind kind, ek_op_fn run, int32_t part,
                           ek_work work, double bytes, int32_t dep)
{
    int32_t id = ek_moe_add_kernels(b, kind, run, part, work, bytes, dep);

    if (id >= 0)
        b->g->ops[id].busy_ns = &b->m->stats.product_ns;
    return id;
}

static int32_t add_forward(const ek_moe_builder *b, int32_t part, int32_t dep)
{
    const ek_moe_cost *c = &b->c;
    op_share n = share_of(b);

    dep = add_product(b, EK_OP_EXPERT_UP, op_up, part, up_work(b, &n, EK_PRODUCT_FORWARD),
                      (n.rows * (c->d + 2 * c->f) + 2 * n.experts * c->d * c->f) * c->comp, dep);
    if (b->recompute)
        return dep;
    dep = add_product(b, EK_OP_SWIGLU, op_swiglu, part, ek_work_of_rows(n.rows, c->f),
                      3 * n.rows * c->f * c->comp, dep);
    return add_product(b, EK_OP_EXPERT_DOWN, op_down, part, down_work(b, &n, EK_PRODUCT_FORWARD),
                       (n.rows * (c->d + c->f) + n.experts * c->d * c->f) * c->comp, dep);
}

int32_t ek_moe_build_products(const ek_moe_builder *b, int32_t part, int32_t dep)
{
    if (b->m->w->store != NULL)
        return ek_moe_build_streamed_products(b, dep);
    if (b->m->w->waves != NULL)
        return add_waves(b, add_forward, EK_WAVE_FORWARD, chunk_of_part(part), dep);
    return add_forward(b, part, dep);
}

/* --- backward --------------------------------------------------------------------------------- */

static ek_status op_down_input(void *self, const ek_op *op)
{
    ek_moe *m = self;
    ek_moe_activations *kept = ek_moe_activations_of(m, op);
    int64_t d = m->spec->hidden;

    for (int i = 0; i < m->x.members; i++) {
        slice s = slice_of(m, op, kept, i);

        set_groups(m, op, kept, i, 1);
        EK_TRY(m->k->linear_backward_input(m->k, m->groups.down, m->groups.n, d, s.f,
                                           m->scratch->rows, d, s.hidden_of_row_0, s.f, EK_OUT_COMP,
                                           m->scratch->ws));
    }
    return EK_OK;
}

/* a += b, R [n]. */
static void add_real(ek_dtype real, void *a, const void *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (real == EK_F64)
            ((double *)a)[i] += ((const double *)b)[i];
        else
            ((float *)a)[i] += ((const float *)b)[i];
}

static ek_status op_swiglu_backward(void *self, const ek_op *op)
{
    ek_moe *m = self;
    ek_moe_activations *kept = ek_moe_activations_of(m, op);
    const ek_kernels *k = m->k;

    for (int i = 0; i < m->x.members; i++) {
        slice s = slice_of(m, op, kept, i);
        void *drow = ek_moe_at(k->real, m->scratch->drow, s.first);
        void *part = i == 0 ? drow : ek_moe_at(k->real, m->scratch->drow_add, s.first);

        k->swiglu_backward(s.rows, s.f, s.gu, ek_moe_at(k->real, kept->row_weight, s.first),
                           s.hidden, s.gu, s.hidden, part);
        if (i > 0)
            add_real(k->real, drow, part, s.rows);
    }
    return EK_OK;
}

static ek_status op_down_weight(void *self, const ek_op *op)
{
    ek_moe *m = self;
    ek_moe_activations *kept = ek_moe_activations_of(m, op);
    int64_t d = m->spec->hidden;

    for (int i = 0; i < m->x.members; i++) {
        slice s = slice_of(m, op, kept, i);

        set_groups(m, op, kept, i, 1);
        EK_TRY(m->k->linear_backward_weight(m->k, m->groups.down, m->groups.n, d, s.f,
                                            m->scratch->rows, d, s.hidden_of_row_0, s.f,
                                            m->scratch->ws));
    }
    return EK_OK;
}

static ek_status op_up_input(void *self, const ek_op *op)
{
    ek_moe *m = self;
    ek_moe_activations *kept = ek_moe_activations_of(m, op);
    int64_t d = m->spec->hidden;
    void *to = ek_moe_is_distributed(m) ? m->scratch->rows2 : m->scratch->rows;

    for (int i = 0; i < m->x.members; i++) {
        slice s = slice_of(m, op, kept, i);

        set_groups(m, op, kept, i, 1);
        EK_TRY(m->k->linear_backward_input(m->k, m->groups.up, m->groups.n, 2 * s.f, d,
                                           s.gu_of_row_0, 2 * s.f, to, d, output_mode(m, i),
                                           m->scratch->ws));
    }
    return EK_OK;
}

static ek_status op_up_weight(void *self, const ek_op *op)
{
    ek_moe *m = self;
    ek_moe_activations *kept = ek_moe_activations_of(m, op);
    int64_t d = m->spec->hidden;
    void *x = kept->rows;

    if (!ek_moe_is_distributed(m)) {
        slot_range r = slots_of(m, op, kept);
        int64_t first = r.offset[r.first];

        x = m->scratch->rows2;
        m->k->gather_comp(r.offset[r.end] - first, d, kept->token_of + first, kept->y, d,
                          ek_moe_at(m->k->comp, x, first * d), d);
    }
    for (int i = 0; i < m->x.members; i++) {
        slice s = slice_of(m, op, kept, i);

        set_groups(m, op, kept, i, 1);
        EK_TRY(m->k->linear_backward_weight(m->k, m->groups.up, m->groups.n, 2 * s.f, d,
                                            s.gu_of_row_0, 2 * s.f, x, d, m->scratch->ws));
    }
    return EK_OK;
}

static int32_t add_down_weight(const ek_moe_builder *b, int32_t part, int32_t dep)
{
    const ek_moe_cost *c = &b->c;
    op_share n = share_of(b);

    return add_product(
        b, EK_OP_EXPERT_DOWN_WEIGHT, op_down_weight, part, down_work(b, &n, EK_PRODUCT_WEIGHT),
        n.rows * (c->d + c->f) * c->comp + 2 * n.experts * c->d * c->f * c->real, dep);
}

static int32_t add_up_weight(const ek_moe_builder *b, int32_t part, int32_t dep)
{
    const ek_moe_cost *c = &b->c;
    double gathered = ek_moe_is_distributed(b->m) ? 1 : 3;
    op_share n = share_of(b);

    return add_product(
        b, EK_OP_EXPERT_UP_WEIGHT, op_up_weight, part, up_work(b, &n, EK_PRODUCT_WEIGHT),
        n.rows * (gathered * c->d + 2 * c->f) * c->comp + 4 * n.experts * c->d * c->f * c->real,
        dep);
}

static int32_t add_weights(const ek_moe_builder *b, int32_t part, int32_t dep)
{
    return add_up_weight(b, part, add_down_weight(b, part, dep));
}

static int32_t add_backward(const ek_moe_builder *b, int32_t part, int32_t dep)
{
    const ek_moe_cost *c = &b->c;
    op_share n = share_of(b);

    dep = add_product(b, EK_OP_EXPERT_DOWN_INPUT, op_down_input, part,
                      down_work(b, &n, EK_PRODUCT_INPUT),
                      (n.rows * (c->d + c->f) + n.experts * c->d * c->f) * c->comp, dep);
    dep = add_product(b, EK_OP_SWIGLU_BACKWARD, op_swiglu_backward, part,
                      ek_work_of_rows(n.rows, c->f), 6 * n.rows * c->f * c->comp, dep);
    if (!ek_moe_is_distributed(b->m)) /* before expert up input overwrites scratch->rows */
        dep = add_down_weight(b, part, dep);
    dep = add_product(b, EK_OP_EXPERT_UP_INPUT, op_up_input, part, up_work(b, &n, EK_PRODUCT_INPUT),
                      (n.rows * (c->d + 2 * c->f) + 2 * n.experts * c->d * c->f) * c->comp, dep);
    return ek_moe_is_distributed(b->m) ? dep : add_up_weight(b, part, dep);
}

int32_t ek_moe_build_products_backward(const ek_moe_builder *b, int32_t part, int32_t dep)
{
    if (b->m->w->waves != NULL)
        return add_waves(b, add_backward, EK_WAVE_BACKWARD, chunk_of_part(part), dep);
    return add_backward(b, part, dep);
}

int32_t ek_moe_build_weight_gradients(const ek_moe_builder *b, int32_t part, int32_t dep)
{
    if (b->m->w->waves == NULL)
        return add_weights(b, part, dep);
    return part == 0 ? add_waves(b, add_weights, EK_WAVE_WEIGHT_GRADIENT, -1, dep) : dep;
}
