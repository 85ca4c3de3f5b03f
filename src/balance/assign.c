/* Shortest augmenting paths, one row at a time. */
#include "balance/assign.h"

#include <string.h>

void ek_assign_reserve(ek_assign *a, ek_arena *arena, int32_t most)
{
    a->u = ek_arena_alloc(arena, most + 1, sizeof(*a->u));
    a->v = ek_arena_alloc(arena, most + 1, sizeof(*a->v));
    a->least = ek_arena_alloc(arena, most + 1, sizeof(*a->least));
    a->row_of = ek_arena_alloc(arena, most + 1, sizeof(*a->row_of));
    a->from = ek_arena_alloc(arena, most + 1, sizeof(*a->from));
    a->reached = ek_arena_alloc(arena, most + 1, sizeof(*a->reached));
}

/* Relaxes the edges of the row assigned to `column`; returns the column to reach next. */
static int32_t relax_edges(ek_assign *a, int32_t n, const int64_t *cost, int32_t column)
{
    int32_t row = a->row_of[column], next = -1;

    for (int32_t j = 0; j < n; j++) {
        int64_t c;

        if (a->reached[j])
            continue;
        c = cost[(int64_t)row * n + j] - a->u[row] - a->v[j];
        if (c < a->least[j]) {
            a->least[j] = c;
            a->from[j] = column;
        }
        if (next < 0 || a->least[j] < a->least[next])
            next = j;
    }
    return next;
}

/* Adjusts the potentials so that the path to the next column has reduced cost 0. */
static void adjust_potentials(ek_assign *a, int32_t n, int64_t by)
{
    for (int32_t j = 0; j <= n; j++) {
        if (a->reached[j]) {
            a->u[a->row_of[j]] += by;
            a->v[j] -= by;
        } else {
            a->least[j] -= by;
        }
    }
}

/* Adds a row: shortest path from the extra column n to a column without a row. */
static void add_assignment_row(ek_assign *a, int32_t n, const int64_t *cost, int32_t row)
{
    int32_t column = n;

    memset(a->reached, 0, (size_t)n + 1);
    for (int32_t j = 0; j < n; j++)
        a->least[j] = INT64_MAX;
    a->row_of[n] = row;
    while (a->row_of[column] >= 0) {
        int32_t next;

        a->reached[column] = 1;
        next = relax_edges(a, n, cost, column);
        adjust_potentials(a, n, a->least[next]);
        column = next;
    }
    while (column != n) { /* shift the rows along the path */
        int32_t before = a->from[column];

        a->row_of[column] = a->row_of[before];
        column = before;
    }
}

int64_t ek_assign_rows(ek_assign *a, int32_t n, const int64_t *cost, int32_t *column_of)
{
    int64_t sum = 0;

    memset(a->u, 0, ((size_t)n + 1) * sizeof(*a->u));
    memset(a->v, 0, ((size_t)n + 1) * sizeof(*a->v));
    for (int32_t j = 0; j < n; j++)
        a->row_of[j] = -1;
    for (int32_t i = 0; i < n; i++)
        add_assignment_row(a, n, cost, i);
    for (int32_t j = 0; j < n; j++) {
        column_of[a->row_of[j]] = j;
        sum += cost[(int64_t)a->row_of[j] * n + j];
    }
    return sum;
}
