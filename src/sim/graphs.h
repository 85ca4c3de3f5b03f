/* sim/graphs.h - the step graphs of all ranks of a layout, one for each class of ranks.
 *
 * Ranks of a class execute the same ops; as pipeline stages are SPMD, a stage is one class, or a
 * few where divisions leave remainders.  Who makes the graphs owns them (train/imagine.h). */
#ifndef SIM_GRAPHS_H
#define SIM_GRAPHS_H

#include "balance/planner.h"
#include "schedule/graph.h"
#include "spec/model.h"

typedef struct {
    const ek_graph *graph; /* of the class's first rank */
    int32_t n_ranks;
    const int32_t *ranks; /* [n_ranks] ascending */
    int32_t stage;        /* pipeline stage */
    double memory;        /* bytes of a rank, */
    double weights;       /* of which weights, gradients and optimizer state, */
    double state;         /* of which in shared memory, with --elastic; else 0 */
} ek_sim_class;

typedef struct {
    int32_t ranks; /* of the world, each in one class */
    int32_t n_classes;
    const ek_sim_class *classes; /* [n_classes] */
} ek_sim_graphs;

/* The class whose ranks need most memory. */
static inline const ek_sim_class *ek_sim_graphs_fullest(const ek_sim_graphs *g)
{
    const ek_sim_class *most = &g->classes[0];

    for (int32_t k = 1; k < g->n_classes; k++)
        if (g->classes[k].memory > most->memory)
            most = &g->classes[k];
    return most;
}

/* What else is known of the run. */
typedef struct {
    int pp, dp, tp, edp, ep, etp, zero, embed_columns;
    int64_t params, active_params; /* of the model; used by a token */
    int64_t batch, step_tokens;    /* sequences and tokens of a step, of all ranks */
    const char *dtype;             /* of products: "bf16", "fp32", "fp64"; static */
    ek_model_spec spec;
    int rank_copies;           /* ranks have copies of all that others keep (train/rank_copies.h) */
    const ek_planner *planner; /* NULL: none balances expert-parallel ranks */
    int32_t spare_slots, replicas_min;
    int32_t copies;         /* nodes, or racks, that hold each expert: replicas_min, or fewer where
                               these or slots do not suffice; 1 without such a planner */
    int keep_all_slots;     /* ek_plan_limits */
    int all_serve;          /* ek_copy_sums_config */
    double copies_lengthen; /* by which part of itself two copies of each expert, which are left
                               out for that, were predicted to lengthen a step; else 0 */
    int sends_twice;        /* weights of transient replicas are sent for backward, too */
    int64_t micros;         /* micro-batches of a step */
    int64_t plan_every;     /* steps between persistent placements */
    int64_t micro_batch, seq, top_k; /* sequences of a micro-batch; tokens; experts of a token */
    const int64_t *shares;           /* of data-parallel ranks (nn/batch_shares.h), borrowed from
                                        what the layout is of (train/imagine.h); NULL: even */
    double rows; /* assignments of a rank, layer and micro-batch, under even loads */
} ek_sim_layout;

#endif
