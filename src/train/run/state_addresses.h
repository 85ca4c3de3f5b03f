/* train/run/state_addresses.h - addresses in place of the shared memory that holds the state of a
 * rank with --elastic, for ranks that only are laid out. */
#ifndef TRAIN_RUN_STATE_ADDRESSES_H
#define TRAIN_RUN_STATE_ADDRESSES_H

#include "model/model.h"

typedef struct {
    ek_arena arena;
    ek_model_memory memory; /* for a model's config */
} ek_state_addresses;

/* Lasts longer than the model.  *x stays where it is. */
void ek_state_addresses_init(ek_state_addresses *x);
/* Also of a zeroed *x. */
void ek_state_addresses_fini(ek_state_addresses *x);

#endif
