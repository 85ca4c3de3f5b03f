/* Long vectors, pipelined from rank to rank in segments.
 *
 * A stream is a sequence of steps, each handling one chunk of the buffer, split into segments.
 * Chunks of the steps before in_first are the rank's own; later ones are received, and forwarded
 * (up to out_end) as soon as they are complete.  With the ranks in a ring this is reduce_scatter
 * (received chunks are added), all_gather (they replace), and all_reduce (both in turn); with a
 * tree or a chain, broadcast. */
#include "comm/coll.h"

#include <string.h>

static int chunk_of(const ek_stream *s, int step)
{
    return (s->start + 2 * s->chunks - step % s->chunks) % s->chunks;
}

static unsigned char *segment_address(const ek_coll *op, ek_stream_pos p)
{
    return op->buf + op->kept.table[chunk_of(&op->stream, p.step)] * op->size + p.at;
}

/* Bytes from p to the end of its segment. */
static int64_t segment_bytes(const ek_coll *op, ek_stream_pos p)
{
    int chunk = chunk_of(&op->stream, p.step);
    int64_t left = (op->kept.table[chunk + 1] - op->kept.table[chunk]) * op->size - p.at;

    return left < op->stream.segment ? left : op->stream.segment;
}

/* Skips empty chunks before step `end`. */
static ek_stream_pos skip_empty(const ek_coll *op, ek_stream_pos p, int end)
{
    while (p.step < end && segment_bytes(op, p) == 0)
        p = (ek_stream_pos){p.step + 1, 0};
    return p;
}

static ek_stream_pos next_segment(const ek_coll *op, ek_stream_pos p, int end)
{
    p.at += segment_bytes(op, p);
    return skip_empty(op, p, end);
}

static bool is_before(ek_stream_pos a, ek_stream_pos b)
{
    return a.step != b.step ? a.step < b.step : a.at < b.at;
}

int ek_stream_transfers(int n_out)
{
    return (1 + n_out) * WINDOW;
}

ek_status ek_stream_post(ek_coll *op)
{
    ek_stream *s = &op->stream;
    int slots = ek_stream_transfers(s->n_out);

    s->in.posted = s->in.done = skip_empty(op, (ek_stream_pos){s->in_first, 0}, s->in_end);
    s->in.n_posted = s->in.n_done = 0;
    for (int i = 0; i < s->n_out; i++) {
        s->out[i].posted = s->out[i].done = skip_empty(op, (ek_stream_pos){0, 0}, s->out_end);
        s->out[i].n_posted = s->out[i].n_done = 0;
    }
    memset(op->kept.transfers, 0, (size_t)slots * sizeof(*op->kept.transfers));
    op->n_transfers = slots;
    return EK_OK;
}

/* Whether the chunk of this step may be overwritten: in the second pass over the ring, only after
 * it was sent in the first. */
static bool may_replace(const ek_stream *s, int step)
{
    for (int i = 0; i < s->n_out; i++)
        if (step >= s->chunks && s->out[i].done.step <= step - s->chunks)
            return false;
    return true;
}

/* Posts the receive of the next segment, into scratch if it is to be added. */
static ek_status post_receive(ek_coll *op, bool *moved)
{
    ek_stream *s = &op->stream;
    ek_stream_lane *in = &s->in;
    unsigned slot = in->n_posted % WINDOW;
    unsigned char *to;

    if (in->posted.step >= s->in_end || in->n_posted - in->n_done >= WINDOW)
        return EK_OK;
    if (!may_replace(s, in->posted.step))
        return EK_OK;
    to = in->posted.step < s->reduce_end ? op->kept.scratch + slot * s->slot
                                         : segment_address(op, in->posted);
    EK_TRY(ek_transfer_recv(op, &op->kept.transfers[slot], to, segment_bytes(op, in->posted),
                            in->peer));
    in->posted = next_segment(op, in->posted, s->in_end);
    in->n_posted++;
    *moved = true;
    return EK_OK;
}

static ek_status test_receive(ek_coll *op, bool *moved)
{
    ek_stream *s = &op->stream;
    ek_stream_lane *in = &s->in;
    unsigned slot = in->n_done % WINDOW;

    if (in->n_done == in->n_posted)
        return EK_OK;
    EK_TRY(ek_transfer_test(op, &op->kept.transfers[slot]));
    if (op->kept.transfers[slot].open)
        return EK_OK;
    if (in->done.step < s->reduce_end)
        ek_coll_reduce(op, segment_address(op, in->done), op->kept.scratch + slot * s->slot,
                       segment_bytes(op, in->done));
    in->done = next_segment(op, in->done, s->in_end);
    in->n_done++;
    *moved = true;
    return EK_OK;
}

static ek_status step_sends(ek_coll *op, int i, bool *moved)
{
    ek_stream *s = &op->stream;
    ek_stream_lane *out = &s->out[i];
    ek_transfer *slots = &op->kept.transfers[(1 + i) * WINDOW];
    ek_transfer *t;

    if (out->n_done != out->n_posted) {
        t = &slots[out->n_done % WINDOW];
        EK_TRY(ek_transfer_test(op, t));
        if (!t->open) {
            out->done = next_segment(op, out->done, s->out_end);
            out->n_done++;
            *moved = true;
        }
    }
    if (out->posted.step < s->out_end && out->n_posted - out->n_done < WINDOW &&
        (out->posted.step < s->in_first || is_before(out->posted, s->in.done))) {
        t = &slots[out->n_posted % WINDOW];
        EK_TRY(ek_transfer_send(op, t, segment_address(op, out->posted),
                                segment_bytes(op, out->posted), out->peer));
        out->posted = next_segment(op, out->posted, s->out_end);
        out->n_posted++;
        *moved = true;
    }
    return EK_OK;
}

ek_status ek_stream_step(ek_coll *op, int *done)
{
    ek_stream *s = &op->stream;
    bool moved;

    do {
        moved = false;
        EK_TRY(post_receive(op, &moved));
        EK_TRY(test_receive(op, &moved));
        for (int i = 0; i < s->n_out; i++)
            EK_TRY(step_sends(op, i, &moved));
    } while (moved);
    *done = s->in.done.step >= s->in_end;
    for (int i = 0; i < s->n_out; i++)
        *done = *done && s->out[i].done.step >= s->out_end;
    return EK_OK;
}
