/* exec/exec.h - runs step graphs, one worker per lane, and records when each op ran.
 *
 * The compute lane is the calling thread (with its OpenMP team); another lane gets a thread of
 * its own the first time that a graph uses it.  A lane takes its ops in graph order and starts
 * each one when all it waits for is done; while it waits it yields the processor.
 *
 * Failure      the first op that fails ends the run: nothing more is started on any lane, and
 *              its message, extended by op and layer, is the caller's.
 * Recording    off by default.  On, every op leaves one event: the timeline and the per-op sums
 *              are made of them. */
#ifndef EXEC_EXEC_H
#define EXEC_EXEC_H

#include "schedule/graph.h"

typedef struct ek_exec ek_exec;

/* One op that ran. */
typedef struct {
    const char *name;
    ek_lane lane;
    int32_t layer, micro, part, again;
    int64_t start_ns, end_ns; /* of ek_clock_ns */
    double flops, bytes;
} ek_event;

EK_CHECKED ek_status ek_exec_create(ek_exec **out);
void ek_exec_destroy(ek_exec **ex);

/* Runs all ops of the graph; returns when every lane is done. */
EK_CHECKED ek_status ek_exec_run(ek_exec *ex, const ek_graph *g);

/* Switches recording on or off; earlier events stay. */
void ek_exec_record(ek_exec *ex, int on);
/* The events so far, in order of their ends per lane; valid until the next run. */
const ek_event *ek_exec_events(const ek_exec *ex, int64_t *n);
void ek_exec_forget(ek_exec *ex);

/* Writes the events as trace-event JSON, which Perfetto and chrome://tracing load: one track per
 * lane, times in microseconds from the first event. */
EK_CHECKED ek_status ek_timeline_write(const ek_event *events, int64_t n, const char *path);

#endif
