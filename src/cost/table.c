/* Tables: interpolation, extrapolation, and smoothing of measurements. */
#include "cost/table.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Log-log interpolation between two points, clamped to their values against rounding. */
static double interpolate_log(double x0, double y0, double x1, double y1, double x)
{
    double t = log(x / x0) / log(x1 / x0);
    double y = exp(log(y0) + t * (log(y1) - log(y0)));

    return fmax(fmin(y0, y1), fmin(fmax(y0, y1), y));
}

/* The value at x[0] <= x <= x[n - 1]. */
static double value_inside(const ek_cost_table *t, double x)
{
    int32_t i = 0;

    while (i + 1 < t->n && t->x[i + 1] <= x)
        i++;
    if (x <= t->x[i] || i + 1 == t->n)
        return t->y[i];
    return interpolate_log(t->x[i], t->y[i], t->x[i + 1], t->y[i + 1], x);
}

double ek_cost_time_at(const ek_cost_table *t, double x)
{
    int32_t last = t->n - 1;

    if (t->n == 0)
        return 0;
    if (x <= t->x[0])
        return t->y[0];
    return x >= t->x[last] ? t->y[last] * (x / t->x[last]) : value_inside(t, x);
}

double ek_cost_rate_at(const ek_cost_table *t, double x)
{
    if (t->n == 0)
        return 0;
    if (x <= t->x[0])
        return t->y[0] * (x / t->x[0]);
    return x >= t->x[t->n - 1] ? t->y[t->n - 1] : value_inside(t, x);
}

void ek_cost_smooth_times(ek_cost_table *t)
{
    for (int32_t i = t->n - 2; i >= 0; i--)
        t->y[i] = fmin(t->y[i], t->y[i + 1]);
}

void ek_cost_smooth_rates(ek_cost_table *t)
{
    for (int32_t i = t->n - 2; i >= 0; i--)
        t->y[i] = fmax(t->y[i], t->y[i + 1] * (t->x[i] / t->x[i + 1]));
}

double ek_cost_round(double x)
{
    char text[32];

    snprintf(text, sizeof(text), "%.3e", x);
    return strtod(text, NULL);
}
