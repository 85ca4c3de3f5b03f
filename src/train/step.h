/* train/step.h - what a training step says of itself, and what finishing it takes. */
#ifndef TRAIN_STEP_H
#define TRAIN_STEP_H

#include "model/pass.h"

/* What a step says of itself. */
typedef struct {
    int64_t step, tokens;
    ek_losses losses;
    double grad_norm, lr;
    double flops;           /* of the model on this rank: recomputation not counted */
    int64_t comm_bytes;     /* sent by this rank */
    double votes;           /* sum over ranks of what ek_trainer_vote said */
    ek_moe_traffic traffic; /* how rows travelled; degree 0: they did not */
    int adaptive_r;         /* ranks of an expert that a row went to; 0: they gathered all */
} ek_step_result;

/* A ledger's record of a step (elastic/step_journal.h): what its update goes by, and what is said
 * of it where the ranks that took it cannot any more.  Alike on all ranks but for flops and bytes.
 */
typedef struct {
    ek_adamw adamw; /* decay: of those that decay */
    ek_step_result result;
    double elapsed_ms; /* from the step's start to its record */
    int32_t ranks;
} ek_step_record;

#endif
