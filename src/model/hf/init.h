/* model/hf/init.h - initial values of a model's weights. */
#ifndef MODEL_HF_INIT_H
#define MODEL_HF_INIT_H

#include "model/model.h"

/* Fills the weights of this rank (model/hf/fill.h): normal with the spec's init_range, norms one,
 * biases zero.  A value depends only on seed, tensor name and index. */
EK_CHECKED ek_status ek_model_init(ek_model *m, uint64_t seed);

#endif
