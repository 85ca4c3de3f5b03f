/* exec/exec.h - runs step graphs, one worker per lane, and records when each op ran.
 *
 * The compute lane is the calling thread (with its OpenMP team); another lane gets a thread of
 * its own the first time that a graph uses it.  A lane takes its ops in graph order and starts
 * each one when all it waits for is done; while it waits it yields the processor.
 *
 * Network      ops of a network lane start in graph order too, but a started op that returned
 *              EK_PENDING does not hold up the next one; what must be serial says so by its
 *              dependencies.  One thread makes all calls of both network lanes: a worker, or the
 *              calling thread (inline_network).  Between the two lanes no order is kept, so all
 *              ops on one group of ranks belong on one lane.
 * Failure      the first op that fails ends the run: nothing more is started on any lane, and
 *              its message, extended by op, layer and micro-batch, is the caller's.  What was in
 *              flight stays so.
 * Recording    off by default.  On, every op leaves one event: the timeline and the per-op sums
 *              are made of them. */
#ifndef EXEC_EXEC_H
#define EXEC_EXEC_H

#include "schedule/graph.h"

typedef struct ek_exec ek_exec;

typedef struct {
    int inline_network; /* the calling thread serves the network lanes, between its ops, while it
                           waits and in ek_progress: where cores are too few for a thread that polls
                         */
    double watchdog_s;  /* > 0: a run in which a network op is in flight and nothing has moved for
                           so long fails (EK_ETIMEOUT), and warns after half of it.  Computing
                           counts as moving: the peer that waits is the one to tell */
    /* After an op of the compute lane that has ended well: waits for what it has started on an
     * accelerator, and says how that ended; NULL: it computes itself. */
    ek_status (*synchronize)(const void *computer);
    /* Ops that only queue kernels are waited for by the next that does not, where nobody else is
     * to see what they have done: no other lane, no recording.  Between on and off kernels need
     * not be waited for one by one.  NULL: each op is settled by itself. */
    void (*queue)(const void *computer, int on);
    const void *computer;
    int64_t (*moved)(void *context); /* a figure that changes while data moves, such as the bytes
                                        sent; NULL: only ops that start or end count */
    void *context;
} ek_exec_config;

/* One op that ran. */
typedef struct {
    ek_op_kind kind;
    ek_lane lane;
    int32_t layer, micro, part, recompute;
    int64_t start_ns, end_ns; /* of ek_clock_ns */
    double flops, bytes;
    int32_t track; /* of several in flight at once on a network lane, each has another */
} ek_event;

/* config NULL: a worker for the network lanes, no watchdog. */
EK_CHECKED ek_status ek_exec_create(const ek_exec_config *config, ek_exec **out);
void ek_exec_destroy(ek_exec **ex);

/* Runs all ops of the graph; returns when every lane is done.  Sets the ops' state. */
EK_CHECKED ek_status ek_exec_run(ek_exec *ex, ek_graph *g);

/* Switches recording on or off; earlier events stay. */
void ek_exec_record(ek_exec *ex, int on);
/* The events so far; valid until the next run.  Those of the two network lanes together, and those
 * of any other lane, are in order of their ends. */
const ek_event *ek_exec_events(const ek_exec *ex, int64_t *n);
void ek_exec_forget(ek_exec *ex);

/* Seconds, of events in the order of ek_exec_events. */
typedef struct {
    double wall_s;    /* from the first start to the last end */
    double compute_s; /* in which the compute lane had an op */
    double net_s;     /* in which a network op was in flight */
    double exposed_s; /* ... and the compute lane had none */
} ek_exec_times;

void ek_exec_sum(const ek_event *events, int64_t n, ek_exec_times *out);

/* Whose timeline it is.  Files of several ranks with one origin can be joined into one. */
typedef struct {
    int rank, ranks;
    int64_t origin_ns;      /* time 0, of ek_clock_ns; 0: the first event */
    const int64_t *step_ns; /* [n_steps] when each step began; NULL: there are no steps */
    int64_t first_step, n_steps;
} ek_timeline_rank;

/* Writes the events as trace-event JSON, which Perfetto and chrome://tracing load: one process per
 * rank, one track per lane, more for network ops that were in flight at once, an instant "step N"
 * where each step begins; times in microseconds.  who NULL: the only rank. */
EK_CHECKED ek_status ek_timeline_write(const ek_event *events, int64_t n,
                                       const ek_timeline_rank *who, const char *path);

#endif
