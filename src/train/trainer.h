/* train/trainer.h - one training step at a time, over a model that the caller owns.
 *
 * On a mesh (the model's) every rank has a trainer, and steps are collective over the world.  A
 * data parallel rank works on its own sequences of each micro-batch; what a step says of itself is
 * of all ranks together.
 *
 * A trainer holds the pass, the optimizer, the executor and the buffers of a step.  Where tokens
 * come from and what happens between steps (metrics, checkpoints) is the caller's. */
#ifndef TRAIN_TRAINER_H
#define TRAIN_TRAINER_H

#include "exec/exec.h"
#include "train/optimizer.h"

typedef struct {
    int64_t batch, seq, micro_batch; /* sequences a step, tokens a sequence, sequences at once */
    double aux_coef, z_coef, capacity_factor;
    int64_t top_k; /* experts a token in use, at most the model's; 0: the model's */
    uint64_t seed;
    int document_mask;    /* documents are kept apart (data/documents.h), */
    int32_t document_end; /* each closed by this token */
    ek_recompute recompute;
    ek_moe_config moe;
    int tune_degree, tune_a2a, tune_gather; /* moe.degree, moe.a2a, moe.gather up to gather_most are
                                              chosen while training (train/tune.h), where rows
                                              travel and chunks are not by distance */
    ek_exec_config exec;
    ek_optimizer_config optimizer;
} ek_trainer_config;

typedef struct ek_trainer ek_trainer;

EK_CHECKED ek_status ek_trainer_create(ek_model *m, const ek_trainer_config *cfg, ek_trainer **out);
void ek_trainer_destroy(ek_trainer **tr);

/* Bytes of activations, scratch and tokens that such a trainer takes. */
EK_CHECKED ek_status ek_trainer_measure(ek_model *m, const ek_trainer_config *cfg, size_t *bytes);

/* How many sequences of a step this rank works on, and which of the batch is the i-th. */
int64_t ek_trainer_sequences(const ek_trainer *tr);
int64_t ek_trainer_sequence(const ek_trainer *tr, int64_t i);

/* Where the caller puts the next step's tokens: [sequences, seq] each. */
int32_t *ek_trainer_inputs(ek_trainer *tr);
int32_t *ek_trainer_targets(ek_trainer *tr);

/* A number that the next steps sum over ranks (whether someone wants to stop). */
void ek_trainer_vote(ek_trainer *tr, double vote);

/* From the next step on the update commits through a ledger; runs_of as ek_optimizer_runs says.
 * Both are borrowed. */
void ek_trainer_set_journal(ek_trainer *tr, ek_journal *journal, const int64_t *extents_of);

/* Goes on from what an earlier trainer, of as many ranks or (others) of another number, has noted
 * in its ledger (train/warm_state.h); the same on all ranks. */
void ek_trainer_load_warm_state(ek_trainer *tr, const void *warm_state, size_t bytes, int others);

/* Takes a step over them. */
EK_CHECKED ek_status ek_trainer_step(ek_trainer *tr, ek_step_result *out);

/* Who fills in sequence i of a batch that is evaluated: inputs and targets, each [seq]. */
typedef struct {
    void (*read)(void *context, int64_t i, int32_t *inputs, int32_t *targets);
    void *context;
} ek_trainer_reader;

/* This rank's part of what an evaluation sums up: every target counts on one rank. */
typedef struct {
    double loss;   /* cross entropy, nats */
    double tokens; /* targets that count */
} ek_eval_sums;

/* Between steps: the forward pass alone over up to cfg.batch sequences of up to cfg.seq tokens, all
 * of one length, with the capacity factor and top-k of training, in the memory of a step.  Weights,
 * optimizer, planners and what they go by, router biases and the sums of the step before stay as
 * they are.  Adds to *sums.  Collective. */
EK_CHECKED ek_status ek_trainer_forward(ek_trainer *tr, int64_t batch, int64_t seq,
                                        const ek_trainer_reader *reader, ek_eval_sums *sums);

/* Whether the ops of steps are kept for a timeline; those of ek_trainer_forward never are. */
void ek_trainer_record(ek_trainer *tr, int on);

/* Steps done; set when a run is resumed. */
int64_t ek_trainer_steps_done(const ek_trainer *tr);
void ek_trainer_resume(ek_trainer *tr, int64_t steps_done);

/* Experts a token in use from the next step on, 1 to the model's top_k (dynamic top-k). */
EK_CHECKED ek_status ek_trainer_set_top_k(ek_trainer *tr, int64_t top_k);
/* The capacity factor from the next step on. */
void ek_trainer_set_capacity_factor(ek_trainer *tr, double factor);

/* How rows travel from the next step on, up to the degree that there is room for: that of the
 * config, or the most that tuning could choose, which ends with this.  The same on all ranks. */
EK_CHECKED ek_status ek_trainer_set_traffic(ek_trainer *tr, const ek_moe_traffic *traffic);

/* Between steps: another planner of cfg.moe's takes over; refused as ek_pass_set_planner says. */
EK_CHECKED ek_status ek_trainer_set_planner(ek_trainer *tr, const ek_planner *p);
/* Brings experts to lasting places now: those that the planner makes for the loads so far, or
 * (of_layer not NULL, [layers]) these.  *moved: experts, over the layers of this stage.
 * Collective; their state is there when this returns. */
EK_CHECKED ek_status ek_trainer_place(ek_trainer *tr, const ek_plan *of_layer, int64_t *moved);
/* Before the model's weights are filled in: experts of a layer lie so (ek_pass_assume).  And once
 * all layers do: if a planner had placed them so, `steps_done` steps into the run, which is what
 * ek_trainer_recall has been told, the next plan can wait its time. */
EK_CHECKED ek_status ek_trainer_assume(ek_trainer *tr, int64_t layer, const ek_placement *to,
                                       const int64_t *quota);
void ek_trainer_keep_placements(ek_trainer *tr, int64_t steps_done);

ek_exec *ek_trainer_exec(ek_trainer *tr);
/* The layers' loads of the last step. */
const ek_pass *ek_trainer_pass(const ek_trainer *tr);

#endif
