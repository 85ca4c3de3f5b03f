/* exec/exec.h - runs step graphs, one worker per lane, and records when each op ran.
 *
 * The compute lane is the calling thread (with its OpenMP team); every other lane gets a thread the
 * first time that a graph uses it.  A lane runs its ops in graph order, each when all of its
 * dependencies are done; while it waits it polls and yields the processor.
 *
 * Asynchronous the network and disk lanes: ops start in graph order too, but the next op may start
 *              while one is pending (EK_PENDING); ops that must be serial need a dependency.  One
 *              thread runs the ops of these lanes: a worker, which sleeps while none is in flight,
 *              or the calling thread (inline_async).  There is no order between lanes, so all ops
 *              on one group of ranks must be on one lane.
 * Failure      the first op that fails ends the run: no lane starts another op, and ek_exec_run
 *              fails with the op's message, prefixed by op, layer and micro-batch.  Asynchronous
 *              ops in flight are neither completed nor cancelled.
 * Recording    off by default.  When on, every op leaves one event, from which the timeline and the
 *              per-op sums are made. */
#ifndef EXEC_EXEC_H
#define EXEC_EXEC_H

#include "schedule/graph.h"

typedef struct ek_exec ek_exec;

typedef struct {
    int inline_async; /* the calling thread serves the asynchronous lanes: between its ops, while it
                           waits, and in ek_progress; for machines without a core to spare for a
                           polling thread */
    double watchdog_s; /* > 0: the run fails (EK_ETIMEOUT) when an op is in flight and there
                          was no progress for so many seconds; warns after half of them.  A running
                          compute op counts as progress: the waiting peer reports the hang */
    /* Called after an op of the compute lane: waits for its kernels on the device, and returns
     * their status.  NULL: ops run on the host. */
    ek_status (*synchronize)(const void *computer);
    /* Called before each op of the compute lane.  on 1, for ops with ek_op.async while no other
     * lane has ops and recording is off: the op's kernels need not be waited for, as the next op
     * without it synchronises.  NULL: every op is synchronised when it ends. */
    void (*queue)(const void *computer, int on);
    const void *computer; /* argument of the two */
    /* A value that changes while data is transferred, such as the bytes sent.  NULL: only the start
     * or end of ops is progress. */
    int64_t (*moved)(void *context);
    void *context;
} ek_exec_config;

/* The record of an op that ran. */
typedef struct {
    ek_op_kind kind;
    ek_lane lane;
    int32_t layer, micro, part, recompute;
    int64_t start_ns, end_ns; /* of ek_clock_ns */
    double flops, bytes;
    int32_t track; /* differs between ops in flight at the same time on an asynchronous lane */
    ek_work work;
} ek_event;

/* config NULL: a worker for the asynchronous lanes, no watchdog; it is copied.  EK_ENOMEM.
 * ek_exec_destroy ends the workers and frees *out; not during a run. */
EK_CHECKED ek_status ek_exec_create(const ek_exec_config *config, ek_exec **out);
void ek_exec_destroy(ek_exec **ex);

/* Runs all ops of the graph; returns when every lane is done.  Sets the ops' state.  Fails with the
 * status of the first op that failed.  Collective if ops communicate: their graphs must match. */
EK_CHECKED ek_status ek_exec_run(ek_exec *ex, ek_graph *g);

/* Switches recording on or off; earlier events stay. */
void ek_exec_record(ek_exec *ex, int on);
/* The events so far, owned by ex; valid until the next run.  The events of the asynchronous
 * lanes together, and those of each other lane, are sorted by end time. */
const ek_event *ek_exec_events(const ek_exec *ex, int64_t *n);
/* Drops the events. */
void ek_exec_forget(ek_exec *ex);

/* Times of a list of events. */
typedef struct {
    double wall_s;    /* from the first start to the last end */
    double compute_s; /* an op of the compute lane was running */
    double net_s;     /* a network op was in flight */
    double exposed_s; /* a network op was in flight, and no op of the compute lane was running */
    double disk_s, disk_exposed_s; /* the same of the disk lane */
} ek_exec_times;

/* events [n] in the order of ek_exec_events. */
void ek_exec_sum(const ek_event *events, int64_t n, ek_exec_times *out);

/* The rank of a timeline.  Files of several ranks with the same origin can be merged into one. */
typedef struct {
    int rank, ranks;
    int64_t origin_ns;             /* time 0, of ek_clock_ns; 0: the first event */
    const int64_t *step_ns;        /* [n_steps], start of each step; may be NULL if n_steps is 0 */
    const char *const *step_names; /* [n_steps], names of the steps; NULL: none */
    int64_t first_step, n_steps;
} ek_timeline_rank;

/* Writes the events as trace-event JSON, which Perfetto and chrome://tracing load: one process per
 * rank, one track per lane, more for ops that were in flight at the same time, an instant
 * event "step N" at each step's start, with its name; times in microseconds.  who NULL: the only
 * rank.  EK_EIO, EK_ENOSPC: the file was not written. */
EK_CHECKED ek_status ek_timeline_write(const ek_event *events, int64_t n,
                                       const ek_timeline_rank *who, const char *path);

#endif
