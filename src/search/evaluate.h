/* search/evaluate.h - what a search learns of a layout: its memory, a time that its step cannot be
 * shorter than, and its simulated time.
 *
 * Memory   as training lays it out, of the ranks of search/end_ranks.h.
 * Bound    from the step of a single micro-batch of those two ranks: the computation of a
 *          micro-batch on a stage begins when that of the one before has ended, so a step takes at
 *          least as often that time as there are micro-batches, and what follows the last of them:
 *          gradients are summed, weights updated.  The last stage also waits for a micro-batch to
 *          come through the stages before it, and to go back through them.  Messages between
 *          stages are left out.  With ZeRO 2 and 3 and equal stages the bound may also be the
 *          time in which the rank's links carry gradients that are summed, with ZeRO 3 also
 *          weights that are gathered (search/zero_traffic.h).  Ops have the prices of
 *          simulations, with planned copies of experts (search/bound_prices.h); with --elastic, if
 *          a run may have one or two of each, the shorter time.
 *          At first only one ZeRO stage has that bound: others, and if layers are alike other
 *          numbers of virtual stages, have what their micro-batches take, which is the same in all
 *          of them or more, until ek_search_refine.  ek_search_refine_pipeline then also replays a
 *          single micro-batch on all stages (search/pipeline_bound.h). */
#ifndef SEARCH_EVALUATE_H
#define SEARCH_EVALUATE_H

#include "search/candidates.h"
#include "search/objective.h"
#include "train/simulate.h"

typedef enum {
    EK_OUTCOME_REFUSED,  /* training refuses it */
    EK_OUTCOME_TOO_MUCH, /* it needs more memory than there is */
    EK_OUTCOME_BOUND,    /* it fits; by its bound it cannot beat what was found */
    EK_OUTCOME_SIMULATED
} ek_outcome;

/* What a layout's bound has. */
typedef enum {
    EK_NOT_REFINED,  /* its micro-batches alone, */
    EK_REFINED_ENDS, /* what follows them on the first and the last stage, */
    EK_REFINED       /* all that it can: all stages */
} ek_refined;

typedef struct {
    ek_layout choice;
    ek_outcome outcome;
    double memory; /* bytes of the rank with most; unless refused */
    double copies; /* of these, copies of all that other ranks keep (train/rank_copies.h) */
    double bound;  /* seconds, if it fits: no step under even loads is shorter by replay */
    ek_refined refined;
    double even_s;       /* simulated: seconds of a step under even loads, */
    double step_s;       /* and with those of the trace, if it was simulated with them */
    int loaded;          /* 1: it was */
    int by_flow;         /* 1: step_s is of EK_ENGINE_FLOW */
    double flops;        /* of the model, of all ranks, in a step */
    ek_sim_parts parts;  /* of step_s */
    double primary_max;  /* loaded: largest over mean rows of a rank with primary copies alone, */
    double planned_max;  /* and as planned; 0: loads matter to no rank */
    int64_t trace_steps; /* simulated */
    const char *balance; /* policy with the trace's loads; NULL: that of the settings */
    const ek_search_failures *failures; /* runs under failures; NULL: not simulated, or refused */
} ek_search_layout;

typedef struct {
    const ek_train_config *train;
    const ek_cluster *cluster;
    int ranks;
    const int *node_of; /* [ranks] */
    const int *host_of; /* [ranks], as of ek_imagined_world */
    double memory;      /* bytes that a rank may need; 0: any */
    int64_t layers;     /* of the model, */
    int layers_alike;   /* 1: which are all alike (search/end_ranks.h), */
    int64_t batch;      /* and sequences of a step */
    const ek_trace *trace;
    int64_t steps;          /* of the trace */
    ek_engine engine;       /* of ek_search_simulate */
    ek_even_plans *plans;   /* of all layouts that are asked for here */
    const char *failures;   /* as of ek_simulate_failures; NULL: none */
    const char *on_failure; /* of EK_SEARCH_ON_FAILURE_WORDS */
} ek_search_setting;

/* Fills outcome (never simulated), memory, bound and refined of n layouts that are beside each
 * other (ek_candidate_is_beside).  refusal [cap]: why training refuses the last refused one, if any
 * is. EK_ENOMEM and the like; a layout that training refuses is no failure.  Local. */
EK_CHECKED ek_status ek_search_measure(const ek_search_setting *s, ek_search_layout *beside,
                                       int64_t n, char *refusal, size_t cap);

/* Refines the bounds of n layouts that differ in recomputation alone, of which one fits.  EK_ENOMEM
 * and the like.  Local. */
EK_CHECKED ek_status ek_search_refine(const ek_search_setting *s, ek_search_layout *l, int64_t n);

/* Refines the bound of a layout by all its stages; it stays where these have none or training
 * refuses them, as simulation will tell.  EK_ENOMEM and the like. */
EK_CHECKED ek_status ek_search_refine_pipeline(const ek_search_setting *s, ek_search_layout *l);

/* Simulates a layout, under even loads or (loaded) with those of the trace and its `balance`. */
EK_CHECKED ek_status ek_search_simulate(const ek_search_setting *s, ek_search_layout *l,
                                        int loaded);

/* Simulates runs of a layout under failures, with the loads and policy of its last simulation.
 * EK_EINVAL: training refuses what the nodes that are left would do, or it completes no step;
 * EK_ENOMEM also if its copies of experts do not fit. */
EK_CHECKED ek_status ek_search_simulate_failures(const ek_search_setting *s,
                                                 const ek_search_layout *l,
                                                 ek_search_failures *out);

#endif
