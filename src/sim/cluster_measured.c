/* Numbers of levels from tables of messages. */
#include "sim/cluster_measured.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* y = constant + slope x */
typedef struct {
    double constant, slope;
} line;

/* The slope of the two largest sizes, and the constant with the least sum of squares of relative
 * errors, neither negative.  Short messages would blur the slope: links pass bursts faster than
 * they carry streams. */
static line fit_line(const ek_cost_table *t)
{
    double weights = 0, sum = 0;
    int32_t last = t->n - 1;
    line l = {0};

    if (t->n == 0)
        return l;
    l.slope = t->y[last] / t->x[last];
    if (t->n > 1 && t->y[last] > t->y[last - 1])
        l.slope = (t->y[last] - t->y[last - 1]) / (t->x[last] - t->x[last - 1]);
    for (int32_t i = 0; i < t->n; i++) {
        double weight = 1 / (t->y[i] * t->y[i]);

        weights += weight;
        sum += weight * (t->y[i] - l.slope * t->x[i]);
    }
    l.constant = t->n > 1 ? fmax(sum / weights, 0) : 0;
    return l;
}

/* The divisor of `ranks` that is nearest to the ratio of bandwidths of one rank and of all. */
static int64_t sharers(double ratio, int64_t ranks)
{
    int64_t best = 1;

    for (int64_t n = 2; n <= ranks; n++)
        if (ranks % n == 0 && fabs(log(ratio / (double)n)) < fabs(log(ratio / (double)best)))
            best = n;
    return best;
}

/* messages: that a rank sends at once in an all-to-all of this class; ranks: of the level below. */
static void fit_level(const ek_link_cost *cost, double messages, int64_t ranks, ek_cluster_level *l)
{
    line message = fit_line(&cost->message), hop = fit_line(&cost->hop);
    double overhead = 0;

    if (messages > 1 && cost->hop.n > 0)
        overhead = (messages * message.constant - hop.constant) / (messages - 1);
    overhead = fmin(fmax(overhead, 0), message.constant);
    l->bytes_s = ek_cost_round(1 / message.slope);
    l->overhead_s = ek_cost_round(overhead);
    l->latency_s = ek_cost_round(messages * (message.constant - overhead));
    l->byte_s = cost->seconds_a_byte_beside;
    l->burst = cost->burst;
    l->arrival_skew_s = cost->arrival_skew_s;
    l->rails = 1;
    l->shared_by = cost->hop.n > 0 ? sharers(message.slope / hop.slope, ranks) : 1;
}

ek_status ek_cluster_of_machine(const ek_machine *m, ek_cluster *out)
{
    int64_t below = 1;

    memset(out, 0, sizeof(*out));
    EK_REQUIRE(m->link[EK_LINK_NODE].message.n > 0 || m->link[EK_LINK_NET].message.n > 0, EK_EINVAL,
               "the machine was measured with one rank: a cluster has links between ranks");
    for (int k = 0; k < EK_LINKS; k++) {
        const ek_link_cost *cost = &m->link[k];
        ek_cluster_level *l = &out->level[out->n_levels];

        if (cost->message.n == 0)
            continue;
        out->n_levels++;
        snprintf(l->name, sizeof(l->name), "%s", ek_link_name((ek_link)k));
        l->ranks = k == EK_LINK_NODE ? cost->ranks_a_node : m->nodes * cost->ranks_a_node;
        fit_level(cost, (double)(l->ranks - below), below, l);
        below = l->ranks;
    }
    snprintf(out->name, sizeof(out->name), "%.*s", (int)sizeof(out->name) - 1, m->name);
    out->machine = *m;
    out->cores = m->threads;
    return EK_OK;
}
