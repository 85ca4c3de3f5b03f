/* train/step.h - the result of a training step, and its record in the step journal. */
#ifndef TRAIN_STEP_H
#define TRAIN_STEP_H

#include "model/step/pass.h"

/* The result of a step, over all ranks unless stated. */
typedef struct {
    int64_t step, tokens;
    ek_losses losses;
    double grad_norm, lr;
    double flops;           /* of the model on this rank: recomputation not counted */
    int64_t comm_bytes;     /* sent by this rank */
    double votes;           /* sum over ranks of ek_trainer_vote */
    ek_moe_traffic traffic; /* dispatch settings used; degree 0: nothing was dispatched */
    int adaptive_r;         /* shards of an expert to which a row was sent; 0: all were gathered */
} ek_step_result;

/* What a step did with experts' state on disk (model/offload.h), on one rank. */
typedef struct {
    double read_bytes, written_bytes;
    double uses, hits;    /* of parameter buckets by products; those that were in memory */
    double deferred;      /* updates of buckets that were put off, as their experts rested */
    double reads, writes; /* requests */
    double wait_s;        /* time that products waited for the disk; of it, */
    double entry_wait_s;  /* until memory was free to read into */
} ek_step_disk;

/* The record of a step in the step journal (elastic/step_journal.h): parameters of its update, and
 * its result, for the metrics line if rank 0 is lost.  The same on all ranks but for flops and
 * bytes. */
typedef struct {
    ek_adamw adamw; /* decay: of extents with weight decay */
    ek_step_result result;
    double elapsed_ms; /* from the step's start to its record */
    int32_t ranks;
} ek_step_record;

#endif
