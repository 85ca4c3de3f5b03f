/* Predicted times from the tables of a machine, and their factors. */
#include "cost/cost.h"

#include "base/count_text.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* --- reasons ---------------------------------------------------------------------------------- */

void ek_cost_add_line(ek_cost_reason *reason, int depth, const char *name, double value,
                      const char *unit, const char *fmt, ...)
{
    ek_cost_line *l;
    va_list args;

    if (reason == NULL || reason->n == EK_COST_LINES)
        return;
    l = &reason->line[reason->n++];
    l->depth = depth;
    l->name = name;
    l->value = value;
    l->unit = unit;
    va_start(args, fmt);
    vsnprintf(l->text, sizeof(l->text), fmt, args);
    va_end(args);
}

const char *ek_cost_quantity(char *buf, double x, const char *unit)
{
    static const char *const prefixes[] = {"n", "u", "m", "", "k", "M", "G", "T", "P"};
    enum { NONE = 3, LAST = 8 };
    int i = NONE;

    for (; x != 0 && fabs(x) < 0.9995 && i > 0; i--)
        x *= 1000;
    for (; fabs(x) >= 999.5 && i < LAST; i++)
        x /= 1000;
    if (x == 0)
        snprintf(buf, EK_COST_QUANTITY, "0 %s", unit);
    else if (fabs(x) < 0.9995 || fabs(x) >= 999.5) /* no prefix is small or large enough */
        snprintf(buf, EK_COST_QUANTITY, "%.3g %s%s", x, prefixes[i], unit);
    else
        snprintf(buf, EK_COST_QUANTITY, "%.*f %s%s", ek_decimals(fabs(x)), x, prefixes[i], unit);
    return buf;
}

const char *ek_cost_line_text(const ek_cost_line *line, char *text, size_t cap)
{
    char value[EK_COST_QUANTITY];

    snprintf(text, cap, "%*s%-*s %9s%s%s", 2 * line->depth, "", 22 - 2 * line->depth, line->name,
             ek_cost_quantity(value, line->value, line->unit), line->text[0] != '\0' ? "  = " : "",
             line->text);
    return text;
}

/* --- times ------------------------------------------------------------------------------------ */

double ek_cost_products(const ek_machine *m, ek_cost_product p, int64_t hidden, int64_t ff,
                        double rows, double experts)
{
    double each = rows / fmax(experts, 1);

    if (rows <= 0)
        return 0;
    return rows * ek_cost_row_flops(hidden, ff) / ek_cost_rate_at(&m->rate[p], each);
}

static double largest_value(const ek_cost_table *t, double above)
{
    for (int32_t i = 0; i < t->n; i++)
        above = fmax(above, t->y[i]);
    return above;
}

double ek_cost_best_product(const ek_machine *m)
{
    double best = 0;

    for (int p = 0; p < EK_COST_PRODUCTS; p++)
        best = largest_value(&m->rate[p], best);
    for (int32_t i = 0; i < m->kernels.n; i++)
        if (m->kernels.cost[i].kernel <= EK_KERNEL_PRODUCT_WEIGHT)
            best = largest_value(&m->kernels.cost[i].rate, best);
    return best;
}

double ek_cost_copies(const ek_machine *m, double bytes)
{
    return bytes / m->copy;
}

int ek_cost_has_links(const ek_machine *m)
{
    return m->link[EK_LINK_NODE].message.n > 0 || m->link[EK_LINK_NET].message.n > 0;
}

ek_link ek_cost_link_of(const ek_machine *m, ek_link link)
{
    if (m->link[link].message.n > 0)
        return link;
    return link == EK_LINK_NODE ? EK_LINK_NET : EK_LINK_NODE;
}

/* Seconds of n serial messages of one class.  If k times as many ranks of a node share its link as
 * when it was measured, a message takes as long as one k times as long. */
static double class_seconds(const ek_machine *m, ek_link link, double n, double bytes,
                            double ranks_a_node, ek_cost_reason *reason, int depth)
{
    ek_link from = ek_cost_link_of(m, link);
    const ek_link_cost *l = &m->link[from];
    double share = from == EK_LINK_NET ? ranks_a_node / (double)l->ranks_a_node : 1;
    double one = ek_cost_time_at(&l->message, bytes * share);
    char a[EK_COST_QUANTITY], b[EK_COST_QUANTITY];

    if (n <= 0)
        return 0;
    ek_cost_add_line(reason, depth, link == EK_LINK_NET ? "between nodes" : "inside a node",
                     n * one, "s", "%g messages of %s x %s%s%s", n, ek_cost_quantity(a, bytes, "B"),
                     ek_cost_quantity(b, one, "s"),
                     share > 1   ? ", more ranks sharing a node's link than measured"
                     : share < 1 ? ", fewer ranks sharing a node's link than measured"
                                 : "",
                     from != link ? "; the other class, as this was not measured" : "");
    return n * one;
}

double ek_cost_all_to_all(const ek_machine *m, int64_t ranks, int64_t nodes, double bytes,
                          ek_cost_reason *reason, int depth)
{
    double a_node, near, far, message;
    int at = reason != NULL ? reason->n : 0;
    double seconds;

    if (ranks <= 1)
        return 0;
    nodes = nodes < 1 ? 1 : nodes > ranks ? ranks : nodes;
    a_node = ceil((double)ranks / (double)nodes); /* the largest */
    message = bytes / (double)(ranks - 1);
    ek_cost_add_line(reason, depth, "all-to-all", 0, "s", "the longer of its classes");
    near = class_seconds(m, EK_LINK_NODE, a_node - 1, message, a_node, reason, depth + 1);
    far = class_seconds(m, EK_LINK_NET, (double)ranks - a_node, message, a_node, reason, depth + 1);
    seconds = fmax(near, far);
    if (reason != NULL && at < reason->n)
        reason->line[at].value = seconds;
    return seconds;
}

double ek_cost_multicast(const ek_machine *m, ek_link link, int64_t ranks, double bytes)
{
    enum { SEGMENTS = 8 }; /* of a message in a pipelined chain, at least */
    const ek_cost_table *hop = &m->link[ek_cost_link_of(m, link)].hop;
    double one = ek_cost_time_at(hop, bytes), tree, chain;

    if (ranks <= 1)
        return 0;
    tree = ceil(log2((double)ranks)) * one;
    chain = one + (double)(ranks - 2) * ek_cost_time_at(hop, bytes / SEGMENTS);
    return fmin(tree, chain);
}
