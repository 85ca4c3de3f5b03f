/* train/batch.h - the tokens of a step, and how they are cut: a batch into micro-batches, and each
 * of those into consecutive sequences for the data-parallel ranks, evenly or in shares
 * (nn/batch_shares.h).
 *
 * The buffers hold this rank's sequences of a step; an evaluation uses the same ones. */
#ifndef TRAIN_BATCH_H
#define TRAIN_BATCH_H

#include "model/model.h"
#include "nn/batch.h"

typedef struct {
    int64_t batch, seq, micro_batch; /* sequences a step, tokens a sequence, sequences at once */
    int document_mask;               /* 1: attention within documents only (data/documents.h), */
    int32_t document_end;            /* which end with this token */
    const int64_t *shares; /* [dp + 1] sums of the ranks' weights; NULL: even.  Borrowed by
                              functions without an ek_batch, else copied */
    int shares_change;     /* 1: ek_batch_set_shares may be called, */
    double most_share;     /* with at most this times the mean weight for any rank */
} ek_batch_config;

typedef struct {
    const ek_mesh *mesh;
    ek_batch_config cfg;
    int64_t n_micro;
    ek_micro *micro;           /* [n_micro] of a step */
    ek_micro *eval_micro;      /* [n_micro] of ek_batch_read */
    int64_t n_sequences;       /* of this rank in a step, */
    int64_t most_sequences;    /* and how many they can become */
    int64_t *sequence;         /* [most_sequences]: their indices in the batch */
    int64_t *shares;           /* [dp + 1]: cfg.shares; NULL: always even */
    int64_t share_changes;     /* how often they have changed */
    ek_arena tokens;           /* of the following */
    int32_t *inputs, *targets; /* [most_sequences, seq] */
    int32_t *starts;           /* likewise; NULL: no document mask */
} ek_batch;

/* Callback that fills in sequence i of an evaluated batch: inputs and targets, each [seq]. */
typedef struct {
    void (*read)(void *context, int64_t i, int32_t *inputs, int32_t *targets);
    void *context;
} ek_batch_reader;

/* Bytes of the tokens of a step on this rank. */
size_t ek_batch_bytes(const ek_mesh *mesh, const ek_batch_config *c);

/* The most sequences of a micro-batch on any data-parallel rank. */
int64_t ek_batch_longest(const ek_mesh *mesh, const ek_batch_config *c);

/* The caller calls fini, also on failure. */
EK_CHECKED ek_status ek_batch_init(ek_batch *b, ek_model *m, const ek_batch_config *cfg);
void ek_batch_fini(ek_batch *b);

/* Between steps: other shares [dp + 1], within the limit of the config.  The same on all ranks.
 * Returns whether that moves sequences of a whole micro-batch; if not, nothing changes. */
int ek_batch_set_shares(ek_batch *b, const int64_t *shares);

/* Before a step, when inputs and targets are filled in: marks documents. */
void ek_batch_begin_step(ek_batch *b);

/* Cuts `batch` sequences of `seq` tokens into eval_micro and reads this rank's; returns the number
 * of micro-batches. */
int64_t ek_batch_read(ek_batch *b, int64_t batch, int64_t seq, const ek_batch_reader *reader);

/* Refuses sizes of options: EK_EINVAL, as a micro-batch has more sequences than the batch.
 * micro_batch 0: not given. */
EK_CHECKED ek_status ek_batch_check(int64_t batch, int64_t micro_batch);

/* Number of micro-batches of a batch. */
int64_t ek_batch_micros(int64_t batch, int64_t micro_batch);

#endif
