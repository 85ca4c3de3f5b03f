/* Ranks that are threads of one process: message queues under one mutex.  For tests and plans of
 * runs.
 *
 * A message is copied from the send to the receive buffer when both sides have called, and a send
 * finishes only then: code that relies on buffered sends hangs here. */
#include "comm/backend.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { REASON_MAX = 512, CALLS_PER_BLOCK = 512 };

/* One side's send or recv, until the other side has called and its own side has tested it. */
typedef struct pending_call {
    struct pending_call *next; /* in its queue or in the free list */
    int group, from, to, tag;
    int incoming; /* a recv */
    const void *source;
    void *target;
    int64_t bytes;
    int done;
} pending_call;

/* Calls are allocated in blocks, so that the steady state without allocations is reached soon. */
typedef struct call_block {
    struct call_block *next;
    pending_call calls[CALLS_PER_BLOCK];
} call_block;

/* The members of a group: looked up by every member when it opens the group. */
typedef struct group {
    struct group *next;
    int id, parent, n;
    int *ranks;     /* [n] of the parent */
    int *opened_by; /* [n] which members have opened it */
} group;

typedef struct {
    pthread_mutex_t mutex;
    int users; /* open worlds, plus one while they are created */
    int groups;
    group *known;
    int ranks;            /* of the world */
    pending_call **queue; /* [ranks x ranks] unmatched calls of messages from one rank to another */
    pending_call *free_list;
    call_block *blocks;
    int failed; /* rank + 1 of the first rank that failed; 0: none */
    char reason[REASON_MAX];
} hub;

/* The back end's state: one rank in one group. */
typedef struct {
    hub *hub;
    int group, rank, n;
    int *world_rank; /* [n] */
} thread_rank;

static pending_call *new_call(hub *h)
{
    pending_call *l = h->free_list;

    if (l == NULL) {
        call_block *more = calloc(1, sizeof(*more));

        if (more == NULL)
            return NULL;
        more->next = h->blocks;
        h->blocks = more;
        for (l = more->calls; l < more->calls + CALLS_PER_BLOCK - 1; l++)
            l->next = l + 1;
        l = more->calls;
    }
    h->free_list = l->next;
    return l;
}

static void free_call(hub *h, pending_call *l)
{
    l->next = h->free_list;
    h->free_list = l;
}

/* --- messages --------------------------------------------------------------------------------- */

/* from, to: of p's group. */
static pending_call **queue_of(const thread_rank *p, int from, int to)
{
    hub *h = p->hub;

    return &h->queue[(size_t)p->world_rank[from] * (size_t)h->ranks + (size_t)p->world_rank[to]];
}

/* The oldest matching call of the other side; NULL: none. */
static pending_call **find_match(pending_call **queue, const pending_call *l)
{
    for (; *queue != NULL; queue = &(*queue)->next) {
        const pending_call *o = *queue;

        if (o->group == l->group && o->from == l->from && o->to == l->to && o->tag == l->tag &&
            o->incoming != l->incoming)
            return queue;
    }
    return NULL;
}

static void append_call(pending_call **queue, pending_call *l)
{
    while (*queue != NULL)
        queue = &(*queue)->next;
    l->next = NULL;
    *queue = l;
}

static void deliver_message(pending_call *send, pending_call *recv)
{
    if (send->bytes > 0)
        memcpy(recv->target, send->source, (size_t)send->bytes);
    send->done = recv->done = 1;
}

/* Under the mutex: delivers the message if the other side has called, else queues the call. */
static ek_status post_call(const thread_rank *p, pending_call call, ek_message *m)
{
    hub *h = p->hub;
    pending_call **queue = queue_of(p, call.from, call.to), **found, *mine, *other;

    EK_REQUIRE(h->failed == 0, EK_ECOMM, "rank %d has failed: %s", h->failed - 1, h->reason);
    found = find_match(queue, &call);
    other = found != NULL ? *found : NULL;
    EK_REQUIRE(other == NULL || other->bytes == call.bytes, EK_ECOMM,
               "a message of %lld bytes was sent where %lld bytes are expected",
               (long long)(call.incoming ? other->bytes : call.bytes),
               (long long)(call.incoming ? call.bytes : other->bytes));
    mine = new_call(h);
    EK_REQUIRE(mine != NULL, EK_ENOMEM, "no memory for a message");
    *mine = call;
    m->handle[0] = mine;
    if (other == NULL) {
        append_call(queue, mine);
        return EK_OK;
    }
    *found = other->next;
    if (mine->incoming)
        deliver_message(other, mine);
    else
        deliver_message(mine, other);
    return EK_OK;
}

static ek_status threads_send(void *self, const void *buf, int64_t bytes, int to, int tag,
                              ek_message *m)
{
    const thread_rank *p = self;
    pending_call call = {.group = p->group, .from = p->rank, .to = to, .tag = tag, .source = buf};
    ek_status st;

    call.bytes = bytes;
    pthread_mutex_lock(&p->hub->mutex);
    st = post_call(p, call, m);
    pthread_mutex_unlock(&p->hub->mutex);
    return st;
}

static ek_status threads_recv(void *self, void *buf, int64_t bytes, int from, int tag,
                              ek_message *m)
{
    const thread_rank *p = self;
    pending_call call = {.group = p->group, .from = from, .to = p->rank, .tag = tag, .target = buf};
    ek_status st;

    call.bytes = bytes;
    call.incoming = 1;
    pthread_mutex_lock(&p->hub->mutex);
    st = post_call(p, call, m);
    pthread_mutex_unlock(&p->hub->mutex);
    return st;
}

static ek_status threads_test(void *self, ek_message *m, int *done)
{
    const thread_rank *p = self;
    hub *h = p->hub;
    pending_call *l = m->handle[0];
    ek_status st = EK_OK;

    pthread_mutex_lock(&h->mutex);
    *done = l->done;
    if (l->done)
        free_call(h, l);
    else if (h->failed != 0)
        st = EK_FAIL(EK_ECOMM, "rank %d has failed: %s", h->failed - 1, h->reason);
    pthread_mutex_unlock(&h->mutex);
    return st;
}

/* --- groups ----------------------------------------------------------------------------------- */

/* Under the mutex: the oldest group of these ranks that this member has not opened yet, or a new
 * one.  Members open equal groups in the same order. */
static group *find_group(hub *h, int parent, const int *ranks, int n, int me)
{
    size_t bytes = (size_t)n * sizeof(*ranks);
    group **at = &h->known, *g;

    for (; *at != NULL; at = &(*at)->next) {
        g = *at;
        if (g->parent == parent && g->n == n && memcmp(g->ranks, ranks, bytes) == 0 &&
            !g->opened_by[me])
            return g;
    }
    g = calloc(1, sizeof(*g));
    if (g == NULL)
        return NULL;
    g->ranks = malloc(bytes);
    g->opened_by = calloc((size_t)n, sizeof(*g->opened_by));
    if (g->ranks == NULL || g->opened_by == NULL) {
        free(g->ranks);
        free(g->opened_by);
        free(g);
        return NULL;
    }
    memcpy(g->ranks, ranks, bytes);
    g->n = n;
    g->parent = parent;
    g->id = ++h->groups;
    *at = g;
    return g;
}

static thread_rank *new_thread_rank(hub *h, int rank, int n)
{
    thread_rank *p = calloc(1, sizeof(*p));

    if (p == NULL)
        return NULL;
    p->hub = h;
    p->rank = rank;
    p->n = n;
    p->world_rank = calloc((size_t)n, sizeof(*p->world_rank));
    if (p->world_rank == NULL) {
        free(p);
        return NULL;
    }
    return p;
}

static ek_status threads_group(void *self, const int *ranks, int n, void **out)
{
    const thread_rank *parent = self;
    hub *h = parent->hub;
    thread_rank *p = new_thread_rank(h, 0, n);
    group *g;

    EK_REQUIRE(p != NULL, EK_ENOMEM, "no memory for a group of %d ranks", n);
    for (int i = 0; i < n; i++) {
        p->world_rank[i] = parent->world_rank[ranks[i]];
        if (ranks[i] == parent->rank)
            p->rank = i;
    }
    pthread_mutex_lock(&h->mutex);
    g = find_group(h, parent->group, ranks, n, p->rank);
    if (g != NULL) {
        g->opened_by[p->rank] = 1;
        p->group = g->id;
    }
    pthread_mutex_unlock(&h->mutex);
    if (g == NULL) {
        free(p->world_rank);
        free(p);
        return EK_FAIL(EK_ENOMEM, "no memory for a group of %d ranks", n);
    }
    *out = p;
    return EK_OK;
}

/* --- closing ---------------------------------------------------------------------------------- */

static void free_hub(hub *h)
{
    while (h->known != NULL) {
        group *g = h->known;

        h->known = g->next;
        free(g->ranks);
        free(g->opened_by);
        free(g);
    }
    while (h->blocks != NULL) {
        call_block *s = h->blocks;

        h->blocks = s->next;
        free(s);
    }
    pthread_mutex_destroy(&h->mutex);
    free(h->queue);
    free(h);
}

/* Removes a rank's unmatched calls from a queue. */
static void remove_from(const thread_rank *p, pending_call **at)
{
    while (*at != NULL) {
        const pending_call *l = *at;

        if (l->group == p->group && (l->incoming ? l->to : l->from) == p->rank)
            *at = l->next;
        else
            at = &(*at)->next;
    }
}

/* Removes this rank's unmatched calls, after a failure: their buffers become invalid. */
static void remove_calls(const thread_rank *p)
{
    for (int r = 0; r < p->n; r++) {
        remove_from(p, queue_of(p, r, p->rank));
        remove_from(p, queue_of(p, p->rank, r));
    }
}

static void release_hub(hub *h)
{
    int last;

    pthread_mutex_lock(&h->mutex);
    last = --h->users == 0;
    pthread_mutex_unlock(&h->mutex);
    if (last)
        free_hub(h);
}

static void threads_close(void *self, int failed)
{
    thread_rank *p = self;

    (void)failed;
    pthread_mutex_lock(&p->hub->mutex);
    remove_calls(p);
    pthread_mutex_unlock(&p->hub->mutex);
    if (p->group == 0)
        release_hub(p->hub);
    free(p->world_rank);
    free(p);
}

static void threads_failed(void *self, const char *reason)
{
    const thread_rank *p = self;
    hub *h = p->hub;

    pthread_mutex_lock(&h->mutex);
    if (h->failed == 0) {
        h->failed = p->world_rank[p->rank] + 1;
        snprintf(h->reason, sizeof(h->reason), "%s", reason);
    }
    pthread_mutex_unlock(&h->mutex);
}

static const ek_backend threads_backend = {
    .name = "threads",
    .message_max = INT64_MAX,
    .send = threads_send,
    .recv = threads_recv,
    .test = threads_test,
    .group = threads_group,
    .close = threads_close,
    .failed = threads_failed,
};

static hub *new_hub(int ranks)
{
    hub *h = calloc(1, sizeof(*h));

    if (h == NULL)
        return NULL;
    h->ranks = ranks;
    h->queue = calloc((size_t)ranks * (size_t)ranks, sizeof(pending_call *));
    if (h->queue == NULL || pthread_mutex_init(&h->mutex, NULL) != 0) {
        free(h->queue);
        free(h);
        return NULL;
    }
    h->users = 1;
    return h;
}

static ek_status open_rank(hub *h, int rank, int ranks, const char (*hosts)[EK_HOST_CAP],
                           ek_comm **world)
{
    thread_rank *p = new_thread_rank(h, rank, ranks);

    EK_REQUIRE(p != NULL, EK_ENOMEM, "no memory for %d ranks", ranks);
    for (int r = 0; r < ranks; r++)
        p->world_rank[r] = r;
    pthread_mutex_lock(&h->mutex);
    h->users++;
    pthread_mutex_unlock(&h->mutex);
    EK_TRY(ek_comm_create(&threads_backend, p, rank, ranks, hosts, world));
    return EK_OK;
}

ek_status ek_comm_open_threads(int ranks, ek_comm **worlds)
{
    char(*hosts)[EK_HOST_CAP] = calloc((size_t)ranks, sizeof(*hosts));
    hub *h = new_hub(ranks);
    ek_status st = EK_OK;
    int opened = 0;

    EK_REQUIRE_OUT(hosts != NULL && h != NULL, EK_ENOMEM, "no memory for %d ranks", ranks);
    gethostname(hosts[0], EK_HOST_CAP - 1);
    for (int r = 1; r < ranks; r++)
        memcpy(hosts[r], hosts[0], sizeof(hosts[r]));
    for (; opened < ranks; opened++)
        EK_TRY_OUT(open_rank(h, opened, ranks, (const char(*)[EK_HOST_CAP])hosts, &worlds[opened]));
out:
    while (st < 0 && opened > 0)
        ek_comm_close(&worlds[--opened]);
    if (h != NULL)
        release_hub(h);
    free(hosts);
    return st;
}
