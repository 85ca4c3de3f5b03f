/* Long vectors, pipelined from rank to rank in segments.
 *
 * A stream is a sequence of steps, each handling one chunk of the buffer, split into segments.
 * Chunks of the steps before in_first are the rank's own; later ones are received, and forwarded
 * (up to out_end) as soon as they are complete.  With the ranks in a ring this is reduce_scatter
 * (received chunks are added), all_gather (they replace), and all_reduce (both in turn); with a
 * tree or a chain, broadcast.
 *
 * A transport that buffers short messages reports a send as done at once, so the number of sends in
 * flight alone would not hold back a sender whose peer is not ready: thousands of segments would
 * wait there, and some transports search them all for every receive.  So every MATCH_EVERY-th send
 * to a peer is done only once the peer has called recv for it, which bounds the segments that
 * arrive before their receives: ek_stream.sends + MATCH_EVERY - 1 of each stream; those of streams
 * at the same time add up.
 *
 * That cannot deadlock.  Take a segment that a rank sends in step u of a ring, and its peer
 * receives in step u + 1.  The send waits for sends of earlier segments to this peer, and for the
 * rank's receive of the segment, which was sent in step u - 1.  The peer's receive waits for its
 * receives of earlier segments and, in the second pass over the ring, for its sends of step u + 1 -
 * chunks < u, whose chunk it replaces.  So all that a segment waits for, on any rank, is of earlier
 * steps or before it in its step.  On a chain or a tree a segment waits for earlier segments, and
 * for itself on its way from the first rank.  Operations do not wait for each other: the test of
 * one advances all that the rank has started.  Ranks start them in an order that needs no buffered
 * sends, as over threads (comm/threads.c), where every send is matched. */
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

int ek_stream_sends(int64_t segment)
{
    int64_t sends = SENDS_BYTES / segment;

    return sends < WINDOW ? WINDOW : sends > SENDS_MAX ? SENDS_MAX : (int)sends;
}

int ek_stream_transfers(int n_out, int sends)
{
    return WINDOW + n_out * sends;
}

ek_status ek_stream_post(ek_coll *op)
{
    ek_stream *s = &op->stream;
    int slots = ek_stream_transfers(s->n_out, s->sends);

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
    ek_transfer *slots = &op->kept.transfers[WINDOW + i * s->sends];
    unsigned sends = (unsigned)s->sends;
    ek_transfer *t;

    if (out->n_done != out->n_posted) {
        t = &slots[out->n_done % sends];
        EK_TRY(ek_transfer_test(op, t));
        if (!t->open) {
            out->done = next_segment(op, out->done, s->out_end);
            out->n_done++;
            *moved = true;
        }
    }
    if (out->posted.step < s->out_end && out->n_posted - out->n_done < sends &&
        (out->posted.step < s->in_first || is_before(out->posted, s->in.done))) {
        bool match = out->n_posted % MATCH_EVERY == MATCH_EVERY - 1;

        t = &slots[out->n_posted % sends];
        EK_TRY((match ? ek_transfer_send_matched : ek_transfer_send)(
            op, t, segment_address(op, out->posted), segment_bytes(op, out->posted), out->peer));
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
