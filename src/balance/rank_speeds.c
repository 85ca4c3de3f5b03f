/* Samples, medians and thresholds.
 *
 * Complexity   O(ranks^2) to find the median rank, O(ranks EK_SPEEDS_WINDOW^2) for the costs. */
#include "balance/rank_speeds.h"

#include <string.h>

/* Products of less time than this, in seconds a step, are not measured well enough. */
static const double least_seconds = 2e-3;

static const double differs = 9.0 / 8, quarter_differs = 17.0 / 16, equal = 17.0 / 16;
static const double jumps = 5.0 / 4, moves = 1.03;

void ek_rank_speeds_reserve(ek_rank_speeds *s, ek_arena *a, int32_t ranks)
{
    *s = (ek_rank_speeds){.ranks = ranks};
    s->sample = ek_arena_alloc(a, (int64_t)ranks * EK_SPEEDS_WINDOW, sizeof(*s->sample));
    s->n = ek_arena_alloc(a, ranks, sizeof(*s->n));
    s->relative = ek_arena_alloc(a, ranks, sizeof(*s->relative));
    s->cost = ek_arena_alloc(a, ranks, sizeof(*s->cost));
    for (int32_t r = 0; r < ranks && s->cost != NULL; r++)
        s->cost[r] = EK_ROW_COST_ONE;
}

/* The k-th smallest, from 0, of those of x [n] that are above 0. */
static double smallest(const double *x, int32_t n, int32_t k)
{
    for (int32_t i = 0; i < n; i++) {
        int32_t less = 0;

        for (int32_t j = 0; j < n; j++)
            less += x[j] > 0 && (x[j] < x[i] || (x[j] == x[i] && j < i));
        if (x[i] > 0 && less == k)
            return x[i];
    }
    return 0;
}

/* Appends a number to a window [EK_SPEEDS_WINDOW] of which *n are in use. */
static void append_sample(double *window, int32_t *n, double x)
{
    if (*n == EK_SPEEDS_WINDOW)
        memmove(window, window + 1, (EK_SPEEDS_WINDOW - 1) * sizeof(*window));
    else
        ++*n;
    window[*n - 1] = x;
}

/* Fills s->relative; returns the seconds of a row on the median rank, of the faster half where
 * their number is even; 0: too few ranks had enough to do. */
static double compare_ranks(ek_rank_speeds *s, const double *seconds, const double *rows,
                            const double *groups)
{
    int32_t n = 0;
    double median;

    for (int32_t r = 0; r < s->ranks; r++) {
        double fixed = (double)s->group_rows * groups[r];
        int measured = seconds[r] >= least_seconds && rows[r] > 0 && rows[r] >= fixed;

        s->relative[r] = measured ? seconds[r] / (rows[r] + fixed) : 0;
        n += measured;
    }
    if (2 * n <= s->ranks)
        return 0;
    median = smallest(s->relative, s->ranks, (n - 1) / 2);
    for (int32_t r = 0; r < s->ranks; r++)
        s->relative[r] /= median;
    return median;
}

static int is_beyond(double x, double of, double factor)
{
    return x > of * factor || x * factor < of;
}

static double snap_to_one(double x)
{
    return is_beyond(x, 1, equal) ? x : 1;
}

/* Whether each of the last samples is beyond what is used, on the same side. */
static int has_jumped(const double *window, int32_t n, double used)
{
    int above = 0, below = 0;

    for (int32_t i = n - EK_SPEEDS_JUMP; i < n; i++) {
        above += window[i] > used * jumps;
        below += window[i] * jumps < used;
    }
    return above == EK_SPEEDS_JUMP || below == EK_SPEEDS_JUMP;
}

/* The relative time that a rank is to have, which is `used` now. */
static double follow_rank(double *window, int32_t *n, double used)
{
    double median, quarter;

    if (*n >= EK_SPEEDS_JUMP && has_jumped(window, *n, used)) {
        memmove(window, window + *n - EK_SPEEDS_JUMP, EK_SPEEDS_JUMP * sizeof(*window));
        *n = EK_SPEEDS_JUMP;
        return snap_to_one(smallest(window, *n, EK_SPEEDS_JUMP / 2));
    }
    if (*n < EK_SPEEDS_WINDOW)
        return used;
    median = smallest(window, *n, EK_SPEEDS_WINDOW / 2);
    quarter = smallest(window, *n, median > 1 ? EK_SPEEDS_WINDOW / 4 : EK_SPEEDS_WINDOW * 3 / 4);
    if (used == 1)
        return is_beyond(median, 1, differs) && is_beyond(quarter, 1, quarter_differs) ? median
                                                                                       : used;
    if (snap_to_one(median) == 1)
        return 1;
    return is_beyond(median, used, moves) ? median : used;
}

static int32_t cost_of(double relative)
{
    double cost = relative * EK_ROW_COST_ONE + 0.5;

    return cost > EK_ROW_COST_MAX ? EK_ROW_COST_MAX : cost < 1 ? 1 : (int32_t)cost;
}

int ek_rank_speeds_add(ek_rank_speeds *s, const double *seconds, const double *rows,
                       const double *groups)
{
    double median_row_s = compare_ranks(s, seconds, rows, groups);
    int changed = 0;

    if (median_row_s == 0)
        return 0;
    append_sample(s->seconds_row, &s->n_steps, median_row_s);
    s->differ = 0;
    for (int32_t r = 0; r < s->ranks; r++) {
        double *window = s->sample + (int64_t)r * EK_SPEEDS_WINDOW;

        if (s->relative[r] > 0) {
            double used = (double)s->cost[r] / EK_ROW_COST_ONE, now;

            append_sample(window, &s->n[r], s->relative[r]);
            now = follow_rank(window, &s->n[r], used);
            if (now != used) {
                changed |= cost_of(now) != s->cost[r];
                s->cost[r] = cost_of(now);
            }
        }
        s->differ |= s->cost[r] != EK_ROW_COST_ONE;
    }
    if (changed)
        s->median_row_s = smallest(s->seconds_row, s->n_steps, s->n_steps / 2);
    return changed;
}
