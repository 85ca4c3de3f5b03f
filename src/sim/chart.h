/* sim/chart.h - charts of points and lines as SVG inside a page (sim/html.h). */
#ifndef SIM_CHART_H
#define SIM_CHART_H

#include "sim/html.h"

typedef struct {
    double x, y;
    const char *name;  /* shown when pointed at; NULL: the coordinates alone */
    const char *label; /* beside the point, where there is room; NULL: none */
} ek_chart_point;

typedef enum { EK_CHART_DOTS, EK_CHART_LINE, EK_CHART_STAIRS } ek_chart_kind;

typedef struct {
    const char *name; /* in the legend */
    ek_html_colour colour;
    ek_chart_kind kind; /* lines and stairs have a dot at each point, */
    int small;          /* dots are small */
    const ek_chart_point *points;
    int n;
} ek_chart_series;

/* An axis: quantities of a unit ("s", "B", or "" for numbers), with or without 0, or logarithms of
 * them; with ticks of its own, or at round numbers. */
typedef struct {
    const char *label, *unit;
    int from_zero, logarithmic;
    const double *ticks; /* [n_ticks], shown as factors; NULL: round numbers */
    int n_ticks;
} ek_chart_axis;

typedef struct {
    const char *title; /* above it, and for those who do not see it; NULL: none above */
    const char *summary;
    int width, height; /* of the drawing, in its own units */
    ek_chart_axis x, y;
    const ek_chart_series *series;
    int n_series;
    double limit; /* a line at this x, 0: none, with its name */
    const char *limit_name;
} ek_chart;

void ek_chart_put(FILE *f, const ek_chart *chart);

#endif
