/* moe/expert_lookahead.h - which experts the next layer will probably need: its router's choice for
 * the residual stream as it is before this layer's experts are added.
 *
 * Only reads depend on it, never results.  On the CPU. */
#ifndef MOE_EXPERT_LOOKAHEAD_H
#define MOE_EXPERT_LOOKAHEAD_H

#include "moe/expert_store.h"

typedef struct ek_expert_lookahead ek_expert_lookahead;

/* k and spec are borrowed.  *out is NULL for routers that it does not know (cosine routers, an
 * accelerator's memory).  EK_ENOMEM. */
EK_CHECKED ek_status ek_expert_lookahead_create(const ek_kernels *k, const ek_model_spec *spec,
                                                ek_expert_lookahead **out);
void ek_expert_lookahead_destroy(ek_expert_lookahead **a);

/* x R [rows, hidden]: the residual stream.  Gives experts of the next layer [experts], and returns
 * their number: for one row its choice, top_k; for more those that several rows chose, of some that
 * are looked at, the most frequent ones first. */
int32_t ek_expert_lookahead_guess(ek_expert_lookahead *a, int64_t rows, const void *x,
                                  const ek_expert_layer *next, int32_t *expert);

#endif
