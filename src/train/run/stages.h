/* train/run/stages.h - which layers the pipeline stages of a run have (--pp-layers). */
#ifndef TRAIN_RUN_STAGES_H
#define TRAIN_RUN_STAGES_H

#include "train/run/state.h"

/* Reads --pp-layers into the options of the run.  EK_EINVAL: it does not fit the model and the
 * layout, which have been read.  Local. */
EK_CHECKED ek_status ek_run_read_stages(ek_run *r);

/* Sets the layers of the virtual stages, which `auto` cuts by the FLOPs of a step; after the
 * options are read.  Local, the same on all ranks.  `auto` needs addresses, not memory, for the
 * whole model. */
EK_CHECKED ek_status ek_run_cut_stages(ek_run *r, ek_model_config *mc);

/* "6,2": the layers of the virtual stages; ends in "..." if text [cap] has no room for all. Returns
 * text. */
const char *ek_run_stages_text(const ek_run *r, char *text, size_t cap);

#endif
