/* balance/plan_shadow.h - shadowing of one expert, for `shadow` and `fastermoe` (see
 * plan_shadow.c). */
#ifndef BALANCE_PLAN_SHADOW_H
#define BALANCE_PLAN_SHADOW_H

#include "balance/planner.h"

/* The first rank without a slot for the expert; -1: all have one. */
int32_t ek_shadow_full(const ek_plan_limits *l, const ek_placement *at, int32_t expert);

/* Puts the expert on every rank, each serving its own assignments.  All ranks must have a slot. */
void ek_shadow(const ek_plan_limits *l, const int64_t *counts, int32_t expert, ek_plan *p);

#endif
