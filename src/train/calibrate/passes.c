/* In which order, and how often, kernels are timed.
 *
 * A machine is slow for some tenths of a second at times, in which many kernels are timed one after
 * the other.  So all are timed once, in part of the budget, and then once more in the same order
 * (the first turn, which has one size of each kernel, in all of it if need be): the two moments of
 * each are a whole pass apart.  Then those follow for which there was no time: a small budget gives
 * a second moment to those that it has, and leaves out more of the others.  Those whose repetitions
 * do not agree yet are timed again while there is time.
 *
 * Of the repetitions the mean counts, as a step is a sum of many calls, but without those that took
 * much longer than the shortest, as slow moments make them. */
#include "train/calibrate/calibrate_priv.h"

/* Of the budget, in which kernels are timed for the first time. */
#define FIRST_PART 0.5
/* Times the shortest, of what counts. */
#define ALIKE 1.25
/* Two that differ by no more agree. */
#define SAME 1.03

void ek_times_add(ek_times *t, double seconds)
{
    int at = t->n;

    if (t->n == EK_TIMES_MOST && seconds >= t->seconds[t->n - 1])
        return;
    at -= t->n == EK_TIMES_MOST;
    for (; at > 0 && t->seconds[at - 1] > seconds; at--)
        t->seconds[at] = t->seconds[at - 1];
    t->seconds[at] = seconds;
    t->n += t->n < EK_TIMES_MOST;
}

double ek_times_mean(const ek_times *t)
{
    double sum = 0;
    int n = 0;

    while (n < t->n && t->seconds[n] <= ALIKE * t->seconds[0])
        sum += t->seconds[n++];
    return n > 0 ? sum / n : 0;
}

static int times_agree(const ek_times *t)
{
    return t->n == EK_TIMES_MOST || (t->n > 2 && t->seconds[1] <= SAME * t->seconds[0]);
}

typedef enum { NOT_TIMED, TIMED_ONCE, UNSETTLED } pass_kind;

static int is_of(const ek_times *t, pass_kind kind)
{
    switch (kind) {
    case NOT_TIMED: return t->n == 0;
    case TIMED_ONCE: return t->n == 1;
    case UNSETTLED: return t->n > 1 && !times_agree(t);
    }
    return 0;
}

/* Times each of these once that this part of the budget has time for, or, in the first turn, all of
 * it; *calls: how many. */
static ek_status run_pass(const ek_passes *p, pass_kind kind, double part, int *calls)
{
    *calls = 0;
    for (int turn = 0; turn < p->turns; turn++)
        for (int i = 0; i < p->n; i++) {
            if (p->of[i].turn != turn || !is_of(&p->of[i].times, kind) ||
                !p->has_time(p->self, i, turn == 0 ? 1 : part))
                continue;
            EK_TRY(p->time(p->self, i));
            ++*calls;
        }
    return EK_OK;
}

ek_status ek_calibrate_passes(const ek_passes *p)
{
    int calls;

    EK_TRY(run_pass(p, NOT_TIMED, FIRST_PART, &calls));
    if (p->once)
        return EK_OK;
    EK_TRY(run_pass(p, TIMED_ONCE, 1, &calls));
    EK_TRY(run_pass(p, NOT_TIMED, 1, &calls));
    EK_TRY(run_pass(p, TIMED_ONCE, 1, &calls));
    do
        EK_TRY(run_pass(p, UNSETTLED, 1, &calls));
    while (calls > 0);
    return EK_OK;
}
