/* balance/plan_prophet.h - Pro-Prophet's Algorithm 1 as printed; for plan_prophet.c and its test.
 */
#ifndef BALANCE_PLAN_PROPHET_H
#define BALANCE_PLAN_PROPHET_H

#include "balance/planner.h"

/* What ranks do while replicas are being chosen. */
typedef struct {
    int32_t ranks;
    int64_t *served;   /* H [ranks]: assignments computed there */
    int64_t *received; /* R [ranks]: those of them that come from other ranks */
    int64_t copies;    /* over experts that have replicas: the replicas, and the home's own */
    int64_t *key;      /* [ranks], of the order below */
    int32_t *order;    /* [ranks] */
} ek_prophet_loads;

void ek_prophet_loads_reserve(ek_prophet_loads *o, ek_arena *a, int32_t ranks);

/* The paper's case: every device is home to one expert, which has its number, and a selected expert
 * goes to all devices but the `excluded` that have the fewest assignments for it. */
typedef struct {
    int32_t devices, excluded; /* D, n < D */
    double alpha;              /* balanced: loads differ by less than alpha times their mean */
    ek_plan_costs costs;
    const int64_t *counts; /* [devices][devices]: source, expert */
} ek_prophet_case;

typedef struct {
    double before_s, after_s; /* T' without replicas, and with those selected */
    int32_t selected;
    int32_t *expert;  /* [devices], the first `selected` of them */
    int32_t *without; /* [devices][excluded]: the devices that each does not go to */
} ek_prophet_selection;

/* `o` is memory for that many ranks; s->expert and s->without are the caller's. */
void ek_prophet_select(const ek_prophet_case *c, ek_prophet_loads *o, ek_prophet_selection *s);

#endif
