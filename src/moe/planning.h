/* moe/planning.h - what planners need, which all layers of a model share. */
#ifndef MOE_PLANNING_H
#define MOE_PLANNING_H

#include "balance/early_replicas.h"
#include "balance/rank_speeds.h"
#include "moe/layer.h"
#include "placement/survivability.h"

/* Scratch of the plan at work. */
typedef struct {
    int32_t *primary;     /* [experts] */
    int64_t *quota;       /* [ep * slots] */
    int64_t *counts;      /* [ep, experts] */
    int64_t *total;       /* [experts] */
    int32_t *slots;       /* [ep * slots], the slots of one expert */
    int64_t *split;       /* ek_plan_split */
    int64_t *rows;        /* [ep, its slots], the rows that each serves */
    int64_t *source_rows; /* [etp, token chunks], its rows from one expert rank's tokens */
    int64_t *traffic;     /* [kinds, expert ranks], of a micro-batch */
    unsigned char *used;  /* [all slots], whether it has rows in a chunk */

    /* with may_use_previous_counts: the plan that is not used, to be compared */
    int32_t *expert_of;   /* [ep * slots] */
    int64_t *other_quota; /* [ep * slots] */
    ek_late_replicas late;
} ek_planning_scratch;

/* What planners need; all layers share it. */
typedef struct ek_moe_planning {
    const ek_planner *planner; /* in use; NULL: none */
    int planner_at;            /* which of the config's (ek_moe_planner_at) */
    void *memory;              /* the planner's */
    void **memory_of;          /* [1 + others], by ek_moe_planner_at */
    ek_plan_limits limits;     /* of one expert-parallel group */
    double compute_s_per_row;  /* of the config, while ranks are equal */
    ek_rank_speeds speeds;     /* of the edp * ep expert ranks; ranks 0: not followed */
    int32_t *mean_cost;        /* [ep], of the groups, for persistent placements */
    int32_t *node_of;          /* [edp, ep] */
    int32_t *domain_of;        /* [edp, ep]; NULL: nodes */
    ek_replica_sets others;    /* replica sets of other layers, for plan_persistent; capacity 0: the
                                  planner does not use them */
    int32_t *others_domain;    /* [ep], domain numbers of the first group used in `others` */
    ek_moe_plan_listener listener;
    ek_plan persistent; /* result of ek_routing_plan_persistent */
    int failed;         /* the planner failed and is not called again */
    int unfit;          /* a micro-batch's plan failed: persistent quotas are not used either */
    ek_planning_scratch scratch;
} ek_moe_planning;

#endif
