/* infer/expert_choice.h - where the experts of a model are kept: what the settings of ek_lm_open
 * say, and what the memory limit leaves room for. */
#ifndef INFER_EXPERT_CHOICE_H
#define INFER_EXPERT_CHOICE_H

#include "evenkeel/lm.h"

#include "infer/memory.h"
#include "store/slot_pool.h"

typedef struct {
    ek_expert_room room;
    int ring, mapped;
    int64_t kept; /* experts that keep their slots in passes (moe/expert_store.h) */
    ek_eviction eviction;
    int lookahead;
} ek_expert_choice;

/* Checks the settings; EK_EINVAL. */
EK_CHECKED ek_status ek_expert_choice_check(const ek_lm_config *cfg);

/* With "auto", all experts are in memory if the model fits there; where it does not, or with
 * "cache" or "ring", and no number of slots or layers is given, as many as fit.  A model that does
 * not fit at all gets 0 slots: ek_infer_check_model says what it needs. */
EK_CHECKED ek_status ek_expert_choice_make(const ek_lm_config *cfg, const ek_model_spec *spec,
                                           const ek_kernels *k, ek_expert_choice *out);

#endif
