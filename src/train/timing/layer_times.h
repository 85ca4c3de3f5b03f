/* train/timing/layer_times.h - how long MoE layers took, from the events of their ops.
 *
 * The time of a layer is that in which any of its ops ran, from dispatch to combine and back, on
 * any lane; of replica ops only the time in which products waited for them.  The gate, the shared
 * expert and attention are not included. */
#ifndef TRAIN_TIMING_LAYER_TIMES_H
#define TRAIN_TIMING_LAYER_TIMES_H

#include "exec/exec.h"

/* Adds to seconds[layer], of the events that started at from_ns or later. */
EK_CHECKED ek_status ek_layer_times(const ek_event *events, int64_t n, int64_t from_ns,
                                    double *seconds);

#endif
