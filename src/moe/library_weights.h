/* moe/library_weights.h - the weights of a layer of evenkeel/moe_layer.h, while it is created. */
#ifndef MOE_LIBRARY_WEIGHTS_H
#define MOE_LIBRARY_WEIGHTS_H

#include "moe/library_priv.h"

/* Lays out l->weights: placement, values, gradients and packed forms of l->w. */
void ek_moe_layer_reserve_weights(ek_moe_layer *l);

/* Sets the initial values. */
void ek_moe_layer_fill_weights(ek_moe_layer *l, uint64_t seed);

/* Makes the packed forms. */
EK_CHECKED ek_status ek_moe_layer_pack_weights(ek_moe_layer *l);

#endif
