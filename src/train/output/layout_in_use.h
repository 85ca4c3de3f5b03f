/* train/output/layout_in_use.h - the layout of a run, as its run.json has it. */
#ifndef TRAIN_OUTPUT_LAYOUT_IN_USE_H
#define TRAIN_OUTPUT_LAYOUT_IN_USE_H

#include "train/layout_pool.h"

/* The layout in use when a start of the run in `out` was last ready for its first step, with the
 * policy that balances it.  *found: 0, there is no run.json, and *l is undefined.  Errors of the
 * file; EK_EFORMAT: it has no layout. */
EK_CHECKED ek_status ek_layout_in_use_read(const char *out, ek_pool_layout *l, int *found);

#endif
