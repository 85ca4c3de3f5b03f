/* train/trainer.h - executes training steps, one at a time, on a model that the caller owns.
 *
 * Every rank of the model's mesh has a trainer, and steps are collective over the world.  A
 * data-parallel rank works on its own sequences of each micro-batch; the result of a step covers
 * all ranks.
 *
 * A trainer holds the pass, the optimizer, the executor and the buffers of a step.  The caller
 * provides tokens and does the work between steps (metrics, checkpoints). */
#ifndef TRAIN_TRAINER_H
#define TRAIN_TRAINER_H

#include "exec/exec.h"
#include "train/batch.h"
#include "train/optimizer.h"

typedef struct {
    int64_t batch, seq, micro_batch; /* sequences a step, tokens a sequence, sequences at once */
    double aux_coef, z_coef, capacity_factor;
    int64_t top_k; /* experts a token in use, at most the model's; 0: the model's */
    uint64_t seed;
    int document_mask;     /* 1: attention within documents only (data/documents.h), */
    int32_t document_end;  /* which end with this token */
    const int64_t *shares; /* [dp + 1] sums of the weights by which data-parallel ranks share a
                              micro-batch (nn/batch_shares.h); NULL: even.  Borrowed while a trainer
                              is created or measured */
    int follow_shares;     /* 1: shares follow the speeds of expert ranks (moe.follow_speeds), with
                              memory for EK_BATCH_SHARE_MAX times an even share */
    ek_recompute recompute;
    ek_moe_config moe;
    int tune_degree, tune_a2a, tune_gather; /* 1: moe.degree, moe.a2a, moe.gather up to gather_most
                                              are tuned while training (train/tune/tune.h), if rows
                                              are dispatched to other ranks and chunks are not by
                                              distance */
    ek_exec_config exec;
    ek_optimizer_config optimizer;
    ek_rank_copies *copies; /* as of ek_optimizer; NULL: none.  Borrowed */
} ek_trainer_config;

/* The largest share that follows speeds, over an even one. */
#define EK_BATCH_SHARE_MAX 1.5

typedef struct ek_trainer ek_trainer;

EK_CHECKED ek_status ek_trainer_create(ek_model *m, const ek_trainer_config *cfg, ek_trainer **out);
void ek_trainer_destroy(ek_trainer **tr);

/* Bytes of activations, scratch and tokens of such a trainer. */
EK_CHECKED ek_status ek_trainer_measure(ek_model *m, const ek_trainer_config *cfg, size_t *bytes);

/* Counts what a step of such a trainer reads and writes of experts on disk, when others have gone
 * before it; zeros if there are none.  No trainer may exist yet. */
EK_CHECKED ek_status ek_trainer_count_disk(ek_model *m, const ek_trainer_config *cfg,
                                           ek_offload_traffic *out);

/* The number of sequences of this rank in the next step; the index in the batch of its i-th one. */
int64_t ek_trainer_sequences(const ek_trainer *tr);
int64_t ek_trainer_sequence(const ek_trainer *tr, int64_t i);
/* The most that the former can become.  How often shares have changed: the same on all ranks. */
int64_t ek_trainer_most_sequences(const ek_trainer *tr);
int64_t ek_trainer_share_changes(const ek_trainer *tr);

/* Buffers for the next step's tokens, which the caller fills: [sequences, seq] each. */
int32_t *ek_trainer_inputs(ek_trainer *tr);
int32_t *ek_trainer_targets(ek_trainer *tr);

/* Sets a number that the next steps sum over ranks (requests to stop or save). */
void ek_trainer_vote(ek_trainer *tr, double vote);

/* Sets numbers of one rank that the next steps tell all ranks, which give zeros; they are part of
 * the warm state. */
void ek_trainer_share(ek_trainer *tr, const double numbers[EK_PASS_SHARED]);
/* Those of the last step, before the first one those of the warm state; borrowed, [EK_PASS_SHARED].
 * A caller may replace the latter, the same on all ranks. */
double *ek_trainer_shared(ek_trainer *tr);

/* From the next step on the update commits through a step journal; extents_of
 * [buckets + 2]: as in recover/rank_state.h.  Both are borrowed. */
void ek_trainer_set_journal(ek_trainer *tr, ek_journal *journal, const int64_t *extents_of);

/* Restores the warm state of an earlier trainer (train/tune/warm_state.h); ranks_changed: it had
 * another number of ranks.  All ranks give the same. */
void ek_trainer_load_warm_state(ek_trainer *tr, const void *warm_state, size_t bytes,
                                int ranks_changed);

/* Builds the graph of the next step, which ek_trainer_step would execute; borrowed until the next
 * build.  It advances batches and tuning as a step does: no ek_trainer_step afterwards.  Local, so
 * that it can be called for any rank of a fake world (comm/fake.h). */
EK_CHECKED ek_status ek_trainer_build_step(ek_trainer *tr, ek_graph **out);

/* The graph of the last step that was built.  Borrowed. */
const ek_graph *ek_trainer_graph(const ek_trainer *tr);

/* Executes a step on the tokens in the buffers.  Collective.  EK_ENONFINITE: a loss or gradient is
 * not finite. */
EK_CHECKED ek_status ek_trainer_step(ek_trainer *tr, ek_step_result *out);

/* This rank's partial sums of an evaluation; every target counts on one rank only. */
typedef struct {
    double loss;   /* cross entropy, nats */
    double tokens; /* targets that count */
} ek_eval_sums;

/* Between steps: the forward pass alone over up to cfg.batch sequences of up to cfg.seq tokens, all
 * of one length, with the capacity factor and top-k of training, in the memory of a step.  Leaves
 * weights, optimizer, planners and their statistics, router biases and the last step's sums
 * unchanged.  Adds to *sums.  Collective. */
EK_CHECKED ek_status ek_trainer_forward(ek_trainer *tr, int64_t batch, int64_t seq,
                                        const ek_batch_reader *reader, ek_eval_sums *sums);

/* What happened to experts on disk in the last step, and since the step before it; zeros if there
 * are none. */
ek_step_disk ek_trainer_disk(const ek_trainer *tr);

/* Applies the last step's update to experts whose state is on disk (model/offload.h), which else
 * waits for the next step: before the state is saved. */
EK_CHECKED ek_status ek_trainer_apply_updates(ek_trainer *tr);

/* Sets whether the ops of steps are recorded for a timeline; those of ek_trainer_forward never
 * are. */
void ek_trainer_record(ek_trainer *tr, int on);

/* Steps done; set when a run is resumed. */
int64_t ek_trainer_steps_done(const ek_trainer *tr);
void ek_trainer_resume(ek_trainer *tr, int64_t steps_done);

/* Sets the experts per token from the next step on, 1 to the model's top_k (dynamic top-k). */
EK_CHECKED ek_status ek_trainer_set_top_k(ek_trainer *tr, int64_t top_k);
/* The capacity factor from the next step on. */
void ek_trainer_set_capacity_factor(ek_trainer *tr, double factor);

/* Sets the dispatch settings from the next step on, and ends tuning.  The degree is limited by the
 * memory reserved: that of the config, or the largest that tuning could choose.  All ranks give the
 * same. */
EK_CHECKED ek_status ek_trainer_set_traffic(ek_trainer *tr, const ek_moe_traffic *traffic);

/* Before the first step: assumes the placements that the planner makes without loads, for graphs
 * that are not executed (ek_rebalance_assume_planned). */
void ek_trainer_assume_planned(ek_trainer *tr);

/* Between steps: replaces cfg.moe's planner.  Errors as of ek_rebalance_set_planner. */
EK_CHECKED ek_status ek_trainer_set_planner(ek_trainer *tr, const ek_planner *p);
/* Migrates experts to a persistent placement now: one that the planner makes for the load history,
 * or of_layer [layers] if not NULL.  *moved: number of experts moved, over the layers of this
 * stage.  Their state has arrived when this returns.  Collective. */
EK_CHECKED ek_status ek_trainer_place(ek_trainer *tr, const ek_plan *of_layer, int64_t *moved);
/* Before the model's weights are filled in: sets the placement of a layer's experts
 * (ek_rebalance_assume).  keep_placements, after that of all layers: if the warm state says that a
 * planner had placed them, after steps_done steps, the next plan is made after the usual number of
 * steps instead of in the first one. */
EK_CHECKED ek_status ek_trainer_assume(ek_trainer *tr, int64_t layer, const ek_placement *to,
                                       const int64_t *quota);
void ek_trainer_keep_placements(ek_trainer *tr, int64_t steps_done);

ek_exec *ek_trainer_exec(ek_trainer *tr);
/* The pass, which holds the layers' loads of the last step. */
const ek_pass *ek_trainer_pass(const ek_trainer *tr);

#endif
