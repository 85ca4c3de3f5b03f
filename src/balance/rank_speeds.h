/* balance/rank_speeds.h - follows the speeds of ranks, from the times of their expert products.
 *
 * Sample       of a rank and a step: seconds / (rows + group_rows groups), over the same of the
 *              median rank.  A group is an expert with rows in a micro-batch; its fixed cost is
 *              that of group_rows rows.  Steps in which a rank has little to do give no sample.
 * Cost         limits.row_cost of row_costs.h; EK_ROW_COST_ONE for the median rank.  A rank differs
 *              when the median of its last EK_SPEEDS_WINDOW samples is more than 1 / 8 away from 1
 *              and three quarters of them are more than 1 / 16 away; or, at once, when each of the
 *              last EK_SPEEDS_JUMP samples is more than 1 / 4 away from the cost in use.  A cost
 *              follows when the median has moved by more than 3 %, and is 1 again within 1 / 16.
 *              So noise on equal ranks changes no plan, and plans change rarely.
 *
 * All ranks call it with the same numbers and get the same costs; it uses no function whose results
 * differ between C libraries. */
#ifndef BALANCE_RANK_SPEEDS_H
#define BALANCE_RANK_SPEEDS_H

#include "balance/row_costs.h"

enum { EK_SPEEDS_WINDOW = 16, EK_SPEEDS_JUMP = 5 };

typedef struct {
    int32_t ranks;       /* 0: nothing is followed */
    int64_t group_rows;  /* set by the caller */
    double *sample;      /* [ranks][EK_SPEEDS_WINDOW], newest last */
    int32_t *n;          /* [ranks] samples */
    double *relative;    /* [ranks] the newest sample; 0: none */
    int32_t *cost;       /* [ranks] */
    int differ;          /* whether any cost is not EK_ROW_COST_ONE */
    double median_row_s; /* seconds of a row on the median rank, when costs changed last */
    double seconds_row[EK_SPEEDS_WINDOW]; /* the same of the last steps, newest last */
    int32_t n_steps;
} ek_rank_speeds;

void ek_rank_speeds_reserve(ek_rank_speeds *s, ek_arena *a, int32_t ranks);

/* Adds a step: seconds of expert products, rows and groups of each rank [ranks].  Returns whether
 * costs changed. */
int ek_rank_speeds_add(ek_rank_speeds *s, const double *seconds, const double *rows,
                       const double *groups);

#endif
