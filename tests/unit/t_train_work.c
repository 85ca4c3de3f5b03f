/* The work of network ops (schedule/work.h) is what the communicator is asked to do.
 *
 * Executed: ranks that are threads take steps, and each call of comm/comm.h, which the linker
 * redirects to this file, is compared with the work of the op that makes it.  Built alone: the
 * network ops of all ranks of a layout, each a fake world's, fit together.  Layouts are drawn by
 * seed. */
#include "comm/coll.h"
#include "fake_ranks.h"
#include "watched_ops.h"

/* --- executed --------------------------------------------------------------------------------- */

static int64_t seen[EK_COLLECTIVES];         /* calls */
static double spread_predicted, spread_sent; /* bytes of all-to-alls of even loads */

/* Compares what every call has with the running op's work.  Returns that; NULL: no op is running.
 */
static const ek_net_work *count_call(const ek_comm *c, ek_collective collective)
{
    const ek_net_work *w;

    if (running == NULL)
        return NULL;
    w = &running->work.net;
    ((watched_op *)running->self)->calls++;
    pthread_mutex_lock(&mutex);
    seen[collective]++;
    pthread_mutex_unlock(&mutex);
    compare("the kind of work", running->work.kind, EK_WORK_NET);
    compare("the collective", w->collective, collective);
    compare("the group's size", w->group.n, c->size);
    for (int32_t i = 0; i < w->group.n && i < c->size; i++)
        compare("a rank of the group", ek_ranks_at(w->group, i), c->world_of[i]);
    return w;
}

static void compare_vector(const ek_comm *c, ek_collective collective, int64_t n, size_t element)
{
    const ek_net_work *w = count_call(c, collective);

    if (w == NULL)
        return;
    compare("the element", w->element, (double)element);
    compare("bytes", w->bytes, (double)n * (double)element);
    compare("the peer", w->peer, -1);
}

static size_t size_of(ek_reduce how)
{
    return how == EK_SUM_F32 ? 4 : 8;
}

/* Whether a rank is in the span of the caller. */
static int in_span(const ek_net_work *w, const ek_comm *c, int rank)
{
    return rank / w->span == c->rank / w->span;
}

/* The calls, by the names that the linker gives them. */
ek_status __real_ek_comm_all_reduce_at(ek_comm *c, void *buf, int64_t n, ek_reduce how,
                                       ek_coll **op, const char *site);
ek_status __wrap_ek_comm_all_reduce_at(ek_comm *c, void *buf, int64_t n, ek_reduce how,
                                       ek_coll **op, const char *site);
ek_status __wrap_ek_comm_all_reduce_at(ek_comm *c, void *buf, int64_t n, ek_reduce how,
                                       ek_coll **op, const char *site)
{
    compare_vector(c, EK_COLLECTIVE_ALL_REDUCE, n, size_of(how));
    return __real_ek_comm_all_reduce_at(c, buf, n, how, op, site);
}

ek_status __real_ek_comm_reduce_scatter_at(ek_comm *c, void *buf, const int64_t *first,
                                           ek_reduce how, ek_coll **op, const char *site);
ek_status __wrap_ek_comm_reduce_scatter_at(ek_comm *c, void *buf, const int64_t *first,
                                           ek_reduce how, ek_coll **op, const char *site);
ek_status __wrap_ek_comm_reduce_scatter_at(ek_comm *c, void *buf, const int64_t *first,
                                           ek_reduce how, ek_coll **op, const char *site)
{
    compare_vector(c, EK_COLLECTIVE_REDUCE_SCATTER, first[c->size], size_of(how));
    return __real_ek_comm_reduce_scatter_at(c, buf, first, how, op, site);
}

ek_status __real_ek_comm_all_gather_at(ek_comm *c, void *buf, const int64_t *first, size_t size,
                                       ek_coll **op, const char *site);
ek_status __wrap_ek_comm_all_gather_at(ek_comm *c, void *buf, const int64_t *first, size_t size,
                                       ek_coll **op, const char *site);
ek_status __wrap_ek_comm_all_gather_at(ek_comm *c, void *buf, const int64_t *first, size_t size,
                                       ek_coll **op, const char *site)
{
    compare_vector(c, EK_COLLECTIVE_ALL_GATHER, first[c->size], size);
    return __real_ek_comm_all_gather_at(c, buf, first, size, op, site);
}

ek_status __real_ek_comm_multicast_at(ek_comm *c, void *buf, int64_t bytes, const int *ranks, int n,
                                      int tag, ek_coll **op, const char *site);
ek_status __wrap_ek_comm_multicast_at(ek_comm *c, void *buf, int64_t bytes, const int *ranks, int n,
                                      int tag, ek_coll **op, const char *site);
ek_status __wrap_ek_comm_multicast_at(ek_comm *c, void *buf, int64_t bytes, const int *ranks, int n,
                                      int tag, ek_coll **op, const char *site)
{
    const ek_net_work *w = count_call(c, EK_COLLECTIVE_MULTICASTS);

    for (int i = 0; w != NULL && i < n; i++)
        compare("the span", in_span(w, c, ranks[i]), 1);
    if (w != NULL && ranks[0] != c->rank)
        ((watched_op *)running->self)->bytes += (double)bytes;
    return __real_ek_comm_multicast_at(c, buf, bytes, ranks, n, tag, op, site);
}

ek_status __real_ek_comm_multireduce_at(ek_comm *c, void *buf, int64_t n, ek_reduce how,
                                        const int *ranks, int n_ranks, int tag, ek_coll **op,
                                        const char *site);
ek_status __wrap_ek_comm_multireduce_at(ek_comm *c, void *buf, int64_t n, ek_reduce how,
                                        const int *ranks, int n_ranks, int tag, ek_coll **op,
                                        const char *site);
ek_status __wrap_ek_comm_multireduce_at(ek_comm *c, void *buf, int64_t n, ek_reduce how,
                                        const int *ranks, int n_ranks, int tag, ek_coll **op,
                                        const char *site)
{
    const ek_net_work *w = count_call(c, EK_COLLECTIVE_MULTIREDUCES);

    for (int i = 0; w != NULL && i < n_ranks; i++)
        compare("the span", in_span(w, c, ranks[i]), 1);
    if (w != NULL)
        compare("the element", w->element, (double)size_of(how));
    if (w != NULL && ranks[0] != c->rank)
        ((watched_op *)running->self)->bytes += (double)n * (double)size_of(how);
    return __real_ek_comm_multireduce_at(c, buf, n, how, ranks, n_ranks, tag, op, site);
}

/* All that a rank sends goes to its partner. */
static void compare_partner(const ek_comm *c, const ek_net_work *w, const int64_t *rows,
                            size_t size)
{
    int to = (c->rank + w->after) % c->size;

    compare("the element", (double)size, 1);
    for (int i = 0; i < c->size; i++)
        compare("bytes", i == to ? w->bytes : 0, (double)rows[c->rank * c->size + i]);
    compare("the partner's node", ek_comm_node(c, to) != ek_comm_node(c, c->rank), 1);
}

static void compare_all_to_all(const ek_comm *c, ek_a2a how, const int64_t *rows, size_t size)
{
    int partners = running != NULL && running->work.net.collective == EK_COLLECTIVE_PARTNERS;
    const ek_net_work *w = count_call(c, partners ? EK_COLLECTIVE_PARTNERS
                                                  : EK_COLLECTIVE_A2A_LINEAR + (ek_collective)how);
    double bytes = 0;
    int to_servers;

    if (w == NULL)
        return;
    if (partners) {
        compare_partner(c, w, rows, size);
        return;
    }
    to_servers = running->kind == EK_OP_DISPATCH_A2A || running->kind == EK_OP_COMBINE_A2A_BACKWARD;
    for (int i = 0; i < c->size; i++) {
        int64_t n = rows[c->rank * c->size + i];

        compare("the span", n == 0 || in_span(w, c, i), 1);
        bytes += i != c->rank ? (double)n * (double)size : 0;
    }
    compare("a row", w->element, (double)size);
    compare("the peer", w->peer, -1);
    if ((w->bytes == 0 && to_servers) || running->layer < 0) /* rows that stay; columns */
        compare("bytes", w->bytes, bytes);
    pthread_mutex_lock(&mutex);
    spread_predicted += has_even_loads(layout) && running->layer >= 0 ? w->bytes : 0;
    spread_sent += has_even_loads(layout) && running->layer >= 0 ? bytes : 0;
    pthread_mutex_unlock(&mutex);
}

ek_status __real_ek_comm_all_to_all_at(ek_comm *c, ek_a2a how, const int64_t *rows, size_t size,
                                       const void *send, void *recv, ek_coll **op,
                                       const char *site);
ek_status __wrap_ek_comm_all_to_all_at(ek_comm *c, ek_a2a how, const int64_t *rows, size_t size,
                                       const void *send, void *recv, ek_coll **op,
                                       const char *site);
ek_status __wrap_ek_comm_all_to_all_at(ek_comm *c, ek_a2a how, const int64_t *rows, size_t size,
                                       const void *send, void *recv, ek_coll **op, const char *site)
{
    compare_all_to_all(c, how, rows, size);
    return __real_ek_comm_all_to_all_at(c, how, rows, size, send, recv, op, site);
}

/* A message alone, or one of those of experts that migrate. */
static void compare_message(const ek_comm *c, ek_collective collective, int64_t bytes, int peer)
{
    int transfers = running != NULL && running->work.net.collective == EK_COLLECTIVE_TRANSFERS;
    const ek_net_work *w = count_call(c, transfers ? EK_COLLECTIVE_TRANSFERS : collective);

    if (w == NULL)
        return;
    if (transfers) {
        ((watched_op *)running->self)->bytes +=
            collective == EK_COLLECTIVE_SEND ? (double)bytes : 0;
        return;
    }
    compare("bytes", w->bytes, (double)bytes);
    compare("the peer", w->peer, peer);
}

ek_status __real_ek_comm_send(ek_comm *c, const void *buf, int64_t bytes, int to, int tag,
                              ek_coll **op);
ek_status __wrap_ek_comm_send(ek_comm *c, const void *buf, int64_t bytes, int to, int tag,
                              ek_coll **op);
ek_status __wrap_ek_comm_send(ek_comm *c, const void *buf, int64_t bytes, int to, int tag,
                              ek_coll **op)
{
    compare_message(c, EK_COLLECTIVE_SEND, bytes, to);
    return __real_ek_comm_send(c, buf, bytes, to, tag, op);
}

ek_status __real_ek_comm_recv(ek_comm *c, void *buf, int64_t bytes, int from, int tag,
                              ek_coll **op);
ek_status __wrap_ek_comm_recv(ek_comm *c, void *buf, int64_t bytes, int from, int tag,
                              ek_coll **op);
ek_status __wrap_ek_comm_recv(ek_comm *c, void *buf, int64_t bytes, int from, int tag, ek_coll **op)
{
    compare_message(c, EK_COLLECTIVE_RECEIVE, bytes, from);
    return __real_ek_comm_recv(c, buf, bytes, from, tag, op);
}

/* What an op has done in all. */
static void compare_op(const ek_op *op, const watched_op *w)
{
    const ek_net_work *net = &op->work.net;

    if (op->work.kind != EK_WORK_NET) {
        if (w->calls != 0 || op->lane == EK_LANE_NET)
            fail_call(op, "the kind of work", op->work.kind, EK_WORK_NET);
        return;
    }
    switch (net->collective) {
    case EK_COLLECTIVE_TRANSFERS:
        if (w->bytes != net->bytes)
            fail_call(op, "bytes", net->bytes, w->bytes);
        return;
    case EK_COLLECTIVE_MULTICASTS:
    case EK_COLLECTIVE_MULTIREDUCES:
        if (op->part < 0 && w->bytes > net->bytes) /* of waves it is the mean */
            fail_call(op, "bytes", net->bytes, w->bytes);
        return;
    default:
        if (w->calls != 1)
            fail_call(op, "calls", 1, w->calls);
    }
}

static void calls_are_those_of_the_work(void)
{
    watched_end = compare_op;
    for (int ranks = 2; ranks <= EQUAL_RANKS_MAX; ranks++)
        for (int i = 0; i < layouts(); i++) {
            equal_layout l = fake_draw(ranks, i);

            run_layout(&l);
        }
    if (EK_T_SLOW)
        return;
    for (int c = 0; c < EK_COLLECTIVES; c++)
        if (seen[c] == 0)
            EK_T_FAIL("no layout has called %s", ek_collective_name((ek_collective)c));
}

/* Dispatch and combine of a gate that spreads rows evenly. */
static void all_to_alls_of_even_loads_send_what_is_predicted(void)
{
    equal_layout l = even_layout();

    watched_end = compare_op;
    spread_predicted = spread_sent = 0;
    run_layout(&l);
    CHECK(spread_predicted > 0);
    if (fabs(spread_sent / spread_predicted - 1) > 0.05)
        EK_T_FAIL("%g bytes are predicted, and %g sent", spread_predicted, spread_sent);
}

/* --- built alone ------------------------------------------------------------------------------ */

/* The network ops of a rank. */
typedef struct {
    ek_op *ops;
    int32_t n;
} net_ops;

static net_ops ops_of[EQUAL_RANKS_MAX];

static void keep_net_ops(const ek_graph *g, equal_result *out)
{
    net_ops *mine = &ops_of[out->ops]; /* the rank */

    mine->ops = malloc((size_t)g->n_ops * sizeof(*mine->ops));
    mine->n = 0;
    for (int32_t i = 0; i < g->n_ops; i++)
        if (g->ops[i].lane == EK_LANE_NET)
            mine->ops[mine->n++] = g->ops[i];
}

static int is_message(const ek_op *op)
{
    return op->work.net.collective == EK_COLLECTIVE_SEND ||
           op->work.net.collective == EK_COLLECTIVE_RECEIVE;
}

/* The next op from *at on that is a message of this kind with `peer`, a rank of the world. */
static const ek_op *next_message(int rank, ek_op_kind kind, int peer, int32_t *at)
{
    for (; *at < ops_of[rank].n; (*at)++) {
        const ek_op *op = &ops_of[rank].ops[*at];

        if (op->kind == kind && ek_ranks_at(op->work.net.group, op->work.net.peer) == peer)
            return &ops_of[rank].ops[(*at)++];
    }
    return NULL;
}

/* Returns how many messages of a kind go from one rank to another, each of which that receives. */
static int pair_messages(const equal_layout *l, int from, int to, ek_op_kind send, ek_op_kind recv)
{
    int32_t at_from = 0, at_to = 0;
    int n = 0;

    for (;; n++) {
        const ek_op *a = next_message(from, send, to, &at_from);
        const ek_op *b = next_message(to, recv, from, &at_to);

        if (a == NULL && b == NULL)
            return n;
        if (a == NULL || b == NULL || a->work.net.bytes != b->work.net.bytes ||
            a->micro != b->micro || a->part + (send == EK_OP_SEND ? 1 : -1) != b->part) {
            EK_T_FAIL("%s: message %d of %s from rank %d to rank %d", equal_text(l), n,
                      ek_op_name(send), from, to);
            return n;
        }
    }
}

static int is_same_group(ek_ranks a, ek_ranks b)
{
    return a.first == b.first && a.stride == b.stride && a.n == b.n;
}

/* The next collective of a rank over this group, from *at on. */
static const ek_op *next_collective(int rank, ek_ranks group, int32_t *at)
{
    for (; *at < ops_of[rank].n; (*at)++) {
        const ek_op *op = &ops_of[rank].ops[*at];

        if (!is_message(op) && is_same_group(op->work.net.group, group))
            return &ops_of[rank].ops[(*at)++];
    }
    return NULL;
}

/* All but bytes where they depend on the rank: rows, and replicas that it has room for. */
static int is_same_collective(const ek_op *a, const ek_op *b)
{
    const ek_net_work *x = &a->work.net, *y = &b->work.net;
    int own = x->collective >= EK_COLLECTIVE_A2A_LINEAR;

    return a->kind == b->kind && a->layer == b->layer && a->micro == b->micro &&
           a->recompute == b->recompute && x->collective == y->collective && x->span == y->span &&
           x->element == y->element && (own || x->bytes == y->bytes);
}

/* Compares the collectives over a group, in order, between its first rank and another. */
static void compare_members(const equal_layout *l, ek_ranks group, int other)
{
    int32_t at_a = 0, at_b = 0;

    for (int n = 0;; n++) {
        const ek_op *a = next_collective(group.first, group, &at_a);
        const ek_op *b = next_collective(other, group, &at_b);

        if (a == NULL && b == NULL)
            return;
        if (a == NULL || b == NULL || !is_same_collective(a, b)) {
            EK_T_FAIL("%s: ranks %d and %d, collective %d of their group of %d: %s, %s",
                      equal_text(l), group.first, other, n, group.n,
                      a != NULL ? ek_op_name(a->kind) : "none",
                      b != NULL ? ek_op_name(b->kind) : "none");
            return;
        }
    }
}

/* Every collective of a rank: it is one of the group's, and its first rank has the same ones. */
static void check_collectives(const equal_layout *l, int rank)
{
    for (int32_t i = 0; i < ops_of[rank].n; i++) {
        const ek_op *op = &ops_of[rank].ops[i];
        ek_ranks group = op->work.net.group;
        int member = 0, again = 0;

        for (int32_t j = 0; j < group.n; j++)
            member |= ek_ranks_at(group, j) == rank;
        for (int32_t j = 0; j < i; j++)
            again |= is_same_group(ops_of[rank].ops[j].work.net.group, group);
        if (op->work.kind != EK_WORK_NET || !member || group.n < 2 || group.n % op->work.net.span)
            EK_T_FAIL("%s: rank %d, %s", equal_text(l), rank, ek_op_name(op->kind));
        if (!again)
            compare_members(l, group, rank);
    }
}

static int messages;

static void check_built(const equal_layout *l)
{
    for (int r = 0; r < l->ranks; r++) {
        equal_result out = {.ops = r};

        ops_of[r] = (net_ops){NULL, 0};
        if (fake_build(l, r, keep_net_ops, &out) < 0)
            EK_T_FAIL("%s: rank %d: %s", equal_text(l), r, ek_err_text());
    }
    for (int a = 0; a < l->ranks; a++) {
        check_collectives(l, a);
        for (int b = 0; b < l->ranks; b++) {
            messages += pair_messages(l, a, b, EK_OP_SEND, EK_OP_RECEIVE);
            messages += pair_messages(l, a, b, EK_OP_SEND_GRADIENT, EK_OP_RECEIVE_GRADIENT);
        }
    }
    for (int r = 0; r < l->ranks; r++)
        free(ops_of[r].ops);
}

static void network_ops_of_all_ranks_fit_together(void)
{
    for (int ranks = 2; ranks <= EQUAL_RANKS_MAX; ranks++)
        for (int i = 0; i < 3 * layouts(); i++) {
            equal_layout l = fake_draw(ranks, i);

            check_built(&l);
        }
    CHECK(messages > 100);
}

static const ek_case cases[] = {
    EK_CASE(calls_are_those_of_the_work),
    EK_CASE(all_to_alls_of_even_loads_send_what_is_predicted),
    EK_CASE(network_ops_of_all_ranks_fit_together),
};
EK_TEST_MAIN(cases)
