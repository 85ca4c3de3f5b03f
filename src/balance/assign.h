/* balance/assign.h - the assignment problem: n rows to n columns, one each, at the least cost in
 * all.
 *
 * Source       Kuhn (1955) and Munkres (1957), by shortest augmenting paths as Jonker and Volgenant
 *              (1987) have them, without their initial reductions.
 * Formula      potentials u, v with cost_ij >= u_i + v_j, equal where i is assigned to j; each row
 *              in turn is added by Dijkstra's shortest path over cost_ij - u_i - v_j.  No
 *              assignment costs less than sum u + sum v, which is what this one costs.
 * Complexity   O(n^3) time, O(n) memory beside the costs.
 *
 * Pure; of several cheapest assignments always the same one. */
#ifndef BALANCE_ASSIGN_H
#define BALANCE_ASSIGN_H

#include "base/arena.h"

#include <stdint.h>

/* Memory for so many rows. */
typedef struct {
    int64_t *u, *v, *least; /* [most + 1], column `most` being that of the row to be added */
    int32_t *row_of, *from; /* [most + 1] */
    unsigned char *reached; /* [most + 1] */
} ek_assign;

void ek_assign_reserve(ek_assign *a, ek_arena *arena, int32_t most);

/* cost [n][n], each within 2^61 / n of 0; column_of [n] is filled in.  Returns what that costs. */
int64_t ek_assign_rows(ek_assign *a, int32_t n, const int64_t *cost, int32_t *column_of);

#endif
