/* sim/failure_trace.h - recorded losses and returns of nodes, such as the spot instances of Bamboo
 * (NSDI 2023): a line MILLISECONDS,add|remove,NAME for each instance that came or went.
 *
 * Sample     The record is read from the first instant at which most instances are up.  These M
 *            have positions 0 to M - 1, in the order in which they came.  One that goes leaves its
 *            position vacant; one that comes takes the position that has been vacant for longest.
 *            Node i of n is position floor(i M / n): lost, and back, as often as
 *            a recorded instance, and several at once if several of them were. */
#ifndef SIM_FAILURE_TRACE_H
#define SIM_FAILURE_TRACE_H

#include "sim/failures.h"

#include <stddef.h>

typedef struct {
    ek_failure_event *events; /* [n] ascending */
    int64_t n;
    int32_t nodes, instances; /* instances: up at the beginning, of which the nodes are a sample */
    double seconds;           /* from the beginning to the last line */
} ek_failure_trace;

/* Parse a text, and read a file, for so many nodes; the caller frees *out, also after a failure.
 * EK_EFORMAT: what is wrong on which line, or fewer instances than nodes; EK_ENOENT, EK_EIO,
 * EK_ENOMEM. */
EK_CHECKED ek_status ek_failure_trace_parse(const char *text, size_t bytes, const char *file,
                                            int32_t nodes, ek_failure_trace *out);
EK_CHECKED ek_status ek_failure_trace_read(const char *path, int32_t nodes, ek_failure_trace *out);
void ek_failure_trace_free(ek_failure_trace *t);

#endif
