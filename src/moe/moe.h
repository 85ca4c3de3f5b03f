/* moe/moe.h - one mixture-of-experts layer: gate, dispatch, experts, combine, and back.
 *
 * Forward, for the n tokens of a micro-batch (x R [n, d] residual stream, y its norm):
 *
 *   route     logits = y Wr^T, the gate picks experts and weights          ids, weights [n, k]
 *   dispatch  assignments sorted by slot of the placement (stable)         row_of, token_of
 *   experts   gu = rows W13^T, h = weight silu(gate) up, out = h W2^T      grouped products
 *   combine   x += sum of a token's rows                                   shared expert likewise
 *
 * The gate weight is folded into h, so the combine only sums, and its gradient falls out of the
 * SwiGLU's.  The ops are appended to a step graph by ek_moe_build_*.
 *
 * Ranks        every rank of a pipeline stage has tokens of its own.  Where experts are spread
 *              (ep * etp > 1), rows travel to the ranks that serve them and back, in chunks that
 *              overlap with the products of other chunks (moe/dispatch_layout.h); a gate weight
 * travels with its row, and its gradient with the row's.  Statistics of the micro-batch (balance
 * loss, load, drops) are those of all ranks of the stage, the same on each. One rank alone
 * exchanges nothing and copies nothing for it.
 *
 * Ownership    arrays live in the arenas given to ek_moe_take_*. */
#ifndef MOE_MOE_H
#define MOE_MOE_H

#include "balance/planner.h"
#include "balance/roofline.h"
#include "base/arena.h"
#include "comm/mesh.h"
#include "moe/dispatch_layout.h"
#include "moe/replay_gate.h"
#include "schedule/graph.h"
#include "spec/model.h"
#include "tensor/kernels.h"
#include "tensor/weight.h"

/* The tokens of one micro-batch, as every op of it sees them.  A data parallel rank has whole
 * sequences, perhaps none; its tensor parallel ranks share their tokens out in runs, for all that
 * works token by token (norms, residual stream, router, experts). */
typedef struct {
    int64_t seqs, seq;       /* of the data parallel rank */
    int64_t all;             /* its tokens, seqs * seq: what attention and the head see */
    int64_t first, n;        /* this rank's run of them; n == all without tensor parallelism */
    int64_t total;           /* tokens of the micro-batch over all ranks */
    double share;            /* total's part of the step's tokens */
    uint64_t first_sequence; /* of the data parallel rank, counted within the step */
    uint64_t micro_first;    /* of the micro-batch, likewise */
    const int32_t *inputs, *targets; /* [all]; a negative target does not count in the loss */
    const int32_t *starts; /* [all], where a token's document begins in its sequence: attention does
                              not look further back, and the loss is the mean of the targets that
                              count; NULL: sequences are whole, and all count */
} ek_micro;

/* A micro-batch of one rank alone. */
static inline ek_micro ek_micro_alone(int64_t seqs, int64_t seq, double share, uint64_t first,
                                      const int32_t *inputs, const int32_t *targets)
{
    int64_t n = seqs * seq;

    return (ek_micro){seqs, seq, n, 0, n, n, share, first, first, inputs, targets, NULL};
}

/* Whether some of the gate's choices are replaced by others while training, for the sake of where
 * experts lie or how they are loaded.  It changes what the model computes (moe/reroute.h). */
typedef enum { EK_REROUTE_OFF, EK_REROUTE_TOPOLOGY, EK_REROUTE_SWIPE } ek_reroute;

/* Hears of every plan of a layer, with its reasons: one for a micro-batch of a run of ranks, whose
 * quotas serve these counts, or (run -1) one that lasts, made from these. */
typedef struct {
    void (*on_plan)(void *context, int layer, int ep_group, const ek_plan_limits *l,
                    const int64_t *counts, const ek_plan *p); /* NULL: nobody */
    void *context;
} ek_moe_plan_listener;

/* How the layer exchanges tokens between ranks; all fixed for a run, but that a step may have less
 * than `degree`, another a2a, another `gather` (ek_moe_traffic). */
typedef struct {
    int degree; /* chunks that dispatch, experts and combine are cut into (Tutel); 0 is 1 */
    ek_a2a a2a;
    int gather; /* how many shards gather their slices of experts (ek_dispatch_layout_set_gather) */
    int gather_most; /* the most that a step may have; EK_GATHER_ALL: as all */
    int smart_group; /* > 0: chunks are ring distances between groups of so many ranks, FasterMoE's
                        S/C/R schedule, instead of runs of tokens */
    int force_balance;      /* the gate's choice is replaced by one that spreads evenly, */
    const ek_trace *replay; /* or by one with these loads (of as many experts); NULL: it stands */
    const ek_planner *planner;       /* who balances ranks; NULL: nobody.  Only where rows travel */
    const ek_planner *const *others; /* who may take its place between steps (ek_pass_set_planner),
                                        NULL-terminated; NULL: none */
    int64_t plan_every;              /* steps between placements that last; 0: never a new one */
    int64_t horizon;                 /* micro-batches in so many steps */
    int64_t batches;                 /* in one */
    int32_t replicas_min;            /* of its limits */
    const int *domain_of; /* [ranks of the stage] what fails as one, for its limits; NULL: nodes */
    ek_plan_costs costs;  /* likewise */
    ek_moe_plan_listener listener; /* on the rank that has it */
    ek_reroute reroute;
    double reroute_limit; /* topology: part of a sequence's assignments that may leave the node */
} ek_moe_config;

/* Planner i of those who may balance ranks, the first one's first; NULL: there are no more. */
const ek_planner *ek_moe_planner_at(const ek_moe_config *c, int i);

/* Whether one of those who may balance ranks places experts for good, plans for each micro-batch,
 * or is asked ahead. */
int ek_moe_may_place(const ek_moe_config *c);
int ek_moe_may_bring(const ek_moe_config *c);
int ek_moe_may_use_previous(const ek_moe_config *c);

/* Whose rows each slot serves in a micro-batch: made before its forward, and kept for its
 * backward. */
typedef struct {
    int32_t *expert_of;  /* [all slots], what each slot holds */
    int32_t *row_counts; /* [token chunks, ranks, all slots], moe/dispatch_layout.h */
} ek_moe_route;

/* What a planner works with; all layers share it (moe/routing_plan.h). */
typedef struct {
    const ek_planner *planner; /* NULL: none */
    ek_plan_limits limits;     /* of a run of ep ranks */
    void *memory;              /* the planner's */
    void **memory_of;          /* [1 + others] of all that there is a choice of */
    int32_t *node_of;          /* [runs, ep] */
    int32_t *domain_of;        /* [runs, ep]; NULL: nodes */
    ek_replica_sets others;    /* of other layers, for the slow half; no room: it does not ask */
    int32_t *others_domain;    /* [ep], of the first run, as these have them */
    int32_t *primary;          /* [experts] */
    int64_t *quota;            /* [ep * slots] */
    int64_t *counts;           /* [ep, experts] */
    int64_t *total;            /* [experts] */
    ek_plan persistent;        /* what its slow half has just made */
    int64_t *split, *rows, *parts;
    int32_t *slots;
    int64_t *traffic; /* [kinds, expert ranks], of a micro-batch */
    int failed;       /* it is asked no more */
    int unfit;        /* nor is what it has left served by */
    ek_moe_plan_listener listener;
} ek_moe_planning;

typedef struct ek_replicas ek_replicas; /* moe/replicas.h */

/* What a planner that is asked one micro-batch ahead has for the layer's next forward. */
typedef struct {
    int32_t *expert_of; /* [all slots]; NULL: no planner is asked ahead */
    int64_t *quota;     /* [all slots], for the counts that it was made from */
    ek_plan *made;      /* [runs], what it says of itself */
    int known;          /* 0: there are no counts to make it from yet */
} ek_moe_next_plan;

/* How rows travel in a step: the same on all ranks. */
typedef struct {
    int degree; /* chunks by tokens, at most the config's; 0: all is the config's */
    ek_a2a a2a;
    int gather; /* likewise (ek_dispatch_layout_set_gather) */
} ek_moe_traffic;

/* Settings of a training step that the layer needs. */
typedef struct {
    int training;
    double aux_coef, z_coef;
    double capacity_factor; /* 0 dropless, else |f| */
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

/* Tutel's r: shards of an expert that a row goes to; 0: rows stay. */
int ek_moe_traffic_r(const ek_moe_traffic *t, int etp);

/* Whether a step may gather so, by what memory was taken for. */
int ek_moe_can_gather(const ek_moe_config *c, const ek_mesh *mesh, int gather);

/* The shards that gather slices in a step. */
static inline int ek_moe_gather(const ek_moe_config *c, const ek_moe_step *s)
{
    return s->traffic.degree > 0 ? s->traffic.gather : c->gather;
}

/* Tokens of the largest micro-batch. */
typedef struct {
    int64_t tokens;      /* of this rank */
    int64_t all;         /* of its data parallel rank */
    int64_t total;       /* of all ranks of the stage together */
    int32_t spare_slots; /* of a rank, for replicas */
} ek_moe_limits;

/* What forward leaves for backward, of one micro-batch in flight.  Rows are those that this rank
 * computes, in the order of moe/dispatch_layout.h's `experts`; sent are those of its tokens, in the
 * order of `send` where rows travel, else the same. */
typedef struct {
    void *x;                   /* R [n, d], residual stream: combine adds to it; the owner's */
    void *y;                   /* C [n, d], its norm; as R it is in scratch->y_real unless C is R */
    void *probs;               /* R [n, experts] */
    void *lse;                 /* R [n] */
    void *weights;             /* R [n, cols] */
    int32_t *ids;              /* [n, cols], negative: none, or over capacity (moe/gate_body.h) */
    int32_t *row_of;           /* [n, cols, x.copies] row sent, negative likewise */
    int32_t *token_of;         /* [sent] */
    void *row_weight;          /* R [rows] */
    int64_t *offset;           /* [chunks, slots + 1] */
    ek_gate_stats *gate_stats; /* [stage, x.words] */
    int64_t *fraction;         /* [experts], assignments before drops */
    int64_t assigned;          /* their sum */
    void *gu;                  /* C [rows, 2 ff], slice by slice within a chunk */
    void *shared_gu;           /* C [all, 2 shared_ff] */
    void *shared_scale;        /* R [all] */

    /* where rows travel */
    void *rows;            /* C [rows, d], the experts' input */
    int32_t *from_recv;    /* [rows] */
    int32_t *from_experts; /* [rows] */
    int64_t *send_first;   /* [chunks + 1] */
} ek_moe_activations;

typedef struct ek_tp ek_tp; /* moe/tp.h */

/* Of the cosine router (moe/cosine.h): unit rows of tokens and experts, what lengths they had, and
 * gradients. */
typedef struct {
    void *u, *u_length; /* R [n, p], [n] */
    void *m, *m_length; /* R [experts, p], [experts] */
    void *du, *dm, *dot;
} ek_cosine_scratch;

/* Room that all layers share: nothing in it lives longer than one layer's forward or backward. */
typedef struct {
    void *rows;     /* C [rows, d], or R: sums over slices */
    void *rows2;    /* likewise */
    void *hidden;   /* C [rows, ff], slice by slice within a chunk */
    void *y_real;   /* R [n, d] */
    void *dy;       /* R [n, d], gradient of the norm's output; the norm's owner reads it */
    void *dlogits;  /* R [n, experts] */
    void *dweights; /* R [n, k] */
    void *drow;     /* R [rows] */
    void *drow_add; /* R [rows], of one slice */
    void *ws;       /* kernel workspace */
    ek_cosine_scratch cosine;
    ek_tp *tp; /* of the shared expert between ranks; NULL: one tensor parallel rank */

    /* where rows travel: C [d] each, and behind it, one way, an R */
    void *send, *recv;
    int64_t *matrix;          /* [stage, stage], of the thread that starts network ops */
    int64_t *each;            /* [stage + 1]: 0, 1, 2, ... */
    ek_moe_activations whole; /* probs, lse, weights, ids of `all` tokens: gates that need
                           sequences, and tensor parallel ranks that share them out */
    int64_t *tp_first;        /* [tp + 1], likewise: first token of each */
    ek_moe_planning planning;
    ek_replicas *replicas; /* NULL: there are none */
} ek_moe_scratch;

/* Where the experts are, and their weights: what outlives a step.  Of an expert a rank holds a run
 * of `ff` of its inner width (over etp), of the shared expert or dense layer one of shared_ff (over
 * tp). */
typedef struct {
    int layer;
    int routed;        /* 0: a dense layer, which has the shared expert alone */
    int shared;        /* there is a shared expert (or dense layer) */
    int64_t ff;        /* this rank's */
    int64_t shared_ff; /* this rank's */
    int shared_gated;
    ek_placement placement; /* over the edp * ep expert ranks of the stage; a rank of it is all its
                               etp shards */
    ek_weight router;       /* [experts, d], or [experts, p] of a cosine router: with */
    ek_weight router_projection, router_scale; /* [p, d], [1] */
    ek_weight bias;                            /* [experts], sigmoid gate only */
    ek_weight *up, *down; /* [experts], all zero where not here: [2 ff, d] gate over up, [d, ff] */
    ek_weight *empty;     /* [2 slots], up and down of slots without an expert that keep state */
    int32_t *param_of;    /* [slots], the model's number of what a slot keeps; -1: nothing */
    ek_weight shared_up, shared_down, shared_router;
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
    int cols;                  /* assignments a token can have */
    void *dx;                  /* R [n, d], gradient of x */
    ek_dispatch_layout x;

    ek_moe_activations *activations; /* [slots], micro-batches in flight */
    ek_moe_route *route;             /* [slots], where rows travel */
    const int32_t *act_slot_of; /* [micro-batches of the step]: which of them; NULL: always 0 */
    ek_plan_history history; /* what lasting placements are made from; counts NULL: none are made */
    int64_t *persistent_quota; /* [ep * slots], how a lasting placement shares experts out */
    int32_t persistent;        /* replicas in it */
    int32_t reduce_op;         /* in the graph being built: the op that brings the gradients of this
                                layer's replicas home; -1: none */
    int32_t backward_fetch_op; /* likewise: the op that brings weights for its next backward ahead
                         of time; -1: none */
    int32_t forward_fetch_op;  /* likewise for its next forward */
    struct ek_moe *next_moe;   /* likewise: the layer whose replicas may have the slots' memory once
                                  this one's forward products are done; NULL: none */
    ek_moe_next_plan next_plan;
    struct ek_replica_flight *flights; /* moe/replicas.h */
    ek_group *up_groups, *down_groups; /* [slots of this rank], of the op that runs */
    int64_t n_groups;
    ek_group shared_group;
    int32_t *out_op, *back_op; /* [chunks], while a graph is built: the ops that move a chunk */
    int32_t *order;            /* [max_seq * cols], of gates that need sequences */
    int64_t *counts;           /* [2 experts], of a tally */
    double *sums;              /* [experts], of a tally; gradients of the balance */
    ek_replay_scratch replay;  /* where loads are replayed */
    unsigned char *allowed;    /* of re-routing: [tp, experts] whether an expert is on the node of a
                                  tensor parallel rank, or [experts] whether it has room */
    int64_t *taken;            /* [experts], likewise: assignments in a sequence */

    /* sums over the step's micro-batches, cleared by ek_moe_begin_step */
    double aux_loss, z_loss; /* without coefficients */
    int64_t *load;           /* [experts], assignments before drops */
    int64_t *rank_rows;      /* [expert ranks], assignments that each serves */
    int64_t *primary_rows;   /* [expert ranks], likewise with every expert alone where it began */
    int64_t dropped;
    int64_t plans, replicas; /* made, and replicas in them */
    int64_t slices;          /* that ranks were brought */
    double plan_s;           /* that planners took */
    ek_roofline_counts work; /* of all expert ranks, where rows travel */
    int64_t stall_ns;        /* that products stood still for replicas */
} ek_moe;

/* Whether row numbers of this room fit their type: EK_EOVERFLOW. */
EK_CHECKED ek_status ek_moe_check_limits(const ek_model_spec *spec, const ek_mesh *mesh,
                                         const ek_moe_limits *limits);

/* The scratch for a layer of this spec; shared by all layers.  Where rows travel, room is laid out
 * for all of them on one rank, and counted for an even spread (ek_arena_expected). */
void ek_moe_reserve_scratch(ek_moe_scratch *s, ek_arena *a, const ek_kernels *k,
                            const ek_model_spec *spec, const ek_mesh *mesh,
                            const ek_moe_config *cfg, const ek_moe_limits *limits, int training);

/* What kind of layer `layer` is, this rank's widths, and its placement: block order, every expert
 * once on each of the edp runs of ep ranks, and spare_slots empty slots besides on each rank. */
void ek_moe_reserve_weights(ek_moe_weights *w, ek_arena *a, const ek_model_spec *spec,
                            const ek_mesh *mesh, int32_t spare_slots, int layer);

/* This rank's first slot in the placement. */
int32_t ek_moe_first_slot(const ek_moe_weights *w, const ek_mesh *mesh);

/* The arrays of m itself (m->k, spec, mesh, cfg, w, scratch are set), but for `saved`; slots:
 * micro-batches in flight. */
void ek_moe_reserve_state(ek_moe *m, ek_arena *a, int64_t max_seq, int slots);

/* What forward saves, for one micro-batch (s->x and s->y are the owner's to set).  any: room for a
 * layer of any kind of this spec, to be shared by all. */
void ek_moe_reserve_activations(const ek_moe *m, ek_moe_activations *s, ek_arena *a,
                                const ek_moe_limits *limits, int any);

/* What the micro-batch of an op saves. */
static inline ek_moe_activations *ek_moe_activations_of(const ek_moe *m, const ek_op *op)
{
    return &m->activations[m->act_slot_of != NULL ? m->act_slot_of[op->micro] : 0];
}

static inline ek_moe_route *ek_moe_route_of(const ek_moe *m, const ek_op *op)
{
    return &m->route[m->act_slot_of != NULL ? m->act_slot_of[op->micro] : 0];
}

/* Assignments a token can have under a gate. */
int ek_moe_cols(const ek_model_spec *spec);

/* Clears the step sums; a placement may have changed since the last step, and m->step says how rows
 * travel in this one. */
void ek_moe_begin_step(ek_moe *m);

/* Appends the layer's forward ops for micro-batch `micro` after `dep`; returns the last one.
 * again: only what backward needs is computed, a second time (activation recomputation). */
int32_t ek_moe_build_forward(ek_moe *m, ek_graph *g, int32_t micro, int64_t tokens, int recompute,
                             int32_t dep);

/* Appends the backward ops: reads dx, leaves the gradient of y in scratch->dy and adds weight
 * gradients.  scratch->y_real must hold y as R unless C is R. */
int32_t ek_moe_build_backward(ek_moe *m, ek_graph *g, int32_t micro, int64_t tokens, int32_t dep);

/* Forgets the ops of the graph before: for owners that build more than one in a step. */
void ek_moe_begin_graph(ek_moe *m);

/* When the products that come before the layer's backward are done (dep: those of another layer's
 * backward, or whatever ran last), and before what comes between: appends what brings the weights
 * of this layer's replicas for its backward.  The forms that they are sent from must be there, and
 * no other layer may run its products meanwhile.
 */
void ek_moe_build_backward_prefetch(ek_moe *m, ek_graph *g, int32_t micro, int32_t dep);

/* For planners that are asked ahead, nothing with others: after an op of the compute lane (dep), by
 * which forward products of the layers before are done, appends what brings the weights of this
 * layer's replicas for its next forward, if that is not on its way already.  The forms that they
 * are sent from must be there. */
void ek_moe_build_forward_prefetch(ek_moe *m, ek_graph *g, int32_t micro, int32_t dep);

/* After a layer's last backward of a step (dep): appends what gives all copies of an expert that
 * stay the sum of their gradients.  Whoever reads these gradients waits for m->reduce_op, if it is
 * not negative. */
void ek_moe_build_share(ek_moe *m, ek_graph *g, int32_t micro, int32_t dep);

/* Rows that the busiest expert rank computed in this step, over the mean of the ranks; and what
 * that would be with every expert alone where it began. */
double ek_moe_rank_max_over_mean(const ek_moe *m);
double ek_moe_primary_max_over_mean(const ek_moe *m);
/* Bytes that the step's replicas moved: weights out twice and gradients back. */
double ek_moe_replica_bytes(const ek_moe *m);

/* Sigmoid gate: moves the bias against the load of the step (bias_rate * sign(mean - load)). */
void ek_moe_update_bias(ek_moe *m);

#endif
