/* data/windows.h - the tokens of each row of a step.
 *
 * The stream is cut into windows of seq + 1 tokens at multiples of seq: seq inputs, and seq targets
 * shifted by one.  Row r of step s uses window i = s * batch + r: in sequential order modulo the
 * number of windows, in shuffled order through a seeded permutation, another for each epoch.  A
 * window is a function of (seed, step, row), without state or tables, so it does not depend on the
 * layout of ranks or on resumption.
 *
 * With several weighted sources each has its own windows, permutations and epochs.  Among the first
 * n draws of a run a source has its rounded share of n: the first source gets floor(n * share), the
 * next likewise of the rest, and so on; so a source deviates by at most a few windows.  The draws
 * of a source are its windows 0, 1, 2, ... in order, permuted or not.  A seeded permutation of the
 * step's rows decides which rows they become. */
#ifndef DATA_WINDOWS_H
#define DATA_WINDOWS_H

#include "evenkeel/err.h"

#include "data/sources.h"
#include "data/tokens.h"

#include <stdint.h>

typedef enum { EK_ORDER_SEQUENTIAL, EK_ORDER_SHUFFLED } ek_data_order;

typedef struct {
    const ek_tokens *tokens; /* borrowed */
    int64_t windows;         /* per epoch: (tokens - 1) / seq */
    uint64_t share;          /* share of the draws, relative to the sum of all shares */
} ek_window_source;

typedef struct {
    ek_window_source sources[EK_SOURCES_MAX];
    int64_t n_sources;
    int64_t batch, seq;
    ek_data_order order;
    uint64_t seed;
} ek_windows;

/* Initialises windows over one stream.  EK_EFORMAT: it has less than seq + 1 tokens. */
EK_CHECKED ek_status ek_windows_init(ek_windows *s, const ek_tokens *tokens, int64_t batch,
                                     int64_t seq, ek_data_order order, uint64_t seed);

/* The same over several sources, each of at least seq + 1 tokens. */
EK_CHECKED ek_status ek_windows_init_sources(ek_windows *s, const ek_sources *sources,
                                             int64_t batch, int64_t seq, ek_data_order order,
                                             uint64_t seed);

/* The window of a row and its source, 0 <= window < s->sources[*source].windows.  step >= 0,
 * 0 <= row < batch; source may be NULL. */
int64_t ek_windows_at(const ek_windows *s, int64_t step, int64_t row, int64_t *source);

/* The inputs [seq] and targets [seq] of a row; returns the failures of ek_tokens_read.  Any thread
 * may call. */
EK_CHECKED ek_status ek_windows_row(const ek_windows *s, int64_t step, int64_t row, int32_t *inputs,
                                    int32_t *targets);

/* Evaluation: the number of windows of seq tokens without overlap that cover the stream once, the
 * last one shorter; 0 for less than 2 tokens. */
int64_t ek_eval_windows(const ek_tokens *tokens, int64_t seq);

/* Inputs and targets of one of them; *n: their number (1 to seq). */
EK_CHECKED ek_status ek_eval_window(const ek_tokens *tokens, int64_t seq, int64_t window,
                                    int32_t *inputs, int32_t *targets, int64_t *n);

#endif
