/* Ranks that are threads of one process: mailboxes under one mutex.  For tests.
 *
 * A message is copied when both sides have called, straight from one buffer to the other, and a
 * send is done only then: what relies on messages being buffered on the way hangs here. */
#include "comm/backend.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WHY_MAX = 512, LETTERS = 512 };

/* One side's call, until the other side's comes; then until its owner has asked. */
typedef struct letter {
    struct letter *next; /* in its box or among the spare */
    int group, from, to, tag;
    int incoming; /* the receiver's */
    const void *source;
    void *target;
    int64_t bytes;
    int done;
} letter;

/* Letters are made many at once, so that a steady state of messages is reached soon. */
typedef struct sheet {
    struct sheet *next;
    letter letters[LETTERS];
} sheet;

/* Who belongs to a group: found again by every member when it makes the group. */
typedef struct group {
    struct group *next;
    int id, parent, n;
    int *ranks; /* [n] of the parent */
    int *made;  /* [n] which members have come */
} group;

typedef struct {
    pthread_mutex_t mutex;
    int users; /* worlds not yet closed, and who makes them */
    int groups;
    group *known;
    letter **box; /* [ranks of the world] calls of either side about messages to a rank */
    letter *spare;
    sheet *sheets;
    int failed; /* rank + 1 of the first that failed */
    char reason[WHY_MAX];
} hub;

/* The back end's state: one rank in one group. */
typedef struct {
    hub *hub;
    int group, rank, n;
    int *world_rank; /* [n] */
} place;

static letter *new_letter(hub *h)
{
    letter *l = h->spare;

    if (l == NULL) {
        sheet *more = calloc(1, sizeof(*more));

        if (more == NULL)
            return NULL;
        more->next = h->sheets;
        h->sheets = more;
        for (l = more->letters; l < more->letters + LETTERS - 1; l++)
            l->next = l + 1;
        l = more->letters;
    }
    h->spare = l->next;
    return l;
}

static void free_letter(hub *h, letter *l)
{
    l->next = h->spare;
    h->spare = l;
}

/* --- messages --------------------------------------------------------------------------------- */

/* The oldest call of the other side that fits; NULL: there is none. */
static letter **match(letter **box, const letter *l)
{
    for (; *box != NULL; box = &(*box)->next) {
        const letter *o = *box;

        if (o->group == l->group && o->from == l->from && o->to == l->to && o->tag == l->tag &&
            o->incoming != l->incoming)
            return box;
    }
    return NULL;
}

static void append(letter **box, letter *l)
{
    while (*box != NULL)
        box = &(*box)->next;
    l->next = NULL;
    *box = l;
}

static void deliver(letter *send, letter *recv)
{
    if (send->bytes > 0)
        memcpy(recv->target, send->source, (size_t)send->bytes);
    send->done = recv->done = 1;
}

/* Under the mutex: delivers when the other side has called before, else waits in the box. */
static ek_status post(const place *p, letter call, ek_message *m)
{
    hub *h = p->hub;
    letter **box = &h->box[p->world_rank[call.to]], **found, *mine, *other;

    EK_REQUIRE(h->failed == 0, EK_ECOMM, "rank %d has failed: %s", h->failed - 1, h->reason);
    found = match(box, &call);
    other = found != NULL ? *found : NULL;
    EK_REQUIRE(other == NULL || other->bytes == call.bytes, EK_ECOMM,
               "a message of %lld bytes is expected with %lld bytes",
               (long long)(call.incoming ? other->bytes : call.bytes),
               (long long)(call.incoming ? call.bytes : other->bytes));
    mine = new_letter(h);
    EK_REQUIRE(mine != NULL, EK_ENOMEM, "no memory for a message");
    *mine = call;
    m->handle[0] = mine;
    if (other == NULL) {
        append(box, mine);
        return EK_OK;
    }
    *found = other->next;
    if (mine->incoming)
        deliver(other, mine);
    else
        deliver(mine, other);
    return EK_OK;
}

static ek_status threads_send(void *self, const void *buf, int64_t bytes, int to, int tag,
                              ek_message *m)
{
    const place *p = self;
    letter call = {.group = p->group, .from = p->rank, .to = to, .tag = tag, .source = buf};
    ek_status st;

    call.bytes = bytes;
    pthread_mutex_lock(&p->hub->mutex);
    st = post(p, call, m);
    pthread_mutex_unlock(&p->hub->mutex);
    return st;
}

static ek_status threads_recv(void *self, void *buf, int64_t bytes, int from, int tag,
                              ek_message *m)
{
    const place *p = self;
    letter call = {.group = p->group, .from = from, .to = p->rank, .tag = tag, .target = buf};
    ek_status st;

    call.bytes = bytes;
    call.incoming = 1;
    pthread_mutex_lock(&p->hub->mutex);
    st = post(p, call, m);
    pthread_mutex_unlock(&p->hub->mutex);
    return st;
}

static ek_status threads_test(void *self, ek_message *m, int *done)
{
    const place *p = self;
    hub *h = p->hub;
    letter *l = m->handle[0];
    ek_status st = EK_OK;

    pthread_mutex_lock(&h->mutex);
    *done = l->done;
    if (l->done)
        free_letter(h, l);
    else if (h->failed != 0)
        st = EK_FAIL(EK_ECOMM, "rank %d has failed: %s", h->failed - 1, h->reason);
    pthread_mutex_unlock(&h->mutex);
    return st;
}

/* --- groups ----------------------------------------------------------------------------------- */

/* Under the mutex: the oldest group of these ranks that this member has not made yet, or a new
 * one.  Members make equal groups in the same order. */
static group *find_group(hub *h, int parent, const int *ranks, int n, int me)
{
    size_t bytes = (size_t)n * sizeof(*ranks);
    group **at = &h->known, *g;

    for (; *at != NULL; at = &(*at)->next) {
        g = *at;
        if (g->parent == parent && g->n == n && memcmp(g->ranks, ranks, bytes) == 0 && !g->made[me])
            return g;
    }
    g = calloc(1, sizeof(*g));
    if (g == NULL)
        return NULL;
    g->ranks = malloc(bytes);
    g->made = calloc((size_t)n, sizeof(*g->made));
    if (g->ranks == NULL || g->made == NULL) {
        free(g->ranks);
        free(g->made);
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

static place *new_place(hub *h, int rank, int n)
{
    place *p = calloc(1, sizeof(*p));

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
    const place *parent = self;
    hub *h = parent->hub;
    place *p = new_place(h, 0, n);
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
        g->made[p->rank] = 1;
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

/* --- ends ------------------------------------------------------------------------------------- */

static void free_hub(hub *h)
{
    while (h->known != NULL) {
        group *g = h->known;

        h->known = g->next;
        free(g->ranks);
        free(g->made);
        free(g);
    }
    while (h->sheets != NULL) {
        sheet *s = h->sheets;

        h->sheets = s->next;
        free(s);
    }
    pthread_mutex_destroy(&h->mutex);
    free(h->box);
    free(h);
}

/* Calls of this rank that nobody answered, after a failure: their buffers go. */
static void withdraw(const place *p)
{
    for (int r = 0; r < p->n; r++) {
        letter **at = &p->hub->box[p->world_rank[r]];

        while (*at != NULL) {
            const letter *l = *at;

            if (l->group == p->group && (l->incoming ? l->to : l->from) == p->rank)
                *at = l->next;
            else
                at = &(*at)->next;
        }
    }
}

static void release(hub *h)
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
    place *p = self;

    (void)failed;
    pthread_mutex_lock(&p->hub->mutex);
    withdraw(p);
    pthread_mutex_unlock(&p->hub->mutex);
    if (p->group == 0)
        release(p->hub);
    free(p->world_rank);
    free(p);
}

static void threads_failed(void *self, const char *reason)
{
    const place *p = self;
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
    h->box = calloc((size_t)ranks, sizeof(letter *));
    if (h->box == NULL || pthread_mutex_init(&h->mutex, NULL) != 0) {
        free(h->box);
        free(h);
        return NULL;
    }
    h->users = 1;
    return h;
}

static ek_status open_rank(hub *h, int rank, int ranks, const char (*hosts)[EK_HOST_CAP],
                           ek_comm **world)
{
    place *p = new_place(h, rank, ranks);

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
        release(h);
    free(hosts);
    return st;
}
