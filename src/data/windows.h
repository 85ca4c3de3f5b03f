/* data/windows.h - which tokens a row of a step sees.
 *
 * The stream is cut into windows of seq + 1 tokens at multiples of seq: seq inputs, and the seq
 * targets that follow them by one.  Row r of step s takes window i = s * batch + r, sequential
 * order modulo the number of windows, shuffled order through a seeded permutation, another for each
 * epoch.  A place follows from (seed, step, row) alone, without state or tables, so any layout of
 * ranks and any resumption sees the same rows.
 *
 * Of several sources with weights each has its windows, its permutations and its epochs.  Among the
 * first n draws of a run a source has its share of n, rounded: the first source gets
 * floor(n * its share), the next likewise of what is left, and so on; so a source is never more
 * than a few windows off, and the draws of a source are its windows 0, 1, 2, ... in order, permuted
 * or not.  Which rows of a step take them is a seeded permutation of the step's rows. */
#ifndef DATA_WINDOWS_H
#define DATA_WINDOWS_H

#include "evenkeel/err.h"

#include "data/sources.h"
#include "data/tokens.h"

#include <stdint.h>

typedef enum { EK_ORDER_SEQUENTIAL, EK_ORDER_SHUFFLED } ek_data_order;

typedef struct {
    const ek_tokens *tokens; /* borrowed */
    int64_t windows;         /* of an epoch: (tokens - 1) / seq */
    uint64_t share;          /* of the draws, of the sum of all shares */
} ek_window_source;

typedef struct {
    ek_window_source sources[EK_SOURCES_MAX];
    int64_t n_sources;
    int64_t batch, seq;
    ek_data_order order;
    uint64_t seed;
} ek_windows;

/* EK_EFORMAT when the stream has less than seq + 1 tokens. */
EK_CHECKED ek_status ek_windows_init(ek_windows *s, const ek_tokens *tokens, int64_t batch,
                                     int64_t seq, ek_data_order order, uint64_t seed);

/* The same over several sources.  Each has to have seq + 1 tokens. */
EK_CHECKED ek_status ek_windows_init_sources(ek_windows *s, const ek_sources *sources,
                                             int64_t batch, int64_t seq, ek_data_order order,
                                             uint64_t seed);

/* The window of a row and its source, 0 <= window < s->sources[*source].windows.  step >= 0,
 * 0 <= row < batch; source may be NULL. */
int64_t ek_windows_at(const ek_windows *s, int64_t step, int64_t row, int64_t *source);

/* seq inputs and seq targets of a row, or a failure of ek_tokens_read.  Any thread may call. */
EK_CHECKED ek_status ek_windows_row(const ek_windows *s, int64_t step, int64_t row, int32_t *inputs,
                                    int32_t *targets);

/* Evaluation: the stream once, in windows of seq that do not overlap, the last one shorter.
 * The number of windows; 0 for less than 2 tokens. */
int64_t ek_eval_windows(const ek_tokens *tokens, int64_t seq);

/* Inputs and targets of one of them; *n: how many (1 to seq). */
EK_CHECKED ek_status ek_eval_window(const ek_tokens *tokens, int64_t seq, int64_t window,
                                    int32_t *inputs, int32_t *targets, int64_t *n);

#endif
