/* balance/replay.h - a routing trace played through a planner: what it would have balanced, moved
 * and cost. */
#ifndef BALANCE_REPLAY_H
#define BALANCE_REPLAY_H

#include "balance/planner.h"
#include "balance/trace.h"

typedef struct {
    const ek_planner *planner;
    ek_plan_limits limits; /* slots: ceil(experts / ranks) and the spare ones */
    int64_t lag;           /* a plan is made from the counts of so many iterations before */
    /* Lasting placements are made once, from the sums of this trace's iterations, layer by layer.
     * NULL: planners that are slow alone are asked each time with the counts that a plan is made
     * from; those of both speeds once every limits.lasts iterations, with these counts of the
     * iterations before. */
    const ek_trace *history;
    /* Called with every plan and the quotas that served the counts; NULL: nobody asks.  EK_OK or a
     * failure that ends the replay. */
    ek_status (*each)(void *context, int64_t iteration, int64_t layer, const int64_t *counts,
                      const ek_plan *served);
    void *context;
} ek_replay_config;

enum { EK_REPLAY_LOST = 3 };

/* Means are over layers and iterations; max/mean is of assignments a rank serves. */
typedef struct {
    int64_t plans;
    double before;      /* mean max/mean with every expert at home alone, homes in block order */
    double mean, worst; /* max/mean with the plans */
    double rb_median;   /* standard deviation of the ranks' loads before over after */
    double us_median, us_p99; /* of making one layer's plan; lasting placements made from a history
                                 of their own are not in it */
    double persistent_us;     /* of making one of those, mean; 0: there are none */
    double bytes;             /* of replicas and of experts that move, mean */
    double speedup;           /* summed time before over after, by ek_plan_time */
    /* What the lasting placements, as they are at the end, outlive, all layers together
     * (placement/survivability.h); replicas for once do not count. */
    int32_t nodes, survives;              /* of so many nodes any so many may be lost */
    double survivability[EK_REPLAY_LOST]; /* the chance that all experts survive the loss of 1, 2,
                                             ... */
    char survivability_text[EK_PLAN_REASON];
    char racks_text[EK_PLAN_REASON]; /* the same of limits.domain_of; "" without */
} ek_replay_result;

/* EK_EINVAL: the trace and the config do not fit. */
EK_CHECKED ek_status ek_replay(const ek_trace *t, const ek_replay_config *cfg,
                               ek_replay_result *out);

#endif
