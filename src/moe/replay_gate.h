/* moe/replay_gate.h - a choice of experts that has the loads of a recorded trace.
 *
 * Of a micro-batch of N tokens the trace's S sources stand for S contiguous blocks, the first ones
 * a token longer.  The loads of a source are scaled to the n top_k choices of its block by largest
 * remainder, none above n (placement/apportion.h); a source without assignments has the layer's
 * loads instead.  The choices are laid out expert after expert, and place i of the block has those
 * numbered i, i + n, i + 2 n, ...: different experts, for none has more than n in a row.  Tokens
 * take places in strides, so that any run of them meets the experts as the whole block does.
 *
 * What a token chooses depends on its place in the micro-batch and on nothing else, so it is the
 * same on any layout. */
#ifndef MOE_REPLAY_GATE_H
#define MOE_REPLAY_GATE_H

#include "balance/trace.h"
#include "placement/apportion.h"

/* What it works in. */
typedef struct {
    int64_t *weight, *end; /* [experts], loads of a source; where an expert's choices end */
    ek_apportion_scratch scratch;
} ek_replay_scratch;

void ek_replay_reserve(ek_replay_scratch *r, ek_arena *a, int64_t experts);

/* For which tokens. */
typedef struct {
    const ek_trace *trace;
    int64_t iteration, layer; /* the trace begins again after its last ones */
    int64_t total;            /* tokens of the micro-batch */
    int64_t first, n;         /* the run of them that is asked for */
    int64_t top_k;            /* at most the trace's experts */
} ek_replay_of;

/* Fills the first top_k columns of ids [n, cols]. */
void ek_replay_choose(const ek_replay_scratch *r, const ek_replay_of *of, int64_t cols,
                      int32_t *ids);

#endif
