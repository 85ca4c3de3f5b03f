/* model/pass.h - forward and backward of a model over micro-batches, as a step graph.
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
#ifndef MODEL_PASS_H
#define MODEL_PASS_H

#include "model/blocks/forward.h"
#include "model/experts/migrate.h"
#include "model/model.h"
#include "moe/tp.h"
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
    double expert_max_over_mean;  /* busiest expert over the mean, of the worst layer */
    double rank_max_over_mean;    /* likewise of expert ranks, in rows that they compute */
    double primary_max_over_mean; /* the same with only the primary copies, in their initial
                                     placement */
    int64_t plans, replicas;      /* plans made, and replicas in them */
    double replica_bytes;         /* moved for replicas: weights and gradients */
    int64_t experts_moved;        /* whose state moved to another rank before this step */
    double step_s;         /* duration of the step before, as the owner set it, mean of the ranks */
    double plan_s;         /* planning time, on one rank of each stage */
    double replica_wait_s; /* stall of expert products on replicas, mean of the ranks */
} ek_losses;

/* Load balance of a layer in a step. */
typedef struct {
    double before, after; /* rows of the busiest expert rank over the mean: with the
                             initial placement without replicas, and as computed */
    double replicas, replica_bytes, experts_moved; /* of this layer */
} ek_layer_balance;

/* State of an embedding whose columns are sharded over data parallel ranks
 * (model/blocks/embed.c). */
typedef struct {
    int32_t *ids; /* [act slots][limits.total]: of all data parallel ranks, by rank, relative to
                     this rank's first vocabulary row */
    void *own;    /* R [limits.total, this rank's columns] */
    void *blocks; /* R [max_all, d], in one block of columns per rank */
    int64_t *rows, *first; /* [dp][dp], [dp + 1]: arguments of the all-to-all, written by the thread
                              that starts network ops */
} ek_embed_columns;

typedef struct {
    ek_model *model;
    ek_pass_config cfg;
    ek_arena arena, host;
    ek_forward forward;
    int64_t max_all, max_tokens, head_rows; /* upper bounds of `all`, of n; rows of a head block */
    int act_slots;                          /* micro-batches in flight */
    int pipe_group; /* micro-batches that a forward-only step takes through a chunk before the next
                       chunk: at most the act slots of any stage */
    int32_t first_layer;      /* first layer of this stage */
    ek_moe *moe;              /* [layers] */
    ek_migration *migrations; /* [layers]; NULL: experts never migrate */
    void *staging[2];         /* of migrations, alternating between the layers of this stage */
    void *mid;                /* R [n, d]: x[2l+1] of every layer when recomputing */
    void *dx;                 /* R [n, d] */
    void *dx_in, *dx_out;     /* R [n, d], from and to the neighbour stages */
    ek_pipe_item *order;      /* [2 chunks micros]: order of the stage's work items */
    int32_t *act_slot_freed; /* [model chunks][act slots], while a step is built: the op after which
                                a slot's activations may be overwritten */
    unsigned char *act_slot_taken;   /* [model chunks][act slots] */
    int32_t dx_in_read, dx_out_sent; /* the same for dx_in and dx_out */
    void *dy, *dy_comp, *d_o, *dqkv; /* scratch of attention's backward */
    int64_t cos_sin_length;          /* sequence length that it was filled for */
    void *y_final;                   /* C [head_rows, d] */
    void *rstd_final;                /* R [head_rows] */
    void *logits;                    /* R [head_rows, this rank's vocab] */
    void *dlogits;                   /* C [head_rows, this rank's vocab], at dlogits_ld */
    int64_t dlogits_ld;              /* a multiple of 8, row alignment of some kernels */
    void *dy_final;                  /* R [head_rows, d] */
    double *loss_rows;               /* [max_tokens] */
    ek_moe_scratch scratch;          /* scratch.tp: NULL with one tensor parallel rank, else &tp */
    ek_tp tp;
    ek_embed_columns columns;
    int32_t *ids;                     /* [max_all], relative to this rank's vocabulary range */
    double *vocab_stats;              /* [tp, head_rows, 3] */
    double *vocab_factor, *vocab_hit; /* [head_rows] */
    ek_moe_limits limits;
    ek_moe_step step;
    int64_t n_micro;
    int masked;         /* the step's documents are masked (ek_micro) */
    double loss_tokens; /* number of targets that the loss averages over, of all data parallel
                           ranks: valid once op `counted` is done */
    int32_t counted;    /* -1: no such op, loss_tokens is valid */
    double loss_sum;
    double *sums; /* [n_sums]: losses and loads of this rank, to be summed over all ranks */
    int64_t n_sums;
    int64_t steps_seen, steps_before; /* by this pass; by the passes that it continues */
    int placed;                       /* a persistent placement has been installed in these steps */
    int recalled;                     /* the loads of those passes are known (train/warm_state.h) */
    int64_t *moved; /* [layers]: experts of an expert-parallel group that moved before this step */
    double last_step_s; /* set by the owner: duration of the step before */
    double vote;        /* set by the owner, summed over ranks (ek_pass_votes) */
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

/* Starts a step over micro-batches [n_micro] (borrowed until the step is done). step: training
 * settings; its `micro` is set here.  EK_EINVAL: larger than the config allows, or masked in
 * part. */
EK_CHECKED ek_status ek_pass_begin(ek_pass *p, const ek_moe_step *step, const ek_micro *micro,
                                   int64_t n_micro);

/* Appends the ops of the step to a graph (reset by the caller). */
EK_CHECKED ek_status ek_pass_build(ek_pass *p, ek_graph *g);

/* Losses from p->sums.  Valid after the step; on a mesh, after the caller has summed p->sums over
 * the world.  This and the next four functions. */
void ek_pass_losses(const ek_pass *p, ek_losses *out);
/* Sum of p->vote over the ranks. */
double ek_pass_votes(const ek_pass *p);
/* Assignments of a layer [experts], before drops.  Borrowed. */
const double *ek_pass_load(const ek_pass *p, int64_t layer);
/* Rows and bytes of a layer, for the roofline; zeros if rows are not sent. */
ek_roofline_counts ek_pass_work(const ek_pass *p, int64_t layer);

/* Balance of a layer with experts. */
ek_layer_balance ek_pass_balance(const ek_pass *p, int64_t layer);

/* Fills p->sums with this rank's values; called by the last op of a step. */
void ek_pass_sum(ek_pass *p);

/* Before a step: installs persistent placements, if the planner makes any and plan_every says so
 * (model/experts/rebalance.c). */
void ek_pass_rebalance(ek_pass *p);

/* Between steps: changes to another planner of the config; the current persistent placement stays.
 * EK_EINVAL: it makes transient replicas, whose slots require as many experts on each rank as block
 * order gives (ek_pass_place fails likewise); or it makes none, and slices are to be gathered. This
 * and the following functions are collective. */
EK_CHECKED ek_status ek_pass_set_planner(ek_pass *p, const ek_planner *planner);
/* Install persistent placements between steps: by the planner, whatever plan_every says; or
 * of_layer [layers], of one expert-parallel group, whose quotas give the shares of replicas
 * (EK_EINVAL: a rank has too few slots with state; layers before it have been changed).  State
 * moves in the next graph: a step's, or ek_pass_build_moves. */
void ek_pass_place_anew(ek_pass *p);
EK_CHECKED ek_status ek_pass_place(ek_pass *p, const ek_plan *of_layer);
/* Before weights are filled in: sets the placement of a layer, and the shares of replicas in
 * proportion to quota [ep * slots].  EK_EINVAL as above. */
EK_CHECKED ek_status ek_pass_assume(ek_pass *p, int64_t l, const ek_placement *to,
                                    const int64_t *quota);
/* Appends only the migration ops, to a graph that the caller has reset. */
EK_CHECKED ek_status ek_pass_build_moves(ek_pass *p, ek_graph *g);
/* Copies the current persistent placement and quotas of a layer into a plan, whose limits must be
 * those of the planner. */
void ek_pass_placed(const ek_pass *p, int64_t layer, ek_plan *out);
#endif
