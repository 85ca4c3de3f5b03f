/* infer/session_priv.h - the struct of a session, for session.c and session_ops.c. */
#ifndef INFER_SESSION_PRIV_H
#define INFER_SESSION_PRIV_H

#include "infer/session.h"
#include "model/blocks/forward.h"

struct ek_session {
    ek_model *model;
    ek_session_config cfg; /* block: the most rows at once */
    int64_t unit;          /* rows that a block is a multiple of, unless it has fewer */
    ek_arena arena, host;
    ek_forward forward; /* all layers have the same activations and residual stream */
    ek_moe *moe;        /* [layers]; they share activations */
    ek_moe_scratch scratch;
    ek_moe_step step;
    void *logits; /* R [vocab], of the last row */
    int32_t *ids; /* [block] */

    ek_micro micro;   /* the current block */
    int64_t position; /* tokens fed */
    ek_graph graph;
    ek_exec *exec;
};

/* Appends the ops of the block in s->micro at s->forward.first; head: with the logits of its last
 * row. */
EK_CHECKED ek_status ek_session_build(ek_session *s, int head);

#endif
