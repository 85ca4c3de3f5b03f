/* moe/layer.h - the state of one MoE layer, in structs by how long their contents live.
 *
 *   ek_moe_weights      as long as the model: placement and weights
 *   ek_moe              as long as the pass or session that owns it, with the following parts
 *   ek_moe_handle       a micro-batch in flight, from its forward to its backward: activations, and
 *                       the slots that serve its rows; one for each activation slot
 *   ek_moe_stats        a step: sums over its micro-batches (moe/stats.h)
 *   ek_moe_graph_ids    the building of one graph: ids of ops that ops appended later wait for
 *   ek_moe_next_plan    from a layer's forward to its next one, also across steps
 *   ek_gate_scratch, ek_moe_groups   one op
 *   ek_moe_scratch      one layer's forward or backward; shared by all layers
 *   ek_moe_planning     what planners need, shared by all layers (moe/routing_plan.h)
 *
 * Terms        assignment: one token's row for one expert.  Expert rank: the etp shards that hold
 *              the slices of the same experts.  Expert-parallel group: ep consecutive expert ranks;
 *              a stage has edp of them.  Primary: the copy of an expert that has the optimizer
 *              state.  R, C: the real and the compute type of the kernels.
 *
 * Ownership    arrays live in the arenas given to the functions of moe/memory.h. */
#ifndef MOE_LAYER_H
#define MOE_LAYER_H

#include "balance/early_replicas.h"
#include "moe/config.h"
#include "moe/replay_gate.h"
#include "moe/stats.h"
#include "nn/mlp.h"
#include "schedule/graph.h"

/* Placement and weights of a layer, which outlive a step.  A rank holds a slice of `ff` of an
 * expert's inner width, which is split over etp. */
typedef struct {
    int layer;
    int turn;   /* routed layers before it: layers alternate between buffers of replicas */
    int routed; /* 0: a dense layer, which has the MLP alone */
    int64_t ff; /* width of this rank's slice */
    ek_placement placement; /* persistent, over the edp * ep expert ranks of the stage */
    ek_weight router;       /* [experts, d]; [experts, p] of a cosine router, which also has */
    ek_weight router_projection, router_scale; /* [p, d], [1] */
    ek_weight bias;                            /* [experts], sigmoid gate only */
    ek_weight *up, *down; /* [experts], [2 ff, d] gate over up, [d, ff]; zeroed where not held */
    ek_weight *empty;     /* [2 slots], up and down of empty slots that keep optimizer state */
    int32_t *param_of;    /* [slots], index in the model of the slot's parameters; -1: none */
    ek_mlp_weights mlp;   /* the shared expert, or the MLP of a dense layer */
    struct ek_expert_store *store; /* moe/expert_store.h: up and down have sizes only, and experts
                                      are fetched when they are needed; NULL: no.  Borrowed */
    const struct ek_expert_waves *waves; /* moe/expert_waves.h: experts come into memory in waves;
                                            NULL: they stay there.  Borrowed */
} ek_moe_weights;

/* This rank's first slot in the placement. */
static inline int32_t ek_moe_first_slot(const ek_moe_weights *w, const ek_mesh *mesh)
{
    return (mesh->edp_rank * mesh->ep + mesh->ep_rank) * w->placement.slots;
}

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

/* What each slot holds and which rows it serves in a micro-batch; made in its forward, reused by
 * recomputation and backward. */
typedef struct {
    int32_t *expert_of;  /* [all slots], what each slot holds */
    int sent;            /* replicas were sent before the gate; those that serve stay where they
                            are */
    int32_t *late_of;    /* [all slots], then: persistent copies, and replicas that were added after
                            the gate; NULL: never */
    int overwrites;      /* whether one of these takes the memory of one that was sent to this rank
                            before the gate */
    int32_t *row_counts; /* [token chunks, ranks, all slots], moe/dispatch_layout.h */
} ek_moe_route;

/* A micro-batch in flight. */
typedef struct {
    ek_moe_activations activations;
    ek_moe_route route; /* distributed layers only */
} ek_moe_handle;

/* Plan for the layer's next forward, of a planner with uses_previous_counts or
 * may_use_previous_counts. */
typedef struct {
    int32_t *expert_of; /* [all slots]; NULL: no such planner */
    int64_t *quota;     /* [all slots], for the counts that the plan was made from */
    ek_plan *made;      /* [edp], the plans, for their predicted times and reasons */
    int known;          /* 0: no plan yet, as there are no counts yet */

    ek_early_times times; /* with may_use_previous_counts */
} ek_moe_next_plan;

/* While a graph is built: ids of ops that ops appended later wait for; -1: none. */
typedef struct {
    int32_t gradients;      /* the experts' gradients of the last backward are there */
    int32_t reduce;         /* sums the gradients of this layer's replicas */
    int32_t backward_fetch; /* prefetches the replicas' weights for the next backward */
    int32_t forward_fetch;  /* prefetches them for the next forward */
    struct ek_moe *next_forward, *next_backward; /* the layers whose replicas may be sent while this
                                                    one's forward and backward ends, with the memory
                                                    that they have; NULL: none */
    int32_t backward_micro; /* micro-batch whose backward of this layer is the next that needs
                               replicas after this forward, which may send them; -1: another
                               layer's is */
    int32_t *out, *back;    /* [chunks]: the all-to-alls of a chunk */
    int32_t *sent;          /* [waves of the layer, on the rank with most]: messages of replicas */
} ek_moe_graph_ids;

/* Scratch of the gate's ops. */
typedef struct {
    int32_t *order;           /* [max_seq * cols], for gates that need whole sequences */
    int64_t *counts;          /* [2 experts], of the gate statistics */
    double *sums;             /* [experts], likewise; gradients of the balance loss */
    ek_replay_scratch replay; /* if loads are replayed */
    unsigned char *allowed;   /* of re-routing: [tp, experts] whether an expert is on the node of a
                                 tensor parallel rank, set when a step begins, or [experts] whether
                                 it is below capacity */
    int64_t *taken;           /* [experts], of re-routing: assignments in a sequence */
} ek_gate_scratch;

/* Groups of the running product: the rows of each slot and its expert's weights. */
typedef struct {
    ek_group *up, *down; /* [slots of this rank] */
    int64_t n;
} ek_moe_groups;

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
    struct ek_replicas *replicas; /* moe/replica_weights.h; NULL: no memory for replicas */
} ek_moe_scratch;

typedef struct ek_moe {
    const ek_kernels *k;
    const ek_model_spec *spec;
    const ek_mesh *mesh; /* never NULL */
    const ek_moe_config *cfg;
    ek_moe_weights *w;
    int cols; /* ek_moe_cols */
    ek_dispatch_layout x;
    ek_mlp mlp; /* shared expert, or MLP of a dense layer */

    ek_plan_history history;     /* input of plan_persistent; counts NULL: no planner has it */
    int64_t *persistent_quota;   /* [ep * slots], quotas of the persistent placement */
    int32_t persistent;          /* replicas in that placement */
    unsigned char *served;       /* [all slots] moe/serving_copies.h; NULL: none are persistent */
    int32_t *copies, *serving;   /* [experts] likewise, scratch */
    ek_moe_next_plan *next_plan; /* [planners of the config] */
    struct ek_replica_weights *replica_weights; /* moe/replica_memory.h, [act_slots, slices that a
                                                   rank may fetch]; NULL: layers share memory */
    struct ek_replica_flight *flights;          /* moe/replica_weights.h */
    struct ek_replica_flight *wave_flights; /* likewise, [waves of the layer, on the rank with most]
                                               if experts come in waves: of one pass at a time,
                                               forward, backward or reduction */

    ek_moe_handle *handles;     /* [act_slots] */
    const int32_t *act_slot_of; /* [micro-batches of the step], act_slot of each; NULL: always 0 */
    const ek_moe_step *step;
    ek_moe_stats stats;
    ek_moe_graph_ids ids;
    ek_gate_scratch gate;
    ek_moe_groups groups;
    ek_moe_scratch *scratch;          /* shared by all layers */
    struct ek_moe_planning *planning; /* likewise; NULL: never distributed */
} ek_moe;

/* The activation slot of an op's micro-batch. */
static inline int32_t ek_moe_act_slot(const ek_moe *m, const ek_op *op)
{
    return m->act_slot_of != NULL ? m->act_slot_of[op->micro] : 0;
}

/* The activations and the route of an op's micro-batch. */
static inline ek_moe_handle *ek_moe_handle_of(const ek_moe *m, const ek_op *op)
{
    return &m->handles[ek_moe_act_slot(m, op)];
}

static inline ek_moe_activations *ek_moe_activations_of(const ek_moe *m, const ek_op *op)
{
    return &ek_moe_handle_of(m, op)->activations;
}

static inline ek_moe_route *ek_moe_route_of(const ek_moe *m, const ek_op *op)
{
    return &ek_moe_handle_of(m, op)->route;
}

static inline const ek_micro *ek_moe_micro(const ek_moe *m, const ek_op *op)
{
    return &m->step->micro[op->micro];
}

/* Whether rows are exchanged between ranks. */
static inline int ek_moe_is_distributed(const ek_moe *m)
{
    return ek_mesh_distributes_experts(m->mesh);
}

/* The chunk of an op; 0 for ops that are not chunked. */
static inline int ek_moe_chunk(const ek_op *op)
{
    return op->part > 0 ? op->part : 0;
}

static inline const int64_t *ek_moe_offset(const ek_moe *m, const ek_moe_activations *kept,
                                           int chunk)
{
    return kept->offset + (int64_t)chunk * (m->x.slots + 1);
}

/* The first row of a chunk, and the number of its rows. */
static inline int64_t ek_moe_first_row(const ek_moe *m, const ek_moe_activations *kept, int chunk)
{
    return ek_moe_offset(m, kept, chunk)[0];
}

static inline int64_t ek_moe_rows(const ek_moe *m, const ek_moe_activations *kept, int chunk)
{
    const int64_t *offset = ek_moe_offset(m, kept, chunk);

    return offset[m->x.slots] - offset[0];
}

/* Element i of an array of this type. */
static inline void *ek_moe_at(ek_dtype type, const void *array, int64_t i)
{
    return (char *)(uintptr_t)array + i * (int64_t)ek_dtype_size(type);
}

/* A rank computes with the slices of its group of shards, in order.  Returns the first column of a
 * slice within the group's width; for slice x.members, that width. */
static inline int64_t ek_slice_first(const ek_moe *m, int slice)
{
    int first = m->mesh->etp_rank / m->x.members * m->x.members;

    return ek_range_first(m->spec->ff, m->mesh->etp, first + slice) -
           ek_range_first(m->spec->ff, m->mesh->etp, first);
}

static inline int64_t ek_slice_width(const ek_moe *m, int slice)
{
    return ek_slice_first(m, slice + 1) - ek_slice_first(m, slice);
}

#endif
