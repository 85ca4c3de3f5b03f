/* recover/rank_state.h - the state of a rank of an elastic run, in memory that outlives its
 * process.
 *
 * The body of its segment (elastic/segment.h) holds the step journal (elastic/step_journal.h), the
 * shard table (elastic/shard_table.h), and the model's masters, gradients and moments, which the
 * optimizer updates in place: only the numbers being updated are copied, to undo logs.  The front
 * holds journal and table; each parameter bucket is a state block, and so is each slot of the
 * staging buffers for experts that migrate. */
#ifndef RECOVER_RANK_STATE_H
#define RECOVER_RANK_STATE_H

#include "elastic/segment.h"
#include "elastic/shard_table.h"
#include "elastic/step_journal.h"
#include "model/model.h"

/* The origin of a state block's memory. */
typedef enum {
    EK_BLOCK_ABSENT,  /* not created yet */
    EK_BLOCK_CREATED, /* new, all zero */
    EK_BLOCK_ADOPTED, /* of an earlier rank; holds the wanted state */
    EK_BLOCK_REUSED   /* of an earlier rank; only its memory is used */
} ek_block_origin;

typedef struct {
    ek_segment_id id;
    int32_t ranks;
    uint64_t fingerprint, supervisor_id;
    const char *out;        /* borrowed */
    ek_model_memory memory; /* for the model's config */
    const ek_model *model;
    ek_segment segment;
    ek_journal journal;
    ek_shard_table shards;
    unsigned char *blocks; /* [blocks] ek_block_origin */
    int64_t tensors;       /* shards of tensors other than experts', the first in the table */
    int32_t *tensor_of;    /* [layers][experts][3] tensor indices of gate, up, down */
    int64_t *extents_of;   /* [buckets + 2]: the first journal extent of bucket i, if it is trained;
                               its arrays are its parameters', in their order.  Those of the other
                               buckets follow, from extents_of[buckets] to extents_of[buckets + 1] */
} ek_rank_state;

/* Before the model is created: sets the segment's identity and head, and s->memory for the model's
 * config.  out is borrowed. */
void ek_state_reserve(ek_rank_state *s, const ek_segment_id *id, int32_t ranks,
                      uint64_t fingerprint, uint64_t supervisor_id, const char *out);

/* After the model is created: creates step journal and shard table.  The state blocks do not exist
 * yet.  May be called again, with another number of steps. */
EK_CHECKED ek_status ek_state_start(ek_rank_state *s, ek_model *m, int64_t steps_done);

/* Adopts block j of another segment of this host as block k (elastic/adopt_blocks.h); whole: 1: it
 * holds the wanted state; 0: it is only memory. */
EK_CHECKED ek_status ek_state_adopt_block(ek_rank_state *s, int64_t k, const ek_segment *from,
                                          int64_t j, int whole);

/* Moves preallocated memory (elastic/prealloc.h) to blocks that do not exist yet.  Adds the bytes
 * moved to *bytes. */
EK_CHECKED ek_status ek_state_use_prealloc(ek_rank_state *s, const ek_segment *prealloc,
                                           int64_t *bytes);

/* Creates the blocks that do not exist yet, all zero. */
EK_CHECKED ek_status ek_state_create_blocks(ek_rank_state *s);

/* Clears the gradients of adopted blocks; only after the earlier generation was removed, as ranks
 * might still have to finish its step with them. */
void ek_state_clear_gradients(ek_rank_state *s);

/* Unmaps the segment, after the model was destroyed; the segment stays. */
void ek_state_close(ek_rank_state *s);

/* Slots of this rank for experts with state, in each MoE layer; 0: its stage has none. */
int32_t ek_state_slots(const ek_model *m);

#endif
