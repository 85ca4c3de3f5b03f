/* Timing of messages over simulated links: the result is within a factor of 1.5 of the link's time,
 * for slow links, links with a burst allowance after a pause, and ranks that are delayed (a factor
 * of 2, if they always are); without disturbances it keeps to its share of time. */
#include "base/random.h"
#include "cost/machine.h"
#include "ek_test.h"
#include "train/calibrate/calibrate_priv.h"

enum { SIZES = 7, LINKS = 2000 };

typedef enum {
    QUIET,
    HALF,  /* of a processor: 50 ms of 100 */
    STALL, /* once, for most of a second */
    LOSS   /* of one message in 500: 0.2 s */
} trouble;

typedef struct {
    double latency, rate, burst; /* seconds, bytes a second, bytes at once after a pause */
    trouble trouble;
    double stall_at, stall_s;
    double now, tokens;
    uint64_t draws, seed;
    int stalls;
} sim;

static double draw(sim *l)
{
    return ek_random_uniform(l->seed, 1, l->draws++);
}

static void idle(sim *l, double seconds)
{
    l->now += seconds;
    l->tokens = fmin(l->burst, l->tokens + seconds * l->rate);
}

/* Of a call that takes so long by itself. */
static double held_up(sim *l, double seconds)
{
    double phase = fmod(l->now, 0.1);

    if (l->trouble == HALF && phase + seconds > 0.05)
        return 0.1 - fmax(phase, 0.05);
    if (l->trouble == LOSS && draw(l) < 2e-3)
        return 0.2;
    if (l->trouble == STALL && l->now + seconds >= l->stall_at) {
        l->stall_at = 1e9;
        return l->stall_s;
    }
    return 0;
}

static ek_status time_calls(void *context, int64_t bytes, int n, double *seconds, double *spent)
{
    sim *l = context;
    double start = l->now;

    for (int i = 0; i < n; i++) {
        double wire = l->latency + fmax(0, (double)bytes - l->tokens) / l->rate;
        double held = held_up(l, wire);

        l->stalls += held > 0;
        idle(l, held);
        wire = l->latency + fmax(0, (double)bytes - l->tokens) / l->rate;
        l->now += wire;
        l->tokens = fmax(0, l->tokens - (double)bytes);
    }
    *seconds = (l->now - start) / n;
    *spent = l->now;
    return EK_OK;
}

/* Slowness of what was found against what is, for 1 MiB. */
static double measure(sim *l, double share, int *n)
{
    int64_t sizes[SIZES];
    double took[SIZES];
    ek_cost_table t = {0};

    *n = SIZES;
    for (int i = 0; i < SIZES; i++)
        sizes[i] = (int64_t)1 << (10 + 2 * i);
    CHECK(ek_calibrate_sizes(time_calls, l, l->now, share, sizes, took, n) == EK_OK);
    CHECK(*n >= 1 && *n <= SIZES);
    for (t.n = 0; t.n < *n; t.n++) {
        t.x[t.n] = (double)sizes[t.n];
        t.y[t.n] = took[t.n];
    }
    ek_cost_smooth_times(&t);
    return ek_cost_time_at(&t, 1 << 20) / (l->latency + (1 << 20) / l->rate);
}

static void links(trouble what, double share, double least, double most, double longest)
{
    int stalls = 0;

    for (int i = 0; i < LINKS; i++) {
        sim l = {.trouble = what, .seed = (uint64_t)i, .now = 7};
        double start = l.now, found;
        int n;

        l.rate = 5e6 * pow(200, draw(&l));
        l.latency = 20e-6 * pow(20, draw(&l));
        l.burst = l.tokens = 65536 + 2e-3 * l.rate;
        l.stall_at = l.now + share * draw(&l);
        l.stall_s = 0.2 + 0.8 * draw(&l);
        found = measure(&l, share, &n);
        stalls += l.stalls;
        if (found < least || found > most || l.now - start > longest)
            EK_T_FAIL("link %d, %.1f MB/s, latency %.0f us, %d sizes, %d stalls: 1 MiB takes %.2f "
                      "of what it does; measured for %.2f s",
                      i, l.rate / 1e6, l.latency * 1e6, n, l.stalls, found, l.now - start);
    }
    CHECK((stalls > LINKS / 2) == (what != QUIET));
}

static void quiet(void)
{
    links(QUIET, 0.3, 0.67, 1.5, 0.4);
}

static void half_a_processor(void)
{
    links(HALF, 0.3, 0.67, 4, 1.2); /* 2, where it is met evenly */
}

static void stalled(void)
{
    links(STALL, 0.3, 0.67, 1.5, 2);
}

static void lossy(void)
{
    links(LOSS, 0.3, 0.67, 1.5, 2);
}

static const ek_case cases[] = {
    EK_CASE(quiet),
    EK_CASE(half_a_processor),
    EK_CASE(stalled),
    EK_CASE(lossy),
};
EK_TEST_MAIN(cases)
