/* moe/stats.h - what a MoE layer counts in a step: sums over its micro-batches, cleared when the
 * step begins.
 *
 * Values cover all ranks of the stage and are the same on each, unless stated. */
#ifndef MOE_STATS_H
#define MOE_STATS_H

#include "balance/roofline.h"
#include "base/arena.h"
#include "moe/dispatch_layout.h"

typedef struct {
    double aux_loss, z_loss; /* without coefficients */
    int64_t *load;           /* [experts], assignments before drops */
    int64_t *rank_rows;      /* [expert ranks], assignments that each serves */
    int64_t *rank_groups;    /* [expert ranks], of their products: slots with rows, in each chunk */
    int64_t *primary_rows;   /* [expert ranks], the same in the initial block placement, */
    int64_t *primary_before; /* and without those of the micro-batch at work */
    int64_t dropped;
    int64_t plans, replicas; /* plans made, and replicas in them */
    int64_t ahead;           /* of these replicas, those that were sent before the gate */
    int64_t slices;          /* slices of experts sent to ranks as replicas */
    int64_t unused;          /* beside them, those that were sent before the gate, of replicas that
                                the micro-batch's plan lacks: weights for forward alone */
    int64_t shared;          /* gradients of persistent copies sent, to be summed or as sums */
    double plan_s;           /* seconds in planners, of this rank */
    ek_roofline_counts work; /* of all expert ranks, if the layer is distributed */
    double saved_rows;       /* assignments, weighted by speed, that the busiest rank would compute
                                more in the initial placement without replicas; below 0: fewer */
    int64_t product_ns;      /* time of expert products, of this rank */
    int64_t stall_ns;        /* stall of products that waited for replicas, of this rank */
} ek_moe_stats;

void ek_moe_stats_reserve(ek_moe_stats *s, ek_arena *a, int64_t experts, int32_t ranks);
void ek_moe_stats_clear(ek_moe_stats *s, int64_t experts, int32_t ranks);

/* How uneven the rows of expert ranks are. */
typedef struct {
    double max_over_mean; /* the busiest rank's over the mean; 1 without rows */
    double deviation;     /* standard deviation over the mean.  Before over after balancing it is RB
                             of Pro-Prophet (arXiv 2411.10003, section 7) */
} ek_rank_balance;

/* As computed, and as they would be in the initial block placement. */
ek_rank_balance ek_moe_rank_balance(const ek_moe_stats *s, const ek_dispatch_layout *x);
ek_rank_balance ek_moe_primary_balance(const ek_moe_stats *s, const ek_dispatch_layout *x);

/* RB of two deviations; infinite if only the latter is 0. */
double ek_moe_rb(double before, double after);

#endif
