/* exec/exec_priv.h - the executor's data, shared by lanes and workers (exec.c) and the
 * asynchronous lanes (async.c). */
#ifndef EXEC_EXEC_PRIV_H
#define EXEC_EXEC_PRIV_H

#include "exec/exec.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct {
    ek_event *list;
    int64_t n, cap;
} ek_event_array;

/* A lane's thread and events.  The compute lane runs on the calling thread; all asynchronous
 * lanes use the worker of EK_LANE_NET and its events. */
typedef struct {
    ek_exec *ex;
    ek_lane lane;
    pthread_t thread;
    int started;
    ek_event_array events; /* of the current run; the calling thread merges them when it ends */
} ek_lane_worker;

/* An op of an asynchronous lane in flight. */
typedef struct {
    int32_t id, track; /* track: the lowest that is free on its lane */
    int64_t start_ns;  /* 0 when not recording */
} ek_flight;

/* The asynchronous lanes; one thread at a time serves them. */
typedef struct {
    int32_t next[EK_LANE_COUNT];      /* first op of the lane that has not started; n_ops: none */
    int32_t deps_done[EK_LANE_COUNT]; /* how many of that op's dependencies are known to be done */
    ek_flight *flights;               /* in order of start */
    int32_t n_flights;
    int serving; /* guards ek_async_serve against recursion */
    int warned;

    /* watchdog */
    double quiet_s;     /* time without progress */
    int64_t checked_ns; /* last check; at that time: */
    int64_t moved;      /* config.moved() */
    unsigned steps;     /* ex->run.steps */
} ek_async;

/* The graph that is being run. */
typedef struct {
    const ek_graph *graph;
    int many_micros;    /* it has more than one micro-batch */
    int compute_only;   /* it has ops of the compute lane only */
    int queued;         /* async ops that have not been synchronised */
    atomic_uint steps;  /* incremented when an op starts, and after it is marked as done; counts on
                           over runs */
    atomic_int running; /* ops of the other lanes in their first call */
    atomic_int failed;  /* ek_status of the first failure */
} ek_exec_run_state;

struct ek_exec {
    ek_exec_config config;
    ek_lane_worker lanes[EK_LANE_COUNT];
    ek_async async;
    ek_exec_run_state run;
    int32_t cap_ops;
    atomic_uchar *done; /* [cap_ops]; async.flights has the same capacity */
    void **cells;       /* [cap_ops], ek_op.state of each op */
    atomic_int asleep;  /* the thread of the asynchronous lanes waits for `stepped` */

    pthread_mutex_t mutex; /* guards the members down to message */
    pthread_cond_t wake, idle;
    pthread_cond_t stepped; /* steps has changed, or the run has failed */
    int64_t generation;     /* number of runs; a worker joins each run once */
    int busy;               /* workers still running in this run, without the calling thread */
    unsigned used;          /* workers of this run, one bit each */
    int quit;
    char message[1024];

    int recording;
    atomic_int lost_events;
    ek_event_array events;
};

/* Whether an op of this run has failed. */
static inline int ek_exec_has_failed(ek_exec *ex)
{
    return atomic_load_explicit(&ex->run.failed, memory_order_relaxed) != EK_OK;
}

/* Whether an op has ended; its stores are then visible to the caller. */
static inline int ek_exec_is_done(ek_exec *ex, int32_t op)
{
    return atomic_load_explicit(&ex->done[op], memory_order_acquire);
}

/* Marks op `id`, which succeeded on worker w, as done, and records its event. */
void ek_exec_op_done(ek_lane_worker *w, int32_t id, int32_t track, int64_t start_ns);

/* "dispatch a2a of layer 3, micro-batch 2"; the latter only in graphs of several micro-batches. */
void ek_exec_name_op(const ek_exec *ex, const ek_op *op, char *text, size_t cap);

/* Fails the run with st and the calling thread's error message, unless it has failed already. */
void ek_exec_fail(ek_exec *ex, const ek_op *op, ek_status st);

/* --- async.c ---------------------------------------------------------------------------------- */

/* Resets the asynchronous lanes at the start of a run. */
void ek_async_begin(ek_exec *ex);
/* Whether all ops of the asynchronous lanes have ended. */
int ek_async_finished(const ek_exec *ex);
/* Starts every op that can start and polls every op in flight once; returns whether any started or
 * ended.  Does nothing if called recursively. */
int ek_async_serve(ek_exec *ex);
/* Serves until all ops of the lanes have ended or the run has failed; sleeps while none is in
 * flight. */
void ek_async_run(ek_exec *ex);

#endif
