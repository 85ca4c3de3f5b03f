/* balance/plan_time.h - the time of a layer with a plan, by a model that no planner optimises. */
#ifndef BALANCE_PLAN_TIME_H
#define BALANCE_PLAN_TIME_H

#include "balance/row_costs.h"

/* Parts of the time. */
typedef struct {
    double products_s; /* expert products of the rank that takes longest */
    double rows_s;     /* rows on the busiest link */
    double replicas_s; /* replicas on the busiest link; each receiver forwards, so an expert
                          leaves its primary rank once */
} ek_plan_terms;

/* memory [4 ranks + (ranks + 1) ranks slots], slots [ranks slots]: scratch. */
ek_plan_terms ek_plan_terms_of(const ek_plan_limits *l, const int64_t *counts, const ek_plan *p,
                               int64_t *memory, int32_t *slots);

/* The sum of the terms: nothing overlaps. */
double ek_plan_time(const ek_plan_limits *l, const int64_t *counts, const ek_plan *p,
                    int64_t *memory, int32_t *slots);

#endif
