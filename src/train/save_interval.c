/* The interval between checkpoints, and its reason as text. */
#include "train/save_interval.h"

#include "base/count_text.h"

#include <math.h>
#include <stdio.h>

/* A new value counts this much in the fading means, once there are as many. */
static const double step_weight = 1.0 / 16, save_weight = 1.0 / 4;

/* Cost of a save as long as none was measured: rather too much, as that makes the first interval
 * longer, and the first save corrects it. */
static const double assumed_s = 1, assumed_bytes_per_s = 5e8;

/* Steps in an interval, at most. */
static const double steps_max = 1e9;

static int is_time(double x)
{
    return isfinite(x) && x >= 0;
}

int ek_save_history_is_valid(const ek_save_history *h)
{
    return is_time(h->lost) && is_time(h->host_s) && is_time(h->save_s) && is_time(h->write_s) &&
           is_time(h->step_s) && is_time(h->saves) && is_time(h->hosts);
}

static void fade_to(double *mean, double x, double weight)
{
    *mean += (x - *mean) * weight;
}

void ek_save_history_add_step(ek_save_history *h, double seconds)
{
    fade_to(&h->step_s, seconds, h->step_s > 0 ? step_weight : 1);
}

void ek_save_history_add_save(ek_save_history *h, double seconds, double write_s)
{
    double weight = fmax(save_weight, 1 / (h->saves + 1));

    h->saves++;
    fade_to(&h->save_s, seconds, weight);
    fade_to(&h->write_s, write_s, weight);
}

double ek_save_interval_optimum(double save_s, double mtbf_s)
{
    double x2 = save_s / (2 * mtbf_s);

    if (x2 >= 1)
        return mtbf_s;
    return sqrt(2 * save_s * mtbf_s) * (1 + sqrt(x2) / 3 + x2 / 9) - save_s;
}

/* Mean time between needs for a checkpoint. */
static double mtbf_of(const ek_loss_risk *risk, double host_mtbf_s)
{
    double more = (risk->hosts - 1) / host_mtbf_s * EK_LOSS_WINDOW_S * risk->p2;
    double p = risk->p1 + (1 - risk->p1) * fmin(1, EK_LOSS_COMMON + more);

    return host_mtbf_s / (risk->hosts * p);
}

/* All but the interval. */
static ek_save_interval costs_of(const ek_save_history *h, const ek_loss_risk *risk, double prior_s,
                                 double bytes)
{
    ek_save_interval i = {.save_s = h->save_s, .assumed = h->saves <= 0};

    i.host_mtbf_s = (prior_s + h->host_s) / (1 + h->lost);
    i.mtbf_s = mtbf_of(risk, i.host_mtbf_s);
    if (i.assumed)
        i.save_s = assumed_s + bytes / assumed_bytes_per_s;
    return i;
}

static double best_s(const ek_save_history *h, const ek_save_interval *i)
{
    return fmax(ek_save_interval_optimum(i->save_s, i->mtbf_s), h->write_s);
}

double ek_save_waste(const ek_save_history *h, const ek_loss_risk *risk, double prior_s,
                     double bytes, double every_s, int never)
{
    ek_save_interval i = costs_of(h, risk, prior_s, bytes);
    double t = every_s > 0 ? every_s : best_s(h, &i);

    return fmin(1, (never ? 0 : i.save_s / t) + t / (2 * i.mtbf_s));
}

ek_save_interval ek_save_interval_find(const ek_save_history *h, const ek_loss_risk *risk,
                                       double prior_s, double bytes)
{
    ek_save_interval i = costs_of(h, risk, prior_s, bytes);
    double s;

    if (h->step_s <= 0)
        return i;
    s = best_s(h, &i);
    i.steps = (int64_t)fmin(fmax(round(s / h->step_s), 1), steps_max);
    i.seconds = (double)i.steps * h->step_s;
    return i;
}

/* --- text ------------------------------------------------------------------------------------- */

enum { TIME_CAP = 32, RISK_CAP = 64 };

/* Which losses take a part of the model. */
static void describe_risk(const ek_loss_risk *risk, char *text)
{
    if (risk->hosts == 1)
        snprintf(text, RISK_CAP, "all state is on this host");
    else if (risk->p1 >= 1)
        snprintf(text, RISK_CAP, "the loss of any host loses state");
    else if (risk->p1 > 0)
        snprintf(text, RISK_CAP, "the loss of a host loses state with probability %.2g", risk->p1);
    else
        snprintf(text, RISK_CAP, "state survives the loss of any one host");
}

const char *ek_save_interval_text(const ek_save_interval *i, const ek_save_history *h,
                                  const ek_loss_risk *risk, char *text, size_t cap)
{
    char interval[TIME_CAP], save[TIME_CAP], host[TIME_CAP], need[TIME_CAP], losses[RISK_CAP];

    describe_risk(risk, losses);
    snprintf(text, cap,
             "every %lld steps (%s), as a save costs %s%s, a host is expected to be lost every %s "
             "(%.0f %s so far), and %s: one need every %s",
             (long long)i->steps, ek_time_text(interval, TIME_CAP, i->seconds),
             ek_time_text(save, TIME_CAP, i->save_s), i->assumed ? " (assumed)" : "",
             ek_time_text(host, TIME_CAP, i->host_mtbf_s), h->lost,
             h->lost > 1 || h->lost < 1 ? "were" : "was", losses,
             ek_time_text(need, TIME_CAP, i->mtbf_s));
    return text;
}
