/* train/state.h - the state of a rank of an elastic run, in memory that outlives its process.
 *
 * The body of its segment (elastic/segment.h) is the ledger (elastic/ledger.h), the table of parts
 * (elastic/parts.h), and the model's masters, gradients and moments, which the optimizer works on
 * where they lie: nothing is copied for safety's sake but a chunk at a time. */
#ifndef TRAIN_STATE_H
#define TRAIN_STATE_H

#include "elastic/parts.h"
#include "elastic/segment.h"
#include "train/optimizer.h"

typedef struct {
    ek_segment_id id;
    int32_t ranks;
    uint64_t likeness, starter;
    const char *out;        /* borrowed */
    ek_model_memory memory; /* for the model's config; moves: to be set before that is used */
    const ek_model *model;
    ek_segment segment;
    ek_ledger ledger;
    ek_state_parts parts;
    int64_t tensors;    /* parts that are not of experts: the first ones */
    int32_t *tensor_of; /* the numbers of experts' tensors */
    int64_t *runs_of;   /* of the optimizer */
} ek_rank_state;

/* Before the model is made: its segment will be this, and memory is for its config. */
void ek_state_prepare(ek_rank_state *s, const ek_segment_id *id, int32_t ranks, uint64_t likeness,
                      uint64_t starter, const char *out);

/* After it is made: starts ledger and table.  The state still has to be filled in.  May be called
 * again, for another number of steps. */
EK_CHECKED ek_status ek_state_start(ek_rank_state *s, ek_model *m, int64_t steps_done);

/* Takes the mapping away, after the model is gone; the segment stays. */
void ek_state_close(ek_rank_state *s);

#endif
