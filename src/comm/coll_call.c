/* Checked worlds: whether all ranks make the same call.
 *
 * Before an operation moves anything, each rank tells the next one, in a ring of all that take
 * part, what it calls: the operation, its arguments and where.  When any two ranks differ, so do
 * two neighbours, and the second of them fails. */
#include "comm/coll.h"

#include <stdio.h>
#include <string.h>

/* FNV-1a */
static uint64_t digest(uint64_t h, const void *bytes, size_t n)
{
    const unsigned char *b = bytes;

    for (size_t i = 0; i < n; i++)
        h = (h ^ b[i]) * UINT64_C(0x100000001b3);
    return h;
}

static void describe_call(const ek_coll *op, ek_call *call)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    int64_t arguments[] = {op->amount, op->size, op->peer, (int64_t)op->how};
    const char *site = op->site != NULL ? op->site : "no site";
    size_t length = strlen(site), skip = length < SITE_CAP ? 0 : length - SITE_CAP + 1;

    memset(call, 0, sizeof(*call));
    snprintf(call->name, sizeof(call->name), "%s", op->name);
    snprintf(call->site, sizeof(call->site), "%s", site + skip); /* the end of a path says more */
    call->amount = op->amount;
    h = digest(h, arguments, sizeof(arguments));
    call->digest = digest(h, op->table, (size_t)op->n_table * sizeof(*op->table));
}

ek_status ek_call_post(ek_coll *op)
{
    const ek_comm *c = op->comm;
    const ek_backend *b = c->world->backend;
    int tag = op->tag; /* one operation a tag, but for those over lists of ranks */

    if (tag < TAG_CALL)
        tag += TAG_CALL - TAG_MULTICAST;
    describe_call(op, &op->mine);
    EK_TRY(b->recv(c->state, &op->theirs, sizeof(op->theirs), op->prev_rank, tag, &op->call_in));
    EK_TRY(b->send(c->state, &op->mine, sizeof(op->mine), op->next_rank, tag, &op->call_out));
    op->heard = false;
    return EK_OK;
}

ek_status ek_call_test(ek_coll *op)
{
    const ek_comm *c = op->comm;
    const ek_backend *b = c->world->backend;
    const ek_call *mine = &op->mine, *theirs = &op->theirs;
    int done = 0;

    if (!op->heard) {
        EK_TRY(b->test(c->state, &op->call_in, &done));
        if (!done)
            return EK_OK;
        op->heard = true;
        EK_REQUIRE(strcmp(mine->name, theirs->name) == 0 && mine->digest == theirs->digest,
                   EK_ECOMM,
                   "ranks of %s call different things: rank %d %s of %lld (%s), rank %d %s of %lld "
                   "(%s)",
                   c->name, op->prev_rank, theirs->name, (long long)theirs->amount, theirs->site,
                   c->rank, mine->name, (long long)mine->amount, mine->site);
    }
    EK_TRY(b->test(c->state, &op->call_out, &done));
    op->agreed = done != 0;
    return EK_OK;
}
