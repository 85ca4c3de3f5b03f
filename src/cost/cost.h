/* cost/cost.h - how long things take on a machine that was measured, and why.
 *
 *   products    rows of experts, by the matrix rate at so many rows an expert
 *   copies      bytes read and written over the copy rate
 *   all-to-all  messages of each link class one after the other, the classes side by side
 *   multicast   hops of a tree, or of a chain that passes pieces on, whichever is quicker
 *
 * Everything is a plain function of a machine's tables.  What is asked for with a place for the
 * reasons leaves named factors there: lines of a tree, each with its seconds and how they come
 * about. */
#ifndef COST_COST_H
#define COST_COST_H

#include "cost/machine.h"

/* --- reasons ---------------------------------------------------------------------------------- */

enum { EK_COST_LINES = 32, EK_COST_TEXT = 160 };

typedef struct {
    int depth; /* 0: a result; 1 and more: what it is made of */
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

/* Adds a line; why NULL: nobody asks.  name and unit: static text. */
void ek_cost_say(ek_cost_reason *reason, int depth, const char *name, double value,
                 const char *unit, const char *fmt, ...) EK_PRINTF(6, 7);

enum { EK_COST_QUANTITY = 24 };

/* "3.1 us", "2.1 TFLOP/s": a number with its unit; returns buf [EK_COST_QUANTITY]. */
const char *ek_cost_quantity(char *buf, double x, const char *unit);

/* "expert row   3.1 us = ...", indented by depth; returns text, cut where it does not fit. */
const char *ek_cost_line_text(const ek_cost_line *line, char *text, size_t cap);

/* --- times ------------------------------------------------------------------------------------ */

/* Floating-point operations of a row of an expert, in one direction. */
static inline double ek_cost_row_flops(int64_t hidden, int64_t ff)
{
    return 6.0 * (double)hidden * (double)ff;
}

/* Seconds in which a rank multiplies `rows` rows, shared evenly by `experts` experts of hidden x
 * ff, in one direction.  0 rows take none. */
double ek_cost_products(const ek_machine *m, ek_cost_product p, int64_t hidden, int64_t ff,
                        double rows, double experts);

/* Seconds in which a rank reads and writes so many bytes, both counted. */
double ek_cost_copies(const ek_machine *m, double bytes);

/* Whether messages of this class can be predicted: it, or the other in its place, was measured. */
int ek_cost_has_links(const ek_machine *m);

/* The measured class that stands for one. */
ek_link ek_cost_link_of(const ek_machine *m, ek_link link);

/* Seconds of an all-to-all in which each of `ranks` ranks, on `nodes` nodes of as even sizes as can
 * be, sends `bytes` to all others together, evenly.  A rank's messages of one class follow one
 * another; ranks of a node share its way out.  One rank takes none. */
double ek_cost_all_to_all(const ek_machine *m, int64_t ranks, int64_t nodes, double bytes,
                          ek_cost_reason *reason, int depth);

/* Seconds of a multicast of `bytes` to all of `ranks` ranks, its root counted. */
double ek_cost_multicast(const ek_machine *m, ek_link link, int64_t ranks, double bytes);

#endif
