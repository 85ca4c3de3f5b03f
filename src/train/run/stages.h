/* train/run/stages.h - which layers the pipeline stages of a run have (--pp-layers). */
#ifndef TRAIN_RUN_STAGES_H
#define TRAIN_RUN_STAGES_H

#include "train/run/state.h"

/* Reads --pp-layers into the options of the run.  EK_EINVAL: it does not fit the model and the
 * layout, which have been read.  Local. */
EK_CHECKED ek_status ek_run_read_stages(ek_run *r);

/* With `measured`, after the kernels are open: measures the speeds of stages (stage_speeds.h), and
 * sets their layers by the FLOPs of a step and by these.  Collective; the same on all ranks.  In a
 * dry run it does nothing. */
EK_CHECKED ek_status ek_run_measure_stages(ek_run *r);

/* With `auto`, and with `measured` in a dry run: sets the layers of stages by the FLOPs of a step.
 * Needs addresses, not memory, for the whole model.  Local, the same on all ranks. */
EK_CHECKED ek_status ek_run_cut_stages(ek_run *r);

/* "6,2": the layers of the virtual stages; ends in "..." if text [cap] has no room for all. Returns
 * text. */
const char *ek_run_stages_text(const ek_run *r, char *text, size_t cap);

#endif
