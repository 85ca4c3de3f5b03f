/* moe/gate.h - from logits to experts and weights, and the gradient back.
 *
 * The common choices are kernels (tensor/kernels.h); of the rest there are two instantiations of
 * one body (gate_body.h), for R = float and R = double, on the host.  Arrays as in moe/moe.h.  What
 * depends on a set of tokens uses one sequence, so no layout splits it. */
#ifndef MOE_GATE_H
#define MOE_GATE_H

#include "moe/moe.h"

/* Turns logits (in kept->probs) into kept->probs, lse, ids, weights; drops over capacity.  Where
 * capacity counts, or experts choose, mb's n tokens are whole sequences. */
void ek_gate_forward_f32(ek_moe *m, const ek_micro *mb, ek_moe_activations *kept);
void ek_gate_forward_f64(ek_moe *m, const ek_micro *mb, ek_moe_activations *kept);

/* Counts this rank's choices and sums up its probabilities, for the statistics that all ranks of
 * the stage make of them. */
void ek_gate_count_stats(ek_moe *m, const ek_micro *mb, ek_moe_activations *kept);

/* From the tallies of all ranks, in their order: kept->fraction and assigned, and, unless again,
 * what the micro-batch adds to the sums of the step. */
void ek_gate_sum_stats(ek_moe *m, const ek_micro *mb, ek_moe_activations *kept, int recompute);

/* Whether the choice for a token depends on the other tokens of its sequence. */
int ek_gate_needs_sequences(const ek_moe *m);

/* Whether forward, tally and backward are nothing but kernels in this step. */
int ek_gate_is_plain(const ek_moe *m);

/* From scratch->dweights and the balance and z losses to scratch->dlogits. */
void ek_gate_backward(ek_moe *m, const ek_micro *mb, ek_moe_activations *kept);

/* x = sigmoid(x), and d = d * x (1 - x) for x such a sigmoid: the shared expert's gate. */
void ek_sigmoid_f32(float *x, int64_t n);
void ek_sigmoid_f64(double *x, int64_t n);
void ek_sigmoid_backward_f32(const float *x, float *d, int64_t n);
void ek_sigmoid_backward_f64(const double *x, double *d, int64_t n);

/* A rank's tally. */
static inline ek_gate_stats *ek_gate_stats_of(const ek_moe *m, const ek_moe_activations *kept,
                                              int rank)
{
    return kept->gate_stats + rank * m->x.words;
}

#endif
