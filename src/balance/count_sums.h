/* balance/count_sums.h - sums of the counts, in one pass over them: what `auto` needs, and
 * ek_plan_totals (planner.h) for all planners. */
#ifndef BALANCE_COUNT_SUMS_H
#define BALANCE_COUNT_SUMS_H

#include "balance/planner.h"

/* Fills total [experts] and tokens [ranks], the sums of counts [ranks][experts] by expert and by
 * source, and favourite [ranks], the first expert with the source's largest count if that is above
 * `worth`, else -1.  worth: at least 0; INT64_MAX: all favourites are -1, and none is searched. */
void ek_count_sums(const ek_plan_limits *l, const int64_t *counts, int64_t worth, int64_t *total,
                   int64_t *tokens, int32_t *favourite);

#endif
