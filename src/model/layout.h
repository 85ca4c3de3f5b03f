/* model/layout.h - which weights a rank has, and of what size: the walk over a model. */
#ifndef MODEL_LAYOUT_H
#define MODEL_LAYOUT_H

#include "model/model.h"

/* Sets the sizes of this rank's weights and lists them in m->params; arrays come from m->tables,
 * which may be measuring.  Returns their number, an upper bound of it when measuring. */
int64_t ek_model_walk(ek_model *m);

/* What this rank's parts are cut to. */
ek_local_sizes ek_model_local_sizes(const ek_model_spec *s, const ek_model_config *cfg);

#endif
