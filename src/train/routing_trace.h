/* train/routing_trace.h - the loads of a run as a routing trace: an .npy file of uint32 with axes
 * [iteration][layer][source rank][expert], numbers of assignments (top-k expanded). */
#ifndef TRAIN_ROUTING_TRACE_H
#define TRAIN_ROUTING_TRACE_H

#include "model/pass.h"

typedef struct {
    uint32_t *counts;
    int64_t iterations, room, layers, experts;
} ek_routing_trace;

EK_CHECKED ek_status ek_routing_trace_init(ek_routing_trace *t, const ek_model_spec *spec);
void ek_routing_trace_fini(ek_routing_trace *t);

/* Adds the loads of the step that the pass has just done.  Dense layers do not count. */
EK_CHECKED ek_status ek_routing_trace_add(ek_routing_trace *t, const ek_pass *p);
EK_CHECKED ek_status ek_routing_trace_write(const ek_routing_trace *t, const char *path);

#endif
