/* infer/session.h - a generation session: one text, read and continued token by token.
 *
 * A session has a cache of the keys and values of all tokens so far, so a new token costs one row
 * through the model.  ek_session_feed processes a prompt (prefill) and a single token (decode)
 * alike: rows run as a step graph, in blocks of at most `block` rows, and the logits of the last
 * row are kept.
 *
 *   ek_session_create(model, &(ek_session_config){.capacity = 512}, &s)
 *   ek_session_feed(s, prompt, n)
 *   loop: ek_sampler_next on ek_session_logits, ek_session_feed of the one token
 *
 * The arithmetic is that of a training step's forward pass, without jitter and expert capacity.
 * Expert-choice gates need the whole sequence and are refused.
 *
 * Memory       2 layers capacity kv_heads head_dim numbers C of cache, and the activations of one
 *              block, reserved at creation; from the second feed on nothing is allocated.
 * Ownership    the model and its kernels are borrowed, read only, and may serve several sessions;
 *              its packed forms must exist (ek_model_pack).
 * Threads      one at a time per session. */
#ifndef INFER_SESSION_H
#define INFER_SESSION_H

#include "exec/exec.h"
#include "model/model.h"

typedef struct ek_session ek_session;

typedef struct {
    int64_t capacity; /* positions: prompt and generated tokens */
    int64_t block;    /* maximum rows per step; 0: 256, or, where experts are read from files
                         (moe/expert_store.h), 1,024 in multiples of 256: the same results */
} ek_session_config;

/* EK_EUNSUPPORTED: the model has an expert-choice gate, or capacity exceeds its sliding window.
 * EK_EINVAL: capacity is below 1 or exceeds its max_positions. */
EK_CHECKED ek_status ek_session_create(ek_model *m, const ek_session_config *cfg, ek_session **out);
void ek_session_destroy(ek_session **s);

/* Bytes of such a session, without allocating them. */
EK_CHECKED ek_status ek_session_measure(ek_model *m, const ek_session_config *cfg, size_t *bytes);

/* Appends n >= 1 tokens.  EK_EINVAL: an id outside the vocabulary, or more tokens than the
 * capacity.  After a failure the position is unchanged, but the logits are undefined. */
EK_CHECKED ek_status ek_session_feed(ek_session *s, const int32_t *ids, int64_t n);

/* R [vocab]: logits of the token after the last one fed; valid until the next feed. */
const void *ek_session_logits(const ek_session *s);
/* The same, as doubles. */
void ek_session_logits_f64(const ek_session *s, double *out);

/* Tokens fed so far. */
int64_t ek_session_position(const ek_session *s);

/* Resets the position to 0; keeps the memory. */
void ek_session_reset(ek_session *s);

/* Lower bound of the bytes read to decode one token at this position: an embedding row, all weights
 * of attention, norms, routers, shared experts and head, those of the top-k experts, in the form
 * that the kernels read, and the keys and values of positions 0 to `position`. */
double ek_session_active_bytes(const ek_session *s, int64_t position);

/* The executor that runs the steps, for recording a timeline.  Borrowed. */
ek_exec *ek_session_exec(ek_session *s);

#endif
