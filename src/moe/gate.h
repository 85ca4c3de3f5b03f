/* moe/gate.h - from logits to experts and weights, and the gradient back.
 *
 * Two instantiations of one body (gate_body.h), for R = float and R = double; arrays as in
 * moe/moe.h.  What depends on a set of tokens uses one sequence, so no layout splits it. */
#ifndef MOE_GATE_H
#define MOE_GATE_H

#include "moe/moe.h"

/* Turns scratch logits (in kept->probs) into kept->probs, ids, weights; counts the load, adds the
 * micro-batch's share to aux_loss and z_loss.  Drops over capacity. */
void ek_gate_forward_f32(ek_moe *m, const ek_micro *mb, ek_moe_saved *kept);
void ek_gate_forward_f64(ek_moe *m, const ek_micro *mb, ek_moe_saved *kept);

/* From scratch->dweights and the balance and z losses to scratch->dlogits. */
void ek_gate_backward_f32(ek_moe *m, const ek_micro *mb, ek_moe_saved *kept);
void ek_gate_backward_f64(ek_moe *m, const ek_micro *mb, ek_moe_saved *kept);

/* x = sigmoid(x), and d = d * x (1 - x) for x such a sigmoid: the shared expert's gate. */
void ek_sigmoid_f32(float *x, int64_t n);
void ek_sigmoid_f64(double *x, int64_t n);
void ek_sigmoid_backward_f32(const float *x, float *d, int64_t n);
void ek_sigmoid_backward_f64(const double *x, double *d, int64_t n);

#endif
