/* Operations in flight: pool, messages and progress.
 *
 * Testing one operation makes progress on all operations of the world: ranks may wait for their
 * operations in different orders, and each operation needs progress on all of its ranks. */
#include "comm/coll.h"

#include "base/backoff.h"
#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- the pool --------------------------------------------------------------------------------- */

/* The idle operation with the smallest sufficient scratch, else the one with the largest; or a new
 * one, NULL without memory. */
static ek_coll *pool_alloc(ek_comm *c, int64_t scratch)
{
    ek_coll **best = &c->idle, *op;

    if (*best == NULL)
        return calloc(1, sizeof(*op));
    for (ek_coll **at = &(*best)->next; *at != NULL; at = &(*at)->next) {
        int64_t cap = (*at)->kept.scratch_cap, best_cap = (*best)->kept.scratch_cap;

        if (best_cap < scratch ? cap > best_cap : cap >= scratch && cap < best_cap)
            best = at;
    }
    op = *best;
    *best = op->next;
    return op;
}

static void pool_free(ek_coll *op)
{
    op->next = op->comm->idle;
    op->comm->idle = op;
}

/* Grows the buffer *p to at least `need` elements; its contents are lost.  It grows by half at
 * least, as sizes that depend on token counts would otherwise reallocate at every new maximum. */
static ek_status grow_buffer(void *p, int64_t *cap, int64_t need, size_t size, const char *name)
{
    void *old, *fresh = NULL;

    if (need <= *cap)
        return EK_OK;
    if (need < *cap + *cap / 2)
        need = *cap + *cap / 2;
    memcpy(&old, p, sizeof(old));
    free(old);
    *cap = 0;
    if ((uint64_t)need < (SIZE_MAX - 64) / size) /* whole multiples of the alignment */
        fresh = aligned_alloc(64, ((size_t)need * size + 63) / 64 * 64);
    memcpy(p, &fresh, sizeof(fresh));
    EK_REQUIRE(fresh != NULL, EK_ENOMEM, "%s: no memory for %lld times %zu bytes", name,
               (long long)need, size);
    *cap = need;
    return EK_OK;
}

static ek_status check_world(const ek_world *w, const char *name)
{
    EK_REQUIRE(w->failed == EK_OK, w->failed, "%s after a failure: %s", name, w->reason);
    return EK_OK;
}

ek_status ek_coll_begin(ek_comm *c, const char *name, const char *site, int tag, int64_t transfers,
                        int64_t table, int64_t scratch, ek_coll **out)
{
    ek_coll *op;
    ek_status st;

    EK_TRY(check_world(c->world, name));
    op = pool_alloc(c, scratch);
    EK_REQUIRE(op != NULL, EK_ENOMEM, "%s on %s: no memory", name, c->name);
    op->comm = c;
    op->name = name;
    op->site = site;
    EK_TRY_OUT(grow_buffer(&op->kept.transfers, &op->kept.transfers_cap, transfers,
                           sizeof(ek_transfer), name));
    EK_TRY_OUT(grow_buffer(&op->kept.table, &op->kept.table_cap, table, sizeof(int64_t), name));
    EK_TRY_OUT(grow_buffer(&op->kept.scratch, &op->kept.scratch_cap, scratch, 1, name));
    op->tag = tag;
    if (tag < 0)
        op->tag = TAG_COLLECTIVE + (int)(c->calls++ % (TAG_END - TAG_COLLECTIVE));
    op->kept.n_table = table;
    op->check.agreed = op->posted = op->done = op->advanced = false;
    op->n_transfers = op->n_done = op->phase = op->n_phase_0 = op->peer = 0;
    op->amount = op->size = op->n_served = 0;
    op->digest = 0;
    op->how = EK_SUM_F32;
    op->check.next_rank = (c->rank + 1) % c->size;
    op->check.prev_rank = (c->rank + c->size - 1) % c->size;
    op->post = NULL;
    op->step = ek_coll_step_wait_transfers;
    *out = op;
    return EK_OK;
out:
    pool_free(op);
    return st;
}

/* --- lists of ranks --------------------------------------------------------------------------- */

ek_status ek_coll_find_rank(const ek_comm *c, const char *name, const int *ranks, int n, int tag,
                            int *at)
{
    int found = -1;

    EK_REQUIRE(tag >= 0 && tag < EK_COMM_TAGS, EK_EINVAL, "%s on %s: tag %d is not in 0 to %d",
               name, c->name, tag, EK_COMM_TAGS - 1);
    for (int i = 0; i < n; i++) {
        EK_REQUIRE(ranks[i] >= 0 && ranks[i] < c->size, EK_EINVAL,
                   "%s on %s: rank %d is not in 0 to %d", name, c->name, ranks[i], c->size - 1);
        EK_REQUIRE(ranks[i] != c->rank || found < 0, EK_EINVAL, "%s on %s: rank %d is listed twice",
                   name, c->name, c->rank);
        if (ranks[i] == c->rank)
            found = i;
    }
    EK_REQUIRE(found >= 0, EK_EINVAL, "%s on %s: rank %d is not among the %d ranks", name, c->name,
               c->rank, n);
    *at = found;
    return EK_OK;
}

void ek_coll_set_ring(ek_coll *op, const int *ranks, int n, int at)
{
    op->check.next_rank = ranks[(at + 1) % n];
    op->check.prev_rank = ranks[(at + n - 1) % n];
    for (int i = 0; i < n; i++)
        op->kept.table[op->kept.n_table - n + i] = ranks[i];
}

/* --- messages --------------------------------------------------------------------------------- */

/* "rank 1 (node3)" in the world; "rank 1 (node3, rank 5 of all)" in another group. */
static const char *peer_text(const ek_comm *c, int rank, char *text, size_t cap)
{
    int n = snprintf(text, cap, "rank %d (%s", rank, c->hosts[rank]);

    if (n < 0 || (size_t)n >= cap)
        return text;
    if (c->state == c->world->state)
        snprintf(text + n, cap - (size_t)n, ")");
    else
        snprintf(text + n, cap - (size_t)n, ", rank %d of all)", c->world_of[rank]);
    return text;
}

/* Raises the last error again, with the operation, the group and the peer in front. */
static ek_status fail_transfer(const ek_coll *op, ek_status st, const ek_transfer *t)
{
    const ek_comm *c = op->comm;
    char peer[EK_HOST_CAP + 64];

    return EK_FAIL(st, "%s on %s: rank %d of %d %s %s: %s", op->name, c->name, c->rank, c->size,
                   t->incoming ? "receiving from" : "sending to",
                   peer_text(c, t->peer, peer, sizeof(peer)), ek_err_message());
}

/* matched: it is done only once the peer receives it. */
static ek_status start_send(ek_coll *op, ek_transfer *t, const void *buf, int64_t bytes, int to,
                            bool matched)
{
    ek_comm *c = op->comm;
    const ek_backend *b = c->world->backend;
    ek_status st;

    *t = (ek_transfer){.bytes = bytes, .peer = to, .open = true};
    st = (matched && b->send_matched != NULL ? b->send_matched : b->send)(c->state, buf, bytes, to,
                                                                          op->tag, &t->m);
    if (st < 0)
        return fail_transfer(op, st, t);
    c->world->bytes_sent += bytes;
    return EK_OK;
}

ek_status ek_transfer_send(ek_coll *op, ek_transfer *t, const void *buf, int64_t bytes, int to)
{
    return start_send(op, t, buf, bytes, to, false);
}

ek_status ek_transfer_send_matched(ek_coll *op, ek_transfer *t, const void *buf, int64_t bytes,
                                   int to)
{
    return start_send(op, t, buf, bytes, to, true);
}

ek_status ek_transfer_recv(ek_coll *op, ek_transfer *t, void *buf, int64_t bytes, int from)
{
    ek_comm *c = op->comm;
    ek_status st;

    *t = (ek_transfer){.bytes = bytes, .peer = from, .incoming = true, .open = true};
    st = c->world->backend->recv(c->state, buf, bytes, from, op->tag, &t->m);
    return st < 0 ? fail_transfer(op, st, t) : EK_OK;
}

ek_status ek_transfer_test(ek_coll *op, ek_transfer *t)
{
    int done = 0;
    ek_status st;

    if (!t->open)
        return EK_OK;
    st = op->comm->world->backend->test(op->comm->state, &t->m, &done);
    if (st < 0)
        return fail_transfer(op, st, t);
    t->open = !done;
    op->comm->world->arrived += done;
    return EK_OK;
}

int64_t ek_coll_n_transfers(const ek_comm *c, int64_t bytes)
{
    int64_t max = c->nodes > 1 ? c->world->far_max : c->world->message_max;

    return bytes <= max ? 1 : (bytes - 1) / max + 1;
}

int64_t ek_coll_segment(const ek_comm *c, const int *ranks, int n)
{
    bool far = ranks == NULL && c->nodes > 1;
    int64_t max;

    for (int i = 1; ranks != NULL && i < n; i++)
        far = far || c->node_of[ranks[i]] != c->node_of[ranks[0]];
    max = far ? c->world->far_max : c->world->message_max;
    return max < EK_COLL_SEGMENT ? max : EK_COLL_SEGMENT;
}

static int64_t longest_to(const ek_comm *c, int peer)
{
    int far = c->node_of[peer] != c->node_of[c->rank];

    return far ? c->world->far_max : c->world->message_max;
}

ek_status ek_coll_send(ek_coll *op, const void *buf, int64_t bytes, int to)
{
    const char *at = buf;
    int64_t max = longest_to(op->comm, to);

    for (; bytes > max; at += max, bytes -= max)
        EK_TRY(ek_transfer_send(op, &op->kept.transfers[op->n_transfers++], at, max, to));
    EK_TRY(ek_transfer_send(op, &op->kept.transfers[op->n_transfers++], at, bytes, to));
    return EK_OK;
}

ek_status ek_coll_recv(ek_coll *op, void *buf, int64_t bytes, int from)
{
    char *at = buf;
    int64_t max = longest_to(op->comm, from);

    for (; bytes > max; at += max, bytes -= max)
        EK_TRY(ek_transfer_recv(op, &op->kept.transfers[op->n_transfers++], at, max, from));
    EK_TRY(ek_transfer_recv(op, &op->kept.transfers[op->n_transfers++], at, bytes, from));
    return EK_OK;
}

ek_status ek_coll_test_transfers(ek_coll *op, int upto, int *done)
{
    *done = 0;
    for (; op->n_done < upto; op->n_done++) {
        EK_TRY(ek_transfer_test(op, &op->kept.transfers[op->n_done]));
        if (op->kept.transfers[op->n_done].open)
            return EK_OK;
    }
    *done = 1;
    return EK_OK;
}

ek_status ek_coll_step_wait_transfers(ek_coll *op, int *done)
{
    return ek_coll_test_transfers(op, op->n_transfers, done);
}

void ek_coll_copy(const ek_coll *op, void *to, const void *from, int64_t bytes)
{
    if (bytes > 0 && !op->comm->world->backend->no_data)
        memcpy(to, from, (size_t)bytes);
}

/* --- progress --------------------------------------------------------------------------------- */

static void link_running(ek_coll *op)
{
    ek_world *w = op->comm->world;

    op->prev = NULL;
    op->next = w->running;
    if (op->next != NULL)
        op->next->prev = op;
    w->running = op;
}

static void unlink_running(ek_coll *op)
{
    if (op->prev != NULL)
        op->prev->next = op->next;
    else
        op->comm->world->running = op->next;
    if (op->next != NULL)
        op->next->prev = op->prev;
}

/* The first failure of a world: its message is kept for all later calls. */
static ek_status fail_world(ek_world *w, ek_status st)
{
    w->failed = st;
    snprintf(w->reason, sizeof(w->reason), "%s", ek_err_message());
    if (w->backend->failed != NULL)
        w->backend->failed(w->state, w->reason);
    return st;
}

void ek_comm_give_up(ek_comm *c)
{
    if (c->world->failed == EK_OK)
        (void)fail_world(c->world, EK_ECANCELED);
}

static ek_status advance_op(ek_coll *op)
{
    int done = 0;

    if (op->done)
        return EK_OK;
    if (!op->check.agreed)
        EK_TRY(ek_call_test(op));
    if (!op->check.agreed)
        return EK_OK;
    if (!op->posted) {
        EK_TRY(op->post(op));
        op->posted = true;
    }
    EK_TRY(op->step(op, &done));
    op->done = done != 0;
    return EK_OK;
}

ek_status ek_coll_launch(ek_coll *op, ek_coll **out)
{
    const ek_comm *c = op->comm;
    ek_status st = EK_OK;

    link_running(op);
    op->check.agreed =
        !c->world->checked || op->tag < TAG_MULTICAST || op->check.next_rank == c->rank;
    if (!op->check.agreed)
        st = ek_call_post(op);
    if (st == EK_OK)
        st = advance_op(op);
    if (st < 0) {
        st = fail_world(op->comm->world, st);
        unlink_running(op);
        pool_free(op);
        return st;
    }
    *out = op;
    return EK_OK;
}

/* Advances an operation that is tested, and all others, as their peers may wait for this rank.
 * Whoever tests several in turn advances each of them once a turn: a test of an operation that was
 * advanced with another one does nothing. */
static ek_status advance_all(ek_coll *tested)
{
    if (tested->advanced && !tested->done) {
        tested->advanced = false;
        return EK_OK;
    }
    EK_TRY(advance_op(tested));
    if (tested->done)
        return EK_OK;
    for (ek_coll *op = tested->comm->world->running; op != NULL; op = op->next)
        if (op != tested) {
            EK_TRY(advance_op(op));
            op->advanced = true;
        }
    return EK_OK;
}

ek_status ek_coll_test(ek_coll **op)
{
    ek_coll *o = *op;
    ek_world *w = o->comm->world;
    ek_status st;

    if (w->failed != EK_OK) {
        st = EK_FAIL(w->failed, "%s", w->reason);
    } else {
        st = advance_all(o);
        if (st < 0)
            st = fail_world(w, st);
        else if (!o->done)
            return EK_PENDING;
    }
    unlink_running(o);
    pool_free(o);
    *op = NULL;
    return st;
}

/* The transfer to name in a timeout: the oldest open one, incoming before outgoing. */
static const ek_transfer *blocking_transfer(const ek_coll *op)
{
    const ek_transfer *found = NULL;

    for (int i = 0; i < op->n_transfers; i++) {
        const ek_transfer *t = &op->kept.transfers[i];

        if (t->open && (found == NULL || (t->incoming && !found->incoming)))
            found = t;
    }
    return found;
}

void ek_coll_describe(const ek_coll *op, char *text, size_t cap)
{
    const ek_comm *c = op->comm;
    const ek_transfer *t = blocking_transfer(op);
    char from[128] = "", peer[EK_HOST_CAP + 64];

    if (op->site != NULL)
        snprintf(from, sizeof(from), ", called at %s", op->site);
    if (!op->check.agreed)
        snprintf(text, cap, "%s on %s: rank %d of %d waits for %s to make this call%s", op->name,
                 c->name, c->rank, c->size, peer_text(c, op->check.prev_rank, peer, sizeof(peer)),
                 from);
    else if (t == NULL)
        snprintf(text, cap, "%s on %s: rank %d of %d waits for nothing%s", op->name, c->name,
                 c->rank, c->size, from);
    else
        snprintf(text, cap, "%s on %s: rank %d of %d waits %s %s, %lld bytes%s", op->name, c->name,
                 c->rank, c->size, t->incoming ? "for" : "to send to",
                 peer_text(c, t->peer, peer, sizeof(peer)), (long long)t->bytes, from);
}

/* Ends an operation without progress for quiet_s seconds. */
static ek_status time_out(ek_coll **op, double quiet_s)
{
    ek_coll *o = *op;
    char text[REASON_CAP];

    ek_coll_describe(o, text, sizeof(text));
    unlink_running(o);
    pool_free(o);
    *op = NULL;
    return fail_world(o->comm->world,
                      EK_FAIL(EK_ETIMEOUT, "nothing has moved for %.3g s: %s", quiet_s, text));
}

ek_status ek_coll_wait(ek_coll **op)
{
    const ek_world *w = (*op)->comm->world;
    int64_t arrived = w->arrived, seen = ek_clock_ns();
    ek_backoff backoff = {0};
    double quiet_s = 0;
    ek_status st;

    while ((st = ek_coll_test(op)) == EK_PENDING) {
        int64_t now = ek_clock_ns();
        double since = (double)(now - seen) / 1e9;

        /* Limited per test, as this process may have been stopped meanwhile. */
        quiet_s += since < w->watchdog_s / 8 ? since : w->watchdog_s / 8;
        seen = now;
        if (w->arrived != arrived) {
            backoff.polls = 0;
            quiet_s = 0;
        }
        arrived = w->arrived;
        if (w->watchdog_s > 0 && quiet_s > w->watchdog_s)
            return time_out(op, quiet_s);
        ek_backoff_wait(&backoff);
    }
    return st;
}
