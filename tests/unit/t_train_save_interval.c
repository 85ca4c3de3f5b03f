/* The interval between checkpoints: against numbers computed by hand, and by trying intervals. */
#include "ek_test.h"
#include "train/save_interval.h"

#include <math.h>

static const double hour = 3600;

static int is_near(double x, double want)
{
    return fabs(x - want) <= 1e-6 * fabs(want);
}

/* One host with everything; nothing measured yet but a step. */
static ek_save_history with_step(double step_s)
{
    return (ek_save_history){.step_s = step_s, .hosts = 1};
}

static const ek_loss_risk one_host = {.hosts = 1, .p1 = 1, .p2 = 1};

static void optimum_is_dalys(void)
{
    /* sqrt(2 0.5 3600) = 60, x^2 = 1 / 14400: 60 (1 + 1 / 360 + 1 / 129600) - 0.5 */
    CHECK(is_near(ek_save_interval_optimum(0.5, 3600), 59.667129630));
    /* x = 1 / 2: 100 (1 + 1 / 6 + 1 / 36) - 50 */
    CHECK(is_near(ek_save_interval_optimum(50, 100), 69.444444444));
    CHECK(is_near(ek_save_interval_optimum(200, 100), 100));
    CHECK(is_near(ek_save_interval_optimum(1000, 100), 100));
    CHECK(ek_save_interval_optimum(0, 100) <= 0);
}

/* Time per useful second when a save of c follows every t seconds, and needs come at random, once
 * every m: m (e^((t + c) / m) - 1) / t, the exact expectation without a time to restart. */
static double time_spent(double t, double c, double m)
{
    return m * expm1((t + c) / m) / t;
}

static void no_other_interval_wastes_less(void)
{
    static const double cost[] = {0.01, 1, 30, 200}, mtbf[] = {400, 3600, 86400};

    for (size_t i = 0; i < 4; i++)
        for (size_t k = 0; k < 3; k++) {
            double t = ek_save_interval_optimum(cost[i], mtbf[k]), least = INFINITY;

            for (double other = t / 4; other < 4 * t; other *= 1.01)
                least = fmin(least, time_spent(other, cost[i], mtbf[k]));
            CHECK(time_spent(t, cost[i], mtbf[k]) < least * 1.0001);
        }
}

static void steps_are_those_of_the_interval(void)
{
    ek_save_history h = with_step(0.25);
    ek_save_interval i;

    ek_save_history_add_save(&h, 0.5, 1);
    i = ek_save_interval_find(&h, &one_host, hour, 1e9);
    CHECK_INT(i.steps, 239); /* 59.667 s */
    CHECK(is_near(i.seconds, 59.75) && !i.assumed && is_near(i.mtbf_s, 3600));
    h.write_s = 120; /* a save takes longer to be complete */
    CHECK_INT(ek_save_interval_find(&h, &one_host, hour, 1e9).steps, 480);
    h.write_s = 0;
    h.step_s = 1000;
    CHECK_INT(ek_save_interval_find(&h, &one_host, hour, 1e9).steps, 1);
    h.step_s = 0; /* no step was timed */
    CHECK_INT(ek_save_interval_find(&h, &one_host, hour, 1e9).steps, 0);
}

static void cost_is_assumed_until_measured(void)
{
    ek_save_history h = with_step(1);
    ek_save_interval i = ek_save_interval_find(&h, &one_host, hour, 5e8);

    CHECK(i.assumed && is_near(i.save_s, 2));
    CHECK_INT(i.steps, 119); /* sqrt(14400) (1 + 1 / 180 + 1 / 32400) - 2 = 118.67 */
}

static void losses_shorten_the_time_between_them(void)
{
    ek_save_history h = with_step(1);
    ek_loss_risk four = {.hosts = 4, .p1 = 1, .p2 = 1};

    CHECK(is_near(ek_save_interval_find(&h, &four, 24 * hour, 0).mtbf_s, 6 * hour));
    h.host_s = 40 * hour;
    CHECK(is_near(ek_save_interval_find(&h, &four, 24 * hour, 0).host_mtbf_s, 64 * hour));
    h.lost = 2; /* (24 + 40) / 3 hours of one host */
    CHECK(is_near(ek_save_interval_find(&h, &four, 24 * hour, 0).mtbf_s, 64.0 / 12 * hour));
    h.lost = 0;
    h.host_s = 0;
    four.p1 = 0.5; /* 0.5 + 0.5 (0.01 + 3 / 86400 60) = 0.506041667 */
    CHECK(is_near(ek_save_interval_find(&h, &four, 24 * hour, 0).mtbf_s, 21600 / 0.506041667));
}

static void copies_on_two_hosts_lengthen_it(void)
{
    ek_save_history h = with_step(1);
    ek_loss_risk alone = {.hosts = 4, .p1 = 1, .p2 = 1}, twice = {.hosts = 4, .p2 = 1};
    ek_loss_risk thrice = {.hosts = 4};
    ek_save_interval a = ek_save_interval_find(&h, &alone, 24 * hour, 0);
    ek_save_interval b = ek_save_interval_find(&h, &twice, 24 * hour, 0);
    ek_save_interval c = ek_save_interval_find(&h, &thrice, 24 * hour, 0);

    CHECK(is_near(b.mtbf_s, 21600 / (0.01 + 3.0 * 60 / 86400)));
    CHECK(is_near(c.mtbf_s, 21600 / 0.01));
    CHECK(a.steps < b.steps && b.steps < c.steps);
    CHECK(
        is_near(ek_save_interval_find(&h, &twice, 1e-3, 0).mtbf_s, 1e-3 / 4)); /* p is at most 1 */
}

static void waste_is_least_at_the_optimum(void)
{
    ek_save_history h = {.saves = 1, .save_s = 2};
    ek_loss_risk alone = {.hosts = 4, .p1 = 1, .p2 = 1}, twice = {.hosts = 4, .p2 = 1};
    double best = ek_save_waste(&h, &alone, 24 * hour, 0, 0, 0);

    /* M = 6 h, t = sqrt(4 M) = 293.9 s less 2 s and more 0.7 s */
    CHECK(fabs(best - sqrt(4 / (6 * hour))) < 1e-4);
    CHECK(is_near(ek_save_waste(&h, &alone, 24 * hour, 0, 600, 0), 2.0 / 600 + 300 / (6 * hour)));
    CHECK(best < ek_save_waste(&h, &alone, 24 * hour, 0, 200, 0));
    CHECK(best < ek_save_waste(&h, &alone, 24 * hour, 0, 400, 0));
    CHECK(ek_save_waste(&h, &twice, 24 * hour, 0, 0, 0) < 0.2 * best);
    CHECK(
        is_near(ek_save_waste(&h, &alone, 24 * hour, 0, hour, 1), 1.0 / 12)); /* nothing is saved */
    CHECK(ek_save_waste(&h, &alone, 24 * hour, 0, 24 * hour, 1) == 1);
    h.lost = 24; /* a host an hour */
    CHECK(is_near(ek_save_waste(&h, &alone, 24 * hour, 0, 600, 0),
                  2.0 / 600 + 300 * 25 / (6 * hour)));
    h.write_s = 600; /* a save takes longer than the optimum */
    CHECK(ek_save_waste(&h, &alone, 24 * hour, 0, 0, 0) ==
          ek_save_waste(&h, &alone, 24 * hour, 0, 600, 0));
}

static void means_fade(void)
{
    ek_save_history h = {0};

    ek_save_history_add_step(&h, 2);
    CHECK(is_near(h.step_s, 2));
    ek_save_history_add_step(&h, 18);
    CHECK(is_near(h.step_s, 3));
    ek_save_history_add_save(&h, 4, 8);
    ek_save_history_add_save(&h, 8, 16);
    CHECK(is_near(h.save_s, 6) && is_near(h.write_s, 12) && is_near(h.saves, 2));
    for (int i = 0; i < 100; i++)
        ek_save_history_add_save(&h, 1, 2);
    CHECK(fabs(h.save_s - 1) < 1e-9);
}

static void history_of_damaged_memory_is_not_valid(void)
{
    ek_save_history h = {0};

    CHECK(ek_save_history_is_valid(&h));
    h.host_s = -1;
    CHECK(!ek_save_history_is_valid(&h));
    h.host_s = NAN;
    CHECK(!ek_save_history_is_valid(&h));
    h.host_s = INFINITY;
    CHECK(!ek_save_history_is_valid(&h));
}

static void text_gives_interval_and_reason(void)
{
    ek_save_history h = {.step_s = 0.25, .lost = 1, .host_s = 24 * hour};
    ek_loss_risk risk = {.hosts = 4, .p1 = 1, .p2 = 1};
    ek_save_interval i;
    char text[320];

    ek_save_history_add_save(&h, 0.5, 1);
    i = ek_save_interval_find(&h, &risk, 24 * hour, 0);
    CHECK(
        strcmp(ek_save_interval_text(&i, &h, &risk, text, sizeof(text)),
               "every 587 steps (2.45 min), as a save costs 500 ms, a host is expected to be lost "
               "every 24.0 h (1 was so far), and the loss of any host loses state: one need every "
               "6.00 h") == 0);
}

static const ek_case cases[] = {
    EK_CASE(optimum_is_dalys),
    EK_CASE(no_other_interval_wastes_less),
    EK_CASE(steps_are_those_of_the_interval),
    EK_CASE(cost_is_assumed_until_measured),
    EK_CASE(losses_shorten_the_time_between_them),
    EK_CASE(copies_on_two_hosts_lengthen_it),
    EK_CASE(waste_is_least_at_the_optimum),
    EK_CASE(means_fade),
    EK_CASE(history_of_damaged_memory_is_not_valid),
    EK_CASE(text_gives_interval_and_reason),
};
EK_TEST_MAIN(cases)
