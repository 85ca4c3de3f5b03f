/* sim/capacity.h - a routing trace as experts of a limited capacity leave it: what is over the
 * capacity is dropped, and what is under it is filled up where a program pads.
 *
 * The capacity is that of a source rank, for each expert: `factor` times an even share of its
 * assignments, rounded up; factor 0: the most that any source has for any expert of the layer.
 * Training drops by sequence, whose loads differ more: it drops somewhat more. */
#ifndef SIM_CAPACITY_H
#define SIM_CAPACITY_H

#include "balance/trace.h"

/* A copy of t, which the caller closes, also after a failure.  padded: every source has as many
 * assignments for every expert as the capacity.  EK_ENOMEM. */
EK_CHECKED ek_status ek_sim_limit_trace(const ek_trace *t, double factor, int padded,
                                        ek_trace *out);

#endif
