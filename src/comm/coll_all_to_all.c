/* all_to_all: linear, pairwise, and two-dimensional hierarchical (2DH).
 *
 * 2DH sends fewer and longer messages between nodes.  A rank is (node, local rank); m is the number
 * of ranks of the caller's node a.  Phase 0: rows for (x, y) on another node x go to the gateway
 * (a, y mod m), in one message to each rank of node a.  Phase 1: each gateway sends (x, y) one
 * message with the rows of all ranks of node a, ordered by rank.  Rows within a node go directly.
 * Nodes may differ in size, and the ranks of a node need not be contiguous.  Every rank has all row
 * counts, so sizes are not exchanged.  With one node, or one rank on the node, nothing is forwarded
 * and this is the linear algorithm. */
#include "comm/coll.h"

#include <string.h>

/* --- counts ----------------------------------------------------------------------------------- */

static int64_t bytes_of(const ek_coll *op, int from, int to)
{
    return op->kept.table[(int64_t)from * op->comm->size + to] * op->size;
}

/* Offset of the block for `to` (from `from`) in the caller's send (recv) buffer, in bytes. */
static int64_t send_at(const ek_coll *op, int to)
{
    int64_t at = 0;

    for (int r = 0; r < to; r++)
        at += bytes_of(op, op->comm->rank, r);
    return at;
}

static int64_t recv_at(const ek_coll *op, int from)
{
    int64_t at = 0;

    for (int r = 0; r < from; r++)
        at += bytes_of(op, r, op->comm->rank);
    return at;
}

static ek_status recv_block(ek_coll *op, int from)
{
    int64_t bytes = bytes_of(op, from, op->comm->rank);

    if (bytes > 0)
        EK_TRY(ek_coll_recv(op, op->buf + recv_at(op, from), bytes, from));
    return EK_OK;
}

static ek_status send_block(ek_coll *op, int to)
{
    int64_t bytes = bytes_of(op, op->comm->rank, to);

    if (bytes > 0)
        EK_TRY(ek_coll_send(op, op->send + send_at(op, to), bytes, to));
    return EK_OK;
}

static void copy_own(ek_coll *op)
{
    int me = op->comm->rank;
    int64_t bytes = bytes_of(op, me, me);

    if (bytes > 0)
        memcpy(op->buf + recv_at(op, me), op->send + send_at(op, me), (size_t)bytes);
}

/* --- linear and pairwise ---------------------------------------------------------------------- */

static ek_status post_linear(ek_coll *op)
{
    const ek_comm *c = op->comm;

    for (int i = 1; i < c->size; i++)
        EK_TRY(recv_block(op, (c->rank + c->size - i) % c->size));
    for (int i = 1; i < c->size; i++)
        EK_TRY(send_block(op, (c->rank + i) % c->size));
    copy_own(op);
    return EK_OK;
}

/* Round k: sends to rank + k, receives from rank - k. */
static ek_status post_pair(ek_coll *op)
{
    const ek_comm *c = op->comm;
    int far = ++op->phase;

    op->n_transfers = op->n_done = 0;
    if (far >= c->size) {
        copy_own(op);
        return EK_OK;
    }
    EK_TRY(recv_block(op, (c->rank + c->size - far) % c->size));
    EK_TRY(send_block(op, (c->rank + far) % c->size));
    return EK_OK;
}

static ek_status step_pairs(ek_coll *op, int *done)
{
    for (;;) {
        EK_TRY(ek_coll_step_wait_transfers(op, done));
        if (!*done || op->phase >= op->comm->size)
            return EK_OK;
        EK_TRY(post_pair(op));
    }
}

/* --- 2DH -------------------------------------------------------------------------------------- */

static bool is_remote(const ek_comm *c, int rank)
{
    return c->node_of[rank] != c->node_of[c->rank];
}

/* The rank of `node` that forwards rows from this node to rank `to`. */
static int gateway(const ek_comm *c, int node, int to)
{
    int local = c->local_rank_of[to] % c->node_size[node], r = 0;

    while (c->node_of[r] != node || c->local_rank_of[r] != local)
        r++;
    return r;
}

/* Bytes that `from`, a rank of the caller's node, sends to the gateway `via` of that node. */
static int64_t via_bytes(const ek_coll *op, int from, int via)
{
    const ek_comm *c = op->comm;
    int64_t sum = 0;

    for (int to = 0; to < c->size; to++)
        if (is_remote(c, to) && gateway(c, c->node_of[c->rank], to) == via)
            sum += bytes_of(op, from, to);
    return sum;
}

/* Bytes from all ranks of `node` to rank `to`. */
static int64_t node_bytes(const ek_coll *op, int node, int to)
{
    int64_t sum = 0;

    for (int r = 0; r < op->comm->size; r++)
        if (op->comm->node_of[r] == node)
            sum += bytes_of(op, r, to);
    return sum;
}

/* Whether the ranks of a node are contiguous, and so their rows in the receive buffer. */
static bool is_contiguous(const ek_comm *c, int node, int *first)
{
    int r = 0, n = 0;

    while (c->node_of[r] != node)
        r++;
    *first = r;
    while (r + n < c->size && c->node_of[r + n] == node)
        n++;
    return n == c->node_size[node];
}

/* Scratch holds, one after another: rows sent to each gateway of this node; rows received by this
 * gateway from each rank of the node (IN); rows received from each node whose ranks are not
 * contiguous (STAGED); rows forwarded to each rank of other nodes (FORWARD). */
enum { IN, STAGED, FORWARD };

/* Whether the caller is the gateway of its node for rank `to`. */
static bool is_gateway_to(const ek_comm *c, int to)
{
    return is_remote(c, to) && gateway(c, c->node_of[c->rank], to) == c->rank;
}

/* Sends rows for other nodes to the gateways of this node. */
static ek_status send_to_gateways(ek_coll *op)
{
    const ek_comm *c = op->comm;
    unsigned char *at = op->kept.scratch;

    for (int via = 0; via < c->size; via++) {
        unsigned char *start = at;

        if (is_remote(c, via) || via == c->rank)
            continue;
        for (int to = 0; to < c->size; to++) {
            int64_t bytes = bytes_of(op, c->rank, to);

            if (bytes == 0 || !is_remote(c, to) || gateway(c, c->node_of[via], to) != via)
                continue;
            memcpy(at, op->send + send_at(op, to), (size_t)bytes);
            at += bytes;
        }
        if (at > start)
            EK_TRY(ek_coll_send(op, start, at - start, via));
    }
    op->region[IN] = at - op->kept.scratch;
    return EK_OK;
}

/* Receives the rows of this node's other ranks that the caller forwards. */
static ek_status recv_as_gateway(ek_coll *op)
{
    const ek_comm *c = op->comm;
    unsigned char *at = op->kept.scratch + op->region[IN];

    for (int from = 0; from < c->size; from++) {
        int64_t bytes = is_remote(c, from) ? 0 : via_bytes(op, from, c->rank);

        if (from == c->rank || bytes == 0)
            continue;
        EK_TRY(ek_coll_recv(op, at, bytes, from));
        at += bytes;
    }
    op->region[STAGED] = at - op->kept.scratch;
    return EK_OK;
}

/* Receives one message from each other node. */
static ek_status recv_from_nodes(ek_coll *op)
{
    const ek_comm *c = op->comm;
    unsigned char *at = op->kept.scratch + op->region[STAGED];

    for (int node = 0; node < c->nodes; node++) {
        int64_t bytes = node_bytes(op, node, c->rank);
        int first;
        bool in_place = is_contiguous(c, node, &first);

        if (node == c->node_of[c->rank] || bytes == 0)
            continue;
        EK_TRY(ek_coll_recv(op, in_place ? op->buf + recv_at(op, first) : at, bytes,
                            gateway(c, node, c->rank)));
        at += in_place ? 0 : bytes;
    }
    op->region[FORWARD] = at - op->kept.scratch;
    return EK_OK;
}

static ek_status post_2dh(ek_coll *op)
{
    const ek_comm *c = op->comm;

    EK_TRY(send_to_gateways(op));
    EK_TRY(recv_as_gateway(op));
    op->n_phase_0 = op->n_transfers;
    EK_TRY(recv_from_nodes(op));
    for (int i = 1; i < c->size; i++)
        if (!is_remote(c, (c->rank + c->size - i) % c->size))
            EK_TRY(recv_block(op, (c->rank + c->size - i) % c->size));
    for (int i = 1; i < c->size; i++)
        if (!is_remote(c, (c->rank + i) % c->size))
            EK_TRY(send_block(op, (c->rank + i) % c->size));
    copy_own(op);
    return EK_OK;
}

/* Copies the blocks of rank `from` of this node into the messages that the caller forwards;
 * blocks: `from`'s blocks, ordered by destination. */
static void copy_blocks(ek_coll *op, int from, const unsigned char *blocks)
{
    const ek_comm *c = op->comm;
    int own_node = c->node_of[c->rank];
    unsigned char *message = op->kept.scratch + op->region[FORWARD];

    for (int to = 0; to < c->size; to++) {
        int64_t bytes = bytes_of(op, from, to), before = 0;

        if (!is_gateway_to(c, to))
            continue;
        for (int r = 0; r < from; r++)
            before += c->node_of[r] == own_node ? bytes_of(op, r, to) : 0;
        if (bytes > 0)
            memcpy(message + before, from == c->rank ? op->send + send_at(op, to) : blocks,
                   (size_t)bytes);
        blocks += from == c->rank ? 0 : bytes;
        message += node_bytes(op, own_node, to);
    }
}

/* Phase 1: one message to each rank of other nodes for which the caller is the gateway, starting
 * after its own rank, so that not all nodes send to the same rank first.  A rank that is alone on
 * its node sends from the send buffer. */
static ek_status forward_rows(ek_coll *op)
{
    const ek_comm *c = op->comm;
    int own_node = c->node_of[c->rank];
    bool alone = c->node_size[own_node] == 1;
    const unsigned char *at = op->kept.scratch + op->region[IN];

    for (int from = 0; from < c->size && !alone; from++) {
        if (is_remote(c, from))
            continue;
        copy_blocks(op, from, at);
        at += from == c->rank ? 0 : via_bytes(op, from, c->rank);
    }
    for (int pass = 0; pass < 2; pass++) { /* ranks above this one, then those below */
        at = op->kept.scratch + op->region[FORWARD];
        for (int to = 0; to < c->size; to++) {
            int64_t bytes = is_gateway_to(c, to) ? node_bytes(op, own_node, to) : 0;

            if (bytes > 0 && (to < c->rank) == pass)
                EK_TRY(ek_coll_send(op, alone ? op->send + send_at(op, to) : at, bytes, to));
            at += alone ? 0 : bytes;
        }
    }
    return EK_OK;
}

/* Copies messages of nodes whose ranks are not contiguous to the receive buffer. */
static void unpack_staged(ek_coll *op)
{
    const ek_comm *c = op->comm;
    const unsigned char *at = op->kept.scratch + op->region[STAGED];

    for (int node = 0; node < c->nodes; node++) {
        int first;

        if (node == c->node_of[c->rank] || is_contiguous(c, node, &first))
            continue;
        for (int from = first; from < c->size; from++) {
            int64_t bytes = c->node_of[from] == node ? bytes_of(op, from, c->rank) : 0;

            if (bytes > 0)
                memcpy(op->buf + recv_at(op, from), at, (size_t)bytes);
            at += bytes;
        }
    }
}

static ek_status step_2dh(ek_coll *op, int *done)
{
    if (op->phase == 0) {
        EK_TRY(ek_coll_test_transfers(op, op->n_phase_0, done));
        if (!*done)
            return EK_OK;
        EK_TRY(forward_rows(op));
        op->phase = 1;
    }
    EK_TRY(ek_coll_step_wait_transfers(op, done));
    if (*done)
        unpack_staged(op);
    return EK_OK;
}

/* Upper bound of the scratch of 2DH on this rank, in bytes: twice the rows it forwards, plus the
 * rows it sends and receives. */
static int64_t scratch_2dh(const ek_comm *c, const int64_t *rows, int64_t size)
{
    int64_t sum = 0;

    for (int from = 0; from < c->size; from++)
        for (int to = 0; to < c->size; to++) {
            int64_t bytes = rows[(int64_t)from * c->size + to] * size;

            if (!is_remote(c, from) && is_gateway_to(c, to))
                sum += 2 * bytes;
            if (from == c->rank || to == c->rank)
                sum += bytes;
        }
    return sum;
}

/* --- the call --------------------------------------------------------------------------------- */

ek_status ek_comm_all_to_all_at(ek_comm *c, ek_a2a how, const int64_t *rows, size_t size,
                                const void *send, void *recv, ek_coll **op, const char *site)
{
    static const struct {
        const char *name;
        ek_status (*post)(ek_coll *op);
        ek_status (*step)(ek_coll *op, int *done);
    } forms[] = {
        [EK_A2A_LINEAR] = {"all_to_all", post_linear, ek_coll_step_wait_transfers},
        [EK_A2A_PAIRWISE] = {"all_to_all_pairwise", post_pair, step_pairs},
        [EK_A2A_2DH] = {"all_to_all_2dh", post_2dh, step_2dh},
    };
    int64_t n = (int64_t)c->size * c->size, moved = 0, scratch, messages;
    ek_coll *o;

    for (int64_t i = 0; i < n; i++) {
        EK_REQUIRE(
            rows[i] >= 0 && (uint64_t)rows[i] <= (INT64_MAX / 4 - (uint64_t)moved) / (size + 1),
            EK_EINVAL, "%s on %s: %lld rows of %zu bytes from rank %d to rank %d", forms[how].name,
            c->name, (long long)rows[i], size, (int)(i / c->size), (int)(i % c->size));
        if (i / c->size == c->rank || i % c->size == c->rank)
            moved += rows[i] * (int64_t)size;
    }
    scratch = how == EK_A2A_2DH ? scratch_2dh(c, rows, (int64_t)size) : 0;
    messages = 4 * (int64_t)c->size + ek_coll_n_transfers(c, moved + scratch);
    EK_TRY(ek_coll_begin(c, forms[how].name, site, -1, messages, n, scratch, &o));
    memcpy(o->kept.table, rows, (size_t)n * sizeof(*rows));
    for (int64_t i = 0; i < n; i++)
        o->amount += rows[i];
    o->buf = recv;
    o->send = send;
    o->size = (int64_t)size;
    o->post = forms[how].post;
    o->step = forms[how].step;
    EK_TRY(ek_coll_launch(o, op));
    return EK_OK;
}
