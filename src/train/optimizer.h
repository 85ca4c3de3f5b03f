/* train/optimizer.h - AdamW with a global-norm clip, as ops at the end of a step graph.
 *
 * Order: norm of all gradients (before clipping), each counted once over all ranks; then per unit
 * (model/param_buckets.h) the update of the masters and moments that are kept here, which zeroes
 * the gradients, and the packed forms made anew, after the masters that other ranks keep have come.
 * The state that outlives a step is in the weights (m, v) and `steps_done`.
 *
 * With a ledger (elastic/step_journal.h) the update commits through it: it then knows when the
 * gradients are whole, has what the update goes by, and has it leave a trail. */
#ifndef TRAIN_OPTIMIZER_H
#define TRAIN_OPTIMIZER_H

#include "elastic/step_journal.h"
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
    ek_adamw now;
    /* What is summed over all ranks with the norm: sums[0] is the optimizer's, the rest belongs to
     * whoever sets these two after init; its numbers have to be there when the norm is taken, and
     * are the sums over ranks after the step. */
    double *sums;
    int n_sums;
    double sum_squares;        /* sums, where nobody has set them */
    ek_journal *journal;       /* NULL: the state does not outlive the process */
    const int64_t *extents_of; /* [units + 1]: the first of the ledger's runs that is unit i's */
    ek_step_record record;     /* of this step */
    void (*fill_record)(void *context,
                        ek_step_record *out); /* fills in what the optimizer cannot know */
    void *context;
    int32_t record_dep; /* in the graph being built: the op after which `tell` knows it; -1: none */
} ek_optimizer;

/* The update as a ledger asks for it. */
ek_journal_rule ek_optimizer_rule(const ek_kernels *k);

/* The runs of a ledger for this model: those of each trained unit in turn.  Returns their number;
 * runs and runs_of [units + 1] may be NULL.  base: what runs count their bytes from. */
int64_t ek_optimizer_extents(const ek_model *m, const void *base, ek_journal_extent *extents,
                             int64_t *extents_of);

void ek_optimizer_init(ek_optimizer *o, ek_model *m, const ek_optimizer_config *cfg);

/* Learning rate of step `step` (from 0). */
double ek_learning_rate(const ek_optimizer_config *cfg, int64_t step);

/* Appends the ops after `dep`; returns the last.  Running them counts one step.  Collective over
 * the world. */
int32_t ek_optimizer_build(ek_optimizer *o, ek_graph *g, int32_t dep);

#endif
