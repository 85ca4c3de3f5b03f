/* model/rope.h - the table of rotary position embeddings (Su et al., 2021).
 *
 * Position t turns pair i of a head by the angle t * theta^(-2 i / head_dim); kernels read the
 * cosines and sines of all positions that can occur from one table. */
#ifndef MODEL_ROPE_H
#define MODEL_ROPE_H

#include "spec/model.h"
#include "tensor/dtype.h"

/* Fills cos_sin R [positions, head_dim]: of each position head_dim / 2 cosines, then the sines. */
void ek_rope_fill(const ek_model_spec *s, int64_t positions, ek_dtype real, void *cos_sin);

#endif
