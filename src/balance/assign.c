/* Shortest augmenting paths from all rows without a column at once. */
#include "balance/assign.h"

#include <string.h>

void ek_assign_reserve(ek_assign *a, ek_arena *arena, int32_t most)
{
    a->u = ek_arena_alloc(arena, most, sizeof(*a->u));
    a->v = ek_arena_alloc(arena, most, sizeof(*a->v));
    a->least = ek_arena_alloc(arena, most, sizeof(*a->least));
    a->row_of = ek_arena_alloc(arena, most + 1, sizeof(*a->row_of));
    a->from = ek_arena_alloc(arena, most, sizeof(*a->from));
    a->arc = ek_arena_alloc(arena, most, sizeof(*a->arc));
    a->reached = ek_arena_alloc(arena, most, sizeof(*a->reached));
}

/* Potentials with cost_ij >= u_i + v_j, each row and column having an edge of reduced cost 0. */
static void start_potentials(ek_assign *a, int32_t n, const int64_t *cost)
{
    for (int32_t j = 0; j < n; j++)
        a->v[j] = INT64_MAX;
    for (int32_t i = 0; i < n; i++, cost += n) {
        int64_t least = INT64_MAX;

        for (int32_t j = 0; j < n; j++)
            least = cost[j] < least ? cost[j] : least;
        a->u[i] = least;
        for (int32_t j = 0; j < n; j++)
            a->v[j] = cost[j] - least < a->v[j] ? cost[j] - least : a->v[j];
    }
}

/* --- distances -------------------------------------------------------------------------------- */

/* Updates the distances of the columns not yet reached by way of a row at distance d. */
static void relax_edges(ek_assign *a, int32_t n, const int64_t *cost, int32_t row, int64_t d)
{
    const int64_t *of_row = cost + (int64_t)row * n;
    int64_t less = a->u[row] - d;

    for (int32_t j = 0; j < n; j++) {
        int64_t c = of_row[j] - less - a->v[j];

        a->least[j] = c < a->least[j] ? c : a->least[j];
    }
}

/* The least distance of a column that is not reached. */
static int64_t next_distance(const ek_assign *a, int32_t n)
{
    int64_t d = INT64_MAX;

    for (int32_t j = 0; j < n; j++)
        if (!a->reached[j] && a->least[j] < d)
            d = a->least[j];
    return d;
}

/* Whether a column without a row is at distance d. */
static int is_open_at(const ek_assign *a, int32_t n, int64_t d)
{
    for (int32_t j = 0; j < n; j++)
        if (a->row_of[j] < 0 && a->least[j] == d)
            return 1;
    return 0;
}

/* Dijkstra's search from all rows without a column until a column without a row is next.  Returns
 * its distance; a->reached: the columns before it, at distances a->least. */
static int64_t search_distances(ek_assign *a, int32_t n, const int64_t *cost,
                                const int32_t *column_of)
{
    int64_t d;

    memset(a->reached, 0, (size_t)n);
    for (int32_t j = 0; j < n; j++)
        a->least[j] = INT64_MAX;
    for (int32_t i = 0; i < n; i++)
        if (column_of[i] < 0)
            relax_edges(a, n, cost, i, 0);
    while (!is_open_at(a, n, d = next_distance(a, n)))
        for (int32_t j = 0; j < n; j++)
            if (!a->reached[j] && a->least[j] == d && a->row_of[j] >= 0) {
                a->reached[j] = 1;
                relax_edges(a, n, cost, a->row_of[j], d);
            }
    return d;
}

/* Adjusts the potentials so that paths of length d have reduced cost 0. */
static void adjust_potentials(ek_assign *a, int32_t n, const int32_t *column_of, int64_t d)
{
    for (int32_t i = 0; i < n; i++)
        a->u[i] += column_of[i] < 0 ? d : 0;
    for (int32_t j = 0; j < n; j++)
        if (a->reached[j]) {
            a->u[a->row_of[j]] += d - a->least[j];
            a->v[j] -= d - a->least[j];
        }
}

/* --- paths ------------------------------------------------------------------------------------ */

/* The next column, not yet visited, by an edge of reduced cost 0 of a row; -1: none. */
static int32_t next_column(ek_assign *a, int32_t n, const int64_t *cost, int32_t row)
{
    const int64_t *of_row = cost + (int64_t)row * n;

    for (; a->arc[row] < n; a->arc[row]++)
        if (of_row[a->arc[row]] - a->u[row] == a->v[a->arc[row]] && !a->reached[a->arc[row]])
            return a->arc[row];
    return -1;
}

/* Depth-first search of a path of reduced cost 0 from a row to a column without a row, visiting no
 * column twice in a phase, and shifts the rows along it.  Returns whether there is one.  Column n
 * stands for the row. */
static int add_assignment_row(ek_assign *a, int32_t n, const int64_t *cost, int32_t *column_of,
                              int32_t row)
{
    int32_t column = n, next;

    a->row_of[n] = row;
    while ((next = next_column(a, n, cost, a->row_of[column])) < 0 || a->row_of[next] >= 0) {
        if (next < 0 && column == n)
            return 0;
        if (next >= 0) {
            a->reached[next] = 1;
            a->from[next] = column;
        }
        column = next >= 0 ? next : a->from[column];
    }
    a->reached[next] = 1;
    a->from[next] = column;
    for (; next != n; next = column) {
        column = a->from[next];
        a->row_of[next] = a->row_of[column];
        column_of[a->row_of[next]] = next;
    }
    return 1;
}

/* Augments along as many paths of reduced cost 0 as are found without visiting a column twice;
 * returns their number. */
static int32_t add_rows(ek_assign *a, int32_t n, const int64_t *cost, int32_t *column_of)
{
    int32_t added = 0;

    memset(a->reached, 0, (size_t)n);
    memset(a->arc, 0, (size_t)n * sizeof(*a->arc));
    for (int32_t i = 0; i < n; i++)
        if (column_of[i] < 0)
            added += add_assignment_row(a, n, cost, column_of, i);
    return added;
}

int64_t ek_assign_rows(ek_assign *a, int32_t n, const int64_t *cost, int32_t *column_of)
{
    int64_t sum = 0;
    int32_t left = n;

    start_potentials(a, n, cost);
    for (int32_t j = 0; j < n; j++)
        a->row_of[j] = column_of[j] = -1;
    left -= add_rows(a, n, cost, column_of);
    while (left > 0) {
        adjust_potentials(a, n, column_of, search_distances(a, n, cost, column_of));
        left -= add_rows(a, n, cost, column_of);
    }
    for (int32_t i = 0; i < n; i++)
        sum += cost[(int64_t)i * n + column_of[i]];
    return sum;
}
