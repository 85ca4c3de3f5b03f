/* balance/plan_time.h - the time of a layer with a plan, by a model that no planner optimises. */
#ifndef BALANCE_PLAN_TIME_H
#define BALANCE_PLAN_TIME_H

#include "balance/row_costs.h"

/* Parts of the time. */
typedef struct {
    double products_s; /* expert products of the rank that takes longest */
    double rows_s;     /* rows on the busiest link, and the latency of the exchanges */
    double replicas_s; /* replicas on the busiest link; each receiver forwards, so an expert
                          leaves its primary rank once */
} ek_plan_terms;

/* Assignments by rank, [ranks] each, in `memory`: those that it serves, sends to other ranks, and
 * gets from them. */
typedef struct {
    const int64_t *served, *sent, *got;
} ek_plan_rows;

/* memory and slots: scratch, sized as below. */
ek_plan_rows ek_plan_rows_of(const ek_plan_limits *l, const int64_t *counts, const ek_plan *p,
                             int64_t *memory, int32_t *slots);

/* Assignments from rank to rank, sent [ranks, ranks]; memory and slots as above. */
void ek_plan_exchange_of(const ek_plan_limits *l, const int64_t *counts, const ek_plan *p,
                         int64_t *memory, int32_t *slots, int64_t *sent);

/* Replicas that a rank receives, and primary copies of its that others receive. */
void ek_plan_replicas_of(const ek_plan_limits *l, const ek_placement *at, int32_t rank,
                         int32_t *gets, int32_t *gives);

/* memory [4 ranks + (ranks + 1) ranks slots], slots [ranks slots]: scratch. */
ek_plan_terms ek_plan_terms_of(const ek_plan_limits *l, const int64_t *counts, const ek_plan *p,
                               int64_t *memory, int32_t *slots);

/* The sum of the terms: nothing overlaps. */
double ek_plan_time(const ek_plan_limits *l, const int64_t *counts, const ek_plan *p,
                    int64_t *memory, int32_t *slots);

#endif
