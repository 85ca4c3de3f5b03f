/* A decorator over any back end that injects delays, drops and kills.
 *
 * A delayed send delays later sends of its group to the same rank with the same tag, as these keep
 * their order; others overtake it.  A delayed receive is reported as finished later than it is. */
#include "comm/fault.h"

#include "base/random.h"
#include "comm/backend.h"

#include <stdlib.h>

/* A message, from its send or recv until a test reports it as finished. */
typedef struct fault_message {
    struct fault_message *next; /* in the queue of delayed sends, or in the free list */
    struct fault_message *all;  /* in the list of all messages */
    ek_message inner;
    const void *buf;
    int64_t bytes;
    int to, tag;
    int matched; /* sent by send_matched */
    int tests;   /* remaining tests of delay */
    enum { DELAYED, POSTED, DROPPED } state;
} fault_message;

/* State of a world. */
typedef struct {
    ek_fault how;
    const ek_backend *inner;
    uint64_t rank, messages;
    fault_message *free_list, *all;
} fault_world;

/* The back end's state of one group. */
typedef struct {
    fault_world *fault;
    void *inner;
    fault_message *first; /* delayed sends, in order */
    int is_world;
} fault_group;

enum { DELAY, DELAY_TESTS, DROP, KILL, DRAWS };

/* Uniform in [0, 1), for the current message and one purpose. */
static double draw_uniform(const fault_world *f, int what)
{
    return ek_random_uniform(f->how.seed, f->rank, f->messages * DRAWS + (uint64_t)what);
}

static fault_message *new_message(fault_world *f, int64_t bytes)
{
    fault_message *l = f->free_list;

    if (l != NULL) {
        f->free_list = l->next;
    } else {
        l = calloc(1, sizeof(*l));
        if (l == NULL)
            return NULL;
        l->all = f->all;
        f->all = l;
    }
    *l = (fault_message){.all = l->all, .state = POSTED};
    if (draw_uniform(f, DELAY) < f->how.delay && bytes >= f->how.delay_bytes)
        l->tests = 1 + (int)(draw_uniform(f, DELAY_TESTS) * f->how.delay_tests);
    return l;
}

/* Whether an earlier send, which is delayed, is to arrive first. */
static int is_held_back(const fault_group *g, const fault_message *l)
{
    for (const fault_message *o = g->first; o != NULL && o != l; o = o->next)
        if (o->to == l->to && o->tag == l->tag)
            return 1;
    return 0;
}

static ek_status post_send(fault_group *g, fault_message *l)
{
    const ek_backend *b = g->fault->inner;

    l->state = POSTED;
    if (l->matched && b->send_matched != NULL)
        EK_TRY(b->send_matched(g->inner, l->buf, l->bytes, l->to, l->tag, &l->inner));
    else
        EK_TRY(b->send(g->inner, l->buf, l->bytes, l->to, l->tag, &l->inner));
    return EK_OK;
}

static ek_status start_send(void *self, const void *buf, int64_t bytes, int to, int tag,
                            int matched, ek_message *m)
{
    fault_group *g = self;
    fault_world *f = g->fault;
    fault_message *l, **end = &g->first;

    f->messages++;
    if (draw_uniform(f, KILL) < f->how.kill)
        f->how.on_kill(f->how.arg);
    l = new_message(f, bytes);
    EK_REQUIRE(l != NULL, EK_ENOMEM, "no memory for a message");
    m->handle[0] = l;
    l->buf = buf;
    l->bytes = bytes;
    l->to = to;
    l->tag = tag;
    l->matched = matched;
    if (draw_uniform(f, DROP) < f->how.drop) {
        l->state = DROPPED;
        return EK_OK;
    }
    if (l->tests == 0 && !is_held_back(g, l))
        return post_send(g, l);
    l->state = DELAYED;
    while (*end != NULL)
        end = &(*end)->next;
    *end = l;
    return EK_OK;
}

static ek_status fault_send(void *self, const void *buf, int64_t bytes, int to, int tag,
                            ek_message *m)
{
    return start_send(self, buf, bytes, to, tag, 0, m);
}

static ek_status fault_send_matched(void *self, const void *buf, int64_t bytes, int to, int tag,
                                    ek_message *m)
{
    return start_send(self, buf, bytes, to, tag, 1, m);
}

static ek_status fault_recv(void *self, void *buf, int64_t bytes, int from, int tag, ek_message *m)
{
    fault_group *g = self;
    fault_message *l;

    g->fault->messages++;
    l = new_message(g->fault, bytes);
    EK_REQUIRE(l != NULL, EK_ENOMEM, "no memory for a message");
    m->handle[0] = l;
    EK_TRY(g->fault->inner->recv(g->inner, buf, bytes, from, tag, &l->inner));
    return EK_OK;
}

/* Posts the delayed sends that are due. */
static ek_status post_due(fault_group *g)
{
    fault_message **at = &g->first;

    while (*at != NULL) {
        fault_message *l = *at;

        l->tests -= l->tests > 0;
        if (l->tests > 0 || is_held_back(g, l)) {
            at = &l->next;
            continue;
        }
        *at = l->next;
        EK_TRY(post_send(g, l));
    }
    return EK_OK;
}

static ek_status fault_test(void *self, ek_message *m, int *done)
{
    fault_group *g = self;
    fault_message *l = m->handle[0];

    *done = 0;
    EK_TRY(post_due(g));
    if (l->state == DELAYED)
        return EK_OK;
    if (l->state == POSTED && l->tests > 0) { /* a receive */
        l->tests--;
        return EK_OK;
    }
    *done = l->state == DROPPED && !l->matched; /* no peer calls recv for it */
    if (l->state == POSTED)
        EK_TRY(g->fault->inner->test(g->inner, &l->inner, done));
    if (*done) {
        l->next = g->fault->free_list;
        g->fault->free_list = l;
    }
    return EK_OK;
}

static ek_status fault_make_group(void *self, const int *ranks, int n, void **out)
{
    const fault_group *parent = self;
    fault_group *g = calloc(1, sizeof(*g));
    ek_status st;

    EK_REQUIRE(g != NULL, EK_ENOMEM, "no memory for a group of %d ranks", n);
    g->fault = parent->fault;
    st = g->fault->inner->group(parent->inner, ranks, n, &g->inner);
    if (st < 0) {
        free(g);
        return st;
    }
    *out = g;
    return EK_OK;
}

static void fault_close(void *self, int failed)
{
    fault_group *g = self;
    fault_world *f = g->fault;

    f->inner->close(g->inner, failed);
    while (g->is_world && f->all != NULL) {
        fault_message *l = f->all;

        f->all = l->all;
        free(l);
    }
    if (g->is_world)
        free(f);
    free(g);
}

static void fault_abort(void *self, int status)
{
    const fault_group *g = self;

    if (g->fault->inner->abort != NULL)
        g->fault->inner->abort(g->inner, status);
}

static void fault_failed(void *self, const char *reason)
{
    const fault_group *g = self;

    if (g->fault->inner->failed != NULL)
        g->fault->inner->failed(g->inner, reason);
}

static const ek_backend backend = {
    .name = "fault",
    .message_max = INT64_MAX,
    .send = fault_send,
    .send_matched = fault_send_matched,
    .recv = fault_recv,
    .test = fault_test,
    .group = fault_make_group,
    .close = fault_close,
    .abort = fault_abort,
    .failed = fault_failed,
};

ek_status ek_fault_wrap(ek_comm *world, const ek_fault *how)
{
    fault_world *f = calloc(1, sizeof(*f));
    fault_group *g = calloc(1, sizeof(*g));

    if (f == NULL || g == NULL) {
        free(f);
        free(g);
        return EK_FAIL(EK_ENOMEM, "no memory for fault injection");
    }
    f->how = *how;
    f->rank = (uint64_t)ek_comm_rank(world);
    g->fault = f;
    g->is_world = 1;
    ek_comm_decorate(world, &backend, g, &f->inner, &g->inner);
    return EK_OK;
}
