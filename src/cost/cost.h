/* cost/cost.h - the cost model: predicted times on a measured machine, with their factors.
 *
 *   products    rows of experts, at the FLOP/s measured for as many rows per expert
 *   copies      bytes read and written over the copy bandwidth
 *   all-to-all  the messages of a link class are serial, the two classes run in parallel
 *   multicast   a binomial tree or a pipelined chain, whichever is faster
 *
 * All functions are pure functions of a machine's tables.  Those that take an ek_cost_reason append
 * named factors to it (NULL: none): lines of a tree, each with its value and formula. */
#ifndef COST_COST_H
#define COST_COST_H

#include "cost/machine.h"

/* --- reasons ---------------------------------------------------------------------------------- */

enum { EK_COST_LINES = 32, EK_COST_TEXT = 160 };

typedef struct {
    int depth; /* 0: a result; 1 and more: its factors */
    const char *name;
    double value;
    const char *unit; /* "s", "B" */
    char text[EK_COST_TEXT];
} ek_cost_line;

/* Lines beyond the last are dropped. */
typedef struct {
    int n;
    ek_cost_line line[EK_COST_LINES];
} ek_cost_reason;

/* Adds a line; reason NULL: does nothing.  name and unit: static text. */
void ek_cost_add_line(ek_cost_reason *reason, int depth, const char *name, double value,
                      const char *unit, const char *fmt, ...) EK_PRINTF(6, 7);

enum { EK_COST_QUANTITY = 24 };

/* Formats a number with its unit and three significant digits, "3.10 us", "2.14 TFLOP/s"; returns
 * buf [EK_COST_QUANTITY]. */
const char *ek_cost_quantity(char *buf, double x, const char *unit);

/* Formats "expert row   3.1 us = ...", indented by depth; returns text [cap], truncated to cap. */
const char *ek_cost_line_text(const ek_cost_line *line, char *text, size_t cap);

/* --- times ------------------------------------------------------------------------------------ */

/* FLOPs of a row of an expert for one of the ek_cost_product kinds. */
static inline double ek_cost_row_flops(int64_t hidden, int64_t ff)
{
    return 6.0 * (double)hidden * (double)ff;
}

/* Seconds of a rank's products for `rows` rows, spread evenly over `experts` experts of hidden x
 * ff.  0 rows take none. */
double ek_cost_products(const ek_machine *m, ek_cost_product p, int64_t hidden, int64_t ff,
                        double rows, double experts);

/* FLOP/s of the fastest product that was measured, of any shape. */
double ek_cost_best_product(const ek_machine *m);

/* Seconds of a rank's copies; bytes: read plus written. */
double ek_cost_copies(const ek_machine *m, double bytes);

/* Whether messages can be predicted: at least one link class was measured. */
int ek_cost_has_links(const ek_machine *m);

/* The class whose measurements are used for a link: itself, or the other if it was not measured. */
ek_link ek_cost_link_of(const ek_machine *m, ek_link link);

/* Seconds of an all-to-all in which each of `ranks` ranks, on `nodes` nodes of nearly equal sizes,
 * sends `bytes` in total, evenly to all others.  A rank's messages of one class are serial; ranks
 * of a node share its network link.  One rank takes none. */
double ek_cost_all_to_all(const ek_machine *m, int64_t ranks, int64_t nodes, double bytes,
                          ek_cost_reason *reason, int depth);

/* Seconds of a multicast of `bytes` to `ranks` ranks, including its root. */
double ek_cost_multicast(const ek_machine *m, ek_link link, int64_t ranks, double bytes);

#endif
