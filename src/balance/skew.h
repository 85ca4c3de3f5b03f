/* balance/skew.h - traces between even loads and those of another trace, or of a synthetic
 * workload: to see what imbalance costs. */
#ifndef BALANCE_SKEW_H
#define BALANCE_SKEW_H

#include "balance/trace.h"

/* A copy in memory of up to `iterations` consecutive iterations from the middle of a trace, whose
 * counts lie between even ones (share 0) and the trace's (share 1): of the assignments of a source
 * in a layer, each expert has share * its count + (1 - share) * the mean.  The caller closes *out,
 * also after a failure.  EK_ENOMEM. */
EK_CHECKED ek_status ek_trace_skewed(const ek_trace *from, double share, int64_t iterations,
                                     ek_trace *out);

/* A trace in memory of a workload (balance/workload.h): one source, `tokens` tokens an iteration.
 * The caller closes *out, also after a failure.  EK_EINVAL: an impossible shape; EK_ENOMEM. */
typedef struct {
    const char *workload;
    int64_t iterations, layers, experts, tokens, top_k;
} ek_trace_shape;

EK_CHECKED ek_status ek_trace_synthetic(const ek_trace_shape *shape, ek_trace *out);

#endif
