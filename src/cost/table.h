/* cost/table.h - measured values by size.
 *
 * y over ascending x, interpolated linearly in log x and log y, exact at the points.  A table of
 * times is constant below its first point and proportional to x above the last; a table of rates is
 * proportional to x below its first point (less work takes no less time) and constant above the
 * last.  In neither does more work take less time; reading a machine file checks this. */
#ifndef COST_TABLE_H
#define COST_TABLE_H

#include <stdint.h>

enum { EK_COST_POINTS = 24 };

/* Points of a table; n 0: not measured. */
typedef struct {
    int32_t n;
    double x[EK_COST_POINTS], y[EK_COST_POINTS];
} ek_cost_table;

/* The value at x; 0 for an empty table. */
double ek_cost_time_at(const ek_cost_table *t, double x);
double ek_cost_rate_at(const ek_cost_table *t, double x);

/* Make a measured table monotonic: where more work took less time, the time of the smaller amount
 * is lowered to that of the larger, as disturbances only make a measurement slower. */
void ek_cost_smooth_times(ek_cost_table *t);
void ek_cost_smooth_rates(ek_cost_table *t);

/* Rounds to 4 significant digits, which exceed the precision of a measurement. */
double ek_cost_round(double x);

#endif
