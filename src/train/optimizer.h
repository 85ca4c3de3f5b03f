/* train/optimizer.h - AdamW with a global-norm clip, as ops at the end of a step graph.
 *
 * Order: norm of all gradients (before clipping), each counted once over all ranks; then for each
 * parameter bucket (model/param_buckets.h) the update of the masters and moments that this rank
 * keeps, which zeroes the gradients, and the repacking of weights after masters have been gathered
 * from other ranks.  The state that outlives a step is in the weights (m, v) and `steps_done`.
 *
 * With a step journal (elastic/step_journal.h) the update commits through it: it marks reduced
 * gradients, holds the record with the update's parameters, and the update writes undo logs.
 * Copies of other ranks' state (train/rank_copies.h) get their gradients before the norm is summed
 * over ranks, so that no rank updates before all copies have theirs.
 *
 * Parameters that are updated by feedback (router biases) have in the place of their gradients what
 * the step adds to them, set before the norm, which does not count it. */
#ifndef TRAIN_OPTIMIZER_H
#define TRAIN_OPTIMIZER_H

#include "elastic/step_journal.h"
#include "model/offload.h"
#include "train/rank_copies.h"
#include "train/step.h"

typedef struct {
    double lr, min_lr;
    int cosine;            /* else constant */
    int64_t warmup, steps; /* linear from lr / warmup; total steps */
    double decay, beta1, beta2, eps;
    double clip; /* 0: none */
} ek_optimizer_config;

typedef struct {
    ek_model *model;
    ek_optimizer_config cfg;
    int64_t steps_done; /* AdamW's t - 1 of the next update */
    double grad_norm;   /* of the last step, before clipping */
    double lr;          /* of the last step */
    /* Of the last steps: that of step i at i modulo the size. */
    ek_adamw past[EK_OFFLOAD_DEFERRED_MAX];
    /* Numbers summed over all ranks together with the norm: sums[0] is the optimizer's.  A caller
     * may set both after init to add its own; they must be filled before the norm is computed, and
     * are the sums over ranks after the step. */
    double *sums;
    int n_sums;
    double sum_squares;        /* the default of sums */
    ek_journal *journal;       /* NULL: the state does not outlive the process */
    const int64_t *extents_of; /* [buckets + 2], as in recover/rank_state.h */
    ek_step_record record;     /* of this step */
    /* Fills in the members of the record that the optimizer does not know */
    void (*fill_record)(void *context, ek_step_record *out);
    /* Sets what the step adds to parameters that are updated by feedback; NULL: there are none */
    void (*set_feedback)(void *context);
    void *context;
    int32_t record_dep;     /* in the graph being built: an op that fill_record needs; -1: none */
    ek_rank_copies *copies; /* of other ranks' state, updated as well; NULL: the world has none.
                               Borrowed */
} ek_optimizer;

/* The update rule for a step journal. */
ek_journal_rule ek_optimizer_rule(const ek_kernels *k);

void ek_optimizer_init(ek_optimizer *o, ek_model *m, const ek_optimizer_config *cfg);

/* Appends the ops after `dep`; returns the last.  Their execution increments steps_done and is
 * collective over the world. */
int32_t ek_optimizer_build(ek_optimizer *o, ek_graph *g, int32_t dep);

/* After these ops: updates the parameters that are updated by feedback, which ends the step. */
void ek_optimizer_add_feedback(ek_optimizer *o);

#endif
