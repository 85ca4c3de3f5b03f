/* The asynchronous lanes, network and disk: ops start in graph order, several are in flight at
 * once, and one thread polls them: a worker or, in inline mode, the calling thread between and
 * inside its compute ops.  That thread is also the watchdog for hangs. */
#include "base/backoff.h"
#include "base/clock.h"
#include "base/log.h"
#include "exec/exec_priv.h"

#include <stdio.h>
#include <string.h>

static const ek_lane async_lanes[] = {EK_LANE_SUMS, EK_LANE_NET, EK_LANE_DISK};

enum { N_LANES = sizeof(async_lanes) / sizeof(async_lanes[0]) };

/* The first op of the lane from `from` on. */
static int32_t find_op(const ek_graph *g, ek_lane lane, int32_t from)
{
    while (from < g->n_ops && g->ops[from].lane != lane)
        from++;
    return from;
}

void ek_async_begin(ek_exec *ex)
{
    ek_async *n = &ex->async;

    for (int i = 0; i < N_LANES; i++) {
        n->next[async_lanes[i]] = find_op(ex->run.graph, async_lanes[i], 0);
        n->deps_done[async_lanes[i]] = 0;
    }
    n->n_flights = 0;
    n->serving = 0;
    n->warned = 0;
    n->quiet_s = 0;
    n->checked_ns = ek_clock_ns();
}

int ek_async_finished(const ek_exec *ex)
{
    const ek_async *n = &ex->async;

    for (int i = 0; i < N_LANES; i++)
        if (n->next[async_lanes[i]] < ex->run.graph->n_ops)
            return 0;
    return n->n_flights == 0;
}

/* Polls an op in flight; returns 1 if it has ended. */
static int poll_flight(ek_exec *ex, int32_t flight)
{
    ek_async *n = &ex->async;
    ek_flight f = n->flights[flight];
    const ek_op *op = &ex->run.graph->ops[f.id];
    ek_status st = op->run(op->self, op);

    if (st == EK_PENDING)
        return 0;
    n->n_flights--;
    memmove(&n->flights[flight], &n->flights[flight + 1],
            (size_t)(n->n_flights - flight) * sizeof(f));
    if (st < 0)
        ek_exec_fail(ex, op, st);
    else
        ek_exec_op_done(&ex->lanes[EK_LANE_NET], f.id, f.track, f.start_ns);
    return 1;
}

static int32_t free_track(const ek_exec *ex, ek_lane lane)
{
    const ek_async *n = &ex->async;
    int32_t track = 0;

    for (int32_t i = 0; i < n->n_flights; i++)
        if (ex->run.graph->ops[n->flights[i].id].lane == lane && n->flights[i].track == track) {
            track++;
            i = -1;
        }
    return track;
}

/* Starts the lane's ops up to the first one whose dependencies are not done; returns how many. */
static int start_ops(ek_exec *ex, ek_lane lane)
{
    ek_async *n = &ex->async;
    const ek_graph *g = ex->run.graph;
    int started = 0;

    while (n->next[lane] < g->n_ops && !ek_exec_has_failed(ex)) {
        int32_t id = n->next[lane];
        const ek_op *op = &g->ops[id];

        while (n->deps_done[lane] < op->n_deps &&
               ek_exec_is_done(ex, g->deps[op->dep + n->deps_done[lane]]))
            n->deps_done[lane]++;
        if (n->deps_done[lane] < op->n_deps)
            break;
        n->flights[n->n_flights] = (ek_flight){.id = id};
        if (ex->recording) {
            n->flights[n->n_flights].track = free_track(ex, lane);
            n->flights[n->n_flights].start_ns = ek_clock_ns();
        }
        n->n_flights++;
        n->next[lane] = find_op(g, lane, id + 1);
        n->deps_done[lane] = 0;
        started++;
        atomic_fetch_add(&ex->run.steps, 1);
        poll_flight(ex, n->n_flights - 1);
    }
    return started;
}

static void describe_op(ek_exec *ex, const ek_op *op, char *text, size_t cap)
{
    text[0] = '\0';
    if (op->describe != NULL)
        op->describe(op->self, op, text, cap);
    if (text[0] == '\0')
        snprintf(text, cap, "%d ops are in flight", (int)ex->async.n_flights);
}

/* Time without progress while ops are in flight: no op has started or ended on any lane, no
 * compute op is running, and config.moved() has not changed.  An interval between two calls counts
 * for at most an eighth of the limit, as the whole process may have been stopped. */
static double quiet_seconds(ek_exec *ex)
{
    ek_async *n = &ex->async;
    const ek_exec_config *c = &ex->config;
    int running =
        atomic_load(&ex->run.running); /* before steps, which an op that ends now changes */
    unsigned steps = atomic_load(&ex->run.steps);
    int64_t moved = c->moved != NULL ? c->moved(c->context) : 0, now = ek_clock_ns();
    double since = (double)(now - n->checked_ns) / 1e9;

    n->checked_ns = now;
    n->quiet_s += since < c->watchdog_s / 8 ? since : c->watchdog_s / 8;
    if (n->n_flights == 0 || running > 0 || steps != n->steps || moved != n->moved) {
        n->steps = steps;
        n->moved = moved;
        n->quiet_s = 0;
        n->warned = 0;
    }
    return n->quiet_s;
}

/* Warns, then fails the run, after too long a time without progress. */
static void check_hang(ek_exec *ex)
{
    ek_async *n = &ex->async;
    double quiet = quiet_seconds(ex);
    const ek_op *op;
    char name[256], text[512];

    if (quiet < ex->config.watchdog_s / (n->warned ? 1 : 2) || quiet <= 0)
        return;
    op = &ex->run.graph->ops[n->flights[0].id];
    describe_op(ex, op, text, sizeof(text));
    if (n->warned) {
        ek_exec_fail(ex, op, EK_FAIL(EK_ETIMEOUT, "nothing has moved for %.3g s: %s", quiet, text));
        return;
    }
    n->warned = 1;
    ek_exec_name_op(ex, op, name, sizeof(name));
    ek_log("exec", EK_LOG_WARN, "%s: nothing has moved for %.3g s: %s", name, quiet, text);
}

int ek_async_serve(ek_exec *ex)
{
    ek_async *n = &ex->async;
    int moved = 0;

    if (n->serving)
        return 0;
    n->serving = 1;
    for (int i = 0; i < N_LANES; i++)
        moved += start_ops(ex, async_lanes[i]);
    for (int32_t i = 0; i < n->n_flights && !ek_exec_has_failed(ex);)
        if (poll_flight(ex, i))
            moved++;
        else
            i++;
    if (moved == 0 && ex->config.watchdog_s > 0)
        check_hang(ex);
    n->serving = 0;
    return moved > 0;
}

/* Sleeps until an op has ended since there were `steps`, or the run has failed. */
static void sleep_until_step(ek_exec *ex, unsigned steps)
{
    pthread_mutex_lock(&ex->mutex);
    atomic_store(&ex->asleep, 1);
    while (atomic_load(&ex->run.steps) == steps && !ek_exec_has_failed(ex))
        pthread_cond_wait(&ex->stepped, &ex->mutex);
    atomic_store(&ex->asleep, 0);
    pthread_mutex_unlock(&ex->mutex);
}

void ek_async_run(ek_exec *ex)
{
    ek_backoff backoff = {0};

    while (!ek_exec_has_failed(ex) && !ek_async_finished(ex)) {
        unsigned steps = atomic_load(&ex->run.steps);

        if (ek_async_serve(ex))
            backoff.polls = 0;
        else if (ex->async.n_flights == 0 && ek_backoff_is_long(&backoff))
            sleep_until_step(ex, steps); /* nothing to poll */
        else
            ek_backoff_wait(&backoff);
    }
}
