/* moe/expert_waves.h - experts that are brought into memory a few slots at a time, in training.
 *
 * A wave is a range of a rank's slots.  Products of such a layer are appended wave by wave: what
 * makes the weights of the wave's experts present, their products, and a note that they have ended.
 * Where rows come in chunks (moe/dispatch_layout.h), each chunk takes all waves, odd chunks in the
 * opposite order, so that each begins with experts that the last one has left in memory; but
 * weight gradients, for which all rows have arrived, take each wave once, for all chunks.
 * Rows are sorted by slot, and every expert's rows are multiplied as without waves, so results are
 * the same bits however slots are cut into waves.
 *
 * Who owns the weights implements it (model/offload.h); a layer of which all weights are in memory
 * has none (ek_moe_weights.waves). */
#ifndef MOE_EXPERT_WAVES_H
#define MOE_EXPERT_WAVES_H

#include "schedule/graph.h"

/* What products do with the weights of a wave. */
typedef enum {
    EK_WAVE_FORWARD,        /* read the forms of the forward pass */
    EK_WAVE_BACKWARD,       /* read those for input gradients, and add to weight gradients */
    EK_WAVE_WEIGHT_GRADIENT /* add to weight gradients */
} ek_wave_use;

/* Rows of a chunk of a micro-batch (-1: of all chunks) for the experts of slots [first, end); more
 * than 0, too, if one of these has a replica on another rank, of which weights are sent with the
 * first chunk. */
typedef int64_t (*ek_slot_rows)(const void *owner, int32_t micro, int32_t chunk, int32_t first,
                                int32_t end);

/* A wave's products in a graph. */
typedef struct {
    ek_graph *g;
    int32_t layer, micro, wave;
    int32_t chunk; /* of the rows; -1: all */
    ek_wave_use use;
    ek_slot_rows rows; /* can be called once the op is done that the wave depends on */
    const void *owner;
} ek_wave_call;

/* The wave at a place in the order of a chunk's products, of the `most` that a rank has. */
static inline int32_t ek_wave_at(ek_wave_use use, int32_t chunk, int32_t place, int32_t most)
{
    return (use == EK_WAVE_FORWARD) == (chunk <= 0 || chunk % 2 == 0) ? place : most - 1 - place;
}

typedef struct ek_expert_waves {
    int32_t n;            /* waves of the layer */
    const int32_t *first; /* [n + 1]: first slot of each, counted from the rank's first; last that
                             of replicas.  n 0: {0}, as the rank's shards of its experts, if it has
                             any, are empty (fewer columns than ranks of --etp) */
    int32_t each;         /* slots of every wave but the last, on any rank */
    int32_t most;         /* waves of the layer on the rank that has most */
    int gradients;        /* weight gradients come and go with a wave, too */
    /* Appends what the products need, after op dep; returns the op that they must depend on.  What
     * is not in the compute lane must depend on both. */
    int32_t (*begin)(void *context, const ek_wave_call *call, int32_t dep);
    /* dep: the last of the wave's products; sent: an op that still reads the weights that they
     * read, or adds to their gradients (-1: none).  Appends what becomes of weights and gradients;
     * returns the last op of the compute lane. */
    int32_t (*end)(void *context, const ek_wave_call *call, int32_t dep, int32_t sent);
    void *context;
} ek_expert_waves;

#endif
