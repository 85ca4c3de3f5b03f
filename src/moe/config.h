/* moe/config.h - the settings of MoE layers: those of a run, and those of a step.
 *
 * All layers of a model and all ranks have the same. */
#ifndef MOE_CONFIG_H
#define MOE_CONFIG_H

#include "balance/planner.h"
#include "balance/trace.h"
#include "comm/mesh.h"
#include "nn/batch.h"
#include "spec/model.h"

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

/* A set of each layer for each micro-batch in flight, so that weights are sent once. */
enum { EK_REPLICA_SETS_EACH = -1 };

/* How the layer exchanges tokens between ranks, fixed for a run.  A step may have a smaller degree,
 * another a2a and another gather (ek_moe_traffic). */
typedef struct {
    int degree; /* token chunks that dispatch, experts and combine are split into (Tutel); 0 is 1 */
    ek_a2a a2a;
    int gather; /* how many shards gather their slices of experts (ek_dispatch_layout_set_gather) */
    int gather_most;  /* the largest gather of any step, for which memory is reserved */
    int smart_group;  /* > 0: chunks are ring distances between groups of so many ranks (FasterMoE's
                         S/C/R schedule) instead of token ranges */
    int replica_sets; /* sets of memory for the weights of transient replicas in training: 1 or 2
                         for all layers, or EK_REPLICA_SETS_EACH (moe/replica_memory.h); 0 is 1 */
    int force_balance;      /* replaces the gate's choice by one that spreads evenly */
    const ek_trace *replay; /* replaces it by one with these loads, of as many experts; NULL: no */
    const ek_planner *planner;       /* balances ranks of a distributed layer; NULL: none */
    const ek_planner *const *others; /* planners that may replace it between steps
                                        (ek_rebalance_set_planner), NULL-terminated; NULL: none */
    int64_t plan_every;              /* steps between persistent placements; 0: no new ones */
    int64_t horizon;                 /* micro-batches in plan_every steps (ek_plan_limits) */
    int64_t batches;                 /* micro-batches in a step, likewise */
    int32_t replicas_min;            /* likewise */
    int prefer_survival;             /* likewise */
    int keep_all_slots;              /* likewise */
    const int *domain_of; /* [ranks of the stage], failure domain, likewise; NULL: the node */
    ek_plan_costs costs;  /* likewise */
    int follow_speeds;    /* 1: planners heed the measured speeds of ranks */
    int64_t group_rows;   /* rows that take as long as the fixed part of an expert's products */
    ek_moe_plan_listener listener;
    ek_reroute reroute;
    double reroute_limit; /* topology: fraction of a sequence's assignments that may leave the
                             node, 0 to 1 */
} ek_moe_config;

/* Planner i: 0 is c->planner, 1 and more are c->others; NULL beyond the last. */
const ek_planner *ek_moe_planner_at(const ek_moe_config *c, int i);

/* The sets in use: slices of experts are gathered into one. */
int ek_moe_replica_sets(const ek_moe_config *c);

/* Whether any of these planners has plan_persistent, plan_transient; uses_previous_counts or
 * may_use_previous_counts. */
int ek_moe_may_place(const ek_moe_config *c);
int ek_moe_may_plan_transient(const ek_moe_config *c);
int ek_moe_may_use_previous(const ek_moe_config *c);

/* Slots of a rank that transient replicas may be in, its last ones, if the planner has persistent
 * replicas as well (ek_planner_transient_slots); -1: any slot that is empty. */
int32_t ek_moe_transient_slots(const ek_moe_config *c, const ek_model_spec *spec,
                               const ek_mesh *mesh, int32_t spare_slots);

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

/* Columns of ids and weights: top_k, or `experts` where experts choose tokens. */
int ek_moe_cols(const ek_model_spec *spec);

/* The largest number of shards that gather their slices in any step. */
int ek_moe_max_members(const ek_moe_config *c, const ek_mesh *mesh);

/* EK_EOVERFLOW: the rows of a micro-batch of these limits do not fit an int32_t. */
EK_CHECKED ek_status ek_moe_check_limits(const ek_model_spec *spec, const ek_mesh *mesh,
                                         const ek_moe_limits *limits);

#endif
