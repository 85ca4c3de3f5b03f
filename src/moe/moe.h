/* moe/moe.h - one mixture-of-experts layer: router, permute, experts, unpermute, and backward.
 *
 * Forward, for the n tokens of a micro-batch (x R [n, d] residual stream, y its norm):
 *
 *   router     logits = y Wr^T, the gate selects experts and weights        ids, weights [n, k]
 *   permute    assignments sorted by slot of the placement (stable)         row_of, token_of
 *   experts    gu = rows W13^T, h = weight silu(gate) up, out = h W2^T      grouped GEMMs
 *   unpermute  x += sum of a token's rows; the shared expert is added likewise
 *
 * The gate weight is folded into h, so unpermute only sums, and the weight's gradient is a
 * by-product of the SwiGLU's backward.  ek_moe_build_* append the ops to a step graph.
 *
 * Ranks        every rank of a pipeline stage has its own tokens.  Where the layer is distributed
 *              (ep * etp > 1), all-to-alls send rows to the ranks that serve them and back, in
 *              chunks that overlap with the products of other chunks (moe/dispatch_layout.h).  A
 *              gate weight is sent with its row, its gradient with the row's gradient.  Statistics
 *              of the micro-batch (balance loss, load, drops) cover all ranks of the stage and are
 *              identical on each.  On one rank there is neither an exchange nor a copy for one.
 *
 * Terms        assignment: one token's row for one expert.  Expert rank: the etp shards that hold
 *              the slices of the same experts.  Expert-parallel group: ep consecutive expert ranks;
 *              a stage has edp of them.  Primary: the copy of an expert that has the optimizer
 *              state.  R, C: the real and the compute type of the kernels.
 *
 * Ownership    arrays live in the arenas given to ek_moe_reserve_*. */
#ifndef MOE_MOE_H
#define MOE_MOE_H

#include "balance/planner.h"
#include "balance/roofline.h"
#include "base/arena.h"
#include "comm/mesh.h"
#include "moe/dispatch_layout.h"
#include "moe/replay_gate.h"
#include "nn/mlp.h"
#include "schedule/graph.h"
#include "spec/model.h"
#include "tensor/kernels.h"
#include "tensor/weight.h"

/* Re-routing in training: some of the gate's choices are replaced, according to the location or the
 * load of experts.  It changes what the model computes (moe/reroute.h). */
typedef enum { EK_REROUTE_OFF, EK_REROUTE_TOPOLOGY, EK_REROUTE_SWIPE } ek_reroute;

/* Called for each plan, with its reasons.  ep_group >= 0: the plan of a micro-batch of this
 * expert-parallel group, whose quotas add up to counts.  ep_group -1: a persistent placement, made
 * from counts.  counts [ep, experts]; all pointers are valid during the call only. */
typedef struct {
    void (*on_plan)(void *context, int layer, int ep_group, const ek_plan_limits *l,
                    const int64_t *counts, const ek_plan *p); /* NULL: no listener */
    void *context;
} ek_moe_plan_listener;

/* How the layer exchanges tokens between ranks, fixed for a run.  A step may have a smaller degree,
 * another a2a and another gather (ek_moe_traffic). */
typedef struct {
    int degree; /* token chunks that dispatch, experts and combine are split into (Tutel); 0 is 1 */
    ek_a2a a2a;
    int gather; /* how many shards gather their slices of experts (ek_dispatch_layout_set_gather) */
    int gather_most; /* the largest gather of any step, for which memory is reserved */
    int smart_group; /* > 0: chunks are ring distances between groups of so many ranks (FasterMoE's
                        S/C/R schedule) instead of token ranges */
    int force_balance;      /* replaces the gate's choice by one that spreads evenly */
    const ek_trace *replay; /* replaces it by one with these loads, of as many experts; NULL: no */
    const ek_planner *planner;       /* balances ranks of a distributed layer; NULL: none */
    const ek_planner *const *others; /* planners that may replace it between steps
                                        (ek_rebalance_set_planner), NULL-terminated; NULL: none */
    int64_t plan_every;              /* steps between persistent placements; 0: no new ones */
    int64_t horizon;                 /* micro-batches in plan_every steps (ek_plan_limits) */
    int64_t batches;                 /* micro-batches in a step, likewise */
    int32_t replicas_min;            /* likewise */
    const int *domain_of; /* [ranks of the stage], failure domain, likewise; NULL: the node */
    ek_plan_costs costs;  /* likewise */
    ek_moe_plan_listener listener;
    ek_reroute reroute;
    double reroute_limit; /* topology: fraction of a sequence's assignments that may leave the
                             node, 0 to 1 */
} ek_moe_config;

/* Planner i: 0 is c->planner, 1 and more are c->others; NULL beyond the last. */
const ek_planner *ek_moe_planner_at(const ek_moe_config *c, int i);

/* Whether any of these planners has plan_persistent, plan_transient, uses_previous_counts. */
int ek_moe_may_place(const ek_moe_config *c);
int ek_moe_may_plan_transient(const ek_moe_config *c);
int ek_moe_may_use_previous(const ek_moe_config *c);

/* What each slot holds and which rows it serves in a micro-batch; made in its forward, reused by
 * recomputation and backward. */
typedef struct {
    int32_t *expert_of;  /* [all slots], what each slot holds */
    int32_t *row_counts; /* [token chunks, ranks, all slots], moe/dispatch_layout.h */
} ek_moe_route;

/* Inputs and scratch of planners, shared by all layers (moe/routing_plan.h). */
typedef struct {
    const ek_planner *planner; /* NULL: none */
    ek_plan_limits limits;     /* of one expert-parallel group */
    void *memory;              /* the planner's */
    void **memory_of;          /* [1 + others], by ek_moe_planner_at */
    int32_t *node_of;          /* [edp, ep] */
    int32_t *domain_of;        /* [edp, ep]; NULL: nodes */
    ek_replica_sets others; /* replica sets of other layers, for plan_persistent; .capacity 0: the
                               planner does not use them */
    int32_t *others_domain; /* [ep], domain numbers of the first group used in `others` */
    int32_t *primary;       /* [experts] */
    int64_t *quota;         /* [ep * slots] */
    int64_t *counts;        /* [ep, experts] */
    int64_t *total;         /* [experts] */
    ek_plan persistent;     /* result of ek_routing_plan_persistent */
    int64_t *split, *rows, *parts;
    int32_t *slots;
    int64_t *traffic; /* [kinds, expert ranks], of a micro-batch */
    int failed;       /* the planner failed and is not called again */
    int unfit;        /* a micro-batch's plan failed: persistent quotas are not used either */
    ek_moe_plan_listener listener;
} ek_moe_planning;

typedef struct ek_replicas ek_replicas; /* moe/replicas.h */

/* Plan for the layer's next forward, of a planner with uses_previous_counts. */
typedef struct {
    int32_t *expert_of; /* [all slots]; NULL: no such planner */
    int64_t *quota;     /* [all slots], for the counts that the plan was made from */
    ek_plan *made;      /* [edp], the plans, for their predicted times and reasons */
    int known;          /* 0: no plan yet, as there are no counts yet */
} ek_moe_next_plan;

/* How rows are exchanged in a step; the same on all ranks. */
typedef struct {
    int degree; /* token chunks, at most the config's; 0: this struct is unset, the config holds */
    ek_a2a a2a;
    int gather; /* ek_dispatch_layout_set_gather */
} ek_moe_traffic;

/* Settings of a step. */
typedef struct {
    int training;
    double aux_coef, z_coef;
    double capacity_factor; /* 0: dropless; else its absolute value counts */
    int64_t top_k;          /* of this step, at most the spec's */
    uint64_t seed, step;
    const ek_micro *micro; /* indexed by op->micro */
    ek_moe_traffic traffic;
} ek_moe_step;

/* The all-to-all of a step. */
static inline ek_a2a ek_moe_a2a(const ek_moe_config *c, const ek_moe_step *s)
{
    return s->traffic.degree > 0 ? s->traffic.a2a : c->a2a;
}

/* Tutel's r: shards of an expert that a row is sent to; 0: rows are not sent. */
int ek_moe_traffic_r(const ek_moe_traffic *t, int etp);

/* Whether a step may use this gather: it divides etp, and memory was reserved for it. */
int ek_moe_can_gather(const ek_moe_config *c, const ek_mesh *mesh, int gather);

/* The gather of a step. */
static inline int ek_moe_gather(const ek_moe_config *c, const ek_moe_step *s)
{
    return s->traffic.degree > 0 ? s->traffic.gather : c->gather;
}

/* Sizes that memory is reserved for: tokens of the largest micro-batch, and slots. */
typedef struct {
    int64_t tokens;      /* of this rank */
    int64_t all;         /* of its data parallel rank */
    int64_t total;       /* of all ranks of the stage together */
    int32_t spare_slots; /* a rank, for replicas */
} ek_moe_limits;

/* Activations that forward saves for backward, of one micro-batch in flight.  `rows` counts the
 * rows that this rank computes, in the order `experts` of moe/dispatch_layout.h; `sent` counts the
 * rows of its tokens, in the order `send` if the layer is distributed, else the same rows. */
typedef struct {
    void *x;                   /* R [n, d], residual stream, which unpermute adds to; not owned */
    void *y;                   /* C [n, d], its norm, not owned; as R in scratch->y_real, if C != R,
                                  of the micro-batch at work */
    void *probs;               /* R [n, experts] */
    void *lse;                 /* R [n], log-sum-exp of the logits */
    void *weights;             /* R [n, cols], gate weights */
    int32_t *ids;              /* [n, cols], negative: none, or over capacity (moe/gate_body.h) */
    int32_t *row_of;           /* [n, cols, x.copies], row sent; negative: none */
    int32_t *token_of;         /* [sent] */
    void *row_weight;          /* R [rows], gate weights */
    int64_t *offset;           /* [chunks, slots + 1], first row of each slot */
    ek_gate_stats *gate_stats; /* [ranks of the stage, x.words] */
    int64_t *fraction;         /* [experts], assignments before drops, over all ranks */
    int64_t assigned;          /* their sum */
    void *gu;                  /* C [rows, 2 ff], slice by slice within a chunk */

    /* distributed layers only */
    void *rows;            /* C [rows, d], the experts' input */
    int32_t *from_recv;    /* [rows], ek_dispatch_receive */
    int32_t *from_experts; /* [rows], ek_dispatch_receive */
    int64_t *send_first;   /* [chunks + 1], ek_dispatch_sort */
} ek_moe_activations;

/* Scratch of the cosine router (moe/cosine.h): normalised rows of tokens and experts, their norms,
 * and gradients. */
typedef struct {
    void *u, *u_length; /* R [n, p], [n] */
    void *m, *m_length; /* R [experts, p], [experts] */
    void *du, *dm, *dot;
} ek_cosine_scratch;

/* Scratch that all layers share; its contents live for one layer's forward or backward. */
typedef struct {
    void *rows;     /* C [rows, d]; R where they are sums over slices */
    void *rows2;    /* likewise */
    void *hidden;   /* C [rows, ff], slice by slice within a chunk */
    void *y_real;   /* R [n, d] */
    void *dx;       /* R [n, d], gradient of x; set by the caller, not owned */
    void *dy;       /* R [n, d], gradient of the norm's output, which the norm's backward reads */
    void *dlogits;  /* R [n, experts] */
    void *dweights; /* R [n, k] */
    void *drow;     /* R [rows], gradient of row_weight */
    void *drow_add; /* R [rows], of one slice */
    void *ws;       /* kernel workspace */
    ek_cosine_scratch cosine;
    ek_tp *tp;          /* NULL: one tensor parallel rank */
    ek_mlp_scratch mlp; /* the buffers of these that the shared expert uses */

    /* distributed layers only; send, recv: rows of C [d], in one direction with an R behind each */
    void *send, *recv;
    int64_t *matrix;          /* [stage, stage], used by the thread that starts network ops */
    int64_t *each;            /* [stage + 1]: 0, 1, 2, ... */
    ek_moe_activations whole; /* probs, lse, weights, ids of `all` tokens, for gates that need whole
                                 sequences under tensor parallelism */
    int64_t *tp_first;        /* [tp + 1], first token of each tensor parallel rank */
    ek_moe_planning planning;
    ek_replicas *replicas; /* NULL: no memory for replicas */
} ek_moe_scratch;

/* Placement and weights of a layer, which outlive a step.  A rank holds a slice of `ff` of an
 * expert's inner width, which is split over etp. */
typedef struct {
    int layer;
    int routed;             /* 0: a dense layer, which has the MLP alone */
    int64_t ff;             /* width of this rank's slice */
    ek_placement placement; /* persistent, over the edp * ep expert ranks of the stage */
    ek_weight router;       /* [experts, d]; [experts, p] of a cosine router, which also has */
    ek_weight router_projection, router_scale; /* [p, d], [1] */
    ek_weight bias;                            /* [experts], sigmoid gate only */
    ek_weight *up, *down; /* [experts], [2 ff, d] gate over up, [d, ff]; zeroed where not held */
    ek_weight *empty;     /* [2 slots], up and down of empty slots that keep optimizer state */
    int32_t *param_of;    /* [slots], index in the model of the slot's parameters; -1: none */
    ek_mlp_weights mlp;   /* the shared expert, or the MLP of a dense layer */
} ek_moe_weights;

typedef struct ek_moe {
    const ek_kernels *k;
    const ek_model_spec *spec;
    const ek_mesh *mesh; /* never NULL */
    const ek_moe_config *cfg;
    ek_moe_weights *w;
    const ek_moe_step *step;
    ek_moe_scratch *scratch;
    ek_moe_planning *planning; /* the scratch's */
    int cols;                  /* ek_moe_cols */
    ek_dispatch_layout x;

    ek_moe_activations *activations; /* [act_slots], of micro-batches in flight */
    ek_moe_route *route;             /* [act_slots]; NULL unless the layer is distributed */
    const int32_t *act_slot_of; /* [micro-batches of the step], act_slot of each; NULL: always 0 */
    ek_plan_history history;    /* input of plan_persistent; counts NULL: no planner has it */
    int64_t *persistent_quota;  /* [ep * slots], quotas of the persistent placement */
    int32_t persistent;         /* replicas in that placement */

    /* while a graph is built; op ids, -1: none */
    int32_t reduce_op;         /* sums the gradients of this layer's replicas */
    int32_t backward_fetch_op; /* prefetches the replicas' weights for the next backward */
    int32_t forward_fetch_op;  /* prefetches them for the next forward */
    struct ek_moe *next_moe;   /* the layer whose replicas may be loaded once this one's forward
                                  products are done; NULL: none */

    ek_moe_next_plan next_plan;
    struct ek_replica_flight *flights; /* moe/replicas.h */
    ek_group *up_groups, *down_groups; /* [slots of this rank], of the running op */
    int64_t n_groups;
    ek_mlp mlp;                /* shared expert, or MLP of a dense layer */
    int32_t *out_op, *back_op; /* [chunks], while a graph is built: the all-to-alls of a chunk */
    int32_t *order;            /* [max_seq * cols], scratch of gates that need whole sequences */
    int64_t *counts;           /* [2 experts], scratch of the gate statistics */
    double *sums;              /* [experts], likewise; gradients of the balance loss */
    ek_replay_scratch replay;  /* if loads are replayed */
    unsigned char *allowed;    /* of re-routing: [tp, experts] whether an expert is on the node of a
                                  tensor parallel rank, or [experts] whether it is below capacity */
    int64_t *taken;            /* [experts], of re-routing: assignments in a sequence */

    /* sums over the step's micro-batches, cleared by ek_moe_begin_step */
    double aux_loss, z_loss; /* without coefficients */
    int64_t *load;           /* [experts], assignments before drops */
    int64_t *rank_rows;      /* [expert ranks], assignments that each serves */
    int64_t *primary_rows;   /* [expert ranks], the same in the initial block placement */
    int64_t dropped;
    int64_t plans, replicas; /* plans made, and replicas in them */
    int64_t slices;          /* slices of experts sent to ranks as replicas */
    double plan_s;           /* seconds in planners */
    ek_roofline_counts work; /* of all expert ranks, if the layer is distributed */
    int64_t stall_ns;        /* stall of products that waited for replicas */
} ek_moe;

/* EK_EOVERFLOW: the rows of a micro-batch of these limits do not fit an int32_t. */
EK_CHECKED ek_status ek_moe_check_limits(const ek_model_spec *spec, const ek_mesh *mesh,
                                         const ek_moe_limits *limits);

/* Reserves the scratch that all layers share; s->dx and s->tp are set.  If the layers are
 * distributed, buffers have address space for the worst case (every row on one rank), while the
 * expected use that is counted is that of an even spread (ek_arena_alloc_expected). */
void ek_moe_reserve_scratch(ek_moe_scratch *s, ek_arena *a, const ek_kernels *k,
                            const ek_model_spec *spec, const ek_mesh *mesh,
                            const ek_moe_config *cfg, const ek_moe_limits *limits, int training);

/* Sets the kind of layer `layer`, this rank's widths, and the initial placement: block order, every
 * expert once in each of the edp expert-parallel groups, spare_slots empty slots on each rank. */
void ek_moe_reserve_weights(ek_moe_weights *w, ek_arena *a, const ek_model_spec *spec,
                            const ek_mesh *mesh, int32_t spare_slots, int layer);

/* This rank's first slot in the placement. */
int32_t ek_moe_first_slot(const ek_moe_weights *w, const ek_mesh *mesh);

/* The arrays of m itself; m->k, spec, mesh, cfg, w, step and scratch are set, and the latter is
 * reserved.  slots: activation slots, i.e. micro-batches in flight, whose own memory is reserved by
 * the following functions. */
void ek_moe_reserve_state(ek_moe *m, ek_arena *a, int64_t max_seq, int slots);

/* The activations of one activation slot.  any: large enough for every kind of layer of this spec,
 * so that all layers and slots can share them. */
void ek_moe_reserve_activations(ek_moe *m, int slot, ek_arena *a, const ek_moe_limits *limits,
                                int any);
/* Lets a slot use the activations of slot 0 of another layer. */
void ek_moe_share_activations(ek_moe *m, int slot, const ek_moe *other);
/* Sets where the residual stream x, R [n, d], and its norm y, C [n, d], of a slot are; borrowed. */
void ek_moe_set_tokens(ek_moe *m, int slot, void *x, void *y);

/* The activations of an op's micro-batch. */
static inline ek_moe_activations *ek_moe_activations_of(const ek_moe *m, const ek_op *op)
{
    return &m->activations[m->act_slot_of != NULL ? m->act_slot_of[op->micro] : 0];
}

static inline ek_moe_route *ek_moe_route_of(const ek_moe *m, const ek_op *op)
{
    return &m->route[m->act_slot_of != NULL ? m->act_slot_of[op->micro] : 0];
}

/* Columns of ids and weights: top_k, or `experts` where experts choose tokens. */
int ek_moe_cols(const ek_model_spec *spec);

/* Clears the sums of the step, and reads the placement and m->step->traffic anew. */
void ek_moe_begin_step(ek_moe *m);

/* Appends the layer's forward ops for micro-batch `micro` after `dep`; returns the last one.
 * recompute: appends only what backward needs (activation recomputation). */
int32_t ek_moe_build_forward(ek_moe *m, ek_graph *g, int32_t micro, int64_t tokens, int recompute,
                             int32_t dep);

/* Appends the backward ops, which read scratch->dx, write the gradient of y to scratch->dy and add
 * to the weight gradients; returns the last one.  scratch->y_real must hold y as R unless C is R.
 */
int32_t ek_moe_build_backward(ek_moe *m, ek_graph *g, int32_t micro, int64_t tokens, int32_t dep);

/* Forgets the op ids of the previous graph.  Needed where a step has several graphs. */
void ek_moe_begin_graph(ek_moe *m);

/* Appends the prefetch of the replicas' weights for this layer's backward.  dep: the op by which
 * the last products before that backward are done.  No other layer may run its products before
 * this layer's backward, and the packed weights that are sent must exist when dep is done. */
void ek_moe_build_backward_prefetch(ek_moe *m, ek_graph *g, int32_t micro, int32_t dep);

/* With a planner that uses_previous_counts, appends the prefetch of the replicas' weights for this
 * layer's next forward, unless one is pending; else appends nothing.  dep: an op of the compute
 * lane by which the forward products of earlier layers are done and the packed weights that are
 * sent exist. */
void ek_moe_build_forward_prefetch(ek_moe *m, ek_graph *g, int32_t micro, int32_t dep);

/* Appends, after the layer's last backward of a step (dep), the all-reduce of gradients over the
 * persistent copies of each expert.  Readers of these gradients wait for m->reduce_op unless it is
 * negative. */
void ek_moe_build_share(ek_moe *m, ek_graph *g, int32_t micro, int32_t dep);

/* Rows of the busiest expert rank in this step over the mean of the ranks: as computed, and as they
 * would be in the initial block placement. */
double ek_moe_rank_max_over_mean(const ek_moe *m);
double ek_moe_primary_max_over_mean(const ek_moe *m);
/* Bytes that the step's replicas moved: weights twice, for forward and backward, and gradients. */
double ek_moe_replica_bytes(const ek_moe *m);

/* Sigmoid gate: adds bias_rate * sign(mean load - load) to each expert's bias, by the step's load.
 * Other gates: nothing. */
void ek_moe_update_bias(ek_moe *m);

#endif
