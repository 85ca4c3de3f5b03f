/* train/warm_state.h - what a trainer has learnt beside its weights, for another process to go on
 * from: what its tuner has found out, the loads that planners go by, and whether one has placed the
 * experts by them.  It lies in the ledger (elastic/step_journal.h), is the same on all ranks of a
 * stage, and nothing depends on it but speed. */
#ifndef TRAIN_WARM_STATE_H
#define TRAIN_WARM_STATE_H

#include "model/pass.h"
#include "train/tune.h"

/* Writes a note of what fits into `room` bytes; returns its bytes.  tune: or NULL. */
size_t ek_warm_state_write(const ek_tune *tune, const ek_pass *pass, void *warm_state, size_t cap);

typedef struct {
    int loads;  /* those of all layers that planners place are known now, */
    int placed; /* and experts lay where a planner had placed them */
} ek_warm_state_found;

/* Goes on from a note, as far as it is of the same layers, experts and settings; others: of another
 * number of ranks.  What is not sound is left out. */
ek_warm_state_found ek_warm_state_read(ek_tune *tune, const ek_pass *pass, const void *warm_state,
                                       size_t bytes, int ranks_changed);

#endif
