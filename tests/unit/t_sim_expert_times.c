/* Times of expert products by rows (sim/expert_times.h) against prices of single products. */
#include "ek_test.h"
#include "sim/expert_times.h"
#include "sim/price_compute.h"
#include "toy_machine.h"

#include <math.h>

/* Rates that rise with rows, at one slope after the other. */
static ek_machine rising(void)
{
    ek_machine m = toy_machine("fp32", 1e9, 1e9);

    for (int p = 0; p < EK_COST_PRODUCTS; p++)
        m.rate[p] =
            (ek_cost_table){.n = 4, .x = {1, 7, 100, 3000}, .y = {1e9 * (p + 1), 6e9, 50e9, 80e9}};
    return m;
}

static double plain(const ek_machine *m, ek_product p, double rows)
{
    p.rows = rows;
    p.groups = 1;
    return ek_price_product(m, &p);
}

static void times_are_those_of_a_product_of_one_group(void)
{
    ek_machine m = rising();
    ek_expert_times *t;

    CHECK_INT(ek_expert_times_open(&m, &t), EK_OK);
    for (int32_t shape = 0; shape < 24; shape++) { /* more than are kept */
        ek_product p = {5, 3, 64 + shape / 3, 96, EK_PRODUCT_FORWARD << shape % 3};

        for (double rows = 1; rows < 1e5; rows *= 1.037) {
            double exact = plain(&m, p, rows);

            CHECK(fabs(ek_expert_time(t, &p, rows) - exact) <= 1e-2 * exact);
        }
        CHECK(fabs(ek_expert_time(t, &p, 4) - plain(&m, p, 4)) <= 1e-12 * plain(&m, p, 4));
        CHECK(fabs(ek_expert_time(t, &p, 0x1p45) - plain(&m, p, 0x1p45)) <=
              1e-12 * plain(&m, p, 0x1p45));
    }
    ek_expert_times_close(&t);
    CHECK(t == NULL);
}

static void less_than_a_row_is_a_row_in_a_part_of_the_chunks(void)
{
    ek_machine m = rising();
    ek_product p = {1, 1, 64, 96, EK_PRODUCT_INPUT};
    ek_expert_times *t;

    CHECK_INT(ek_expert_times_open(&m, &t), EK_OK);
    CHECK(ek_expert_time(t, &p, 0) == 0);
    CHECK(fabs(ek_expert_time(t, &p, 0.25) - 0.25 * plain(&m, p, 1)) <= 1e-12 * plain(&m, p, 1));
    ek_expert_times_close(&t);
}

static const ek_case cases[] = {
    EK_CASE(times_are_those_of_a_product_of_one_group),
    EK_CASE(less_than_a_row_is_a_row_in_a_part_of_the_chunks),
};
EK_TEST_MAIN(cases)
