/* The token dispatcher: permute, dispatch all-to-all, products, combine all-to-all, unpermute, and
 * the same backward; over ranks in overlapping chunks, or within one rank.
 *
 * A row is C [d].  On the way to the experts, and with gradients on the way back, an R is sent
 * behind it: its gate weight, or that weight's gradient.  All layers share the buffers:
 *
 *   send    chunk c's rows begin at send_first[c], with a stride of `wide` bytes; rows that return
 *           in forward are contiguous (`thin`), as unpermute reads them.  So the first combine
 *           all-to-all starts after the last dispatch all-to-all
 *   recv    chunk c's region begins at its first row, `wide` bytes a row; the rows received are
 *           unpacked before the rows to return are packed there
 *
 * The all-to-alls run one chunk at a time, in order, so that the first chunk arrives early. */
#include "moe/token_dispatcher.h"

#include "exec/net.h"
#include "moe/experts.h"
#include "moe/replica_prefetch.h"
#include "moe/replica_weights.h"

#include <math.h>
#include <string.h>

/* Sizes of a row. */
typedef struct {
    const ek_kernels *k;
    int64_t d;
    int64_t thin, wide;       /* bytes without and with the R behind */
    int64_t thin_ld, wide_ld; /* the same in elements of C */
} row_format;

static row_format row_format_of(const ek_moe *m)
{
    int64_t comp = (int64_t)ek_dtype_size(m->k->comp), real = (int64_t)ek_dtype_size(m->k->real);
    int64_t d = m->spec->hidden;

    return (row_format){m->k, d, d * comp, d * comp + real, d, d + real / comp};
}

/* Copies the R of row i of one array to row j of another. */
static void copy_real(const row_format *l, char *to, int64_t to_stride, int64_t j, const char *from,
                      int64_t from_stride, int64_t i)
{
    if (l->k->real == EK_F64)
        memcpy(to + j * to_stride, from + i * from_stride, sizeof(double));
    else
        memcpy(to + j * to_stride, from + i * from_stride, sizeof(float));
}

/* --- within one rank -------------------------------------------------------------------------- */

static ek_status op_permute_local(void *self, const ek_op *op)
{
    ek_moe *m = self;
    ek_moe_activations *kept = ek_moe_activations_of(m, op);
    const ek_micro *mb = ek_moe_micro(m, op);
    const ek_sorting by = {m->x.serves + (int64_t)m->mesh->edp_rank * m->x.experts, m->x.experts,
                           m->x.first_slot, m->x.slots};
    int64_t d = m->spec->hidden;
    int64_t rows = m->k->sort_choices(&by, mb->n, m->cols, kept->ids, kept->row_of, kept->token_of,
                                      kept->offset);

    m->k->scatter_numbers(mb->n * m->cols, kept->row_of, kept->weights, kept->row_weight);
    m->k->gather_comp(rows, d, kept->token_of, kept->y, d, m->scratch->rows, d);
    return EK_OK;
}

static ek_status op_unpermute_local(void *self, const ek_op *op)
{
    ek_moe *m = self;
    ek_moe_activations *kept = ek_moe_activations_of(m, op);
    int64_t d = m->spec->hidden;

    m->k->combine(ek_moe_micro(m, op)->n, d, m->cols, kept->row_of, m->scratch->rows, d, 1,
                  kept->x);
    return EK_OK;
}

static int32_t build_local(const ek_moe_builder *b, int32_t dep)
{
    const ek_moe_cost *c = &b->c;

    dep = ek_moe_add_kernels(b, EK_OP_PERMUTE, op_permute_local, -1, ek_work_of_rows(c->rows, c->d),
                             2 * c->rows * c->d * c->comp, dep);
    dep = ek_moe_build_products(b, -1, dep);
    if (b->recompute)
        return dep;
    return ek_moe_add_kernels(b, EK_OP_UNPERMUTE, op_unpermute_local, -1,
                              ek_work_of_rows(c->rows, c->d),
                              c->rows * c->d * c->comp + 2 * c->n * c->d * c->real, dep);
}

static ek_status op_unpermute_local_backward(void *self, const ek_op *op)
{
    ek_moe *m = self;
    ek_moe_activations *kept = ek_moe_activations_of(m, op);
    int64_t d = m->spec->hidden;

    m->k->gather_real(ek_moe_rows(m, kept, 0), d, kept->token_of, m->scratch->dx, d,
                      m->scratch->rows, d);
    return EK_OK;
}

static ek_status op_permute_local_backward(void *self, const ek_op *op)
{
    ek_moe *m = self;
    ek_moe_activations *kept = ek_moe_activations_of(m, op);
    int64_t d = m->spec->hidden;

    m->k->combine(ek_moe_micro(m, op)->n, d, m->cols, kept->row_of, m->scratch->rows, d, 0,
                  m->scratch->dy);
    return EK_OK;
}

static int32_t build_local_backward(const ek_moe_builder *b, int32_t dep)
{
    const ek_moe_cost *c = &b->c;

    dep = ek_moe_add_kernels(b, EK_OP_UNPERMUTE_BACKWARD, op_unpermute_local_backward, -1,
                             ek_work_of_rows(c->rows, c->d), c->rows * c->d * (c->real + c->comp),
                             dep);
    dep = ek_moe_build_products_backward(b, -1, dep);
    return ek_moe_add_kernels(b, EK_OP_PERMUTE_BACKWARD, op_permute_local_backward, -1,
                              ek_work_of_rows(c->rows, c->d),
                              c->rows * c->d * c->comp + c->n * c->d * c->real, dep);
}

/* --- packing ---------------------------------------------------------------------------------- */

/* A chunk's rows in the buffers. */
typedef struct {
    int64_t sent, first_sent; /* rows sent, and the first of them */
    int64_t rows, first;      /* rows computed here, and the first of them */
    char *send, *recv;        /* where they begin */
} region;

static region region_of(const ek_moe *m, const ek_moe_activations *kept, int chunk, int64_t wide)
{
    int64_t sent = kept->send_first[chunk], first = ek_moe_first_row(m, kept, chunk);

    return (region){kept->send_first[chunk + 1] - sent,
                    sent,
                    ek_moe_rows(m, kept, chunk),
                    first,
                    (char *)m->scratch->send + sent * wide,
                    (char *)m->scratch->recv + first * wide};
}

/* Where the rows that return in forward begin. */
static char *returned_rows(const ek_moe *m, const region *r, int64_t thin)
{
    return (char *)m->scratch->send + r->first_sent * thin;
}

/* The range of tokens whose rows are in a chunk: all tokens if chunks are by distance. */
static void tokens_of(const ek_moe *m, int64_t n, int chunk, int64_t *first, int64_t *end)
{
    int tokens = m->x.group > 0 ? 0 : chunk;

    *first = ek_range_first(n, m->x.token_chunks, tokens);
    *end = ek_range_first(n, m->x.token_chunks, tokens + 1);
}

static ek_status op_pack(void *self, const ek_op *op)
{
    ek_moe *m = self;
    ek_moe_activations *kept = ek_moe_activations_of(m, op);
    row_format l = row_format_of(m);
    int chunk = ek_moe_chunk(op);
    region r = region_of(m, kept, chunk, l.wide);
    int64_t t, end, copies = (int64_t)m->cols * m->x.copies;

    l.k->gather_comp(r.sent, l.d, kept->token_of + r.first_sent, kept->y, l.d, r.send, l.wide_ld);
    tokens_of(m, ek_moe_micro(m, op)->n, chunk, &t, &end);
    for (int64_t i = t * copies; i < end * copies; i++) {
        int64_t row = kept->row_of[i] - r.first_sent;

        if (row >= 0 && row < r.sent)
            copy_real(&l, r.send + l.thin, l.wide, row, kept->weights,
                      (int64_t)ek_dtype_size(l.k->real), i / m->x.copies);
    }
    return EK_OK;
}

static ek_status op_unpack(void *self, const ek_op *op)
{
    ek_moe *m = self;
    ek_moe_activations *kept = ek_moe_activations_of(m, op);
    row_format l = row_format_of(m);
    region r = region_of(m, kept, ek_moe_chunk(op), l.wide);
    const int32_t *from = kept->from_recv + r.first;
    char *weight = ek_moe_at(l.k->real, kept->row_weight, r.first);

    l.k->gather_comp(r.rows, l.d, from, r.recv, l.wide_ld,
                     ek_moe_at(l.k->comp, kept->rows, r.first * l.d), l.d);
    for (int64_t i = 0; i < r.rows; i++)
        copy_real(&l, weight, (int64_t)ek_dtype_size(l.k->real), i, r.recv + l.thin, l.wide,
                  from[i]);
    return EK_OK;
}

/* Copies the chunk's results of the products from `rows`, which are R if they are sums over slices,
 * else C, to recv in its order. */
static void gather_sums(const ek_moe *m, const ek_moe_activations *kept, const region *r,
                        const void *rows, char *recv, int64_t ld)
{
    int sums = m->x.members > 1;
    int64_t d = m->spec->hidden;
    const void *from = ek_moe_at(sums ? m->k->real : m->k->comp, rows, r->first * d);

    if (sums)
        m->k->gather_real(r->rows, d, kept->from_experts + r->first, from, d, recv, ld);
    else
        m->k->gather_comp(r->rows, d, kept->from_experts + r->first, from, d, recv, ld);
}

static ek_status op_repack(void *self, const ek_op *op)
{
    ek_moe *m = self;
    ek_moe_activations *kept = ek_moe_activations_of(m, op);
    row_format l = row_format_of(m);
    region r = region_of(m, kept, ek_moe_chunk(op), l.wide);

    gather_sums(m, kept, &r, m->scratch->rows, r.recv, l.thin_ld);
    return EK_OK;
}

static ek_status op_pack_gradient(void *self, const ek_op *op)
{
    ek_moe *m = self;
    ek_moe_activations *kept = ek_moe_activations_of(m, op);
    row_format l = row_format_of(m);
    region r = region_of(m, kept, ek_moe_chunk(op), l.wide);

    l.k->gather_real(r.sent, l.d, kept->token_of + r.first_sent, m->scratch->dx, l.d, r.send,
                     l.thin_ld);
    return EK_OK;
}

static ek_status op_unpack_gradient(void *self, const ek_op *op)
{
    ek_moe *m = self;
    ek_moe_activations *kept = ek_moe_activations_of(m, op);
    row_format l = row_format_of(m);
    region r = region_of(m, kept, ek_moe_chunk(op), l.wide);

    l.k->gather_comp(r.rows, l.d, kept->from_recv + r.first, r.recv, l.thin_ld,
                     ek_moe_at(l.k->comp, m->scratch->rows, r.first * l.d), l.d);
    return EK_OK;
}

static ek_status op_repack_gradient(void *self, const ek_op *op)
{
    ek_moe *m = self;
    ek_moe_activations *kept = ek_moe_activations_of(m, op);
    row_format l = row_format_of(m);
    region r = region_of(m, kept, ek_moe_chunk(op), l.wide);
    const int32_t *from = kept->from_experts + r.first;
    const char *drow = ek_moe_at(l.k->real, m->scratch->drow, r.first);

    gather_sums(m, kept, &r, m->scratch->rows2, r.recv, l.wide_ld);
    for (int64_t i = 0; i < r.rows; i++)
        copy_real(&l, r.recv + l.thin, l.wide, i, drow, (int64_t)ek_dtype_size(l.k->real), from[i]);
    return EK_OK;
}

/* --- the network ------------------------------------------------------------------------------ */

/* All-to-all of a chunk's rows, from sources to servers or `back`; an R is behind each row or not.
 */
static ek_status exchange_chunk(ek_moe *m, const ek_op *op, int back, int with_real)
{
    int chunk = ek_moe_chunk(op);
    row_format l = row_format_of(m);
    region r = region_of(m, ek_moe_activations_of(m, op), chunk, l.wide);
    char *at_source = back && !with_real ? returned_rows(m, &r, l.thin) : r.send;

    if (!ek_net_started(op)) {
        ek_dispatch_matrix(&m->x, ek_moe_route_of(m, op)->row_counts, chunk, back,
                           m->scratch->matrix);
        EK_TRY(ek_comm_all_to_all(m->mesh->stage, ek_moe_a2a(m->cfg, m->step), m->scratch->matrix,
                                  (size_t)(with_real ? l.wide : l.thin), back ? r.recv : at_source,
                                  back ? at_source : r.recv, ek_net_cell(op)));
    }
    return ek_net_test(op);
}

static ek_status op_dispatch_a2a(void *self, const ek_op *op)
{
    return exchange_chunk(self, op, 0, 1);
}

static ek_status op_combine_a2a(void *self, const ek_op *op)
{
    return exchange_chunk(self, op, 1, 0);
}

static ek_status op_combine_a2a_backward(void *self, const ek_op *op)
{
    return exchange_chunk(self, op, 0, 0);
}

static ek_status op_dispatch_a2a_backward(void *self, const ek_op *op)
{
    return exchange_chunk(self, op, 1, 1);
}

/* --- over ranks, forward ---------------------------------------------------------------------- */

/* Adds the returned rows of one token chunk; of all tokens if chunks are by distance, as a token's
 * rows are then in several chunks. */
static ek_status op_unpermute(void *self, const ek_op *op)
{
    ek_moe *m = self;
    ek_moe_activations *kept = ek_moe_activations_of(m, op);
    int64_t d = m->spec->hidden, t, end, copies = (int64_t)m->cols * m->x.copies;

    tokens_of(m, ek_moe_micro(m, op)->n, ek_moe_chunk(op), &t, &end);
    m->k->combine(end - t, d, copies, kept->row_of + t * copies, m->scratch->send, d, 1,
                  ek_moe_at(m->k->real, kept->x, t * d));
    return EK_OK;
}

static ek_status op_permute_backward(void *self, const ek_op *op)
{
    ek_moe *m = self;
    ek_moe_activations *kept = ek_moe_activations_of(m, op);
    row_format l = row_format_of(m);
    int64_t t, end, copies = (int64_t)m->cols * m->x.copies;

    tokens_of(m, ek_moe_micro(m, op)->n, ek_moe_chunk(op), &t, &end);
    l.k->combine(end - t, l.d, copies, kept->row_of + t * copies, m->scratch->send, l.wide_ld, 0,
                 ek_moe_at(l.k->real, m->scratch->dy, t * l.d));
    return EK_OK;
}

/* Rows of a chunk sent to other ranks in an even spread: to the servers of this rank's tokens, or
 * `back` to the sources of the rows that it has computed. */
static double rows_sent(const ek_moe_builder *b, int chunk, int back)
{
    const ek_dispatch_layout *x = &b->m->x;
    int peers = x->ranks / x->ep_groups, first = x->at / peers * peers, others = 0;
    double each = b->c.sent / peers; /* for each server, of which this rank may be one */

    for (int peer = first; peer < first + peers && !x->local; peer++) {
        int source = back ? peer : x->at, server = back ? x->at : peer;

        others +=
            peer != x->at && (x->group == 0 || ek_dispatch_chunk(x, source, server, 0) == chunk);
    }
    if (back && peers > 1)
        each = fmax(b->c.rows - each, 0) / (peers - 1);
    return each * others / x->token_chunks;
}

/* The all-to-all of a chunk, or that back; with_real: an R is behind each row. */
static ek_work work_of_a2a(const ek_moe_builder *b, int chunk, int back, int with_real)
{
    const ek_moe *m = b->m;
    row_format l = row_format_of(m);
    size_t row = (size_t)(with_real ? l.wide : l.thin);
    ek_work w = ek_net_work_of_a2a(m->mesh, EK_MESH_STAGE, ek_moe_a2a(m->cfg, m->step),
                                   rows_sent(b, chunk, back) * (double)row, row);

    w.net.span = m->mesh->ep * m->mesh->etp;
    return w;
}

/* The ops of a chunk in one pass, forward or backward. */
typedef struct {
    ek_op_kind pack_kind, out_kind, back_kind, sum_kind;
    ek_op_fn pack, out, unpack, repack, back, sum;
    int32_t (*products)(const ek_moe_builder *b, int32_t part, int32_t dep);
    int backward;
} chunk_ops;

static const chunk_ops forward = {.pack_kind = EK_OP_PERMUTE,
                                  .out_kind = EK_OP_DISPATCH_A2A,
                                  .back_kind = EK_OP_COMBINE_A2A,
                                  .sum_kind = EK_OP_UNPERMUTE,
                                  .pack = op_pack,
                                  .out = op_dispatch_a2a,
                                  .unpack = op_unpack,
                                  .repack = op_repack,
                                  .back = op_combine_a2a,
                                  .sum = op_unpermute,
                                  .products = ek_moe_build_products};
static const chunk_ops backward = {.pack_kind = EK_OP_UNPERMUTE_BACKWARD,
                                   .out_kind = EK_OP_COMBINE_A2A_BACKWARD,
                                   .back_kind = EK_OP_DISPATCH_A2A_BACKWARD,
                                   .sum_kind = EK_OP_PERMUTE_BACKWARD,
                                   .pack = op_pack_gradient,
                                   .out = op_combine_a2a_backward,
                                   .unpack = op_unpack_gradient,
                                   .repack = op_repack_gradient,
                                   .back = op_dispatch_a2a_backward,
                                   .sum = op_permute_backward,
                                   .products = ek_moe_build_products_backward,
                                   .backward = 1};

/* Appends the prefetch of the next layer's replicas when rows have arrived, or when the products
 * are done: whichever comes first that leaves their memory free. */
static void build_prefetch(const ek_moe_builder *b, const chunk_ops *ops, int have_rows,
                           int32_t dep)
{
    if (!b->recompute && ek_replicas_overlap(b->m) == have_rows)
        ek_moe_build_next_prefetch(b, ops->backward, dep);
}

/* Appends, for all chunks in order, packing and the all-to-all to the servers; then, for each as it
 * arrives, products and the all-to-all back.  fetched: the fetch of replicas.  Returns
 * the last compute op, and sets m->ids.back to the all-to-alls back. */
static int32_t build_chunks(const ek_moe_builder *b, const chunk_ops *ops, ek_replica_fetch fetched,
                            int32_t dep)
{
    const ek_dispatch_layout *x = &b->m->x;
    const ek_moe_cost *c = &b->c;
    double packed = 2 * c->d * c->comp / x->chunks;
    ek_work served = ek_work_of_rows(c->rows / x->chunks, c->d);
    int32_t *out = b->m->ids.out, net = -1, back;

    for (int i = 0; i < x->chunks; i++) {
        dep = ek_moe_add(b, ops->pack_kind, ops->pack, i,
                         ek_work_of_rows(c->sent / x->chunks, c->d), packed * c->sent, dep);
        net = out[i] = ek_moe_add_net(b, ops->out_kind, ops->out, i,
                                      work_of_a2a(b, i, 0, !ops->backward), dep, net);
    }
    build_prefetch(b, ops, 1, net);
    if (ops->backward) /* while rows are under way */
        dep = ek_replicas_build_forms(b, dep);
    back = net;
    for (int i = 0; i < x->chunks; i++) {
        dep = ek_moe_add(b, EK_OP_UNPACK, ops->unpack, i, served, packed * c->rows, out[i]);
        if (i == 0 && fetched.before >= 0)
            dep = ek_moe_add_wait(b, fetched.before, dep);
        if (i == 0 && fetched.after >= 0)
            dep = ek_moe_add_wait(b, fetched.after, dep);
        dep = ops->products(b, i, dep);
        if (b->recompute)
            continue;
        dep = ek_moe_add(b, EK_OP_REPACK, ops->repack, i, served, packed * c->rows, dep);
        b->m->ids.back[i] = back = ek_moe_add_net(b, ops->back_kind, ops->back, i,
                                                  work_of_a2a(b, i, 1, ops->backward), dep, back);
    }
    return dep;
}

/* Appends the sums over the returned rows, token chunk by token chunk. */
static int32_t build_sums(const ek_moe_builder *b, const chunk_ops *ops, int32_t dep)
{
    const ek_dispatch_layout *x = &b->m->x;
    const ek_moe_cost *c = &b->c;
    double bytes = (c->sent * c->d * c->comp + 2 * c->n * c->d * c->real) / x->token_chunks;

    for (int i = 0; i < x->token_chunks; i++)
        dep = ek_moe_add(b, ops->sum_kind, ops->sum, i,
                         ek_work_of_rows(c->sent / x->token_chunks, c->d), bytes,
                         b->m->ids.back[x->group > 0 ? x->chunks - 1 : i]);
    return dep;
}

int32_t ek_moe_build_dispatch(const ek_moe_builder *b, int32_t dep)
{
    if (!ek_moe_is_distributed(b->m))
        return build_local(b, dep);
    dep = build_chunks(b, &forward, ek_replicas_build_fetch(b, 0, dep), dep);
    if (b->recompute)
        return dep;
    dep = ek_moe_build_plan_from_previous(b, dep);
    build_prefetch(b, &forward, 0, dep);
    return build_sums(b, &forward, dep);
}

int32_t ek_moe_build_dispatch_backward(const ek_moe_builder *b, int32_t dep)
{
    if (!ek_moe_is_distributed(b->m))
        return build_local_backward(b, dep);
    dep = build_chunks(b, &backward, ek_replicas_build_fetch(b, 1, dep), dep);
    build_prefetch(b, &backward, 0, dep);
    dep = ek_replicas_build_clear(b, dep);
    for (int i = 0; i < b->m->x.chunks; i++)
        dep = ek_moe_build_weight_gradients(b, i, dep);
    b->m->ids.gradients = dep;
    ek_replicas_build_reduce(b, dep);
    return build_sums(b, &backward, dep);
}

/* --- gradient of the gate weights ------------------------------------------------------------- */

static double real_of(ek_dtype type, const char *p)
{
    double x;
    float y;

    if (type == EK_F64) {
        memcpy(&x, p, sizeof(x));
        return x;
    }
    memcpy(&y, p, sizeof(y));
    return (double)y;
}

void ek_moe_gather_weight_gradients(const ek_moe *m, const ek_moe_activations *kept, int64_t n)
{
    const ek_moe_scratch *s = m->scratch;
    row_format l = row_format_of(m);
    const char *from;
    int64_t stride = l.wide;

    if (!ek_moe_is_distributed(m)) {
        m->k->gather_numbers(n * m->cols, kept->row_of, s->drow, s->dweights);
        return;
    }
    from = (const char *)s->send + l.thin; /* the R behind each returned row */
    for (int64_t i = 0; i < n * m->cols; i++) {
        double sum = 0;

        for (int j = 0; j < m->x.copies; j++) {
            int64_t row = kept->row_of[i * m->x.copies + j];

            sum += row >= 0 ? real_of(l.k->real, from + row * stride) : 0;
        }
        if (l.k->real == EK_F64)
            ((double *)s->dweights)[i] = sum;
        else
            ((float *)s->dweights)[i] = (float)sum;
    }
}
