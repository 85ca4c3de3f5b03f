/* infer/sampler.h - draws the next token from logits.
 *
 * With l [vocab] the logits, in this order, which is that of Hugging Face transformers:
 *
 *   repetition   of each token counted by ek_sampler_count, l_i / penalty if l_i > 0, else
 *                l_i * penalty (Keskar et al., 2019)
 *   temperature  w_i = exp((l_i - max l) / temperature)
 *   top_k        only the top_k largest l_i stay, if 0 < top_k < vocab
 *   top_p        of these, ordered by l_i, the fewest whose w add up to at least top_p times the
 *                sum stay, at least one; 1 keeps all (Holtzman et al., 2020)
 *   min_p        of these, those with w_i >= min_p stay: the largest w is 1 (Nguyen et al., 2024)
 *   draw         u uniform in [0, 1) from (seed, position); in order of ids, the first remaining
 *                token where the cumulative w exceeds u times the sum
 *
 * Ties go to the lower id.  Temperature 0 or top_p 0 takes the largest logit without drawing.
 * The counted tokens are the only state: the same counted tokens, seed, position and logits give
 * the same token, so a text does not depend on how its tokens were fed.
 *
 * Memory       reserved at creation; drawing allocates nothing. */
#ifndef INFER_SAMPLER_H
#define INFER_SAMPLER_H

#include "evenkeel/err.h"

#include "tensor/dtype.h"

#include <stdint.h>

typedef struct ek_sampler ek_sampler;

typedef struct {
    double temperature; /* finite, 0 or more */
    double top_p;       /* 0 to 1 */
    int64_t top_k;      /* 0: off */
    uint64_t seed;
    double min_p;              /* 0 to 1; 0: off */
    double repetition_penalty; /* positive and finite; 1 and 0: off */
} ek_sampler_config;

/* Chooses among the first `vocab` logits: pass the smaller of the model's and the tokenizer's
 * vocabulary.  EK_EINVAL names the setting. */
EK_CHECKED ek_status ek_sampler_create(const ek_sampler_config *cfg, int64_t vocab,
                                       ek_sampler **out);
void ek_sampler_destroy(ek_sampler **s);

/* Adds a token to those that the repetition penalty applies to; ids beyond `vocab` are ignored. */
void ek_sampler_count(ek_sampler *s, int32_t id);

/* Excludes an id from drawing: one that the tokenizer has no token for. */
void ek_sampler_exclude(ek_sampler *s, int32_t id);

/* The token for `position` of the text.  logits [vocab] of type EK_F32 or EK_F64; minus infinity
 * excludes a token.  EK_ENONFINITE: a logit is NaN or plus infinity, or all are excluded. */
EK_CHECKED ek_status ek_sampler_next(ek_sampler *s, ek_dtype type, const void *logits,
                                     int64_t position, int32_t *id);

#endif
