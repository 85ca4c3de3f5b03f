/* Chooses the message sizes to time, and their repetitions.
 *
 * A single disturbed call (another process, an exhausted CPU quota, a lost message, or a burst of a
 * rate-limited link after a pause) must not decide.  So sizes are chosen by two calls that agree,
 * of at most four; then each size, from the largest down, is timed three times unless that takes
 * far longer than expected; the second shortest time is used. */
#include "train/calibrate/calibrate_priv.h"

#include <math.h>

enum {
    TRIES = 4,       /* most calls of a size to find two that agree */
    REPETITIONS = 4, /* a repetition takes this fraction of a size's share */
    REPETITIONS_LEAST = 3,
    CALLS_MOST = 1000, /* of a repetition */
    AFFORD = 8,        /* the total in calls of the largest size, about */
    SLOWER = 3         /* times the share: beyond it optional repetitions are left out */
};

/* Whether two times agree. */
#define ALIKE 1.5

typedef struct {
    ek_time_calls *time_calls;
    void *context;
    double spent;
} series;

/* Seconds of a call, from the two shortest of a few. */
static ek_status try_size(series *s, int64_t bytes, double *took)
{
    ek_repeats r = {0};

    while (r.n < 2 || (r.n < TRIES && r.next > ALIKE * r.best)) {
        double seconds;

        EK_TRY(s->time_calls(s->context, bytes, 1, &seconds, &s->spent));
        ek_repeats_add(&r, seconds);
    }
    *took = r.best;
    return EK_OK;
}

/* *n := number of sizes that the share allows. */
static ek_status choose_sizes(series *s, double share, const int64_t *sizes, double *took, int *n)
{
    int tried = 0;

    for (; tried < *n; tried++) {
        if (tried > 0 &&
            AFFORD * took[tried - 1] * (double)sizes[tried] > share * (double)sizes[tried - 1])
            break;
        EK_TRY(try_size(s, sizes[tried], &took[tried]));
    }
    *n = tried;
    return EK_OK;
}

/* Seconds of a call; `expected` if measuring it would exceed `limit`. */
static ek_status repeat_size(series *s, int64_t bytes, double expected, double share, double limit,
                             double *took)
{
    double until = s->spent + share, seconds;
    ek_repeats r = {0};

    while (r.n < REPETITIONS_LEAST ? s->spent < limit
                                   : s->spent + r.best < until && !ek_repeats_agree(&r)) {
        double calls = share / REPETITIONS / (r.n > 0 ? r.best : expected);

        EK_TRY(s->time_calls(s->context, bytes,
                             calls < 1            ? 1
                             : calls > CALLS_MOST ? CALLS_MOST
                                                  : (int)calls,
                             &seconds, &s->spent));
        ek_repeats_add(&r, seconds);
    }
    *took = r.n >= REPETITIONS_LEAST ? r.next : expected;
    return EK_OK;
}

ek_status ek_calibrate_sizes(ek_time_calls *time_calls, void *context, double from, double share,
                             const int64_t *sizes, double *took, int *n)
{
    series s = {time_calls, context, from};
    double until = from + share, limit = from + SLOWER * share, at_rate = 0;

    EK_TRY(choose_sizes(&s, share, sizes, took, n));
    for (int i = *n - 1; i >= 0; i--) {
        double left = fmax(until - s.spent, 0) / (i + 1);
        double least =
            at_rate * (double)sizes[i]; /* seconds per byte do not decrease towards smaller sizes */

        EK_TRY(repeat_size(&s, sizes[i], fmax(took[i], least), left, limit, &took[i]));
        at_rate = took[i] / (double)sizes[i];
    }
    return EK_OK;
}
