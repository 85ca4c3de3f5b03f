/* The back end of recorded worlds: messages are matched, and wait to be taken. */
#include "comm/record.h"

#include "comm/backend.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A message, from the first call of either side until both have seen its end. */
typedef struct {
    int32_t group, from, to, tag;
    int64_t bytes;
    bool sent, expected; /* the sender, and the receiver have called */
    bool left, arrived;  /* what the two may see, */
    bool gone, received; /* and have seen */
    int32_t next;        /* in the queue of its pair, or of those that are not used; -1 */
} record;

struct ek_recorder {
    int ranks, groups;
    int32_t *queue; /* [ranks x ranks] messages of a pair for which one side has called; -1 */
    record *list;   /* [n] */
    int32_t n, cap, unused;
    int32_t *ready; /* [n_ready] not taken: from `taken` on */
    int32_t n_ready, cap_ready, taken;
    ek_comm **worlds; /* [ranks] */
};

/* The back end's state of a rank in a group. */
typedef struct {
    ek_recorder *of;
    int32_t group, rank;
    int32_t *world_rank; /* [n] */
} recorded_rank;

static ek_status no_memory(void)
{
    return EK_FAIL(EK_ENOMEM, "no memory for a recorded message");
}

/* --- messages --------------------------------------------------------------------------------- */

static int32_t *queue_of(const ek_recorder *r, const record *m)
{
    return &r->queue[(int64_t)m->from * r->ranks + m->to];
}

/* Where the oldest message like m is linked for which the other side alone has called; a link of
 * -1: nowhere. */
static int32_t *find_match(const ek_recorder *r, const record *m)
{
    int32_t *link = queue_of(r, m);

    for (; *link >= 0; link = &r->list[*link].next) {
        const record *o = &r->list[*link];

        if (o->group == m->group && o->tag == m->tag && o->sent == m->expected)
            break;
    }
    return link;
}

static ek_status new_record(ek_recorder *r, record m, int32_t *id)
{
    record *more;

    m.next = -1;
    *id = r->unused;
    if (*id >= 0) {
        r->unused = r->list[*id].next;
        r->list[*id] = m;
        return EK_OK;
    }
    if (r->n == r->cap) {
        r->cap = r->cap > 0 ? 2 * r->cap : 256;
        more = realloc(r->list, (size_t)r->cap * sizeof(*more));
        if (more == NULL)
            return no_memory();
        r->list = more;
    }
    *id = r->n++;
    r->list[*id] = m;
    return EK_OK;
}

/* Appends a message to those that can be taken: both sides have called. */
static ek_status offer_message(ek_recorder *r, int32_t id)
{
    int32_t *more;

    if (r->taken == r->n_ready)
        r->taken = r->n_ready = 0;
    if (r->n_ready == r->cap_ready) {
        r->cap_ready = r->cap_ready > 0 ? 2 * r->cap_ready : 256;
        more = realloc(r->ready, (size_t)r->cap_ready * sizeof(*more));
        if (more == NULL)
            return no_memory();
        r->ready = more;
    }
    r->ready[r->n_ready++] = id;
    return EK_OK;
}

/* One side calls; *handle: of that side. */
static ek_status post_call(ek_recorder *r, record m, ek_message *handle)
{
    int32_t *link = find_match(r, &m), id = *link;

    if (id >= 0) {
        record *o = &r->list[id];

        EK_REQUIRE(o->bytes == m.bytes, EK_ECOMM,
                   "a message of %lld bytes was sent where %lld bytes are expected",
                   (long long)(m.sent ? m.bytes : o->bytes),
                   (long long)(m.sent ? o->bytes : m.bytes));
        *link = o->next;
        o->sent = o->expected = true;
    } else {
        EK_TRY(new_record(r, m, &id));
        link = find_match(r, &(record){.from = m.from, .to = m.to, .group = -1}); /* the end */
        *link = id;
    }
    handle->handle[0] = (void *)((intptr_t)id + 1);
    handle->handle[1] = m.expected ? r : NULL;
    return r->list[id].sent && r->list[id].expected ? offer_message(r, id) : EK_OK;
}

static ek_status record_send(void *self, const void *buf, int64_t bytes, int to, int tag,
                             ek_message *m)
{
    const recorded_rank *p = self;

    (void)buf;
    return post_call(p->of,
                     (record){.group = p->group,
                              .from = p->world_rank[p->rank],
                              .to = p->world_rank[to],
                              .tag = tag,
                              .bytes = bytes,
                              .sent = true},
                     m);
}

static ek_status record_recv(void *self, void *buf, int64_t bytes, int from, int tag, ek_message *m)
{
    const recorded_rank *p = self;

    (void)buf;
    return post_call(p->of,
                     (record){.group = p->group,
                              .from = p->world_rank[from],
                              .to = p->world_rank[p->rank],
                              .tag = tag,
                              .bytes = bytes,
                              .expected = true},
                     m);
}

static ek_status record_test(void *self, ek_message *m, int *done)
{
    ek_recorder *r = ((const recorded_rank *)self)->of;
    int32_t id = (int32_t)((intptr_t)m->handle[0] - 1);
    record *x = &r->list[id];
    bool incoming = m->handle[1] != NULL;

    *done = incoming ? x->arrived : x->left;
    if (!*done)
        return EK_OK;
    x->received |= incoming;
    x->gone |= !incoming;
    if (x->received && x->gone) {
        x->next = r->unused;
        r->unused = id;
    }
    return EK_OK;
}

int ek_record_take(ek_recorder *r, ek_recorded *m)
{
    const record *x;

    if (r->taken == r->n_ready)
        return 0;
    m->id = r->ready[r->taken++];
    x = &r->list[m->id];
    m->from = x->from;
    m->to = x->to;
    m->bytes = x->bytes;
    return 1;
}

void ek_record_left(ek_recorder *r, int32_t id)
{
    r->list[id].left = true;
}

void ek_record_arrived(ek_recorder *r, int32_t id)
{
    r->list[id].arrived = true;
}

/* --- groups ----------------------------------------------------------------------------------- */

static recorded_rank *new_rank(ek_recorder *r, int n)
{
    recorded_rank *p = calloc(1, sizeof(*p));

    if (p == NULL)
        return NULL;
    p->of = r;
    p->world_rank = calloc((size_t)n, sizeof(*p->world_rank));
    if (p->world_rank == NULL) {
        free(p);
        return NULL;
    }
    return p;
}

static ek_status record_group(void *self, const int *ranks, int n, void **out)
{
    const recorded_rank *parent = self;
    recorded_rank *p = new_rank(parent->of, n);

    EK_REQUIRE(p != NULL, EK_ENOMEM, "no memory for a group of %d ranks", n);
    p->group = parent->of->groups;
    for (int i = 0; i < n; i++) {
        p->world_rank[i] = parent->world_rank[ranks[i]];
        if (ranks[i] == parent->rank)
            p->rank = i;
    }
    *out = p;
    return EK_OK;
}

static void record_close(void *self, int failed)
{
    recorded_rank *p = self;

    (void)failed;
    free(p->world_rank);
    free(p);
}

static const ek_backend record_backend = {
    .name = "record",
    .message_max = INT64_MAX,
    .no_data = true,
    .send = record_send,
    .recv = record_recv,
    .test = record_test,
    .group = record_group,
    .close = record_close,
};

ek_status ek_record_group(ek_recorder *r, const char *name, const int *ranks, int n,
                          ek_comm **groups)
{
    memset(groups, 0, (size_t)n * sizeof(*groups));
    r->groups++;
    for (int i = 0; i < n; i++) {
        EK_REQUIRE(ranks[i] >= 0 && ranks[i] < r->ranks, EK_EINVAL,
                   "group %s: rank %d is not in 0 to %d", name, ranks[i], r->ranks - 1);
        EK_TRY(ek_comm_group(r->worlds[ranks[i]], name, ranks, n, &groups[i]));
    }
    return EK_OK;
}

/* --- worlds ----------------------------------------------------------------------------------- */

static ek_status open_world(ek_recorder *r, int rank, const char (*hosts)[EK_HOST_CAP])
{
    recorded_rank *p = new_rank(r, r->ranks);

    if (p == NULL)
        return no_memory();
    p->rank = rank;
    for (int i = 0; i < r->ranks; i++)
        p->world_rank[i] = i;
    EK_TRY(ek_comm_create(&record_backend, p, rank, r->ranks, hosts, &r->worlds[rank]));
    ek_comm_set_checked(r->worlds[rank], 0); /* a call's description would have to be carried */
    return EK_OK;
}

ek_status ek_record_open(int ranks, ek_recorder **out)
{
    ek_recorder *r = calloc(1, sizeof(*r));
    size_t pairs = (size_t)ranks * (size_t)ranks;
    char(*hosts)[EK_HOST_CAP] = calloc((size_t)ranks, sizeof(*hosts));
    ek_status st = EK_OK;

    *out = r;
    EK_REQUIRE_OUT(r != NULL && hosts != NULL, EK_ENOMEM, "no memory for %d ranks", ranks);
    r->ranks = ranks;
    r->unused = -1;
    r->worlds = calloc((size_t)ranks, sizeof(ek_comm *));
    r->queue = malloc(pairs * sizeof(*r->queue));
    EK_REQUIRE_OUT(r->worlds != NULL && r->queue != NULL, EK_ENOMEM, "no memory for %d ranks",
                   ranks);
    memset(r->queue, 0xff, pairs * sizeof(*r->queue));
    gethostname(hosts[0], EK_HOST_CAP - 1);
    for (int i = 1; i < ranks; i++)
        memcpy(hosts[i], hosts[0], sizeof(hosts[i]));
    for (int i = 0; i < ranks; i++)
        EK_TRY_OUT(open_world(r, i, (const char(*)[EK_HOST_CAP])hosts));
out:
    free(hosts);
    return st;
}

void ek_record_close(ek_recorder **pr)
{
    ek_recorder *r = *pr;

    *pr = NULL;
    if (r == NULL)
        return;
    for (int i = 0; r->worlds != NULL && i < r->ranks; i++)
        ek_comm_close(&r->worlds[i]);
    free(r->worlds);
    free(r->queue);
    free(r->list);
    free(r->ready);
    free(r);
}

ek_comm *ek_record_world(const ek_recorder *r, int rank)
{
    return r->worlds[rank];
}
