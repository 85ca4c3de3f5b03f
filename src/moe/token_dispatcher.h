/* moe/token_dispatcher.h - permute, all-to-alls, products and unpermute, as ops. */
#ifndef MOE_TOKEN_DISPATCHER_H
#define MOE_TOKEN_DISPATCHER_H

#include "moe/build.h"

/* Append them: from y to x; backward: from dx to scratch->dy. */
int32_t ek_moe_build_dispatch(const ek_moe_builder *b, int32_t dep);
int32_t ek_moe_build_dispatch_backward(const ek_moe_builder *b, int32_t dep);
/* Collects the gradients of the gate weights from the returned rows: fills scratch->dweights. */
void ek_moe_gather_weight_gradients(const ek_moe *m, const ek_moe_activations *kept, int64_t n);

#endif
