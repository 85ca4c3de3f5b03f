/* nn/batch.h - the micro-batches of a step, as the layers of a model see them. */
#ifndef NN_BATCH_H
#define NN_BATCH_H

#include <stddef.h>
#include <stdint.h>

/* The tokens of one micro-batch.  A data parallel rank has whole sequences, perhaps none.  Its
 * tensor parallel ranks split their tokens into ranges for everything that works token by token
 * (norms, residual stream, router, experts). */
typedef struct {
    int64_t seqs, seq;       /* sequences of the data parallel rank, and their length */
    int64_t all;             /* its tokens, seqs * seq: attention and the head see all of them */
    int64_t first, n;        /* this rank's range of them; n == all without tensor parallelism */
    int64_t total;           /* tokens of the micro-batch over all ranks */
    double share;            /* total / tokens of the step */
    uint64_t first_sequence; /* index within the step of the data parallel rank's first sequence */
    uint64_t micro_first;    /* index within the step of the micro-batch's first sequence */
    const int32_t *inputs, *targets; /* [all]; a negative target is left out of the loss */
    const int32_t *starts; /* [all], position in the sequence where a token's document begins:
                              attention does not look further back; NULL: no document mask, and all
                              targets count */
    const int64_t *shares; /* of the data parallel ranks (nn/batch_shares.h); NULL: even */
} ek_micro;

/* A micro-batch of which one rank has all tokens. */
static inline ek_micro ek_micro_alone(int64_t seqs, int64_t seq, double share, uint64_t first,
                                      const int32_t *inputs, const int32_t *targets)
{
    int64_t n = seqs * seq;

    return (ek_micro){seqs, seq, n, 0, n, n, share, first, first, inputs, targets, NULL, NULL};
}

#endif
