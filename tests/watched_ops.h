/* watched_ops.h - steps of ranks that are threads, of which a test sees the ops while they run: its
 * program is linked so that ek_exec_run is this one (cmake/ek_tests.cmake). */
#ifndef WATCHED_OPS_H
#define WATCHED_OPS_H

#include "fake_ranks.h"

#include <pthread.h>

/* An op of a running graph, and the calls that it has made. */
typedef struct {
    ek_op_fn run;
    void *self;
    ek_op_describe_fn describe;
    int calls;
    double bytes; /* multicasts, multireduces, transfers: received, added, sent */
} watched_op;

static _Thread_local const ek_op *running; /* the op that this thread runs; its self is watched */
static const equal_layout *layout;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static void fail_call(const ek_op *op, const char *what, double said, double asked)
{
    pthread_mutex_lock(&mutex);
    EK_T_FAIL("%s: %s of layer %d, micro-batch %d, part %d: %s is %g, but the call's %g",
              equal_text(layout), ek_op_name(op->kind), op->layer, op->micro, op->part, what, said,
              asked);
    pthread_mutex_unlock(&mutex);
}

static inline void compare(const char *what, double said, double asked)
{
    if (said != asked)
        fail_call(running, what, said, asked);
}

/* Whether the loads of a layout are even, so that what all ranks send together is predicted. */
static inline int has_even_loads(const equal_layout *l)
{
    return l->model == 14 && l->balance == 0 && l->ways == EQUAL_GIVEN;
}

/* Called for every op when a graph has run. */
static void (*watched_end)(const ek_op *op, const watched_op *w);

static ek_status run_watched(void *self, const ek_op *op)
{
    const ek_op *outer = running; /* that waits in a kernel, and lets network ops run */
    watched_op *w = self;
    ek_status st;

    running = op;
    st = w->run(w->self, op);
    running = outer;
    return st;
}

ek_status __real_ek_exec_run(ek_exec *ex, ek_graph *g);
ek_status __wrap_ek_exec_run(ek_exec *ex, ek_graph *g);

ek_status __wrap_ek_exec_run(ek_exec *ex, ek_graph *g)
{
    watched_op *watched = calloc((size_t)g->n_ops + 1, sizeof(*watched));
    ek_status st;

    for (int32_t i = 0; i < g->n_ops; i++) {
        ek_op *op = &g->ops[i];

        watched[i] = (watched_op){.run = op->run, .self = op->self, .describe = op->describe};
        op->run = run_watched;
        op->self = &watched[i];
        op->describe = NULL;
    }
    st = __real_ek_exec_run(ex, g);
    for (int32_t i = 0; i < g->n_ops; i++) {
        ek_op *op = &g->ops[i];

        if (st == EK_OK)
            watched_end(op, &watched[i]);
        op->run = watched[i].run;
        op->self = watched[i].self;
        op->describe = watched[i].describe;
    }
    free(watched);
    return st;
}

/* Takes the first steps on all ranks. */
static inline void run_layout(const equal_layout *l)
{
    equal_leg leg = {.to = 3, .save_at = -1};
    static equal_result result[EQUAL_RANKS_MAX];

    layout = l;
    equal_run_leg(l, &leg, result);
}

/* A gate that spreads rows evenly, on four ranks. */
static inline equal_layout even_layout(void)
{
    return (equal_layout){.model = 14,
                          .shape = 1,
                          .ranks = 4,
                          .pp = 1,
                          .model_chunks = 1,
                          .tp = 1,
                          .ep = 4,
                          .etp = 1,
                          .degree = 2,
                          .blind = 1};
}

static inline int layouts(void)
{
    return EK_T_SLOW ? 4 : equal_number("EK_TEST_ALL", 0) ? 72 : 20;
}

#endif
