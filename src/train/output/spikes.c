/* Running medians of loss and gradient norm. */
#include "train/output/spikes.h"

#include "base/sort.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const double deviations = 8, mad_to_deviation = 1.4826;
static const double least_loss = 0.1, least_norm = 9; /* above the median, relative to it */

/* Sorts the numbers. */
static double median_of(double *x, size_t n)
{
    ek_sort_reals(x, (int64_t)n);
    return n % 2 == 1 ? x[n / 2] : 0.5 * (x[n / 2 - 1] + x[n / 2]);
}

static int is_far_above(const double *window, size_t n, double x, double least, double *usual)
{
    double sorted[EK_SPIKES_WINDOW], deviation;

    memcpy(sorted, window, n * sizeof(*sorted));
    *usual = median_of(sorted, n);
    for (size_t i = 0; i < n; i++)
        sorted[i] = fabs(window[i] - *usual);
    deviation = mad_to_deviation * median_of(sorted, n);
    return x - *usual > deviations * deviation && x - *usual > least * fabs(*usual);
}

ek_spike ek_spikes_add(ek_spikes *s, double loss, double norm)
{
    size_t n = s->seen < EK_SPIKES_WINDOW ? (size_t)s->seen : EK_SPIKES_WINDOW;
    int64_t at = s->seen % EK_SPIKES_WINDOW;
    ek_spike x = {0};

    if (n >= EK_SPIKES_LEAST) {
        if (is_far_above(s->loss, n, loss, least_loss, &x.usual_loss))
            x.kinds |= EK_SPIKE_LOSS;
        if (is_far_above(s->norm, n, norm, least_norm, &x.usual_norm))
            x.kinds |= EK_SPIKE_NORM;
    }
    x.is_new = x.kinds != 0 && (s->count == 0 || s->calm >= EK_SPIKES_QUIET);
    s->calm = x.kinds != 0 ? 0 : s->calm + 1;
    s->count += x.kinds != 0;
    s->loss[at] = loss;
    s->norm[at] = norm;
    s->seen++;
    return x;
}

void ek_spike_describe(const ek_spike *x, double loss, double norm, double clip, char *text,
                       size_t cap)
{
    size_t n = 0;

    text[0] = '\0';
    if (x->kinds & EK_SPIKE_LOSS)
        n = (size_t)snprintf(text, cap, "loss %.4g is far above the usual %.4g", loss,
                             x->usual_loss);
    if ((x->kinds & EK_SPIKE_NORM) && n < cap)
        n += (size_t)snprintf(text + n, cap - n, "%sgradient norm %.4g is far above the usual %.4g",
                              n > 0 ? "; " : "", norm, x->usual_norm);
    if (clip > 0 && norm > clip && n < cap)
        snprintf(text + n, cap - n, "; gradients were clipped to a norm of %.4g", clip);
}
