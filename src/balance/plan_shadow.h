/* balance/plan_shadow.h - shadowing an expert, for the planners that do (plan_shadow.c says what it
 * is). */
#ifndef BALANCE_PLAN_SHADOW_H
#define BALANCE_PLAN_SHADOW_H

#include "balance/planner.h"

/* A rank that has no slot for the expert; -1: all do. */
int32_t ek_shadow_full(const ek_plan_limits *l, const ek_placement *at, int32_t expert);

/* Puts the expert on every rank, each of which serves its own assignments; all have a slot. */
void ek_shadow(const ek_plan_limits *l, const int64_t *counts, int32_t expert, ek_plan *p);

#endif
