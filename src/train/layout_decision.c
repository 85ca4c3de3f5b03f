/* Corrects simulated times, and compares what a layout saves with what it costs. */
#include "train/layout_decision.h"

#include <math.h>

static const double pays_times = 2, least_gain = 0.05;

static double expected_step(const ek_layout_decision *d, const ek_layout_prospect *p, int64_t i)
{
    double correction = d->correction[i] > 0 ? d->correction[i] : d->correction[d->current];

    return i == d->current ? p->measured_s : p->simulated[i] * correction;
}

ek_layout_verdict ek_layout_decide(ek_layout_decision *d, const ek_layout_prospect *p)
{
    ek_layout_verdict v = {.best = d->current, .expected_s = p->measured_s};
    double gain;

    if (!isfinite(p->simulated[d->current]) || p->simulated[d->current] <= 0)
        return v;
    d->correction[d->current] = p->measured_s / p->simulated[d->current];
    for (int64_t i = 0; i < d->n; i++)
        if (expected_step(d, p, i) < v.expected_s) {
            v.best = i;
            v.expected_s = expected_step(d, p, i);
        }
    gain = p->measured_s - v.expected_s;
    v.change =
        gain >= least_gain * p->measured_s && gain * (double)p->steps >= pays_times * p->change_s;
    return v;
}
