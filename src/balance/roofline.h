/* balance/roofline.h - where a layer stands on FasterMoE's DDL-Roofline (PPoPP'22, section 3.3).
 *
 *   R_CC       = computing / talking       of the busiest rank and the busiest link
 *   achieved   = useful FLOP / (ranks * time)
 *   ideal      = P min(1, R_CC)            exchanges and products overlap in full
 *   semi-ideal = P R_CC / (R_CC + 1)       one after the other, every rank equally loaded
 *
 * with P the rate at which a rank computes the experts' products.  Times are those of the layer's
 * whole step, forward and backward with all exchanges, so a balanced layer without overlap lies on
 * the semi-ideal curve exactly; one that is not balanced lies below it, one that overlaps may lie
 * above.  Pure arithmetic, O(1) a point. */
#ifndef BALANCE_ROOFLINE_H
#define BALANCE_ROOFLINE_H

#include "balance/planner.h"

#include <stddef.h>

/* What a point is made of, of one step or of several together. */
typedef struct {
    int32_t ranks;
    double rank_flops_s; /* P: FLOP/s of one rank's products */
    double flops;        /* useful ones, of all ranks */
    double compute_s;    /* predicted: the busiest rank's products */
    double comm_s;       /* predicted: the busiest link's rows and replicas */
    double time_s;       /* measured; 0: not known */
} ek_roofline_work;

/* Rates are FLOP/s of a rank. */
typedef struct {
    double r_cc; /* infinite where nothing is said, 0 where nothing is computed */
    double achieved, ideal, semi_ideal;
    int measured; /* 0: achieved is a prediction, for products and exchanges in turn */
} ek_roofline;

/* The work of a layer with a plan, in one step; row_flops: of an assignment, forward and backward.
 * memory, slots: as for ek_plan_terms_of.  time_s is left 0. */
ek_roofline_work ek_roofline_work_of(const ek_plan_limits *l, const int64_t *counts,
                                     const ek_plan *p, double row_flops, int64_t *memory,
                                     int32_t *slots);

/* What of a layer's plans the work follows from, each added up over micro-batches: so that it can
 * be counted where rows are dealt, and cost little there. */
typedef struct {
    double rows;     /* assignments, of all ranks */
    double busiest;  /* those that the busiest rank serves */
    double link;     /* rows on the busiest link, one way */
    double replicas; /* replicas on the busiest link */
} ek_roofline_counts;

/* The same as ek_roofline_work_of, for counts of any number of micro-batches. */
ek_roofline_work ek_roofline_work_of_counts(int32_t ranks, const ek_plan_costs *c, double row_flops,
                                            const ek_roofline_counts *n);

/* Adds another step of the same layer.  A step without a time leaves the sum without one. */
void ek_roofline_add(ek_roofline_work *sum, const ek_roofline_work *step);

ek_roofline ek_roofline_of(const ek_roofline_work *w);

/* One line on a layer's point, such as "layer 3: R_CC 1.25, 3.10 GFLOP/s a rank of 5.00 (62 %);
 * balanced 2.78, overlapped 5.00"; returns its length, as snprintf does. */
int ek_roofline_line(const ek_roofline_work *w, int64_t layer, char *text, size_t cap);

#endif
