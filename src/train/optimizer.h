/* train/optimizer.h - AdamW with a global-norm clip, as ops at the end of a step graph.
 *
 * Order: norm of all gradients (before clipping), each counted once over all ranks; then per unit
 * (model/units.h) the update of the masters and moments that are kept here, which zeroes the
 * gradients, and the packed forms made anew, after the masters that other ranks keep have come.
 * The state that outlives a step is in the weights (m, v) and `steps_done`. */
#ifndef TRAIN_OPTIMIZER_H
#define TRAIN_OPTIMIZER_H

#include "model/model.h"
#include "schedule/graph.h"

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
    ek_adamw now;
    /* What is summed over all ranks with the norm: sums[0] is the optimizer's, the rest belongs to
     * whoever sets these two after init; its numbers have to be there when the norm is taken, and
     * are the sums over ranks after the step. */
    double *sums;
    int n_sums;
    double sum_squares; /* sums, where nobody has set them */
} ek_optimizer;

void ek_optimizer_init(ek_optimizer *o, ek_model *m, const ek_optimizer_config *cfg);

/* Learning rate of step `step` (from 0). */
double ek_learning_rate(const ek_optimizer_config *cfg, int64_t step);

/* Appends the ops after `dep`; returns the last.  Running them counts one step.  Collective over
 * the world. */
int32_t ek_optimizer_build(ek_optimizer *o, ek_graph *g, int32_t dep);

#endif
