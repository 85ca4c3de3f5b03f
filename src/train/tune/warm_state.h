/* train/tune/warm_state.h - optional hints for the next generation: the tuner's results, the load
 * history that planners use, whether a planner has placed the experts by it, and the numbers that
 * ranks share (ek_trainer_share).  Stored in the step journal (elastic/step_journal.h), the same on
 * all ranks of a stage.  It affects speed only, and when checkpoints are written. */
#ifndef TRAIN_TUNE_WARM_STATE_H
#define TRAIN_TUNE_WARM_STATE_H

#include "model/step/pass.h"
#include "train/tune/tune.h"

/* Writes as much as fits to warm_state [cap]; returns the bytes written.  tune may be NULL. */
size_t ek_warm_state_write(const ek_tune *tune, const ek_pass *pass,
                           const double shared[EK_PASS_SHARED], void *warm_state, size_t cap);

typedef struct {
    int loads;                     /* 1: the load history of all planned layers is known */
    int placed;                    /* 1: a planner had placed the experts by it */
    double shared[EK_PASS_SHARED]; /* as written, zeros if there are none; any numbers, if memory
                                      was damaged */
} ek_warm_state_found;

/* Restores tuner and load history from a warm state as far as layers, experts and settings are the
 * same; ranks_changed: the earlier generation had another number of ranks.  Ignores invalid data.
 */
ek_warm_state_found ek_warm_state_read(ek_tune *tune, const ek_pass *pass, const void *warm_state,
                                       size_t bytes, int ranks_changed);

#endif
