/* model/blocks/rope.h - the table of rotary position embeddings (Su et al., 2021).
 *
 * Position t rotates pair i of a head by the angle t * f_i; kernels read the cosines and sines of
 * all positions that can occur from one table.  With d = head_dim and f_i = theta^(-2 i / d), the
 * types of rope scaling are, as Hugging Face transformers defines them:
 *
 *   linear   f_i / factor
 *   dynamic  f_i of the base theta * (factor * L / P - (factor - 1))^(d / (d - 2)), with P the
 *            config's max_position_embeddings and L the length of the sequence, at least P
 *   llama3   with the wavelength w = 2 pi / f_i and O = original_max_position_embeddings:
 *            f_i where w < O / high_freq_factor, f_i / factor where w > O / low_freq_factor,
 *            between them s * f_i + (1 - s) * f_i / factor with
 *            s = (O / w - low_freq_factor) / (high_freq_factor - low_freq_factor)
 *   yarn     (1 - r) * f_i + r * f_i / factor with r = (i - a) / (b - a) limited to [0, 1], where
 *            a and b are the pairs that turn beta_fast and beta_slow times within O positions;
 *            cosines and sines are multiplied by attention_factor (Peng et al., 2023)
 *
 * Only the dynamic type depends on a sequence's length: the frequencies are those of the sequence
 * that is computed, whatever was computed before it. */
#ifndef MODEL_BLOCKS_ROPE_H
#define MODEL_BLOCKS_ROPE_H

#include "spec/model.h"
#include "tensor/dtype.h"

/* Frequency of pair i, 0 <= i < head_dim / 2, in radians a position; `length` is the sequence's. */
double ek_rope_frequency(const ek_model_spec *s, int64_t length, int64_t i);

/* Factor on all cosines and sines. */
double ek_rope_attention_factor(const ek_model_spec *s);

/* Whether the table differs for sequences of these two lengths. */
int ek_rope_differs(const ek_model_spec *s, int64_t length, int64_t other);

/* Fills rows [first, first + n) of cos_sin R [positions, head_dim] for a sequence of `length`: of
 * each position head_dim / 2 cosines, then the sines. */
void ek_rope_fill(const ek_model_spec *s, int64_t length, int64_t first, int64_t n, ek_dtype real,
                  void *cos_sin);

#endif
