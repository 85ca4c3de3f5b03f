/* balance/trace.h - routing traces: .npy files of unsigned integers, numbers of assignments (top-k
 * expanded), with four axes [iteration][layer][source rank][expert], three [iteration][layer]
 * [expert] or two [layer][expert]. */
#ifndef BALANCE_TRACE_H
#define BALANCE_TRACE_H

#include "base/file.h"

typedef struct {
    ek_file_map map;
    void *own;                 /* the numbers, where they are kept in memory */
    const unsigned char *data; /* little-endian, in C order */
    int width;                 /* bytes of a number: 1, 2, 4 or 8 */
    int64_t iterations, layers, sources, experts;
} ek_trace;

/* EK_EFORMAT: not such a file. */
EK_CHECKED ek_status ek_trace_open(const char *path, ek_trace *t);
/* The same, the numbers read into memory: the file may change afterwards. */
EK_CHECKED ek_status ek_trace_read(const char *path, ek_trace *t);
void ek_trace_close(ek_trace *t);

static inline int64_t ek_trace_numbers(const ek_trace *t)
{
    return t->iterations * t->layers * t->sources * t->experts;
}

/* Number i of all, in C order. */
int64_t ek_trace_number(const ek_trace *t, int64_t i);

/* counts [ranks][experts] of one layer in one iteration.  Sources are laid over the ranks in order,
 * as if each was spread evenly over its part: totals of experts stay exact for any two numbers. */
void ek_trace_counts(const ek_trace *t, int64_t iteration, int64_t layer, int32_t ranks,
                     int64_t *counts);

/* Begins a trace of uint32 with four axes, whose numbers the caller writes behind (in C order, and
 * little-endian as this machine is).  The file has its name once it is closed (EK_WRITE_REPLACE).
 */
EK_CHECKED ek_status ek_trace_out_open(const char *path, const int64_t *shape, ek_file_out *out);

#endif
