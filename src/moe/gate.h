/* moe/gate.h - from logits to experts and weights, and the gradient back.
 *
 * The common gates are kernels (tensor/kernels.h); the others run on the host, as two
 * instantiations of one body (gate_body.h), for R = float and R = double.  Arrays as in moe/moe.h.
 * A rule over a set of tokens applies to one sequence, which no parallel layout splits. */
#ifndef MOE_GATE_H
#define MOE_GATE_H

#include "moe/layer.h"

/* Turns logits (in kept->probs) into kept->probs, lse, ids, weights, and drops assignments over
 * capacity.  If ek_gate_needs_sequences, mb's n tokens must be whole sequences. */
void ek_gate_forward_f32(ek_moe *m, const ek_micro *mb, ek_moe_activations *kept);
void ek_gate_forward_f64(ek_moe *m, const ek_micro *mb, ek_moe_activations *kept);

/* Fills this rank's gate statistics in kept->gate_stats, which ranks then all-gather. */
void ek_gate_count_stats(ek_moe *m, const ek_micro *mb, ek_moe_activations *kept);

/* Sums the gate statistics of all ranks, in rank order: sets kept->fraction and assigned, and,
 * unless recompute, adds the micro-batch to the sums of the step. */
void ek_gate_sum_stats(ek_moe *m, const ek_micro *mb, ek_moe_activations *kept, int recompute);

/* Whether the choice for a token depends on the other tokens of its sequence. */
int ek_gate_needs_sequences(const ek_moe *m);

/* Whether forward, statistics and backward run as kernels alone in this step. */
int ek_gate_is_plain(const ek_moe *m);

/* Computes scratch->dlogits from scratch->dweights and the gradients of balance and z losses. */
void ek_gate_backward(ek_moe *m, const ek_micro *mb, ek_moe_activations *kept);

/* The gate statistics of a rank of the stage. */
static inline ek_gate_stats *ek_gate_stats_of(const ek_moe *m, const ek_moe_activations *kept,
                                              int rank)
{
    return kept->gate_stats + rank * m->x.words;
}

/* Sigmoid gate: sets what the step adds to each expert's bias, by its load: bias_rate * sign(mean
 * load - load), in the place of the bias's gradient.  Other gates: nothing. */
void ek_gate_set_feedback(ek_moe *m);

#endif
