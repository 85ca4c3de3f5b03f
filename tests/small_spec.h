/* small_spec.h - a model of two layers of seven experts, which no number of ranks shares evenly. */
#ifndef SMALL_SPEC_H
#define SMALL_SPEC_H

#include "spec/model.h"

static inline ek_model_spec small_spec(void)
{
    ek_model_spec s;

    ek_model_default(&s);
    s.vocab = 16;
    s.hidden = 8;
    s.layers = 2;
    s.heads = s.kv_heads = 2;
    s.head_dim = 4;
    s.experts = 7;
    s.top_k = 2;
    s.ff = 5;
    return s;
}

#endif
