/* balance/replay.h - replays a routing trace through a planner: the balance, bytes and time of its
 * plans. */
#ifndef BALANCE_REPLAY_H
#define BALANCE_REPLAY_H

#include "balance/planner.h"
#include "balance/trace.h"

/* Replicas of an iteration, of all its micro-batches, as training counts them. */
typedef struct {
    int64_t replicas;  /* that serve, persistent ones among them */
    int64_t transient; /* of these, */
    int64_t ahead;     /* and of these, sent before the gate */
    int64_t unused;    /* sent before the gate beside them */
    /* What was sent before the gate in the last micro-batch, in the slots that it went to; NULL:
     * nothing was, and all replicas are planned after it. */
    const ek_placement *sent;
    int first; /* the plan and all of this are of the first of several micro-batches */
} ek_replay_replicas;

typedef struct {
    const ek_planner *planner;
    ek_plan_limits limits; /* slots: ceil(experts / ranks) plus spare slots */
    int64_t lag;           /* a plan is made from the counts of `lag` iterations before */
    int64_t batches;       /* micro-batches of the limits that an iteration stands for; 0: 1 */
    /* 1: of a planner with may_use_previous_counts replicas are sent before the gate as in training
     * (balance/early_replicas.h): planned from the counts of the micro-batch before, which is of
     * the same iteration but for its first one, and in a trace of one iteration always.  `each` is
     * called with the plan of the first of several micro-batches, too; the result is of the last.
     */
    int forecasts;
    /* Persistent placements are made once per layer, from the sums over this trace's iterations.
     * NULL: planners with plan_persistent only run it for every plan, on the counts that the plan
     * is made from; those with plan_transient as well run it after the first iteration (those
     * that enforce replicas before it) and once every limits.horizon micro-batches, on the counts
     * of the iterations before; never with horizon 0. */
    const ek_trace *history;
    /* Counts are scaled to `tokens` tokens of each rank with top_k experts (ek_trace_scale); tokens
     * 0: counts are as recorded. */
    int64_t tokens, top_k;
    /* Called with every plan and its quotas for the actual counts, and the replicas of the
     * iteration; NULL: not called.  A failure ends the replay and is returned. */
    ek_status (*each)(void *context, int64_t iteration, int64_t layer, const int64_t *counts,
                      const ek_plan *served, const ek_replay_replicas *replicas);
    void *context;
} ek_replay_config;

enum { EK_REPLAY_LOST = 3 };

/* Means are over layers and iterations; max/mean is of the assignments that ranks serve.  Where
 * ranks differ (limits.row_cost) it is the time of the slowest rank over that of an even one, and
 * deviations are of times. */
typedef struct {
    int64_t plans;
    double before;            /* mean max/mean with primary copies only, in block order */
    double mean, worst;       /* max/mean with the plans */
    double rb_median;         /* median ratio of the standard deviations of rank loads, before over
                                 after */
    double us_median, us_p99; /* planning time per layer; without persistent placements made from
                                 `history` */
    double persistent_us;     /* mean time of those; 0: none */
    double bytes;             /* mean per plan, of replicas and of moved experts */
    double speedup;           /* summed time before over after, by ek_plan_time */
    /* Survivability of the final persistent placements, all layers together
     * (placement/survivability.h); transient replicas do not count. */
    int32_t nodes, survives;              /* any `survives` of `nodes` nodes can be lost */
    double survivability[EK_REPLAY_LOST]; /* probability that all experts survive the loss of 1,
                                             2, ... random nodes */
    char survivability_text[EK_PLAN_REASON];
    char racks_text[EK_PLAN_REASON]; /* the same for limits.domain_of; "" without it */
} ek_replay_result;

/* Replays t.  EK_EINVAL: trace and config do not match; EK_ENOMEM; or a failure of the planner, of
 * `each`, or of a check of its plan. */
EK_CHECKED ek_status ek_replay(const ek_trace *t, const ek_replay_config *cfg,
                               ek_replay_result *out);

#endif
