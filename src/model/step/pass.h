/* model/step/pass.h - forward and backward of a model over micro-batches, as a step graph.
 *
 * A pass owns the activations of its micro-batches in flight and all scratch, reserved once for the
 * largest micro-batch; building and running steps allocates nothing.
 *
 *   ek_pass_begin(p, micros)            sets the step's micro-batches
 *   ek_pass_build(p, graph)             ops: embed, layers, head and loss, layers back, embed back
 *   ek_exec_run(exec, graph)
 *   ek_pass_losses(p, &losses)          sums over the step
 *
 * The residual stream of a micro-batch (model/blocks/forward.h) is kept for backward, unless
 * activations are recomputed.
 *
 * Ranks        a pipeline stage runs its virtual stages in the order of schedule/pipeline.h; each
 *              micro-batch in flight has an activation slot.  n counts the tokens of this rank,
 *              `all` those of its data parallel rank (ek_micro). */
#ifndef MODEL_STEP_PASS_H
#define MODEL_STEP_PASS_H

#include "model/blocks/backward.h"
#include "model/experts/rebalance.h"
#include "model/model.h"
#include "model/offload.h"
#include "nn/tensor_parallel.h"
#include "schedule/graph.h"
#include "schedule/pipeline.h"

typedef struct {
    int64_t max_seqs, max_seq; /* largest micro-batch of this data parallel rank */
    int64_t max_total; /* tokens of the largest micro-batch over all ranks; 0: of this rank's */
    int64_t micros;    /* most micro-batches a step; 0 is 1 */
    int training;      /* 0: forward and loss alone */
    ek_recompute recompute;
    ek_moe_config moe;
} ek_pass_config;

/* Sums over a step, in fixed order. */
typedef struct {
    double loss;        /* mean cross entropy, nats; 0 where no target counts */
    int masked;         /* documents are masked (ek_micro), */
    double loss_tokens; /* and this many targets count; else all tokens do */
    double aux_loss;    /* sum over layers, mean over micro-batches; without coefficient */
    double z_loss;
    int64_t dropped;
    double expert_max_over_mean; /* busiest expert over the mean, of the worst layer */
    ek_rank_balance ranks;       /* likewise of expert ranks, in rows that they compute */
    ek_rank_balance primaries;   /* the same with only the primary copies, in their initial
                                    placement */
    int64_t plans, replicas;     /* plans made, and replicas in them */
    int64_t replicas_ahead;      /* of these, those that were sent before the gate */
    double replica_bytes;        /* moved for replicas: weights and gradients */
    int64_t experts_moved;       /* whose state moved to another rank before this step */
    double step_s;         /* duration of the step before, as the owner set it, mean of the ranks */
    double plan_s;         /* planning time, on one rank of each stage */
    double replica_wait_s; /* stall of expert products on replicas, mean of the ranks */
    double saved_s;        /* by this the products of the busiest rank would take longer without
                              balance (moe/stats.h), sum over layers, mean of the stages */
    double slowest_rank;   /* what a row costs on the slowest expert rank, by what planners of this
                              step know, over the same of the fastest; 1: all are equal */
} ek_losses;

/* Load balance of a layer in a step. */
typedef struct {
    ek_rank_balance before, after; /* of expert ranks' rows: with the initial placement without
                                      replicas, and as computed */
    double replicas, replicas_ahead, replica_bytes, experts_moved; /* of this layer */
} ek_layer_balance;

/* While the graph of a step is built.  Ops are ids in it; -1: none. */
typedef struct {
    ek_pipe_item *order;     /* [2 chunks micros]: order of the stage's work items */
    int32_t *act_slot_freed; /* [model chunks][act slots], the op after which a slot's activations
                                may be overwritten */
    unsigned char *act_slot_taken;   /* [model chunks][act slots] */
    int32_t dx_in_read, dx_out_sent; /* the ops after which these may be overwritten */
} ek_pass_graph;

enum { EK_PASS_SHARED = 8 }; /* numbers of ek_pass_share */

/* Statistics of a training step, and of any step of a pass that does not train. */
typedef struct {
    double *sums; /* [n_sums]: losses and loads of this rank, to be summed over all ranks */
    int64_t n_sums, speeds;          /* speeds: first of the numbers of expert ranks */
    double *seconds, *rows, *groups; /* [expert ranks of a stage], of a step */
    double last_step_s;              /* ek_pass_set_step_time */
    double vote;                     /* ek_pass_set_vote */
    double shared[EK_PASS_SHARED];   /* ek_pass_share */
} ek_pass_stats;

typedef struct {
    /* as long as the pass */
    ek_model *model;
    ek_pass_config cfg;
    ek_arena arena, host;
    int64_t max_all, max_tokens; /* upper bounds of `all`, of n */
    ek_moe_limits limits;
    int act_slots;  /* micro-batches in flight */
    int pipe_group; /* micro-batches that a forward-only step takes through a chunk before the next
                       chunk: at most the act slots of any stage */
    ek_forward forward;
    ek_backward backward;
    void *dx_in, *dx_out;   /* R [n, d], from and to the neighbour stages */
    int64_t cos_sin_length; /* sequence length that forward.cos_sin was filled for */
    ek_moe *moe;            /* [layers] */
    ek_moe_scratch scratch;
    ek_moe_planning planning;
    ek_tp tp; /* with several tensor parallel ranks */

    ek_moe_step step;
    ek_pass_graph graph;
    ek_pass_stats stats;
    ek_rebalance rebalance; /* persistent placements, over all steps */
} ek_pass;

EK_CHECKED ek_status ek_pass_create(ek_model *m, const ek_pass_config *cfg, ek_pass **out);
void ek_pass_destroy(ek_pass **p);

/* Whether the current step trains.  A training pass can also run a forward-only step (step.training
 * 0), which leaves planners, their statistics and persistent placements unchanged. */
static inline int ek_pass_trains(const ek_pass *p)
{
    return p->cfg.training && p->step.training;
}

/* Predicted bytes of such a pass, without allocating them. */
EK_CHECKED ek_status ek_pass_measure(ek_model *m, const ek_pass_config *cfg, size_t *bytes);

/* Counts what one of many training steps of such a pass, with cfg->micros micro-batches, reads and
 * writes of experts on disk (model/offload.h), without running one; zeros if there are none. */
EK_CHECKED ek_status ek_pass_count_disk(ek_model *m, const ek_pass_config *cfg,
                                        ek_offload_traffic *out);

/* Starts a step over micro-batches [n_micro] (borrowed until the step is done). step: training
 * settings; its `micro` is set here.  EK_EINVAL: larger than the config allows, or masked in
 * part. */
EK_CHECKED ek_status ek_pass_begin(ek_pass *p, const ek_moe_step *step, const ek_micro *micro,
                                   int64_t n_micro);

/* Appends the ops of the step to a graph (reset by the caller). */
EK_CHECKED ek_status ek_pass_build(ek_pass *p, ek_graph *g);

/* Appends the all-reduce of the step's statistics over the world, after the last op so far; returns
 * the op, -1 with one rank. */
int32_t ek_pass_build_sum(ek_pass *p, ek_graph *g);

/* Set what the statistics of later steps report of this rank: the duration of the step before, in
 * seconds, and a vote. */
void ek_pass_set_step_time(ek_pass *p, double seconds);
void ek_pass_set_vote(ek_pass *p, double vote);
/* Likewise numbers of one rank that all are to know: the others give zeros. */
void ek_pass_share(ek_pass *p, const double numbers[EK_PASS_SHARED]);

/* This and the next five functions: results of the last step that had statistics; on a mesh, once
 * the op of ek_pass_build_sum is done.  Here the losses. */
void ek_pass_losses(const ek_pass *p, ek_losses *out);
/* Sum of the votes of the ranks. */
double ek_pass_votes(const ek_pass *p);
/* Sums of the shared numbers [EK_PASS_SHARED].  Borrowed. */
const double *ek_pass_shared(const ek_pass *p);
/* Assignments of a layer [experts], before drops.  Borrowed. */
const double *ek_pass_load(const ek_pass *p, int64_t layer);
/* Rows and bytes of a layer, for the roofline; zeros if rows are not sent. */
ek_roofline_counts ek_pass_work(const ek_pass *p, int64_t layer);

/* Balance of a layer with experts. */
ek_layer_balance ek_pass_balance(const ek_pass *p, int64_t layer);

/* After a step: planners heed the speeds of expert ranks that its sums show.  All ranks of a stage
 * call it.  Returns whether what they know has changed. */
int ek_pass_follow_speeds(ek_pass *p);
/* Expert ranks of all stages, by stage, and what a row cost on rank i by what planners of the last
 * step knew, 1 on the typical rank; 0: no planner asks for it. */
int32_t ek_pass_speed_ranks(const ek_pass *p);
double ek_pass_row_cost(const ek_pass *p, int32_t i);

/* Reserves the sums; fills them with this rank's values, called by the last op of a step. */
void ek_pass_reserve_stats(ek_pass *p);
void ek_pass_sum(ek_pass *p);

/* After the last micro-batch of a step: sets what it adds to router biases, by its loads. */
void ek_pass_set_feedback(ek_pass *p);

#endif
