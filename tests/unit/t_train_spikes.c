/* Which steps count as spikes, and how often they are reported. */
#include "base/random.h"
#include "ek_test.h"
#include "train/output/spikes.h"

#include <math.h>

/* Noise of a given size around a level. */
static double around(double level, double size, int step)
{
    return level + size * ek_random_normal(3, 5, (uint64_t)step);
}

static void noise_and_slow_changes_are_none(void)
{
    ek_spikes s = {0};

    for (int i = 0; i < 20000; i++)
        CHECK_INT(ek_spikes_add(&s, around(3, 0.05, i), fabs(around(1, 0.2, i + 50000))).kinds, 0);
    for (int i = 0; i < 2000; i++) /* a loss that falls, a norm that doubles slowly */
        CHECK_INT(ek_spikes_add(&s, around(3 - 0.001 * i, 0.05, i), 1 + 0.0005 * i).kinds, 0);
    CHECK_INT(s.count, 0);
}

static void one_step_far_above_is_one(void)
{
    ek_spikes s = {0};
    ek_spike x;
    char text[256];

    for (int i = 0; i < EK_SPIKES_LEAST; i++) /* nothing is usual yet */
        CHECK_INT(ek_spikes_add(&s, i == 5 ? 30 : around(3, 0.05, i), 1).kinds, 0);
    x = ek_spikes_add(&s, 5, 1);
    CHECK(x.kinds == EK_SPIKE_LOSS && x.is_new);
    CHECK(fabs(x.usual_loss - 3) < 0.1);
    ek_spike_describe(&x, 5, 1, 2, text, sizeof(text));
    CHECK(strncmp(text, "loss 5 is far above the usual ", 30) == 0 && strstr(text, "clip") == NULL);
    x = ek_spikes_add(&s, 3, 40);
    CHECK(x.kinds == EK_SPIKE_NORM && !x.is_new); /* just after another */
    ek_spike_describe(&x, 3, 40, 2, text, sizeof(text));
    CHECK(strcmp(text,
                 "gradient norm 40 is far above the usual 1; gradients were clipped to a norm "
                 "of 2") == 0);
    for (int i = 0; i < EK_SPIKES_QUIET; i++)
        CHECK_INT(ek_spikes_add(&s, around(3, 0.05, i), 1).kinds, 0);
    x = ek_spikes_add(&s, 6, 19);
    CHECK(x.kinds == (EK_SPIKE_LOSS | EK_SPIKE_NORM) && x.is_new);
    CHECK_INT(s.count, 3);
}

/* What differs from equal values by little is none, however small their deviation. */
static void equal_values_allow_for_a_little(void)
{
    ek_spikes s = {0};

    for (int i = 0; i < 100; i++)
        CHECK_INT(ek_spikes_add(&s, 2, 1).kinds, 0);
    CHECK_INT(ek_spikes_add(&s, 2.1, 9.9).kinds, 0);
    CHECK_INT(ek_spikes_add(&s, 2.3, 1).kinds, EK_SPIKE_LOSS);
    CHECK_INT(ek_spikes_add(&s, 0.1, 0.1).kinds, 0); /* below is none */
}

/* A persistent change of level is reported once, and is usual after half a window. */
static void new_level_becomes_usual(void)
{
    ek_spikes s = {0};
    int told = 0, last = 0;

    for (int i = 0; i < 100; i++)
        (void)ek_spikes_add(&s, around(3, 0.05, i), 1);
    for (int i = 0; i < 200; i++) {
        ek_spike x = ek_spikes_add(&s, around(5, 0.05, i), 1);

        told += x.is_new;
        last = x.kinds != 0 ? i : last;
    }
    CHECK_INT(told, 1);
    CHECK(last < EK_SPIKES_WINDOW);
}

static const ek_case cases[] = {
    EK_CASE(noise_and_slow_changes_are_none),
    EK_CASE(one_step_far_above_is_one),
    EK_CASE(equal_values_allow_for_a_little),
    EK_CASE(new_level_becomes_usual),
};

EK_TEST_MAIN(cases)
