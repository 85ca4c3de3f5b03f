/* train/output/routing_trace.h - the loads of a run as a routing trace: an .npy file of uint32,
 * shape [iteration][layer][source rank][expert], numbers of assignments (tokens times top-k).
 *
 * The loads of each step are appended to an unnamed temporary file in the run's folder, so that
 * memory use does not grow with steps. */
#ifndef TRAIN_OUTPUT_ROUTING_TRACE_H
#define TRAIN_OUTPUT_ROUTING_TRACE_H

#include "base/file.h"
#include "model/step/pass.h"

typedef struct {
    int fd;           /* -1: not open */
    uint32_t *counts; /* of one step */
    int64_t iterations, layers, experts;
    ek_path folder;
} ek_routing_trace;

EK_CHECKED ek_status ek_routing_trace_open(ek_routing_trace *t, const ek_model_spec *spec,
                                           const char *folder);
/* Accepts a zeroed struct. */
void ek_routing_trace_close(ek_routing_trace *t);

/* Adds the loads of the last step, without dense layers. */
EK_CHECKED ek_status ek_routing_trace_add(ek_routing_trace *t, const ek_pass *p);
EK_CHECKED ek_status ek_routing_trace_write(const ek_routing_trace *t, const char *path);

#endif
