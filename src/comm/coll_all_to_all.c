/* all_to_all: linear, pairwise, and two-dimensional hierarchical (2DH).
 *
 * 2DH sends fewer and longer messages between nodes.  A rank is (node, local rank); m is the number
 * of ranks of the caller's node a.  Phase 0: rows for (x, y) on another node x go to the gateway
 * (a, y mod m), in one message to each rank of node a.  Phase 1: each gateway sends (x, y) one
 * message with the rows of all ranks of node a, ordered by rank.  Rows within a node go directly.
 * Nodes may differ in size, and the ranks of a node need not be contiguous.  Every rank has all row
 * counts, so sizes are not exchanged.  With one node, or one rank on the node, nothing is forwarded
 * and this is the linear algorithm.
 *
 * Complexity   Of the ranks^2 row counts a call reads the caller's row and column, and for 2DH what
 *              the caller forwards: O(ranks), and O(ranks (ranks of a node)) for 2DH.  It keeps
 *              these as byte counts:
 *                  to_at [ranks + 1], from_at [ranks + 1]  offsets in the send and receive buffers
 *                  served [n_served]                       ranks of other nodes whose rows the
 *                                                          caller forwards, ascending
 *                  forwarded [m + 1][n_served]             bytes for them from ranks of its node
 *                                                          before the m-th, m = 0, 1, ... */
#include "comm/coll.h"

/* --- counts ----------------------------------------------------------------------------------- */

/* Parts of ek_coll_buffers.table; see above. */
static int64_t *to_at_of(const ek_coll *op)
{
    return op->kept.table;
}

static int64_t *from_at_of(const ek_coll *op)
{
    return op->kept.table + op->comm->size + 1;
}

static int64_t *served_of(const ek_coll *op)
{
    return from_at_of(op) + op->comm->size + 1;
}

/* Offset of the block for `to` (from `from`) in the caller's send (recv) buffer, in bytes. */
static int64_t send_at(const ek_coll *op, int to)
{
    return to_at_of(op)[to];
}

static int64_t recv_at(const ek_coll *op, int from)
{
    return from_at_of(op)[from];
}

static int64_t bytes_to(const ek_coll *op, int to)
{
    return to_at_of(op)[to + 1] - to_at_of(op)[to];
}

static int64_t bytes_from(const ek_coll *op, int from)
{
    return from_at_of(op)[from + 1] - from_at_of(op)[from];
}

static ek_status recv_block(ek_coll *op, int from)
{
    int64_t bytes = bytes_from(op, from);

    if (bytes > 0)
        EK_TRY(ek_coll_recv(op, op->buf + recv_at(op, from), bytes, from));
    return EK_OK;
}

static ek_status send_block(ek_coll *op, int to)
{
    int64_t bytes = bytes_to(op, to);

    if (bytes > 0)
        EK_TRY(ek_coll_send(op, op->send + send_at(op, to), bytes, to));
    return EK_OK;
}

static void copy_own(ek_coll *op)
{
    int me = op->comm->rank;

    ek_coll_copy(op, op->buf + recv_at(op, me), op->send + send_at(op, me), bytes_to(op, me));
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
    return c->by_node[c->node_first[node] + c->local_rank_of[to] % c->node_size[node]];
}

/* The ranks of the caller's node, and their number. */
static const int *own_ranks(const ek_comm *c, int *n)
{
    int node = c->node_of[c->rank];

    *n = c->node_size[node];
    return c->by_node + c->node_first[node];
}

/* Bytes for the i-th rank that the caller serves, from the m-th rank of its node; from all of them.
 */
static int64_t forwarded_from(const ek_coll *op, int m, int64_t i)
{
    const int64_t *before = served_of(op) + op->n_served;

    return before[(m + 1) * op->n_served + i] - before[m * op->n_served + i];
}

static int64_t forwarded_before(const ek_coll *op, int m, int64_t i)
{
    return served_of(op)[(m + 1) * op->n_served + i];
}

static int64_t forwarded_to(const ek_coll *op, int64_t i)
{
    int n;

    (void)own_ranks(op->comm, &n);
    return forwarded_before(op, n, i);
}

/* Bytes that the m-th rank of the caller's node sends to the caller to be forwarded. */
static int64_t via_bytes(const ek_coll *op, int m)
{
    int64_t sum = 0;

    for (int64_t i = 0; i < op->n_served; i++)
        sum += forwarded_from(op, m, i);
    return sum;
}

/* Bytes from all ranks of `node` to the caller. */
static int64_t node_bytes(const ek_coll *op, int node)
{
    const ek_comm *c = op->comm;
    int64_t sum = 0;

    for (int i = c->node_first[node]; i < c->node_first[node + 1]; i++)
        sum += bytes_from(op, c->by_node[i]);
    return sum;
}

/* Whether the ranks of a node are contiguous, and so their rows in the receive buffer. */
static bool is_contiguous(const ek_comm *c, int node, int *first)
{
    *first = c->by_node[c->node_first[node]];
    return c->by_node[c->node_first[node + 1] - 1] == *first + c->node_size[node] - 1;
}

/* Scratch holds, one after another: rows sent to each gateway of this node; rows received by this
 * gateway from each rank of the node (IN); rows received from each node whose ranks are not
 * contiguous (STAGED); rows forwarded to each rank of other nodes (FORWARD). */
enum { IN, STAGED, FORWARD };

/* Sends rows for other nodes to the gateways of this node. */
static ek_status send_to_gateways(ek_coll *op)
{
    const ek_comm *c = op->comm;
    unsigned char *at = op->kept.scratch;
    int n;
    const int *own = own_ranks(c, &n);

    for (int m = 0; m < n; m++) {
        unsigned char *start = at;
        int via = own[m];

        if (via == c->rank)
            continue;
        for (int to = 0; to < c->size; to++) {
            int64_t bytes = bytes_to(op, to);

            if (bytes == 0 || !is_remote(c, to) || gateway(c, c->node_of[via], to) != via)
                continue;
            ek_coll_copy(op, at, op->send + send_at(op, to), bytes);
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
    int n;
    const int *own = own_ranks(c, &n);

    for (int m = 0; m < n; m++) {
        int64_t bytes = own[m] == c->rank ? 0 : via_bytes(op, m);

        if (bytes == 0)
            continue;
        EK_TRY(ek_coll_recv(op, at, bytes, own[m]));
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
        int64_t bytes = node_bytes(op, node);
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

/* Copies the blocks of the m-th rank of this node into the messages that the caller forwards;
 * blocks: that rank's blocks, ordered by destination. */
static void copy_blocks(ek_coll *op, int m, bool is_own, const unsigned char *blocks)
{
    unsigned char *message = op->kept.scratch + op->region[FORWARD];

    for (int64_t i = 0; i < op->n_served; i++) {
        int64_t bytes = forwarded_from(op, m, i);

        ek_coll_copy(op, message + forwarded_before(op, m, i),
                     is_own ? op->send + send_at(op, (int)served_of(op)[i]) : blocks, bytes);
        blocks += is_own ? 0 : bytes;
        message += forwarded_to(op, i);
    }
}

/* Phase 1: one message to each rank of other nodes for which the caller is the gateway, starting
 * after its own rank, so that not all nodes send to the same rank first.  A rank that is alone on
 * its node sends from the send buffer. */
static ek_status forward_rows(ek_coll *op)
{
    const ek_comm *c = op->comm;
    const unsigned char *at = op->kept.scratch + op->region[IN];
    int n;
    const int *own = own_ranks(c, &n);

    for (int m = 0; m < n && n > 1; m++) {
        bool is_own = own[m] == c->rank;

        copy_blocks(op, m, is_own, at);
        at += is_own ? 0 : via_bytes(op, m);
    }
    for (int pass = 0; pass < 2; pass++) { /* ranks above this one, then those below */
        at = op->kept.scratch + op->region[FORWARD];
        for (int64_t i = 0; i < op->n_served; i++) {
            int64_t bytes = forwarded_to(op, i);
            int to = (int)served_of(op)[i];

            if (bytes > 0 && (to < c->rank) == pass)
                EK_TRY(ek_coll_send(op, n == 1 ? op->send + send_at(op, to) : at, bytes, to));
            at += n == 1 ? 0 : bytes;
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
        for (int i = c->node_first[node]; i < c->node_first[node + 1]; i++) {
            int64_t bytes = bytes_from(op, c->by_node[i]);

            ek_coll_copy(op, op->buf + recv_at(op, c->by_node[i]), at, bytes);
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

/* --- the call --------------------------------------------------------------------------------- */

/* Adds up row counts that the caller needs. */
typedef struct {
    const ek_comm *c;
    const char *name;
    const int64_t *rows;
    int64_t size, bytes;
} row_sum;

static ek_status add_rows(row_sum *x, int from, int to)
{
    int64_t rows = x->rows[(int64_t)from * x->c->size + to];

    EK_REQUIRE(rows >= 0 && rows <= (INT64_MAX / 8 - x->bytes) / (x->size + 1), EK_EINVAL,
               "%s on %s: %lld rows of %lld bytes from rank %d to rank %d", x->name, x->c->name,
               (long long)rows, (long long)x->size, from, to);
    x->bytes += rows * x->size;
    return EK_OK;
}

/* Whether the caller is the gateway of its node for rank `to`. */
static bool is_gateway_to(const ek_comm *c, int to)
{
    return is_remote(c, to) && gateway(c, c->node_of[c->rank], to) == c->rank;
}

/* Checks the counts that the caller needs and sums their bytes: rows sent and received; rows
 * forwarded in 2DH, to *n_served ranks. */
static ek_status sum_rows(row_sum *x, ek_a2a how, int64_t *forwarded, int64_t *n_served)
{
    const ek_comm *c = x->c;
    int64_t own_bytes;
    int n;
    const int *own = own_ranks(c, &n);

    for (int r = 0; r < c->size; r++) {
        EK_TRY(add_rows(x, c->rank, r));
        EK_TRY(add_rows(x, r, c->rank));
    }
    own_bytes = x->bytes;
    for (int to = 0; to < c->size && how == EK_A2A_2DH; to++) {
        if (!is_gateway_to(c, to))
            continue;
        ++*n_served;
        for (int m = 0; m < n; m++)
            EK_TRY(add_rows(x, own[m], to));
    }
    *forwarded = x->bytes - own_bytes;
    return EK_OK;
}

/* Fills op->kept.table. */
static void fill_counts(ek_coll *op, const int64_t *rows)
{
    const ek_comm *c = op->comm;
    int64_t *to_at = to_at_of(op), *from_at = from_at_of(op), *served = served_of(op);
    int64_t *before = served + op->n_served;
    int n;
    const int *own = own_ranks(c, &n);

    to_at[0] = from_at[0] = 0;
    for (int r = 0; r < c->size; r++) {
        to_at[r + 1] = to_at[r] + rows[(int64_t)c->rank * c->size + r] * op->size;
        from_at[r + 1] = from_at[r] + rows[(int64_t)r * c->size + c->rank] * op->size;
    }
    for (int to = 0; to < c->size && op->n_served > 0; to++) {
        if (!is_gateway_to(c, to))
            continue;
        *served++ = to;
        *before = 0;
        for (int m = 0; m < n; m++)
            before[(m + 1) * op->n_served] =
                before[m * op->n_served] + rows[(int64_t)own[m] * c->size + to] * op->size;
        before++;
    }
}

/* All row counts, for the check that all ranks make the same call. */
static void describe_rows(ek_coll *op, const int64_t *rows)
{
    int64_t n = (int64_t)op->comm->size * op->comm->size;

    for (int64_t i = 0; i < n; i++)
        op->amount += rows[i];
    op->digest = ek_call_digest(rows, n);
}

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
    row_sum x = {.c = c, .name = forms[how].name, .rows = rows, .size = (int64_t)size};
    int64_t forwarded = 0, n_served = 0, scratch, messages, table;
    ek_coll *o;

    EK_TRY(sum_rows(&x, how, &forwarded, &n_served));
    scratch = how == EK_A2A_2DH ? x.bytes + forwarded : 0; /* twice what it forwards */
    messages = 4 * (int64_t)c->size + ek_coll_n_transfers(c, x.bytes + scratch);
    table = 2 * ((int64_t)c->size + 1) + n_served * (c->node_size[c->node_of[c->rank]] + 2);
    EK_TRY(ek_coll_begin(c, forms[how].name, site, -1, messages, table, scratch, &o));
    o->n_served = n_served;
    o->size = (int64_t)size;
    fill_counts(o, rows);
    if (c->world->checked)
        describe_rows(o, rows);
    o->buf = recv;
    o->send = send;
    o->post = forms[how].post;
    o->step = forms[how].step;
    EK_TRY(ek_coll_launch(o, op));
    return EK_OK;
}
