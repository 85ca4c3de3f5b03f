/* model/pass.h - forward and backward of a model over micro-batches, as a step graph.
 *
 * A pass owns the activations of one micro-batch and all scratch, reserved once for the largest
 * micro-batch; building and running steps allocates nothing.
 *
 *   ek_pass_begin(p, micros)            what the step's micro-batches hold
 *   ek_pass_build(p, graph)             ops: embed, layers, head and loss, layers back, embed back
 *   ek_exec_run(exec, graph)
 *   ek_pass_losses(p, &losses)          sums over the step
 *
 * Residual stream of a micro-batch: x[0] embeddings, x[2l+1] after attention of layer l, x[2l+2]
 * after its experts; all are kept for backward, unless activations are recomputed.
 *
 * Ranks        a stage of a pipeline runs its pieces of the model in the order of
 *              schedule/pipeline.h; micro-batches in flight have a slot each, a set of activations.
 *              n counts the tokens of this rank, `all` those of its data parallel rank (ek_micro).
 */
#ifndef MODEL_PASS_H
#define MODEL_PASS_H

#include "model/migrate.h"
#include "model/model.h"
#include "moe/tp.h"
#include "schedule/graph.h"
#include "schedule/pipeline.h"

typedef enum {
    EK_RECOMPUTE_OFF,
    EK_RECOMPUTE_ATTENTION, /* norm, query/key/value and attention of each layer again */
    EK_RECOMPUTE_FULL       /* each layer again, from its input */
} ek_recompute;

typedef struct {
    int64_t max_seqs, max_seq; /* largest micro-batch of this data parallel rank */
    int64_t max_total;         /* tokens of the largest over all ranks; 0: this rank's alone */
    int64_t micros;            /* most micro-batches a step; 0 is 1 */
    int training;              /* 0: forward and loss alone */
    ek_recompute recompute;
    ek_moe_config moe;
} ek_pass_config;

/* What one layer's forward leaves for its backward. */
typedef struct {
    void *rstd1, *rstd2;                   /* R [n] */
    void *y1, *y2;                         /* C [n, d], the two norms */
    void *qkv;                             /* C [all, (heads + 2 kv_heads) head_dim], rotated */
    void *q_raw, *k_raw, *q_rstd, *k_rstd; /* before query and key norms */
    void *o;                               /* C [all, heads head_dim] */
    void *lse;                             /* R [seqs, heads, seq] */
} ek_layer_activations;

/* Sums over a step, in fixed order. */
typedef struct {
    double loss;        /* mean cross entropy, nats; 0 where no target counts */
    int masked;         /* documents are kept apart (ek_micro), */
    double loss_tokens; /* and these targets count; else all tokens do */
    double aux_loss;    /* sum over layers, mean over micro-batches; without coefficient */
    double z_loss;
    int64_t dropped;
    double expert_max_over_mean;  /* busiest expert over the mean, of the worst layer */
    double rank_max_over_mean;    /* likewise of expert ranks: rows that they compute */
    double primary_max_over_mean; /* ... that they would with every expert alone where it began */
    int64_t plans, replicas;      /* that planners made, and replicas in them */
    double replica_bytes;         /* that these moved: weights out, gradients back */
    int64_t experts_moved;        /* whose state went to another rank, before this step */
    double step_s;                /* that the owner said of the step before, mean of the ranks */
    double plan_s;                /* that planners took, on one rank of each stage */
    double replica_wait_s;        /* that products stood still for replicas, mean of the ranks */
} ek_losses;

/* What balance did for a layer in a step. */
typedef struct {
    double before, after; /* busiest expert rank's rows over the mean of the ranks: with every
                             expert alone where it began, and as they were served */
    double replicas, replica_bytes, experts_moved; /* the layer's part of the step's */
} ek_layer_balance;

/* Of an embedding whose columns are spread over data parallel ranks (model/embed_ops.c). */
typedef struct {
    int32_t *ids;          /* [slots][room.total], of all data parallel ranks by rank, counted from
                              this rank's first row of the vocabulary */
    void *own;             /* R [room.total, this rank's columns] */
    void *blocks;          /* R [max_all, d] in blocks: the columns of each rank */
    int64_t *rows, *first; /* [dp][dp], [dp + 1], for the one thread that starts network ops */
} ek_embed_columns;

typedef struct {
    ek_model *model;
    ek_pass_config cfg;
    ek_arena arena, host;
    int64_t max_all, max_tokens, head_rows; /* of `all`, of n, of a block of the head */
    int act_slots;                          /* micro-batches in flight */
    int pipe_group; /* micro-batches that a forward half alone takes through a chunk before the next
                  chunk: no more than any stage has slots */
    int32_t *act_slot_of;              /* [chunks][micros] */
    int32_t first_layer;               /* the first that is here */
    ek_layer_activations *activations; /* [slots][layers] */
    ek_moe *moe;                       /* [layers] */
    ek_migration *migrations;          /* [layers]; NULL: experts never move */
    void *staging[2];                  /* theirs, by turns of the layers that are here */
    void **x;                          /* [slots][2 layers + 1], each R [n, d] */
    void *mid;                         /* R [n, d], x[2l+1] of all layers when recomputed */
    void *dx;                          /* R [n, d] */
    void *dx_in, *dx_out;              /* R [n, d], from and to the neighbour stages */
    ek_pipe_item *order;               /* [2 chunks micros], the stage's work */
    int32_t *act_slot_freed;           /* [chunks][slots], while a step is built: the op after
                                      which a slot's activations may be overwritten */
    unsigned char *act_slot_taken;     /* [chunks][slots] */
    int32_t dx_in_read, dx_out_sent;   /* likewise for dx_in and dx_out */
    void *dy, *dy_comp, *d_o, *dqkv;   /* scratch of attention's backward */
    void *cos_sin;                     /* R [max_seq, head_dim] */
    int64_t cos_sin_length;            /* the sequence that it was filled for */
    void *y_final;                     /* C [head_rows, d] */
    void *rstd_final;                  /* R [head_rows] */
    void *logits;                      /* R [head_rows, this rank's vocab] */
    void *dlogits;                     /* C [head_rows, this rank's vocab], at dlogits_ld */
    int64_t dlogits_ld;                /* a multiple of 8, as some kernels want rows to lie */
    void *dy_final;                    /* R [head_rows, d] */
    double *loss_rows;                 /* [max_tokens] */
    void *ws;
    ek_moe_scratch scratch; /* its tp: NULL with one tensor parallel rank, else &tp */
    ek_tp tp;
    ek_embed_columns columns;
    int32_t *ids;                     /* [max_all], of this rank's run of the vocabulary */
    double *vocab_stats;              /* [tp, head_rows, 3] */
    double *norm_sums;                /* [2 max_all], of query and key norms of full width */
    double *vocab_factor, *vocab_hit; /* [head_rows] */
    ek_moe_limits limits;
    ek_moe_step step;
    const ek_micro *micro;
    int64_t n_micro;
    int masked;         /* the step's documents are kept apart (ek_micro) */
    double loss_tokens; /* targets that the loss is the mean of, over all data parallel ranks: known
                           once op `counted` is done */
    int32_t counted;    /* -1: there is none, they are known */
    double loss_sum;
    double *sums; /* [n_sums], losses and loads of this rank, to be summed over all */
    int64_t n_sums;
    int64_t steps_seen, steps_before; /* by this pass; by those that it goes on from */
    int placed;                       /* experts lie where these or those have placed them */
    int recalled;       /* loads that those have seen are known (train/warm_state.h) */
    int64_t *moved;     /* [layers], experts of a run of ranks that moved before this step */
    double last_step_s; /* the owner's: how long the step before took */
    double vote;        /* the owner's: summed along (ek_pass_votes) */
    ek_group group;     /* of dense products */
} ek_pass;

EK_CHECKED ek_status ek_pass_create(ek_model *m, const ek_pass_config *cfg, ek_pass **out);
void ek_pass_destroy(ek_pass **p);

/* Whether the step under way trains.  A pass that may train can also do the forward half alone
 * (step.training 0), which leaves planners, their statistics and lasting placements as they are. */
static inline int ek_pass_trains(const ek_pass *p)
{
    return p->cfg.training && p->step.training;
}

/* Bytes that a pass of this kind is expected to use, without taking them. */
EK_CHECKED ek_status ek_pass_measure(ek_model *m, const ek_pass_config *cfg, size_t *bytes);

/* Starts a step over these micro-batches (borrowed until the step is done).  step gives training
 * settings; its `micro` is set here. */
EK_CHECKED ek_status ek_pass_begin(ek_pass *p, const ek_moe_step *step, const ek_micro *micro,
                                   int64_t n_micro);

/* Appends the ops of the step to a graph (reset by the caller). */
EK_CHECKED ek_status ek_pass_build(ek_pass *p, ek_graph *g);

/* Of the sums: read after the step, and on a mesh after p->sums has been summed over the world. */
void ek_pass_losses(const ek_pass *p, ek_losses *out);
/* Sum of the ranks' votes. */
double ek_pass_votes(const ek_pass *p);
/* [experts]: assignments of a layer, before drops. */
const double *ek_pass_load(const ek_pass *p, int64_t layer);
/* What its ranks and links carried in the step; nothing where rows do not travel. */
ek_roofline_counts ek_pass_work(const ek_pass *p, int64_t layer);

/* Likewise: of a layer with experts. */
ek_layer_balance ek_pass_balance(const ek_pass *p, int64_t layer);

/* Fills p->sums with this rank's part; the last op of a step does it. */
void ek_pass_sum(ek_pass *p);

/* What an op of layer l (or -1: embed, head) and this micro-batch works on. */
int ek_pass_slot(const ek_pass *p, int32_t l, int32_t micro);
ek_layer_activations *ek_pass_activations(const ek_pass *p, int32_t l, int32_t micro);
/* Entry i of the residual stream. */
void *ek_pass_x(const ek_pass *p, int32_t i, int32_t micro);

/* Appends the forward ops of one layer, from x[2l] to x[2l+2] (model/layer_ops.c).  again: only
 * what backward needs.  Returns the last op. */
int32_t ek_layer_build_forward(ek_pass *p, ek_graph *g, int32_t l, int32_t micro, int recompute,
                               int32_t dep);
int32_t ek_layer_build_backward(ek_pass *p, ek_graph *g, int32_t l, int32_t micro, int32_t dep);
/* Before a step: lasting placements, when the planner makes some and it is time
 * (model/pass_balance.c). */
void ek_pass_rebalance(ek_pass *p);

/* Between steps.  Another planner of the config's takes over; what the last one has placed stays.
 * EK_EINVAL: it brings replicas for a micro-batch, for which there is room only where every rank
 * has as many experts as in block order (ek_pass_place is refused likewise); or it brings none, and
 * slices are to be gathered.  Collective, as all that follows. */
EK_CHECKED ek_status ek_pass_set_planner(ek_pass *p, const ek_planner *planner);
/* Lasting placements by the planner now, if it makes any, whatever plan_every says; or these of all
 * layers [layers], of one run of ranks, whose quotas say how replicas share (EK_EINVAL: a rank has
 * no room for the state; layers before it have moved).  The state travels in the next graph: a
 * step's, or: */
void ek_pass_place_anew(ek_pass *p);
EK_CHECKED ek_status ek_pass_place(ek_pass *p, const ek_plan *of_layer);
/* Before weights are filled in: the experts of a layer lie so, and replicas share in proportion to
 * quota [ep * slots].  EK_EINVAL as above. */
EK_CHECKED ek_status ek_pass_assume(ek_pass *p, int64_t l, const ek_placement *to,
                                    const int64_t *quota);
/* Appends the ops of what moves alone, to a graph that the caller has reset. */
EK_CHECKED ek_status ek_pass_build_moves(ek_pass *p, ek_graph *g);
/* How experts of a layer lie now, and share: copied into a plan of the dealer's limits. */
void ek_pass_placed(const ek_pass *p, int64_t layer, ek_plan *out);
/* Takes what the embedding needs besides (model/embed_ops.c). */
void ek_embed_reserve(ek_pass *p);
/* Appends embedding, and loss head (with its backward when training) (model/head_ops.c).  Ops of
 * one lane run in graph order, so a first compute op need only wait for what another lane does. */
int32_t ek_embed_build(ek_pass *p, ek_graph *g, int32_t micro, int32_t dep);
int32_t ek_embed_build_backward(ek_pass *p, ek_graph *g, int32_t micro, int32_t dep);
int32_t ek_head_build(ek_pass *p, ek_graph *g, int32_t micro, int32_t dep);

#endif
