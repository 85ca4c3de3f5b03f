/* train/layer_times.h - how long MoE layers took, from the events of their ops.
 *
 * A layer takes the time in which an op of its own was under way, from dispatch to combine and
 * back, on whatever lane; of its replicas that in which products stood still for them.  The gate,
 * the shared expert and attention are not of it. */
#ifndef TRAIN_LAYER_TIMES_H
#define TRAIN_LAYER_TIMES_H

#include "exec/exec.h"

/* Adds to seconds[layer], of the events that started at from_ns or later. */
EK_CHECKED ek_status ek_layer_times(const ek_event *events, int64_t n, int64_t from_ns,
                                    double *seconds);

#endif
