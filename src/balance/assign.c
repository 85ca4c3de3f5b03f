/* Shortest augmenting paths, one row after the other. */
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

/* Looks on from a column that is reached, by its row; the column to reach next. */
static int32_t look_on(ek_assign *a, int32_t n, const int64_t *cost, int32_t column)
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

/* Moves the potentials so that the way to a column costs nothing more. */
static void raise_prices(ek_assign *a, int32_t n, int64_t by)
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

/* The shortest way from column n, where the new row is, to one that no row has. */
static void add_row(ek_assign *a, int32_t n, const int64_t *cost, int32_t row)
{
    int32_t column = n;

    memset(a->reached, 0, (size_t)n + 1);
    for (int32_t j = 0; j < n; j++)
        a->least[j] = INT64_MAX;
    a->row_of[n] = row;
    while (a->row_of[column] >= 0) {
        int32_t next;

        a->reached[column] = 1;
        next = look_on(a, n, cost, column);
        raise_prices(a, n, a->least[next]);
        column = next;
    }
    while (column != n) { /* along it every row takes the next column */
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
        add_row(a, n, cost, i);
    for (int32_t j = 0; j < n; j++) {
        column_of[a->row_of[j]] = j;
        sum += cost[(int64_t)a->row_of[j] * n + j];
    }
    return sum;
}
