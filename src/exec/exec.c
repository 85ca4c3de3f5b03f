/* The executor: lanes that run one op at a time, their threads, and the start and end of a run.
 * Each op has an atomic done flag; lanes poll the flags of dependencies and yield. */
#include "base/backoff.h"
#include "base/c_locale.h"
#include "base/clock.h"
#include "base/progress_hook.h"
#include "base/threads.h"
#include "exec/exec_priv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int append_event(ek_event_array *a, const ek_event *e)
{
    if (a->n == a->cap) {
        int64_t want = a->cap > 0 ? 2 * a->cap : 1024;
        ek_event *p = realloc(a->list, (size_t)want * sizeof(*p));

        if (p == NULL)
            return 0;
        a->list = p;
        a->cap = want;
    }
    a->list[a->n++] = *e;
    return 1;
}

void ek_exec_name_op(const ek_exec *ex, const ek_op *op, char *text, size_t cap)
{
    char layer[32] = "", micro[32] = "";

    if (op->layer >= 0)
        snprintf(layer, sizeof(layer), " of layer %d", (int)op->layer);
    if (op->micro >= 0 && ex->run.many_micros)
        snprintf(micro, sizeof(micro), ", micro-batch %d", (int)op->micro);
    snprintf(text, cap, "%s%s%s", ek_op_name(op->kind), layer, micro);
}

void ek_exec_fail(ek_exec *ex, const ek_op *op, ek_status st)
{
    int none = EK_OK;

    pthread_mutex_lock(&ex->mutex);
    if (atomic_compare_exchange_strong(&ex->run.failed, &none, (int)st)) {
        char name[256];

        ek_exec_name_op(ex, op, name, sizeof(name));
        snprintf(ex->message, sizeof(ex->message), "%s: %s", name, ek_err_message());
        pthread_cond_signal(&ex->stepped);
    }
    pthread_mutex_unlock(&ex->mutex);
}

void ek_exec_op_done(ek_lane_worker *w, int32_t id, int32_t track, int64_t start_ns)
{
    ek_exec *ex = w->ex;
    const ek_op *op = &ex->run.graph->ops[id];

    if (ex->recording) {
        ek_event e = {op->kind, op->lane,      op->layer, op->micro, op->part, op->recompute,
                      start_ns, ek_clock_ns(), op->flops, op->bytes, track,    op->work};

        if (!append_event(&w->events, &e))
            atomic_store(&ex->lost_events, 1);
    }
    atomic_store_explicit(&ex->done[id], 1, memory_order_release);
    atomic_fetch_add(&ex->run.steps, 1);
    if (atomic_load(&ex->asleep)) {
        pthread_mutex_lock(&ex->mutex);
        pthread_cond_signal(&ex->stepped);
        pthread_mutex_unlock(&ex->mutex);
    }
}

/* One iteration of a lane's waiting loop. */
static void wait_or_serve(ek_lane_worker *w, ek_backoff *backoff)
{
    if (w->lane == EK_LANE_COMPUTE && w->ex->config.inline_async && ek_async_serve(w->ex))
        backoff->polls = 0;
    else
        ek_backoff_wait(backoff);
}

/* Waits until all dependencies of op are done; returns 0 if the run has failed meanwhile. */
static int wait_for_all(ek_lane_worker *w, const ek_op *op)
{
    ek_exec *ex = w->ex;
    ek_backoff backoff = {0};

    for (int32_t i = 0; i < op->n_deps; i++)
        while (!ek_exec_is_done(ex, ex->run.graph->deps[op->dep + i])) {
            if (ek_exec_has_failed(ex))
                return 0;
            wait_or_serve(w, &backoff);
        }
    return !ek_exec_has_failed(ex);
}

static int wait_for_deps(ek_lane_worker *w, const ek_op *op)
{
    int64_t start = op->stall_ns != NULL ? ek_clock_ns() : 0;
    int go_on = wait_for_all(w, op);

    if (op->stall_ns != NULL)
        *op->stall_ns += ek_clock_ns() - start;
    return go_on;
}

/* Calls an op until it has ended; returns EK_PENDING if the run has failed meanwhile. */
static ek_status run_op(ek_lane_worker *w, const ek_op *op)
{
    ek_exec *ex = w->ex;
    ek_backoff backoff = {0};
    ek_status st;

    atomic_fetch_add(&ex->run.running, 1);
    st = op->run(op->self, op);
    atomic_fetch_add(&ex->run.steps, 1); /* before `running` is decremented: see quiet_seconds */
    atomic_fetch_sub(&ex->run.running, 1);
    while (st == EK_PENDING && !ek_exec_has_failed(ex)) {
        wait_or_serve(w, &backoff);
        st = op->run(op->self, op);
    }
    return st;
}

/* Waits for the kernels that the compute lane has launched. */
static ek_status synchronize_device(ek_exec *ex)
{
    ex->run.queued = 0;
    return ex->config.synchronize != NULL ? ex->config.synchronize(ex->config.computer) : EK_OK;
}

/* Runs an op of the compute lane. */
static ek_status run_compute_op(ek_lane_worker *w, const ek_op *op)
{
    ek_exec *ex = w->ex;
    int async = op->async && ex->run.compute_only && !ex->recording && ex->config.queue != NULL;
    ek_status st;

    if (!async && ex->run.queued > 0)
        EK_TRY(synchronize_device(ex));
    if (ex->config.queue != NULL)
        ex->config.queue(ex->config.computer, async);
    st = run_op(w, op);
    ex->run.queued += async;
    if (st != EK_OK)
        return st;
    return async ? EK_OK : synchronize_device(ex);
}

/* Synchronises the device after the last op. */
static void end_compute(ek_exec *ex, const ek_op *last)
{
    ek_status st = ex->run.queued > 0 ? synchronize_device(ex) : EK_OK;

    if (ex->config.queue != NULL)
        ex->config.queue(ex->config.computer, 0);
    if (st < 0)
        ek_exec_fail(ex, last, st);
}

static void run_lane(ek_lane_worker *w)
{
    ek_exec *ex = w->ex;
    const ek_graph *g = ex->run.graph;
    int serves = w->lane == EK_LANE_COMPUTE && ex->config.inline_async;

    for (int32_t i = 0; i < g->n_ops; i++) {
        const ek_op *op = &g->ops[i];
        int64_t start_ns = 0;
        ek_status st;

        if (op->lane != w->lane)
            continue;
        if (serves) /* starts ops that the previous op was a dependency of */
            ek_async_serve(ex);
        if (!wait_for_deps(w, op))
            return;
        if (ex->recording || op->busy_ns != NULL)
            start_ns = ek_clock_ns();
        st = w->lane == EK_LANE_COMPUTE ? run_compute_op(w, op) : run_op(w, op);
        if (st == EK_PENDING)
            return; /* given up, as the run has failed */
        if (st < 0) {
            ek_exec_fail(ex, op, st);
            return;
        }
        if (op->busy_ns != NULL)
            *op->busy_ns += ek_clock_ns() - start_ns;
        ek_exec_op_done(w, i, 0, start_ns);
    }
}

static void serve_async(void *context)
{
    ek_async_serve(context);
}

/* The compute lane and, in inline mode, the asynchronous lanes. */
static void run_calling_thread(ek_exec *ex)
{
    const ek_graph *g = ex->run.graph;

    if (ex->config.inline_async)
        ek_progress_hook_set(serve_async, ex);
    run_lane(&ex->lanes[EK_LANE_COMPUTE]);
    end_compute(ex, g->n_ops > 0 ? &g->ops[g->n_ops - 1] : NULL);
    if (!ex->config.inline_async)
        return;
    ek_async_run(ex);
    ek_progress_hook_set(NULL, NULL);
}

static void *worker_main(void *arg)
{
    ek_lane_worker *w = arg;
    ek_exec *ex = w->ex;
    int64_t seen = 0;
    EK_C_LOCALE;

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
        if (w->lane == EK_LANE_NET)
            ek_async_run(ex);
        else
            run_lane(w);
        pthread_mutex_lock(&ex->mutex);
        if (--ex->busy == 0)
            pthread_cond_signal(&ex->idle);
    }
    pthread_mutex_unlock(&ex->mutex);
    return NULL;
}

ek_status ek_exec_create(const ek_exec_config *config, ek_exec **out)
{
    ek_exec *ex = calloc(1, sizeof(*ex));

    EK_REQUIRE(ex != NULL, EK_ENOMEM, "no memory for an executor");
    if (config != NULL)
        ex->config = *config;
    pthread_mutex_init(&ex->mutex, NULL);
    pthread_cond_init(&ex->wake, NULL);
    pthread_cond_init(&ex->idle, NULL);
    pthread_cond_init(&ex->stepped, NULL);
    for (int i = 0; i < EK_LANE_COUNT; i++) {
        ex->lanes[i].ex = ex;
        ex->lanes[i].lane = (ek_lane)i;
    }
    *out = ex;
    return EK_OK;
}

static void free_ops(ek_exec *ex)
{
    free(ex->done);
    free(ex->cells);
    free(ex->async.flights);
    ex->done = NULL;
    ex->cells = NULL;
    ex->async.flights = NULL;
    ex->cap_ops = 0;
}

/* Grows the arrays to the capacity of the graph. */
static ek_status reserve_ops(ek_exec *ex, const ek_graph *g)
{
    size_t n = (size_t)g->cap_ops;

    if (g->n_ops <= ex->cap_ops)
        return EK_OK;
    free_ops(ex);
    ex->done = malloc(n * sizeof(*ex->done));
    ex->cells = malloc(n * sizeof(*ex->cells));
    ex->async.flights = malloc(n * sizeof(*ex->async.flights));
    if (ex->done == NULL || ex->cells == NULL || ex->async.flights == NULL) {
        free_ops(ex);
        return EK_FAIL(EK_ENOMEM, "no memory to run %d ops", (int)g->n_ops);
    }
    ex->cap_ops = g->cap_ops;
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
        free(ex->lanes[i].events.list);
    }
    pthread_mutex_destroy(&ex->mutex);
    pthread_cond_destroy(&ex->wake);
    pthread_cond_destroy(&ex->idle);
    pthread_cond_destroy(&ex->stepped);
    free_ops(ex);
    free(ex->events.list);
    free(ex);
    *pex = NULL;
}

/* Starts missing workers of the lanes that this graph uses. */
static ek_status start_lanes(ek_exec *ex, unsigned used)
{
    for (int i = 0; i < EK_LANE_COUNT; i++) {
        ek_lane_worker *w = &ex->lanes[i];

        if (i == EK_LANE_COMPUTE || !(used >> i & 1u) || w->started)
            continue;
        EK_REQUIRE(ek_thread_start(&w->thread, worker_main, w), EK_ENOMEM,
                   "cannot start the thread of the %s lane", ek_lane_name(w->lane));
        w->started = 1;
    }
    return EK_OK;
}

static void collect_events(ek_exec *ex)
{
    for (int i = 0; i < EK_LANE_COUNT; i++) {
        ek_event_array *from = &ex->lanes[i].events;

        for (int64_t j = 0; j < from->n; j++)
            if (!append_event(&ex->events, &from->list[j]))
                atomic_store(&ex->lost_events, 1);
        from->n = 0;
    }
}

/* Resets the state of a run; returns the workers that it needs, one bit per lane. */
static unsigned begin_run(ek_exec *ex, ek_graph *g)
{
    const unsigned compute = 1u << EK_LANE_COMPUTE, net = 1u << EK_LANE_NET,
                   async = net | 1u << EK_LANE_SUMS | 1u << EK_LANE_DISK;
    unsigned used = 0;

    ex->run.graph = g;
    ex->run.many_micros = 0;
    for (int32_t i = 0; i < g->n_ops; i++) {
        used |= 1u << g->ops[i].lane;
        ex->run.many_micros |= g->ops[i].micro > 0;
        atomic_init(&ex->done[i], 0);
        ex->cells[i] = NULL;
        g->ops[i].state = &ex->cells[i];
    }
    atomic_store(&ex->run.failed, EK_OK);
    atomic_store(&ex->run.running, 0);
    ek_async_begin(ex);
    ex->run.compute_only = (used & ~compute) == 0;
    ex->run.queued = 0;
    if ((used & async) && !ex->config.inline_async)
        return (used & ~(compute | async)) | net;
    return used & ~(compute | async);
}

ek_status ek_exec_run(ek_exec *ex, ek_graph *g)
{
    unsigned used;

    EK_TRY(ek_graph_check(g));
    EK_TRY(reserve_ops(ex, g));
    used = begin_run(ex, g);
    EK_TRY(start_lanes(ex, used));

    pthread_mutex_lock(&ex->mutex);
    ex->used = used;
    ex->busy = 0;
    for (unsigned bits = used; bits != 0; bits &= bits - 1)
        ex->busy++;
    ex->generation++;
    if (used != 0)
        pthread_cond_broadcast(&ex->wake);
    pthread_mutex_unlock(&ex->mutex);

    run_calling_thread(ex);

    pthread_mutex_lock(&ex->mutex);
    while (ex->busy > 0)
        pthread_cond_wait(&ex->idle, &ex->mutex);
    pthread_mutex_unlock(&ex->mutex);
    collect_events(ex);
    EK_REQUIRE(!ek_exec_has_failed(ex), (ek_status)atomic_load(&ex->run.failed), "%s", ex->message);
    EK_REQUIRE(!atomic_load(&ex->lost_events), EK_ENOMEM, "no memory for the timeline");
    return EK_OK;
}

void ek_exec_record(ek_exec *ex, int on)
{
    ex->recording = on;
}

const ek_event *ek_exec_events(const ek_exec *ex, int64_t *n)
{
    *n = ex->events.n;
    return ex->events.list;
}

void ek_exec_forget(ek_exec *ex)
{
    ex->events.n = 0;
}
