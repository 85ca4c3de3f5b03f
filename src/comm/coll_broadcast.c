/* broadcast, multicast, send, recv and barrier. */
#include "comm/coll.h"

#include <string.h>

/* Vectors of more segments than this use a chain of the ranks, in which each rank sends every byte
 * once; shorter ones use a binomial tree, which has the fewest hops. */
enum { CHAIN_SEGMENTS = 8 };

/* --- broadcast -------------------------------------------------------------------------------- */

/* To each child in flight; a tree's vectors are short. */
static int sends_of(int64_t segment, bool chain)
{
    return chain ? ek_stream_sends(segment) : WINDOW;
}

/* Sets up the stream from ranks[0] to ranks[1 .. n - 1]; ranks NULL: the group's n ranks, counted
 * from `root`.  The caller has index `at`. */
static void setup_stream(ek_coll *op, const int *ranks, int root, int n, int at, bool chain)
{
    ek_stream *s = &op->stream;
    int to[CHILDREN_MAX], from, low;

    s->segment = ek_coll_segment(op->comm, ranks, n);
    s->sends = sends_of(s->segment, chain);
    s->chunks = 1;
    s->start = s->reduce_end = s->n_out = 0;
    op->kept.table[0] = 0;
    op->kept.table[1] = op->bytes;
    op->size = 1;
    low = at & -at; /* the lowest bit: the parent in the tree has it cleared */
    from = chain ? at - 1 : at - low;
    if (chain && at + 1 < n)
        to[s->n_out++] = at + 1;
    if (!chain) { /* the furthest child first, as it has the largest subtree */
        int bit = 1;

        while ((low == 0 || bit < low) && at + bit < n && bit < 1 << 30)
            bit *= 2;
        for (; bit > 0; bit /= 2)
            if ((low == 0 || bit < low) && at + bit < n)
                to[s->n_out++] = at + bit;
    }
    s->in_first = at == 0 ? 1 : 0; /* the root's chunk is its own */
    s->in_end = 1;
    s->out_end = 1;
    s->in.peer = at == 0 ? 0 : ranks != NULL ? ranks[from] : (root + from) % n;
    for (int i = 0; i < s->n_out; i++)
        s->out[i].peer = ranks != NULL ? ranks[to[i]] : (root + to[i]) % n;
    op->post = ek_stream_post;
    op->step = ek_stream_step;
}

static ek_status start_broadcast(ek_comm *c, const char *name, const char *site, int tag, void *buf,
                                 int64_t bytes, const int *ranks, int root, int n, int at,
                                 ek_coll **op)
{
    int64_t segment = ek_coll_segment(c, ranks, n);
    bool chain = bytes > CHAIN_SEGMENTS * segment;
    int children = 1;
    ek_coll *o;

    while (!chain && 1LL << children < n)
        children++;
    EK_TRY(ek_coll_begin(c, name, site, tag,
                         ek_stream_transfers(children, sends_of(segment, chain)),
                         ranks != NULL ? 2 + n : 2, 0, &o));
    o->buf = buf;
    o->bytes = o->amount = bytes;
    o->peer = ranks != NULL ? ranks[0] : root;
    if (ranks != NULL)
        ek_coll_set_ring(o, ranks, n, at);
    setup_stream(o, ranks, root, n, at, chain);
    EK_TRY(ek_coll_launch(o, op));
    return EK_OK;
}

static ek_status check_call(const ek_comm *c, const char *name, int64_t bytes, int peer)
{
    EK_REQUIRE(bytes >= 0, EK_EINVAL, "%s on %s: %lld bytes", name, c->name, (long long)bytes);
    EK_REQUIRE(peer >= 0 && peer < c->size, EK_EINVAL, "%s on %s: rank %d is not in 0 to %d", name,
               c->name, peer, c->size - 1);
    return EK_OK;
}

ek_status ek_comm_broadcast_at(ek_comm *c, void *buf, int64_t bytes, int root, ek_coll **op,
                               const char *site)
{
    int at;

    EK_TRY(check_call(c, "broadcast", bytes, root));
    at = (c->rank + c->size - root) % c->size;
    EK_TRY(start_broadcast(c, "broadcast", site, -1, buf, bytes, NULL, root, c->size, at, op));
    return EK_OK;
}

ek_status ek_comm_multicast_at(ek_comm *c, void *buf, int64_t bytes, const int *ranks, int n,
                               int tag, ek_coll **op, const char *site)
{
    static const char name[] = "multicast";
    int at;

    EK_TRY(ek_coll_find_rank(c, name, ranks, n, tag, &at));
    EK_TRY(check_call(c, name, bytes, ranks[0]));
    EK_TRY(start_broadcast(c, name, site, TAG_MULTICAST + tag, buf, bytes, ranks, 0, n, at, op));
    return EK_OK;
}

/* --- send, recv ------------------------------------------------------------------------------- */

static ek_status post_send(ek_coll *op)
{
    EK_TRY(ek_coll_send(op, op->send, op->bytes, op->peer));
    return EK_OK;
}

static ek_status post_recv(ek_coll *op)
{
    EK_TRY(ek_coll_recv(op, op->buf, op->bytes, op->peer));
    return EK_OK;
}

static ek_status begin_message(ek_comm *c, const char *name, int64_t bytes, int peer, int tag,
                               ek_coll **out)
{
    EK_TRY(check_call(c, name, bytes, peer));
    EK_REQUIRE(peer != c->rank, EK_EINVAL, "%s on %s: rank %d names itself as the peer", name,
               c->name, peer);
    EK_REQUIRE(tag >= 0 && tag < EK_COMM_TAGS, EK_EINVAL, "%s on %s: tag %d is not in 0 to %d",
               name, c->name, tag, EK_COMM_TAGS - 1);
    EK_TRY(ek_coll_begin(c, name, NULL, tag, ek_coll_n_transfers(c, bytes), 0, 0, out));
    (*out)->bytes = bytes;
    (*out)->peer = peer;
    return EK_OK;
}

ek_status ek_comm_send(ek_comm *c, const void *buf, int64_t bytes, int to, int tag, ek_coll **op)
{
    ek_coll *o;

    EK_TRY(begin_message(c, "send", bytes, to, tag, &o));
    o->send = buf;
    o->post = post_send;
    EK_TRY(ek_coll_launch(o, op));
    return EK_OK;
}

ek_status ek_comm_recv(ek_comm *c, void *buf, int64_t bytes, int from, int tag, ek_coll **op)
{
    ek_coll *o;

    EK_TRY(begin_message(c, "recv", bytes, from, tag, &o));
    o->buf = buf;
    o->post = post_recv;
    EK_TRY(ek_coll_launch(o, op));
    return EK_OK;
}

/* --- barrier ---------------------------------------------------------------------------------- */

/* Dissemination barrier, round k: sends to rank + 2^k and receives from rank - 2^k. */
static ek_status post_round(ek_coll *op)
{
    const ek_comm *c = op->comm;
    int far = 1 << op->phase;

    op->n_transfers = op->n_done = 0;
    if (far >= c->size)
        return EK_OK;
    EK_TRY(ek_coll_recv(op, op->kept.scratch, 0, (c->rank + c->size - far) % c->size));
    EK_TRY(ek_coll_send(op, op->kept.scratch, 0, (c->rank + far) % c->size));
    return EK_OK;
}

static ek_status step_round(ek_coll *op, int *done)
{
    for (;;) {
        EK_TRY(ek_coll_step_wait_transfers(op, done));
        if (!*done || op->n_transfers == 0)
            return EK_OK;
        op->phase++;
        EK_TRY(post_round(op));
    }
}

ek_status ek_comm_barrier(ek_comm *c)
{
    ek_coll *op;

    EK_TRY(ek_coll_begin(c, "barrier", NULL, -1, 2, 0, 1, &op));
    op->post = post_round;
    op->step = step_round;
    EK_TRY(ek_coll_launch(op, &op));
    EK_TRY(ek_coll_wait(&op));
    return EK_OK;
}
