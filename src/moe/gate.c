/* The gates for float and double; capacity and the bias feedback, which need no type. */
#include "moe/gate.h"

#include "base/random.h"

#include <math.h>
#include <string.h>

/* Places of one expert in one sequence: ceil(k f T / E), f = 1 where dropless is meant. */
static int64_t ek_gate_capacity(const ek_moe *m, int64_t seq)
{
    double f = m->step->capacity_factor != 0 ? fabs(m->step->capacity_factor) : 1.0;

    return (int64_t)ceil((double)m->step->top_k * f * (double)seq / (double)m->spec->experts);
}

#define R       float
#define NAME(x) x##_f32
#include "moe/gate_body.h"
#undef R
#undef NAME

#define R       double
#define NAME(x) x##_f64
#include "moe/gate_body.h"
#undef R
#undef NAME

void ek_moe_update_bias(ek_moe *m)
{
    int64_t total = 0, experts = m->spec->experts;

    if (m->spec->gate.kind != EK_GATE_SIGMOID_BIAS)
        return;
    for (int64_t e = 0; e < experts; e++)
        total += m->load[e];
    for (int64_t e = 0; e < experts; e++) {
        int64_t off = total - m->load[e] * experts; /* E (mean - load) */
        double step = m->spec->gate.bias_rate * (double)((off > 0) - (off < 0));

        if (m->k->real == EK_F64)
            ((double *)m->w->bias.p)[e] += step;
        else
            ((float *)m->w->bias.p)[e] += (float)step;
    }
}
