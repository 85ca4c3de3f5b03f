/* moe/replay_gate.h - choices of experts with the loads of a recorded trace.
 *
 * A micro-batch of N tokens is split into S contiguous blocks for the S sources of the trace, the
 * first ones a token longer.  The loads of a source are scaled to the n top_k choices of its block
 * by largest remainder, none above n (placement/apportion.h); a source without assignments gets the
 * loads of the layer.  Choices are numbered expert by expert, and position i of the block has
 * choices i, i + n, i + 2 n, ...: different experts, as none has more than n choices.  Tokens map
 * to positions by a stride, so that any range of tokens has about the loads of the whole block.
 *
 * A token's choice depends only on its index in the micro-batch, so it is the same on any parallel
 * layout. */
#ifndef MOE_REPLAY_GATE_H
#define MOE_REPLAY_GATE_H

#include "balance/trace.h"
#include "placement/apportion.h"

typedef struct {
    int64_t *weight, *end; /* [experts], loads of a source; end of an expert's choice numbers */
    ek_apportion_scratch scratch;
} ek_replay_scratch;

void ek_replay_reserve(ek_replay_scratch *r, ek_arena *a, int64_t experts);

/* The tokens to choose for. */
typedef struct {
    const ek_trace *trace;
    int64_t iteration; /* modulo those of the trace */
    int64_t layer;     /* of the trace: ek_trace_layer_for */
    int64_t total;     /* tokens of the micro-batch */
    int64_t first, n;  /* range of them */
    int64_t top_k;     /* at most the trace's experts */
} ek_replay_of;

/* Fills the first top_k columns of ids [n, cols]. */
void ek_replay_choose(const ek_replay_scratch *r, const ek_replay_of *of, int64_t cols,
                      int32_t *ids);

#endif
