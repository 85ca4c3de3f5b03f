/* train/state.h - the state of a rank of an elastic run, in memory that outlives its process.
 *
 * The body of its segment (elastic/segment.h) is the ledger (elastic/step_journal.h), the table of
 * parts (elastic/shard_table.h), and the model's masters, gradients and moments, which the
 * optimizer works on where they lie: nothing is copied for safety's sake but the few numbers under
 * way.  Its front holds the first two, and each unit of weights a piece; so does each place of the
 * staging. */
#ifndef TRAIN_STATE_H
#define TRAIN_STATE_H

#include "elastic/segment.h"
#include "elastic/shard_table.h"
#include "train/optimizer.h"

/* Where a piece's memory is from. */
typedef enum {
    EK_BLOCK_ABSENT,  /* it is not there yet */
    EK_BLOCK_CREATED, /* new, all zero */
    EK_BLOCK_ADOPTED, /* somebody has left it, and it holds what is wanted here */
    EK_BLOCK_REUSED   /* the same, but nothing is wanted */
} ek_block_origin;

typedef struct {
    ek_segment_id id;
    int32_t ranks;
    uint64_t fingerprint, supervisor_id;
    const char *out;        /* borrowed */
    ek_model_memory memory; /* for the model's config; moves: to be set before that is used */
    const ek_model *model;
    ek_segment segment;
    ek_journal journal;
    ek_shard_table shards;
    unsigned char *blocks; /* ek_piece_origin of each of the segment's */
    int64_t tensors;       /* parts that are not of experts: the first ones */
    int32_t *tensor_of;    /* the numbers of experts' tensors */
    int64_t *extents_of;   /* of the optimizer */
} ek_rank_state;

/* Before the model is made: its segment will be this, and memory is for its config. */
void ek_state_reserve(ek_rank_state *s, const ek_segment_id *id, int32_t ranks,
                      uint64_t fingerprint, uint64_t supervisor_id, const char *out);

/* After it is made: starts ledger and table.  Masters, gradients and moments are not there yet. May
 * be called again, for another number of steps. */
EK_CHECKED ek_status ek_state_start(ek_rank_state *s, ek_model *m, int64_t steps_done);

/* Takes over a piece that another segment of this host has (elastic/adopt_blocks.h); whole: it
 * holds what is wanted. */
EK_CHECKED ek_status ek_state_adopt_block(ek_rank_state *s, int64_t k, const ek_segment *from,
                                          int64_t j, int whole);

/* Moves memory that was made for a rank to come (elastic/prealloc.h) to pieces that are not there
 * yet. *bytes grows by what was moved. */
EK_CHECKED ek_status ek_state_use_prealloc(ek_rank_state *s, const ek_segment *prealloc,
                                           int64_t *bytes);

/* Makes the pieces that are not there yet.  The state still has to be filled in. */
EK_CHECKED ek_status ek_state_create_blocks(ek_rank_state *s);

/* Gradients of pieces that were taken over become zero: when the generation that they are from is
 * given up.  Before, that one may yet be gone on from, by ranks that have to finish its step. */
void ek_state_clear_gradients(ek_rank_state *s);

/* Takes the mapping away, after the model is gone; the segment stays. */
void ek_state_close(ek_rank_state *s);

#endif
