/* exec/exec_priv.h - the executor's insides, shared by its lanes (exec.c) and its network lanes
 * (network.c). */
#ifndef EXEC_EXEC_PRIV_H
#define EXEC_EXEC_PRIV_H

#include "exec/exec.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct {
    ek_event *list;
    int64_t n, cap;
} ek_event_array;

/* A lane's events, and its thread.  The compute lane has the caller's; the two network lanes share
 * the worker of EK_LANE_NET, events included. */
typedef struct {
    ek_exec *ex;
    ek_lane lane;
    pthread_t thread;
    int started;
    ek_event_array events; /* of the current run; merged by the caller when it ends */
} ek_lane_worker;

/* A network op that has started and has not ended. */
typedef struct {
    int32_t id, track; /* track: the lowest that no other in flight on its lane has */
    int64_t start_ns;  /* 0 when not recording */
} ek_flight;

/* Both network lanes; one thread at a time serves them. */
typedef struct {
    int32_t next[EK_LANE_COUNT];  /* first op of the lane that has not started; n_ops: none */
    int32_t waits[EK_LANE_COUNT]; /* how many of its dependencies have been seen done */
    ek_flight *flights;           /* in order of start */
    int32_t n_flights;
    int serving, warned;
    double quiet_s;  /* for how long nothing has moved, as the watchdog counts */
    int64_t seen_ns; /* when it last looked, and what it saw then: */
    int64_t moved;   /* the caller's figure, */
    unsigned steps;  /* and ex->steps */
} ek_network;

struct ek_exec {
    ek_exec_config config;
    ek_lane_worker lanes[EK_LANE_COUNT];
    ek_network network;
    const ek_graph *graph;
    int many_micros; /* the graph has more than one micro-batch */
    int alone;       /* ... and no lane but the compute lane */
    int queued;      /* ops that have not been settled */
    int32_t cap_ops;
    atomic_uchar *done; /* [cap_ops], as are the network's flights */
    void **cells;       /* [cap_ops]: the ops' state */

    atomic_uint steps;  /* grows when an op starts or ends; the watchdog looks for change */
    atomic_int running; /* ops of other lanes that have not yet returned for the first time */
    atomic_int failed;  /* ek_status of the first failure */

    pthread_mutex_t mutex; /* guards what follows */
    pthread_cond_t wake, idle;
    int64_t generation; /* of runs; a worker joins each run once */
    int busy;           /* workers still at work in this run, without the calling thread */
    unsigned used;      /* workers of this run, one bit each */
    int quit;
    char message[1024];

    int recording;
    atomic_int lost_events;
    ek_event_array events;
};

static inline int ek_exec_has_failed(ek_exec *ex)
{
    return atomic_load_explicit(&ex->failed, memory_order_relaxed) != EK_OK;
}

static inline int ek_exec_is_done(ek_exec *ex, int32_t op)
{
    return atomic_load_explicit(&ex->done[op], memory_order_acquire);
}

/* Op `id` of lane worker w has ended well: its event, when recording, and its flag. */
void ek_exec_op_done(ek_lane_worker *w, int32_t id, int32_t track, int64_t start_ns);

/* "all-to-all of layer 3, micro-batch 2", as far as they are known and there are several. */
void ek_exec_name_op(const ek_exec *ex, const ek_op *op, char *text, size_t cap);

/* Ends the run with the calling thread's failure, unless another op has failed before. */
void ek_exec_fail(ek_exec *ex, const ek_op *op, ek_status st);

/* --- network.c -------------------------------------------------------------------------------- */

/* At the start of a run. */
void ek_network_begin(ek_exec *ex);
/* Whether all ops of the network lanes have ended. */
int ek_network_finished(const ek_exec *ex);
/* Starts what can start and polls what is in flight, once; whether anything started or ended.
 * Does nothing when called from within itself. */
int ek_network_serve(ek_exec *ex);
/* Serves until all have ended or the run has failed. */
void ek_network_run(ek_exec *ex);

#endif
