/* balance/trace.h - routing traces: .npy files of unsigned integers, numbers of assignments (top-k
 * expanded), with four axes [iteration][layer][source rank][expert], three [iteration][layer]
 * [expert] or two [layer][expert]. */
#ifndef BALANCE_TRACE_H
#define BALANCE_TRACE_H

#include "base/file.h"

typedef struct {
    ek_file_map map;
    const unsigned char *data; /* little-endian, in C order */
    int width;                 /* bytes of a number: 1, 2, 4 or 8 */
    int64_t iterations, layers, sources, experts;
} ek_trace;

/* EK_EFORMAT: not such a file. */
EK_CHECKED ek_status ek_trace_open(const char *path, ek_trace *t);
void ek_trace_close(ek_trace *t);

/* counts [ranks][experts] of one layer in one iteration.  Sources are laid over the ranks in order,
 * as if each was spread evenly over its part: totals of experts stay exact for any two numbers. */
void ek_trace_counts(const ek_trace *t, int64_t iteration, int64_t layer, int32_t ranks,
                     int64_t *counts);

#endif
