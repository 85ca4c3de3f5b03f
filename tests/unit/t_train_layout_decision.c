/* When a run changes its layout: by simulated times, corrected by measured ones, where it pays. */
#include "ek_test.h"
#include "train/layout_decision.h"

#include <math.h>

static ek_layout_decision of_three(int64_t current)
{
    return (ek_layout_decision){.n = 3, .current = current};
}

static ek_layout_verdict decide(ek_layout_decision *d, const double *simulated, double measured,
                                double change, int64_t steps)
{
    const ek_layout_prospect p = {
        .simulated = simulated, .measured_s = measured, .change_s = change, .steps = steps};

    return ek_layout_decide(d, &p);
}

/* Half of the step saved: 5 s in 10 steps, of which a change may cost half. */
static void change_where_it_pays_twice(void)
{
    const double simulated[] = {2, 1, 3};
    ek_layout_decision d = of_three(0);
    ek_layout_verdict v = decide(&d, simulated, 1, 2.4, 10);

    CHECK(v.change && v.best == 1);
    CHECK(v.expected_s == 0.5);
    CHECK(d.correction[0] == 0.5);
    d = of_three(0);
    CHECK(!decide(&d, simulated, 1, 2.6, 10).change);
    CHECK(decide(&d, simulated, 1, 2.6, 11).change);
    CHECK(!decide(&d, simulated, 1, 2.4, 0).change);
}

static void small_gains_do_not_count(void)
{
    const double simulated[] = {1, 0.96, 2}, more[] = {1, 0.94, 2};
    ek_layout_decision d = of_three(0);

    CHECK(!decide(&d, simulated, 1, 1e-6, 1000000).change);
    CHECK(decide(&d, more, 1, 1e-6, 1000000).change);
}

/* A simulation that is wrong by the same factor for all does not matter. */
static void best_stays(void)
{
    const double simulated[] = {5, 9, 8};
    ek_layout_decision d = of_three(0);
    ek_layout_verdict v = decide(&d, simulated, 100, 0, 1000);

    CHECK(!v.change && v.best == 0 && v.expected_s == 100);
}

/* Layout 1 was tried, and took three times what was simulated: not again, until loads change. */
static void measured_layouts_are_corrected(void)
{
    const double simulated[] = {2, 1, 4}, later[] = {8, 1, 4};
    ek_layout_decision d = of_three(0);

    CHECK(decide(&d, simulated, 2, 1, 100).best == 1);
    d.current = 1;
    CHECK(decide(&d, simulated, 3, 1, 100).best == 0); /* which took 2 */
    d.current = 0;
    CHECK(!decide(&d, simulated, 2, 1, 100).change);
    CHECK(decide(&d, later, 8, 1, 100).best == 1);
}

static void unusable_layouts_are_not_chosen(void)
{
    const double simulated[] = {2, INFINITY, 1}, lost[] = {INFINITY, 1, 1};
    ek_layout_decision d = of_three(0);

    CHECK(decide(&d, simulated, 2, 0.1, 100).best == 2);
    d = of_three(0);
    CHECK(!decide(&d, lost, 2, 0.1, 100).change); /* nothing to compare with */
}

static const ek_case cases[] = {
    EK_CASE(change_where_it_pays_twice),
    EK_CASE(small_gains_do_not_count),
    EK_CASE(best_stays),
    EK_CASE(measured_layouts_are_corrected),
    EK_CASE(unusable_layouts_are_not_chosen),
};
EK_TEST_MAIN(cases)
