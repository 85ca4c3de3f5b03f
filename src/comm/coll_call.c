/* Checked worlds: verifies that all ranks make the same collective call.
 *
 * Before an operation sends data, each rank sends the next one, in a ring of all participants, a
 * description of its call: the operation, its arguments and the source location.  If any two ranks
 * differ, so do two neighbours, and the second of them fails. */
#include "comm/coll.h"

#include <stdio.h>
#include <string.h>

static const uint64_t fnv1a_start = UINT64_C(0xcbf29ce484222325);

/* FNV-1a, continued from h. */
static uint64_t fnv1a(uint64_t h, const void *bytes, size_t n)
{
    const unsigned char *b = bytes;

    for (size_t i = 0; i < n; i++)
        h = (h ^ b[i]) * UINT64_C(0x100000001b3);
    return h;
}

uint64_t ek_call_digest(const int64_t *numbers, int64_t n)
{
    uint64_t h = fnv1a(fnv1a_start, numbers, (size_t)n * sizeof(*numbers));

    return h != 0 ? h : 1;
}

static void describe_call(const ek_coll *op, ek_call *call)
{
    uint64_t h = fnv1a_start;
    int64_t arguments[] = {op->amount, op->size, op->peer, (int64_t)op->how};
    size_t n = op->digest == 0 ? (size_t)op->kept.n_table : 0; /* a digest replaces the table */
    const char *site = op->site != NULL ? op->site : "no site";
    size_t length = strlen(site), skip = length < SITE_CAP ? 0 : length - SITE_CAP + 1;

    memset(call, 0, sizeof(*call));
    snprintf(call->name, sizeof(call->name), "%s", op->name);
    snprintf(call->site, sizeof(call->site), "%s", site + skip); /* keeps the end of the path */
    call->amount = op->amount;
    h = fnv1a(h, arguments, sizeof(arguments));
    h = fnv1a(h, &op->digest, sizeof(op->digest));
    call->digest = fnv1a(h, op->kept.table, n * sizeof(*op->kept.table));
}

ek_status ek_call_post(ek_coll *op)
{
    const ek_comm *c = op->comm;
    const ek_backend *b = c->world->backend;
    int tag = op->tag; /* unique to the operation, except for operations on lists of ranks */

    if (tag < TAG_CALL)
        tag += TAG_CALL - TAG_MULTICAST;
    describe_call(op, &op->check.own_call);
    EK_TRY(b->recv(c->state, &op->check.prev_call, sizeof(op->check.prev_call), op->check.prev_rank,
                   tag, &op->check.call_in));
    EK_TRY(b->send(c->state, &op->check.own_call, sizeof(op->check.own_call), op->check.next_rank,
                   tag, &op->check.call_out));
    op->check.call_received = false;
    return EK_OK;
}

ek_status ek_call_test(ek_coll *op)
{
    const ek_comm *c = op->comm;
    const ek_backend *b = c->world->backend;
    const ek_call *own = &op->check.own_call, *prev = &op->check.prev_call;
    int done = 0;

    if (!op->check.call_received) {
        EK_TRY(b->test(c->state, &op->check.call_in, &done));
        if (!done)
            return EK_OK;
        op->check.call_received = true;
        EK_REQUIRE(
            strcmp(own->name, prev->name) == 0 && own->digest == prev->digest, EK_ECOMM,
            "ranks of %s make different calls: rank %d %s of %lld (%s), rank %d %s of %lld (%s)",
            c->name, op->check.prev_rank, prev->name, (long long)prev->amount, prev->site, c->rank,
            own->name, (long long)own->amount, own->site);
    }
    EK_TRY(b->test(c->state, &op->check.call_out, &done));
    op->check.agreed = done != 0;
    return EK_OK;
}
