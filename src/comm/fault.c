/* A decorator over any back end: delays, drops and kills.
 *
 * A send that is held back holds back all later ones of its group, as messages keep their order;
 * a receive that is held back has come, but does not say so yet. */
#include "comm/fault.h"

#include "base/random.h"
#include "comm/backend.h"

#include <stdlib.h>

/* A message, from its call until it is done. */
typedef struct letter {
    struct letter *next, *all; /* in the queue of sends or among the spare; of all there are */
    ek_message inner;
    const void *buf;
    int64_t bytes;
    int to, tag;
    int tests; /* to be held back for */
    enum { HELD, POSTED, LOST } state;
} letter;

/* Of a world. */
typedef struct {
    ek_fault how;
    const ek_backend *inner;
    uint64_t rank, messages;
    letter *spare, *all;
} fault;

/* The back end's state of one group. */
typedef struct {
    fault *fault;
    void *inner;
    letter *first, *last; /* sends held back, in order */
    int is_world;
} fault_group;

enum { DELAY, DELAY_TESTS, DROP, KILL, DRAWS };

/* Uniform in [0, 1), of the present message. */
static double draw(const fault *f, int what)
{
    return ek_random_uniform(f->how.seed, f->rank, f->messages * DRAWS + (uint64_t)what);
}

static letter *new_letter(fault *f)
{
    letter *l = f->spare;

    if (l != NULL) {
        f->spare = l->next;
    } else {
        l = calloc(1, sizeof(*l));
        if (l == NULL)
            return NULL;
        l->all = f->all;
        f->all = l;
    }
    *l = (letter){.all = l->all, .state = POSTED};
    if (draw(f, DELAY) < f->how.delay)
        l->tests = 1 + (int)(draw(f, DELAY_TESTS) * f->how.delay_tests);
    return l;
}

static ek_status post(fault_group *g, letter *l)
{
    l->state = POSTED;
    EK_TRY(g->fault->inner->send(g->inner, l->buf, l->bytes, l->to, l->tag, &l->inner));
    return EK_OK;
}

static ek_status fault_send(void *self, const void *buf, int64_t bytes, int to, int tag,
                            ek_message *m)
{
    fault_group *g = self;
    fault *f = g->fault;
    letter *l;

    f->messages++;
    if (draw(f, KILL) < f->how.kill)
        f->how.on_kill(f->how.arg);
    l = new_letter(f);
    EK_REQUIRE(l != NULL, EK_ENOMEM, "no memory for a message");
    m->handle[0] = l;
    l->buf = buf;
    l->bytes = bytes;
    l->to = to;
    l->tag = tag;
    if (draw(f, DROP) < f->how.drop) {
        l->state = LOST;
        return EK_OK;
    }
    if (l->tests == 0 && g->first == NULL)
        return post(g, l);
    l->state = HELD;
    if (g->first == NULL)
        g->first = l;
    else
        g->last->next = l;
    g->last = l;
    return EK_OK;
}

static ek_status fault_recv(void *self, void *buf, int64_t bytes, int from, int tag, ek_message *m)
{
    fault_group *g = self;
    letter *l;

    g->fault->messages++;
    l = new_letter(g->fault);
    EK_REQUIRE(l != NULL, EK_ENOMEM, "no memory for a message");
    m->handle[0] = l;
    EK_TRY(g->fault->inner->recv(g->inner, buf, bytes, from, tag, &l->inner));
    return EK_OK;
}

/* Sends whose time has come. */
static ek_status release(fault_group *g)
{
    while (g->first != NULL && g->first->tests == 0) {
        letter *l = g->first;

        g->first = l->next;
        EK_TRY(post(g, l));
    }
    if (g->first != NULL)
        g->first->tests--;
    return EK_OK;
}

static ek_status fault_test(void *self, ek_message *m, int *done)
{
    fault_group *g = self;
    letter *l = m->handle[0];

    *done = 0;
    EK_TRY(release(g));
    if (l->state == HELD)
        return EK_OK;
    if (l->state == POSTED && l->tests > 0) { /* a receive */
        l->tests--;
        return EK_OK;
    }
    *done = l->state == LOST;
    if (l->state == POSTED)
        EK_TRY(g->fault->inner->test(g->inner, &l->inner, done));
    if (*done) {
        l->next = g->fault->spare;
        g->fault->spare = l;
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
    fault *f = g->fault;

    f->inner->close(g->inner, failed);
    while (g->is_world && f->all != NULL) {
        letter *l = f->all;

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
    .recv = fault_recv,
    .test = fault_test,
    .group = fault_make_group,
    .close = fault_close,
    .abort = fault_abort,
    .failed = fault_failed,
};

ek_status ek_fault_wrap(ek_comm *world, const ek_fault *how)
{
    fault *f = calloc(1, sizeof(*f));
    fault_group *g = calloc(1, sizeof(*g));

    if (f == NULL || g == NULL) {
        free(f);
        free(g);
        return EK_FAIL(EK_ENOMEM, "no memory for faults");
    }
    f->how = *how;
    f->rank = (uint64_t)ek_comm_rank(world);
    g->fault = f;
    g->is_world = 1;
    ek_comm_decorate(world, &backend, g, &f->inner, &g->inner);
    return EK_OK;
}
