/* moe/expert_stream.h - a layer's products with experts from a store (moe/expert_store.h), as one
 * op. */
#ifndef MOE_EXPERT_STREAM_H
#define MOE_EXPERT_STREAM_H

#include "moe/build.h"

/* Up, swiglu and down of all rows, from the experts' input scratch->rows to scratch->rows, wave by
 * wave.  Forward only, not distributed. */
int32_t ek_moe_build_streamed_products(const ek_moe_builder *b, int32_t dep);

#endif
