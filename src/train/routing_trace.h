/* train/routing_trace.h - the loads of a run as a routing trace: an .npy file of uint32 with axes
 * [iteration][layer][source rank][expert], numbers of assignments (top-k expanded).
 *
 * The loads of each step go to a file without a name in the run's folder, which is gone when the
 * process is, so that memory does not grow with the steps. */
#ifndef TRAIN_ROUTING_TRACE_H
#define TRAIN_ROUTING_TRACE_H

#include "base/file.h"
#include "model/pass.h"

typedef struct {
    int fd;           /* -1: not open */
    uint32_t *counts; /* of one step */
    int64_t iterations, layers, experts;
    ek_path folder;
} ek_routing_trace;

EK_CHECKED ek_status ek_routing_trace_open(ek_routing_trace *t, const ek_model_spec *spec,
                                           const char *folder);
/* Also of one that is all zero. */
void ek_routing_trace_close(ek_routing_trace *t);

/* Adds the loads of the step that the pass has just done.  Dense layers do not count. */
EK_CHECKED ek_status ek_routing_trace_add(ek_routing_trace *t, const ek_pass *p);
EK_CHECKED ek_status ek_routing_trace_write(const ek_routing_trace *t, const char *path);

#endif
