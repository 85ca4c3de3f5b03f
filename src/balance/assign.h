/* balance/assign.h - the linear assignment problem: n rows to n columns, one to one, at the least
 * total cost.
 *
 * Source       Kuhn (1955) and Munkres (1957); shortest augmenting paths of Jonker and Volgenant
 *              (1987), without their initial reductions.
 * Formula      Potentials u, v satisfy cost_ij >= u_i + v_j, with equality where i is assigned to
 *              j.  Rows are added one by one along Dijkstra's shortest path over
 *              cost_ij - u_i - v_j.  Every assignment costs at least sum u + sum v, which the
 *              result attains.
 * Complexity   O(n^3) time, O(n) memory beside the costs.
 *
 * Pure and deterministic, also among several optimal assignments. */
#ifndef BALANCE_ASSIGN_H
#define BALANCE_ASSIGN_H

#include "base/arena.h"

#include <stdint.h>

/* Memory for up to `most` rows. */
typedef struct {
    int64_t *u, *v, *least; /* [most + 1]; column n stands for the row being added */
    int32_t *row_of, *from; /* [most + 1] */
    unsigned char *reached; /* [most + 1] */
} ek_assign;

void ek_assign_reserve(ek_assign *a, ek_arena *arena, int32_t most);

/* Solves for cost [n][n], each within 2^61 / n of 0, and fills column_of [n].  Returns the total
 * cost. */
int64_t ek_assign_rows(ek_assign *a, int32_t n, const int64_t *cost, int32_t *column_of);

#endif
