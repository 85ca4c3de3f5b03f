/* model/layout.h - which weights this rank holds, and their local sizes. */
#ifndef MODEL_LAYOUT_H
#define MODEL_LAYOUT_H

#include "model/model.h"

/* Sets the local sizes of this rank's weights and lists them in m->params; arrays are allocated
 * from m->tables, which may be measuring.  Returns their number; an upper bound when measuring. */
int64_t ek_model_list_params(ek_model *m);

/* Of a rank's slots, which begin with those that hold experts initially: how many may have state,
 * whether or not they hold an expert initially. */
int32_t ek_model_state_slots(const ek_model *m, int32_t slots);

/* This rank's local sizes. */
ek_local_sizes ek_model_local_sizes(const ek_model_spec *s, const ek_model_config *cfg);

#endif
