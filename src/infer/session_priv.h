/* infer/session_priv.h - the struct of a session, for session.c and session_ops.c. */
#ifndef INFER_SESSION_PRIV_H
#define INFER_SESSION_PRIV_H

#include "infer/session.h"

/* One layer's keys (rotated) and values, each C [capacity, kv_heads head_dim]. */
typedef struct {
    void *k, *v;
} ek_layer_cache;

struct ek_session {
    ek_model *model;
    ek_session_config cfg;
    ek_arena arena, host;
    ek_layer_cache *cache; /* [layers] */
    ek_moe *moe;           /* [layers]; they share activations */
    ek_moe_scratch scratch;
    ek_moe_step step;

    /* one block of rows */
    void *x;       /* R [block, d], residual stream, added to in place */
    void *y;       /* C [block, d], its norm */
    void *rstd;    /* R [block, heads + 1] */
    void *qkv;     /* C [block, (heads + 2 kv_heads) head_dim] */
    void *o;       /* C [block, heads head_dim] */
    void *logits;  /* R [vocab], of the last row */
    void *cos_sin; /* R [capacity, head_dim] */
    int32_t *ids;  /* [block] */
    void *ws;
    ek_group group; /* of dense products */

    ek_micro micro;   /* the current block */
    int64_t first;    /* position of its first row */
    int64_t position; /* tokens fed */
    ek_graph graph;
    ek_exec *exec;
};

/* Appends the ops of the block in s->micro at s->first; head: with the logits of its last row. */
EK_CHECKED ek_status ek_session_build(ek_session *s, int head);

#endif
