/* infer/evaluate.h - mean loss of a model over a token stream.
 *
 * The stream is read once in windows of `seq` tokens without overlap, the last one shorter.  Every
 * token but the first of the stream is a target exactly once; with document_mask, every token but
 * the first of each document. */
#ifndef INFER_EVALUATE_H
#define INFER_EVALUATE_H

#include "data/tokens.h"
#include "model/model.h"

/* Of an evaluation: tokens of a window by default, and of the windows that run together. */
enum { EK_EVAL_SEQ = 256, EK_EVAL_TOKENS = 4096 };

typedef struct {
    int64_t seq, batch;   /* tokens per window, windows per batch */
    int document_mask;    /* mask attention and targets by document (data/documents.h) */
    int32_t document_end; /* the token that ends a document */
    void (*progress)(void *context, int64_t windows_done, int64_t windows);
    void *context;
    int (*stop)(void *context); /* polled between batches; true ends with EK_ECANCELED */
} ek_evaluate_config;

typedef struct {
    double loss;    /* mean cross entropy, nats */
    int64_t tokens; /* targets that count */
    int64_t *load;  /* [layers, experts], assignments; the caller frees it */
} ek_evaluation;

/* EK_EFORMAT: no target counts; EK_ENONFINITE: the loss is not finite; EK_ECANCELED. */
EK_CHECKED ek_status ek_evaluate(ek_model *m, const ek_tokens *tokens,
                                 const ek_evaluate_config *cfg, ek_evaluation *out);

#endif
