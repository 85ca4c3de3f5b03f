/* The executor.  Done flags are one atomic per op; lanes poll them and yield. */
#include "exec/exec.h"

#include "base/clock.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    ek_exec *ex;
    ek_lane lane;
    pthread_t thread;
    int started;
    ek_event *events; /* of the current run; merged by the caller when it ends */
    int64_t n_events, cap_events;
} lane_worker;

struct ek_exec {
    lane_worker lanes[EK_LANE_COUNT];
    const ek_graph *graph;
    atomic_uchar *done;
    int32_t cap_done;

    pthread_mutex_t mutex; /* guards what follows */
    pthread_cond_t wake, idle;
    int64_t generation; /* of runs; a worker joins each run once */
    int busy;           /* lanes still at work in this run, without the compute lane */
    unsigned used;      /* lanes of this run, one bit each */
    int quit;

    atomic_int failed; /* ek_status of the first failure */
    char message[1024];

    int recording, lost_events;
    ek_event *events;
    int64_t n_events, cap_events;
};

static int push(ek_event **array, int64_t *n, int64_t *cap, const ek_event *e)
{
    if (*n == *cap) {
        int64_t want = *cap > 0 ? 2 * *cap : 1024;
        ek_event *p = realloc(*array, (size_t)want * sizeof(*p));

        if (p == NULL)
            return 0;
        *array = p;
        *cap = want;
    }
    (*array)[(*n)++] = *e;
    return 1;
}

static void fail(ek_exec *ex, const ek_op *op, ek_status st)
{
    int none = EK_OK;

    pthread_mutex_lock(&ex->mutex);
    if (atomic_compare_exchange_strong(&ex->failed, &none, (int)st)) {
        int n = snprintf(ex->message, sizeof(ex->message), "%s: ", op->name);

        if (op->layer >= 0)
            n = snprintf(ex->message, sizeof(ex->message), "%s of layer %d: ", op->name,
                         (int)op->layer);
        snprintf(ex->message + n, sizeof(ex->message) - (size_t)n, "%s", ek_err_message());
    }
    pthread_mutex_unlock(&ex->mutex);
}

/* Waits until all that op depends on is done; 0 when the run has failed meanwhile. */
static int wait_for_deps(ek_exec *ex, const ek_op *op)
{
    for (int32_t i = 0; i < op->n_deps; i++) {
        int32_t dep = ex->graph->deps[op->dep + i];

        while (!atomic_load_explicit(&ex->done[dep], memory_order_acquire)) {
            if (atomic_load_explicit(&ex->failed, memory_order_relaxed) != EK_OK)
                return 0;
            sched_yield();
        }
    }
    return atomic_load_explicit(&ex->failed, memory_order_relaxed) == EK_OK;
}

static void run_lane(lane_worker *w)
{
    ek_exec *ex = w->ex;
    const ek_graph *g = ex->graph;

    for (int32_t i = 0; i < g->n_ops; i++) {
        const ek_op *op = &g->ops[i];
        ek_event e = {op->name,  op->lane, op->layer, op->micro, op->part,
                      op->again, 0,        0,         op->flops, op->bytes};
        ek_status st;

        if (op->lane != w->lane)
            continue;
        if (!wait_for_deps(ex, op))
            return;
        if (ex->recording)
            e.start_ns = ek_clock_ns();
        while ((st = op->run(op->self, op)) == EK_PENDING) {
            if (atomic_load_explicit(&ex->failed, memory_order_relaxed) != EK_OK)
                return;
            sched_yield();
        }
        if (st < 0) {
            fail(ex, op, st);
            return;
        }
        if (ex->recording) {
            e.end_ns = ek_clock_ns();
            if (!push(&w->events, &w->n_events, &w->cap_events, &e))
                ex->lost_events = 1;
        }
        atomic_store_explicit(&ex->done[i], 1, memory_order_release);
    }
}

static void *worker_main(void *arg)
{
    lane_worker *w = arg;
    ek_exec *ex = w->ex;
    int64_t seen = 0;

    pthread_mutex_lock(&ex->mutex);
    for (;;) {
        while (!ex->quit && (ex->generation == seen || !(ex->used >> w->lane & 1u))) {
            seen = ex->generation;
            pthread_cond_wait(&ex->wake, &ex->mutex);
        }
        if (ex->quit)
            break;
        seen = ex->generation;
        pthread_mutex_unlock(&ex->mutex);
        run_lane(w);
        pthread_mutex_lock(&ex->mutex);
        if (--ex->busy == 0)
            pthread_cond_signal(&ex->idle);
    }
    pthread_mutex_unlock(&ex->mutex);
    return NULL;
}

ek_status ek_exec_create(ek_exec **out)
{
    ek_exec *ex = calloc(1, sizeof(*ex));

    EK_REQUIRE(ex != NULL, EK_ENOMEM, "no memory for an executor");
    pthread_mutex_init(&ex->mutex, NULL);
    pthread_cond_init(&ex->wake, NULL);
    pthread_cond_init(&ex->idle, NULL);
    for (int i = 0; i < EK_LANE_COUNT; i++) {
        ex->lanes[i].ex = ex;
        ex->lanes[i].lane = (ek_lane)i;
    }
    *out = ex;
    return EK_OK;
}

void ek_exec_destroy(ek_exec **pex)
{
    ek_exec *ex;

    if (pex == NULL || *pex == NULL)
        return;
    ex = *pex;
    pthread_mutex_lock(&ex->mutex);
    ex->quit = 1;
    pthread_cond_broadcast(&ex->wake);
    pthread_mutex_unlock(&ex->mutex);
    for (int i = 0; i < EK_LANE_COUNT; i++) {
        if (ex->lanes[i].started)
            pthread_join(ex->lanes[i].thread, NULL);
        free(ex->lanes[i].events);
    }
    pthread_mutex_destroy(&ex->mutex);
    pthread_cond_destroy(&ex->wake);
    pthread_cond_destroy(&ex->idle);
    free(ex->done);
    free(ex->events);
    free(ex);
    *pex = NULL;
}

/* Starts the workers of lanes that this graph uses and that have none yet. */
static ek_status start_lanes(ek_exec *ex, unsigned used)
{
    for (int i = 0; i < EK_LANE_COUNT; i++) {
        lane_worker *w = &ex->lanes[i];

        if (i == EK_LANE_COMPUTE || !(used >> i & 1u) || w->started)
            continue;
        EK_REQUIRE(pthread_create(&w->thread, NULL, worker_main, w) == 0, EK_ENOMEM,
                   "cannot start the thread of the %s lane", ek_lane_name(w->lane));
        w->started = 1;
    }
    return EK_OK;
}

static void collect_events(ek_exec *ex)
{
    for (int i = 0; i < EK_LANE_COUNT; i++) {
        lane_worker *w = &ex->lanes[i];

        for (int64_t j = 0; j < w->n_events; j++)
            if (!push(&ex->events, &ex->n_events, &ex->cap_events, &w->events[j]))
                ex->lost_events = 1;
        w->n_events = 0;
    }
}

ek_status ek_exec_run(ek_exec *ex, const ek_graph *g)
{
    unsigned used = 0;
    int others = 0;

    EK_TRY(ek_graph_check(g));
    for (int32_t i = 0; i < g->n_ops; i++)
        used |= 1u << g->ops[i].lane;
    used &= ~(1u << EK_LANE_COMPUTE);
    for (unsigned bits = used; bits != 0; bits &= bits - 1)
        others++;
    if (g->n_ops > ex->cap_done) {
        free(ex->done);
        ex->done = malloc((size_t)g->cap_ops);
        ex->cap_done = ex->done != NULL ? g->cap_ops : 0;
        EK_REQUIRE(ex->done != NULL, EK_ENOMEM, "no memory to run %d ops", (int)g->n_ops);
    }
    for (int32_t i = 0; i < g->n_ops; i++)
        atomic_init(&ex->done[i], 0);
    atomic_store(&ex->failed, EK_OK);
    ex->graph = g;
    EK_TRY(start_lanes(ex, used));

    pthread_mutex_lock(&ex->mutex);
    ex->used = used;
    ex->busy = others;
    ex->generation++;
    if (others > 0)
        pthread_cond_broadcast(&ex->wake);
    pthread_mutex_unlock(&ex->mutex);

    run_lane(&ex->lanes[EK_LANE_COMPUTE]);

    pthread_mutex_lock(&ex->mutex);
    while (ex->busy > 0)
        pthread_cond_wait(&ex->idle, &ex->mutex);
    pthread_mutex_unlock(&ex->mutex);
    collect_events(ex);
    EK_REQUIRE(atomic_load(&ex->failed) == EK_OK, (ek_status)atomic_load(&ex->failed), "%s",
               ex->message);
    EK_REQUIRE(!ex->lost_events, EK_ENOMEM, "no memory for the timeline");
    return EK_OK;
}

void ek_exec_record(ek_exec *ex, int on)
{
    ex->recording = on;
}

const ek_event *ek_exec_events(const ek_exec *ex, int64_t *n)
{
    *n = ex->n_events;
    return ex->events;
}

void ek_exec_forget(ek_exec *ex)
{
    ex->n_events = 0;
}
