/* balance/plan_prophet.h - Pro-Prophet's Algorithm 1 as printed, for plan_prophet.c and its test.
 */
#ifndef BALANCE_PLAN_PROPHET_H
#define BALANCE_PLAN_PROPHET_H

#include "balance/planner.h"

/* Loads of the ranks during the selection of replicas. */
typedef struct {
    int32_t ranks;
    const int32_t *row_cost; /* limits.row_cost: H is then weighted (row_costs.h); NULL: equal */
    int64_t *served;         /* H [ranks] assignments computed there */
    int64_t *received;       /* R [ranks] those of them from other ranks */
    int64_t copies;          /* over replicated experts: replicas and primary copies */
    int64_t *key;            /* [ranks] sort key of `order` */
    int32_t *order;          /* [ranks] */
} ek_prophet_loads;

void ek_prophet_loads_reserve(ek_prophet_loads *o, ek_arena *a, int32_t ranks);

/* The paper's setting: device e has the primary copy of expert e only, and a selected expert goes
 * to all devices except the `excluded` that have the fewest assignments for it. */
typedef struct {
    int32_t devices, excluded; /* D, n < D */
    double alpha;              /* balanced if loads differ by less than alpha times their mean */
    ek_plan_costs costs;
    const int64_t *counts; /* [devices][devices] source, expert */
} ek_prophet_case;

typedef struct {
    double before_s, after_s; /* T' without replicas; with the selected ones */
    int32_t selected;
    int32_t *expert;  /* [devices], the first `selected` entries */
    int32_t *without; /* [devices][excluded] devices that each selected expert does not go to */
} ek_prophet_selection;

/* Runs Algorithm 1.  o: scratch for c->devices ranks; s->expert and s->without are allocated by the
 * caller. */
void ek_prophet_select(const ek_prophet_case *c, ek_prophet_loads *o, ek_prophet_selection *s);

#endif
