/* balance/assign.h - the linear assignment problem: n rows to n columns, one to one, at the least
 * total cost.
 *
 * Source       Kuhn (1955) and Munkres (1957); phases of many paths as in Hopcroft and Karp (1973).
 * Formula      Potentials u, v satisfy cost_ij >= u_i + v_j, with equality where i is assigned to
 *              j.  A phase searches the distances over cost_ij - u_i - v_j from all rows without a
 *              column at once, adjusts the potentials so that the shortest paths cost 0, and adds
 *              rows along as many of those as a depth-first search finds disjoint.  Every
 *              assignment costs at least sum u + sum v, which the result attains.
 * Complexity   O(n^2) time a phase, O(n) memory beside the costs.  At most n phases; costs that are
 *              small integers, as counts of moving experts are, need few: 1,024 rows 10 to 40.
 *
 * Pure and deterministic, also among several optimal assignments. */
#ifndef BALANCE_ASSIGN_H
#define BALANCE_ASSIGN_H

#include "base/arena.h"

#include <stdint.h>

/* Memory for up to `most` rows. */
typedef struct {
    int64_t *u, *v, *least; /* [most] potentials; distances of columns */
    int32_t *row_of;        /* [most + 1] row of each column, -1: none; the last one is scratch */
    int32_t *from;          /* [most] column before it on a path */
    int32_t *arc;           /* [most] next column to try from each row */
    unsigned char *reached; /* [most] columns */
} ek_assign;

void ek_assign_reserve(ek_assign *a, ek_arena *arena, int32_t most);

/* Solves for cost [n][n], each within 2^61 / n of 0, and fills column_of [n].  Returns the total
 * cost. */
int64_t ek_assign_rows(ek_assign *a, int32_t n, const int64_t *cost, int32_t *column_of);

#endif
