/* moe/expert_waves.h - experts that are brought into memory a few slots at a time, in training.
 *
 * A wave is a range of a rank's slots.  Products of such a layer are appended wave by wave: what
 * makes the weights of the wave's experts present, their products, and a note that they have ended.
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

/* A wave's products in a graph. */
typedef struct {
    ek_graph *g;
    int32_t layer, micro, wave;
    ek_wave_use use;
    /* [slots + 1]: first row of each slot of the micro-batch, once the op is done that the wave
     * depends on */
    const int64_t *offset;
} ek_wave_call;

typedef struct ek_expert_waves {
    int32_t n;            /* waves of the layer */
    const int32_t *first; /* [n + 1]: first slot of each, counted from the rank's first */
    /* Appends what the products need, after op dep; returns the op that they must depend on. */
    int32_t (*begin)(void *context, const ek_wave_call *call, int32_t dep);
    /* dep: the last of the wave's products.  Appends what becomes of weights and gradients; returns
     * the last op of the compute lane. */
    int32_t (*end)(void *context, const ek_wave_call *call, int32_t dep);
    void *context;
} ek_expert_waves;

#endif
