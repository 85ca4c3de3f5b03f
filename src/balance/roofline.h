/* balance/roofline.h - a layer's position on FasterMoE's DDL-Roofline (PPoPP'22, section 3.3).
 *
 *   R_CC       = compute time / communication time    of the busiest rank and the busiest link
 *   achieved   = useful FLOP / (ranks * time)
 *   ideal      = P min(1, R_CC)                        communication and products overlap in full
 *   semi-ideal = P R_CC / (R_CC + 1)                   no overlap, all ranks equally loaded
 *
 * with P the FLOP/s of a rank for the experts' products.  Times are those of the layer's whole
 * step, forward and backward with all all-to-alls, so a balanced layer without overlap is on the
 * semi-ideal curve exactly; an unbalanced one is below it, one with overlap may be above.  Pure
 * arithmetic, O(1) per point. */
#ifndef BALANCE_ROOFLINE_H
#define BALANCE_ROOFLINE_H

#include "balance/planner.h"

#include <stddef.h>

/* Work and times of one step, or summed over several. */
typedef struct {
    int32_t ranks;
    double rank_flops_s; /* P: FLOP/s of one rank's products */
    double flops;        /* useful FLOP of all ranks */
    double compute_s;    /* predicted: the busiest rank's products */
    double comm_s;       /* predicted: the busiest link's rows and replicas */
    double time_s;       /* measured; 0: unknown */
} ek_roofline_work;

/* Rates are FLOP/s per rank. */
typedef struct {
    double r_cc; /* infinite without communication, 0 without products */
    double achieved, ideal, semi_ideal;
    int measured; /* 0: `achieved` is predicted, without overlap */
} ek_roofline;

/* The work of a layer with a plan, in one step.  row_flops: of an assignment, forward and backward.
 * memory, slots: as for ek_plan_terms_of.  time_s is 0. */
ek_roofline_work ek_roofline_work_of(const ek_plan_limits *l, const int64_t *counts,
                                     const ek_plan *p, double row_flops, int64_t *memory,
                                     int32_t *slots);

/* The sums over micro-batches that the work follows from, cheap to count where rows are dispatched.
 */
typedef struct {
    double rows;     /* assignments of all ranks */
    double busiest;  /* assignments of the busiest rank */
    double link;     /* rows on the busiest link, one way */
    double replicas; /* replicas on the busiest link */
    double batches;  /* micro-batches: how often rows are exchanged */
} ek_roofline_counts;

/* As ek_roofline_work_of, from sums over any number of micro-batches. */
ek_roofline_work ek_roofline_work_of_counts(int32_t ranks, const ek_plan_costs *c, double row_flops,
                                            const ek_roofline_counts *n);

/* Adds another step of the same layer.  If either has no time, the sum has none. */
void ek_roofline_add(ek_roofline_work *sum, const ek_roofline_work *step);

ek_roofline ek_roofline_of(const ek_roofline_work *w);

/* Writes one line, such as "layer 3: 3.10 GFLOP/s a rank, 62 % of its products' rate; with even
 * loads 2.78 GFLOP/s, overlapped as well 5.00 GFLOP/s; computes 1.25 times as long as it sends
 * (R_CC)".  Returns its length, as snprintf does. */
int ek_roofline_line(const ek_roofline_work *w, int64_t layer, char *text, size_t cap);

#endif
