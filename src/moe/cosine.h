/* moe/cosine.h - the cosine router: logits are scaled cosines instead of dot products.
 *
 *   z = W y                        W [p, d]: projects the token to p dimensions
 *   logit_e = s cos(z, M_e)        M [experts, p]
 *   s = exp(min(theta, log 100))   learned; 1 / s is the temperature, at least 0.01
 *
 * Sources      X-MoE (Chi et al., NeurIPS 2022), section 3; the bound of theta and its initial
 *              value log 2 are those of Tutel's cosine_top gate.  W has no bias, as in the paper;
 *              Tutel's has one.  Both matrices are initialised like all others.
 * Gradient     with u = z / |z| and m_e = M_e / |M_e|: dtheta = sum u . du (0 beyond the bound),
 *              dz = (du - (du . u) u) / |z|, dM_e likewise.  A row of norm below 1e-12 counts as
 *              zero and gets no gradient.
 * Complexity   O(n p (d + experts)); one matrix [n, p] of scratch. */
#ifndef MOE_COSINE_H
#define MOE_COSINE_H

#include "moe/layer.h"

/* Initial value of theta. */
#define EK_COSINE_THETA 0.69314718055994530942

void ek_cosine_reserve(ek_cosine_scratch *c, ek_arena *a, const ek_kernels *k,
                       const ek_model_spec *spec, int64_t tokens, int training);

/* y R [n, d] -> logits R [n, experts]. */
void ek_cosine_forward(const ek_moe *m, int64_t n, const void *y, void *logits);

/* Adds to the gradients of router, projection and theta, and to scratch->dy, from scratch->dlogits,
 * which it overwrites. */
void ek_cosine_backward(const ek_moe *m, int64_t n, const void *y);

#endif
