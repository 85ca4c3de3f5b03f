/* Progress of a job by the messages of rank 0: duration of each phase, and hang detection.
 *
 * Timeouts: a step, ten times the median of the steps so far (the longest, while there are fewer
 * than five); launch and connect, ten times the longest in this run; with minimums of 2.8 and 20
 * seconds.  All other phases, and what was not measured yet: --watchdog seconds. */
#include "supervisor/progress.h"

#include "base/sort.h"

#include <string.h>

static const double factor = 10, step_least_s = 2.8, start_least_s = 20;
enum { STEPS_MIN = 5 };

static const char *const names[EK_PHASES] = {"launch", "connect",  "plan",       "transfer",
                                             "step",   "evaluate", "checkpoint", "end"};

const char *ek_phase_name(ek_phase phase)
{
    return names[phase];
}

int ek_phase_of(const char *name)
{
    for (int i = 0; i < EK_PHASES; i++)
        if (strcmp(name, names[i]) == 0)
            return i;
    return -1;
}

void ek_job_progress_begin(ek_job_progress *p, int64_t now)
{
    p->phase = EK_PHASE_LAUNCH;
    p->since = p->heard = p->looked = now;
    p->steps = 0;
    p->first_step_s = 0;
    memset(p->took_s, 0, sizeof(p->took_s));
}

/* Ends the current phase. */
static void close_phase(ek_job_progress *p, int64_t now)
{
    double s = (double)(now - p->since) / 1e9;

    p->took_s[p->phase] += s;
    if (p->phase != EK_PHASE_STEP && s > p->longest_s[p->phase])
        p->longest_s[p->phase] = s;
    p->since = p->heard = now;
}

void ek_job_progress_enter(ek_job_progress *p, ek_phase phase, int64_t now)
{
    if (phase == p->phase)
        return;
    close_phase(p, now);
    p->phase = phase;
}

void ek_job_progress_alive(ek_job_progress *p, int64_t now)
{
    p->heard = now;
}

void ek_job_progress_step(ek_job_progress *p, int64_t now)
{
    if (p->phase == EK_PHASE_STEP && p->steps > 0) /* the first step of a start is not typical */
        p->last_s[p->n++ % EK_STEPS_KEPT] = (double)(now - p->since) / 1e9;
    if (p->phase == EK_PHASE_STEP && p->steps == 0)
        p->first_step_s = (double)(now - p->since) / 1e9;
    p->steps++;
    close_phase(p, now);
    p->phase = EK_PHASE_STEP;
}

double ek_job_progress_median_s(const ek_job_progress *p)
{
    double sorted[EK_STEPS_KEPT];
    int64_t n = p->n < EK_STEPS_KEPT ? p->n : EK_STEPS_KEPT;

    if (n == 0)
        return 0;
    memcpy(sorted, p->last_s, (size_t)n * sizeof(*sorted));
    ek_sort_reals(sorted, n);
    return sorted[n / 2];
}

/* The longest step of this start; 0: none completed. */
static double longest_step_s(const ek_job_progress *p)
{
    double longest = p->first_step_s;

    for (int64_t i = 0; i < p->n && i < EK_STEPS_KEPT && p->steps > 0; i++)
        longest = p->last_s[i] > longest ? p->last_s[i] : longest;
    return longest;
}

double ek_job_progress_timeout_s(const ek_job_progress *p)
{
    double known = 0, least = start_least_s;

    if (p->phase == EK_PHASE_STEP) {
        known = p->n >= STEPS_MIN ? ek_job_progress_median_s(p) : longest_step_s(p);
        least = step_least_s;
    } else if (p->phase == EK_PHASE_LAUNCH || p->phase == EK_PHASE_CONNECT) {
        known = p->longest_s[p->phase];
    }
    if (known <= 0)
        return p->watchdog_s;
    return factor * known > least ? factor * known : least;
}

void ek_job_progress_look(ek_job_progress *p, int64_t now)
{
    int64_t gap = now - p->looked;

    if (gap > EK_STALL_NS) /* a message may have come meanwhile */
        p->heard = p->heard + gap < now ? p->heard + gap : now;
    p->looked = now;
}

int ek_job_progress_hangs(const ek_job_progress *p, int64_t now)
{
    double s = ek_job_progress_timeout_s(p);

    return s > 0 && (double)(now - p->heard) / 1e9 > s;
}
