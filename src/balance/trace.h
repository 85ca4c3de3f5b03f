/* balance/trace.h - routing traces: .npy files of unsigned integers, assignment counts (top-k
 * expanded), with four axes [iteration][layer][source rank][expert], three
 * [iteration][layer][expert] or two [layer][expert]. */
#ifndef BALANCE_TRACE_H
#define BALANCE_TRACE_H

#include "base/file.h"
#include "placement/apportion.h"

typedef struct {
    ek_file_map map;
    void *own;                 /* the numbers if copied to memory */
    const unsigned char *data; /* little-endian, in C order */
    int width;                 /* bytes per number: 1, 2, 4 or 8 */
    int64_t iterations, layers, sources, experts;
} ek_trace;

/* Maps a trace.  EK_EFORMAT: not such a file; or a failure to open it. */
EK_CHECKED ek_status ek_trace_open(const char *path, ek_trace *t);
/* The same with the numbers copied to memory, so the file may change afterwards.  Also EK_ENOMEM.
 */
EK_CHECKED ek_status ek_trace_read(const char *path, ek_trace *t);
void ek_trace_close(ek_trace *t);

static inline int64_t ek_trace_numbers(const ek_trace *t)
{
    return t->iterations * t->layers * t->sources * t->experts;
}

/* Number i in C order. */
int64_t ek_trace_number(const ek_trace *t, int64_t i);
/* Which of a trace's layers the n-th of a model's MoE layers has the loads of, in training and in
 * simulation: the model's layers are spread over the trace's, in order. */
static inline int64_t ek_trace_layer_for(int64_t trace_layers, int64_t n, int64_t moe_layers)
{
    return n * trace_layers / moe_layers;
}

/* Fills counts [ranks][experts] of one layer in one iteration.  Sources are mapped to ranks in
 * order as if each were spread evenly over its range of ranks; totals of experts are exact for any
 * number of ranks. */
void ek_trace_counts(const ek_trace *t, int64_t iteration, int64_t layer, int32_t ranks,
                     int64_t *counts);

/* Scales counts [ranks][experts] so that each rank has `tokens` tokens with top_k different experts
 * (at most `experts`), by largest remainder, as training replays a trace; a rank without
 * assignments gets the loads of all.  weight [2 experts]: scratch memory, beside `scratch`. */
void ek_trace_scale(const ek_apportion_scratch *scratch, int32_t ranks, int64_t experts,
                    int64_t tokens, int64_t top_k, int64_t *weight, int64_t *counts);

/* Creates a trace file of uint32 with shape [4] = iterations, layers, sources, experts.  The caller
 * then writes the numbers to *out, in C order, little-endian, and closes it (EK_WRITE_REPLACE: the
 * file appears under its name when closed).  EK_EINVAL: an axis out of range. */
EK_CHECKED ek_status ek_trace_out_open(const char *path, const int64_t *shape, ek_file_out *out);

#endif
