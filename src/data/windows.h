/* data/windows.h - which tokens a row of a step sees.
 *
 * The stream is cut into windows of seq + 1 tokens at multiples of seq: seq inputs, and the seq
 * targets that follow them by one.  Row r of step s takes window i = s * batch + r, sequential
 * order modulo the number of windows, shuffled order through a seeded permutation, another for each
 * epoch.  A place follows from (seed, step, row) alone, without state or tables, so any layout of
 * ranks and any resumption sees the same rows. */
#ifndef DATA_WINDOWS_H
#define DATA_WINDOWS_H

#include "evenkeel/err.h"

#include "data/tokens.h"

#include <stdint.h>

typedef enum { EK_ORDER_SEQUENTIAL, EK_ORDER_SHUFFLED } ek_data_order;

typedef struct {
    const ek_tokens *tokens; /* borrowed */
    int64_t batch, seq;
    ek_data_order order;
    uint64_t seed;
    int64_t windows; /* of an epoch: (tokens - 1) / seq */
} ek_windows;

/* EK_EFORMAT when the stream has less than seq + 1 tokens. */
EK_CHECKED ek_status ek_windows_init(ek_windows *s, const ek_tokens *tokens, int64_t batch,
                                     int64_t seq, ek_data_order order, uint64_t seed);

/* The window of a row, 0 <= window < s->windows.  step >= 0, 0 <= row < batch. */
int64_t ek_windows_at(const ek_windows *s, int64_t step, int64_t row);

/* seq inputs and seq targets of a row.  Any thread may call. */
void ek_windows_row(const ek_windows *s, int64_t step, int64_t row, int32_t *inputs,
                    int32_t *targets);

/* Evaluation: the stream once, in windows of seq that do not overlap, the last one shorter.
 * The number of windows; 0 for less than 2 tokens. */
int64_t ek_eval_windows(const ek_tokens *tokens, int64_t seq);

/* Inputs and targets of one of them; returns how many (1 to seq). */
int64_t ek_eval_window(const ek_tokens *tokens, int64_t seq, int64_t window, int32_t *inputs,
                       int32_t *targets);

#endif
