/* all_reduce, reduce_scatter and all_gather: over a ring for long vectors, which sends each byte
 * over each link once, and directly between all ranks for short ones, which takes the fewest steps;
 * multireduce over a chain of the ranks of a list.
 *
 * Each sum is computed on one rank, or on every rank in the same order, so all ranks get the same
 * bits: on the ring in the order in which a chunk passes the ranks, directly in the order of ranks,
 * and on the chain from the end of the list. */
#include "base/ranks.h"
#include "comm/coll.h"

#include <string.h>

#define REDUCE_LOOP(type, expr)                                                                    \
    do {                                                                                           \
        type *restrict a = into;                                                                   \
        const type *restrict b = from;                                                             \
        int64_t n = bytes / (int64_t)sizeof(type);                                                 \
        for (int64_t i = 0; i < n; i++)                                                            \
            a[i] = (expr);                                                                         \
    } while (0)

void ek_coll_reduce(const ek_coll *op, void *into, const void *from, int64_t bytes)
{
    if (op->comm->world->backend->no_data)
        return;
    switch (op->how) {
    case EK_SUM_F32: REDUCE_LOOP(float, a[i] + b[i]); break;
    case EK_SUM_F64: REDUCE_LOOP(double, a[i] + b[i]); break;
    case EK_SUM_I64: REDUCE_LOOP(int64_t, a[i] + b[i]); break;
    /* a NaN in either operand gives NaN */
    case EK_MAX_F64: REDUCE_LOOP(double, a[i] < b[i] || b[i] != b[i] ? b[i] : a[i]); break;
    case EK_MAX_I64: REDUCE_LOOP(int64_t, a[i] < b[i] ? b[i] : a[i]); break;
    }
}

static int64_t size_of(ek_reduce how)
{
    return how == EK_SUM_F32 ? 4 : 8;
}

static int64_t range_bytes(const ek_coll *op, int rank)
{
    return (op->kept.table[rank + 1] - op->kept.table[rank]) * op->size;
}

static unsigned char *range_at(const ek_coll *op, int rank)
{
    return op->buf + op->kept.table[rank] * op->size;
}

/* --- directly --------------------------------------------------------------------------------- */

/* Receives op->bytes from every other rank, from rank r at `to` + r * stride. */
static ek_status recv_from_all(ek_coll *op, unsigned char *to, int64_t stride)
{
    const ek_comm *c = op->comm;

    for (int i = 1; i < c->size && op->bytes > 0; i++) {
        int from = (c->rank + c->size - i) % c->size;

        EK_TRY(ek_coll_recv(op, to + from * stride, op->bytes, from));
    }
    return EK_OK;
}

/* Sends the whole vector from every rank to every other. */
static ek_status post_all_reduce(ek_coll *op)
{
    const ek_comm *c = op->comm;

    if (op->bytes == 0)
        return EK_OK;
    EK_TRY(recv_from_all(op, op->kept.scratch, op->bytes));
    for (int i = 1; i < c->size; i++)
        EK_TRY(ek_coll_send(op, op->buf, op->bytes, (c->rank + i) % c->size));
    return EK_OK;
}

/* Sends range d from every rank to rank d. */
static ek_status post_reduce_scatter(ek_coll *op)
{
    const ek_comm *c = op->comm;

    EK_TRY(recv_from_all(op, op->kept.scratch, op->bytes));
    for (int i = 1; i < c->size; i++) {
        int to = (c->rank + i) % c->size;

        if (range_bytes(op, to) > 0)
            EK_TRY(ek_coll_send(op, range_at(op, to), range_bytes(op, to), to));
    }
    return EK_OK;
}

/* mine [bytes] := the sum of all ranks' vectors, scratch [size][bytes]. */
static void sum_vectors(ek_coll *op, unsigned char *mine)
{
    if (op->bytes == 0)
        return;
    ek_coll_copy(op, op->kept.scratch + op->comm->rank * op->bytes, mine, op->bytes);
    for (int r = 1; r < op->comm->size; r++)
        ek_coll_reduce(op, op->kept.scratch, op->kept.scratch + r * op->bytes, op->bytes);
    ek_coll_copy(op, mine, op->kept.scratch, op->bytes);
}

static ek_status step_all_reduce(ek_coll *op, int *done)
{
    EK_TRY(ek_coll_step_wait_transfers(op, done));
    if (*done)
        sum_vectors(op, op->buf);
    return EK_OK;
}

static ek_status step_reduce_scatter(ek_coll *op, int *done)
{
    EK_TRY(ek_coll_step_wait_transfers(op, done));
    if (*done)
        sum_vectors(op, range_at(op, op->comm->rank));
    return EK_OK;
}

static ek_status post_all_gather(ek_coll *op)
{
    const ek_comm *c = op->comm;

    for (int i = 1; i < c->size; i++) {
        int from = (c->rank + c->size - i) % c->size;

        if (range_bytes(op, from) > 0)
            EK_TRY(ek_coll_recv(op, range_at(op, from), range_bytes(op, from), from));
    }
    for (int i = 1; i < c->size && op->bytes > 0; i++)
        EK_TRY(ek_coll_send(op, range_at(op, c->rank), op->bytes, (c->rank + i) % c->size));
    return EK_OK;
}

/* all_reduce in two phases: reduce_scatter, then all_gather. */
static ek_status step_two_phases(ek_coll *op, int *done)
{
    if (op->phase == 0) {
        EK_TRY(step_reduce_scatter(op, done));
        if (!*done)
            return EK_OK;
        op->phase = 1;
        EK_TRY(post_all_gather(op));
    }
    EK_TRY(ek_coll_step_wait_transfers(op, done));
    return EK_OK;
}

/* --- around the ring -------------------------------------------------------------------------- */

static int ring_transfers(const ek_comm *c)
{
    return ek_stream_transfers(1, ek_stream_sends(ek_coll_segment(c, NULL, c->size)));
}

/* Sets up the stream over the ring: chunk start - u at step u, the first one the rank's own.  The
 * first `reduced` chunks received are added, the next `replaced` ones replace the buffer's. */
static void setup_ring(ek_coll *op, int start, int reduced, int replaced)
{
    const ek_comm *c = op->comm;
    ek_stream *s = &op->stream;

    s->segment = ek_coll_segment(c, NULL, c->size);
    s->sends = ek_stream_sends(s->segment);
    s->chunks = c->size;
    s->start = start % c->size;
    s->in_first = 1;
    s->reduce_end = 1 + reduced;
    s->in_end = 1 + reduced + replaced;
    s->out_end = reduced + replaced;
    s->n_out = 1;
    s->in.peer = (c->rank + c->size - 1) % c->size;
    s->out[0].peer = (c->rank + 1) % c->size;
    op->post = ek_stream_post;
    op->step = ek_stream_step;
}

/* --- along a chain ---------------------------------------------------------------------------- */

/* Sets up the stream from the last rank of the list to the first: received segments are added to
 * buf and forwarded.
 *
 * Short vectors use the chain, too.  A tree has fewer hops (3 instead of 7 for 8 ranks) but another
 * order of additions; as the limit of "short" depends on the back end, so would the bits. */
static void setup_chain(ek_coll *op, const int *ranks, int n, int at)
{
    ek_stream *s = &op->stream;
    bool last = at + 1 == n;

    s->chunks = 1;
    s->start = 0;
    s->in_first = last ? 1 : 0; /* the last rank starts with its own chunk */
    s->reduce_end = s->in_end = s->out_end = 1;
    s->n_out = at > 0 ? 1 : 0;
    s->in.peer = ranks[last ? at : at + 1];
    s->out[0].peer = ranks[at > 0 ? at - 1 : at];
    op->post = ek_stream_post;
    op->step = ek_stream_step;
}

/* --- the calls -------------------------------------------------------------------------------- */

/* Bytes of the longest segment of any range. */
static int64_t longest_segment(const ek_comm *c, const int64_t *first, int64_t size)
{
    int64_t most = 0, segment = ek_coll_segment(c, NULL, c->size);

    for (int r = 0; r < c->size; r++)
        if (first[r + 1] - first[r] > most)
            most = first[r + 1] - first[r];
    return most < segment / size ? most * size : segment;
}

static ek_status check_ranges(const ek_comm *c, const char *name, const int64_t *first)
{
    EK_REQUIRE(first[0] == 0, EK_EINVAL, "%s on %s: the first range starts at %lld, not at 0", name,
               c->name, (long long)first[0]);
    for (int r = 0; r < c->size; r++)
        EK_REQUIRE(first[r] <= first[r + 1], EK_EINVAL,
                   "%s on %s: the range of rank %d is [%lld, %lld)", name, c->name, r,
                   (long long)first[r], (long long)first[r + 1]);
    return EK_OK;
}

ek_status ek_comm_all_reduce_at(ek_comm *c, void *buf, int64_t n, ek_reduce how, ek_coll **op,
                                const char *site)
{
    static const char name[] = "all_reduce";
    int64_t size = size_of(how), bytes, part, messages, segment, slot;
    int whole, direct;
    ek_coll *o;

    EK_REQUIRE(n >= 0 && n <= INT64_MAX / size, EK_EINVAL, "%s on %s: %lld elements", name, c->name,
               (long long)n);
    bytes = n * size;
    part = ek_range_length(n, c->size, 0) * size; /* the longest range */
    whole = bytes <= EK_COLL_WHOLE_MAX && c->size * bytes <= EK_COLL_DIRECT_MAX;
    direct = bytes <= EK_COLL_DIRECT_MAX;
    segment = ek_coll_segment(c, NULL, c->size);
    slot = part < segment ? part : segment;
    messages = direct ? 4 * c->size * ek_coll_n_transfers(c, bytes) : ring_transfers(c);
    EK_TRY(ek_coll_begin(c, name, site, -1, messages, c->size + 1,
                         whole    ? c->size * bytes
                         : direct ? c->size * part
                                  : WINDOW * slot,
                         &o));
    for (int r = 0; r <= c->size; r++)
        o->kept.table[r] = ek_range_first(n, c->size, r);
    o->bytes = whole ? bytes : (o->kept.table[c->rank + 1] - o->kept.table[c->rank]) * size;
    o->stream.slot = slot;
    if (direct) {
        o->post = whole ? post_all_reduce : post_reduce_scatter;
        o->step = whole ? step_all_reduce : step_two_phases;
    } else {
        setup_ring(o, c->rank + c->size - 1, c->size - 1, c->size - 1);
    }
    o->buf = buf;
    o->size = size;
    o->amount = n;
    o->how = how;
    EK_TRY(ek_coll_launch(o, op));
    return EK_OK;
}

ek_status ek_comm_reduce_scatter_at(ek_comm *c, void *buf, const int64_t *first, ek_reduce how,
                                    ek_coll **op, const char *site)
{
    static const char name[] = "reduce_scatter";
    int64_t size = size_of(how), bytes;
    ek_coll *o;

    EK_TRY(check_ranges(c, name, first));
    bytes = (first[c->rank + 1] - first[c->rank]) * size;
    if (first[c->size] * size <= EK_COLL_DIRECT_MAX) {
        int64_t messages = 2 * c->size * ek_coll_n_transfers(c, first[c->size] * size);

        EK_TRY(ek_coll_begin(c, name, site, -1, messages, c->size + 1, c->size * bytes, &o));
        o->post = post_reduce_scatter;
        o->step = step_reduce_scatter;
    } else {
        int64_t slot = longest_segment(c, first, size);

        EK_TRY(ek_coll_begin(c, name, site, -1, ring_transfers(c), c->size + 1, WINDOW * slot, &o));
        o->stream.slot = slot;
        setup_ring(o, c->rank + c->size - 1, c->size - 1, 0);
    }
    memcpy(o->kept.table, first, (size_t)(c->size + 1) * sizeof(*first));
    o->amount = first[c->size];
    o->buf = buf;
    o->bytes = bytes;
    o->size = size;
    o->how = how;
    EK_TRY(ek_coll_launch(o, op));
    return EK_OK;
}

ek_status ek_comm_all_gather_at(ek_comm *c, void *buf, const int64_t *first, size_t size,
                                ek_coll **op, const char *site)
{
    static const char name[] = "all_gather";
    int64_t bytes = (int64_t)size;
    ek_coll *o;

    EK_TRY(check_ranges(c, name, first));
    if (first[c->size] * bytes <= EK_COLL_DIRECT_MAX) {
        int64_t messages = 2 * c->size * ek_coll_n_transfers(c, first[c->size] * bytes);

        EK_TRY(ek_coll_begin(c, name, site, -1, messages, c->size + 1, 0, &o));
        o->post = post_all_gather;
    } else {
        EK_TRY(ek_coll_begin(c, name, site, -1, ring_transfers(c), c->size + 1, 0, &o));
        setup_ring(o, c->rank, 0, c->size - 1);
    }
    memcpy(o->kept.table, first, (size_t)(c->size + 1) * sizeof(*first));
    o->amount = first[c->size];
    o->buf = buf;
    o->size = bytes;
    o->bytes = (first[c->rank + 1] - first[c->rank]) * bytes;
    EK_TRY(ek_coll_launch(o, op));
    return EK_OK;
}

ek_status ek_comm_multireduce_at(ek_comm *c, void *buf, int64_t n, ek_reduce how, const int *ranks,
                                 int n_ranks, int tag, ek_coll **op, const char *site)
{
    static const char name[] = "multireduce";
    int64_t size = size_of(how), segment, slot;
    int at;
    ek_coll *o;

    EK_TRY(ek_coll_find_rank(c, name, ranks, n_ranks, tag, &at));
    EK_REQUIRE(n >= 0 && n <= INT64_MAX / size, EK_EINVAL, "%s on %s: %lld elements", name, c->name,
               (long long)n);
    segment = ek_coll_segment(c, ranks, n_ranks);
    slot = n * size < segment ? n * size : segment;
    if (at + 1 == n_ranks) /* receives nothing */
        slot = 0;
    EK_TRY(ek_coll_begin(c, name, site, TAG_MULTIREDUCE + tag,
                         ek_stream_transfers(1, ek_stream_sends(segment)), 2 + n_ranks,
                         WINDOW * slot, &o));
    o->kept.table[0] = 0;
    o->kept.table[1] = n;
    ek_coll_set_ring(o, ranks, n_ranks, at);
    setup_chain(o, ranks, n_ranks, at);
    o->stream.segment = segment;
    o->stream.sends = ek_stream_sends(segment);
    o->stream.slot = slot;
    o->amount = n;
    o->peer = ranks[0];
    o->buf = buf;
    o->bytes = n * size;
    o->size = size;
    o->how = how;
    EK_TRY(ek_coll_launch(o, op));
    return EK_OK;
}
