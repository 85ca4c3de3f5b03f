/* Rates of kernels: those of measured sizes, between and beyond them. */
#include "cost/kernel_costs.h"
#include "ek_test.h"
#include "machine_fixture.h"

static const double at[] = {4, 16};

static void add(ek_kernel_costs *c, ek_cost_kernel kernel, int32_t out, int32_t in, double rate)
{
    const double rates[] = {rate / 2, rate};

    c->cost[c->n++] = (ek_kernel_cost){kernel, {out, in, 0}, table_of(2, at, rates)};
}

static double rate(const ek_kernel_costs *c, int32_t out, int32_t in, double x)
{
    const int32_t size[EK_KERNEL_SIZES] = {out, in};

    return ek_kernel_rate(c, EK_KERNEL_PRODUCT, size, x);
}

static ek_kernel_costs two_shapes(void)
{
    ek_kernel_costs c = {0};

    add(&c, EK_KERNEL_PRODUCT, 64, 64, 1e9);
    add(&c, EK_KERNEL_PRODUCT_WEIGHT, 64, 64, 77);
    add(&c, EK_KERNEL_PRODUCT, 4096, 64, 16e9);
    return c;
}

static void a_measured_shape_has_its_rate(void)
{
    ek_kernel_costs c = two_shapes();

    CHECK(rate(&c, 64, 64, 16) == 1e9);
    CHECK(rate(&c, 4096, 64, 4) == 8e9);
}

static void a_shape_in_the_middle_has_the_geometric_mean(void)
{
    ek_kernel_costs c = two_shapes();

    CHECK_NEAR(rate(&c, 512, 64, 16), 4e9);
    CHECK_NEAR(rate(&c, 512, 512, 16), 4e9); /* as far from both */
}

static void a_shape_near_a_measured_one_has_nearly_its_rate(void)
{
    ek_kernel_costs c = two_shapes();

    CHECK(fabs(rate(&c, 70, 60, 16) / 1e9 - 1) < 0.01);
    CHECK(fabs(rate(&c, 5000, 64, 16) / 16e9 - 1) < 0.01);
}

static void a_kernel_that_was_not_measured_has_no_rate(void)
{
    ek_kernel_costs c = two_shapes(), none = {0};
    const int32_t size[EK_KERNEL_SIZES] = {0};

    CHECK(ek_kernel_rate(&c, EK_KERNEL_NORM, size, 16) == 0);
    CHECK(rate(&none, 64, 64, 16) == 0);
    CHECK(ek_kernel_cost_find(&c, EK_KERNEL_NORM, size) == NULL);
}

static void more_rows_take_no_less_time_for_any_shape(void)
{
    ek_kernel_costs c = two_shapes();

    for (int32_t out = 8; out < 20000; out *= 3) {
        double before = 0;

        for (double rows = 0.5; rows < 1e5; rows *= 1.1) {
            double seconds = rows / rate(&c, out, 100, rows);

            CHECK(seconds >= before * (1 - 1e-12));
            before = seconds;
        }
    }
}

static void every_kernel_has_a_name_of_its_own_and_units(void)
{
    for (int k = 0; k < EK_COST_KERNELS; k++) {
        const ek_kernel_info *info = ek_kernel_info_of((ek_cost_kernel)k);

        CHECK(info->name != NULL && info->x_key != NULL && info->y_key != NULL);
        for (int i = 0; i < k; i++)
            CHECK(strcmp(info->name, ek_kernel_info_of((ek_cost_kernel)i)->name) != 0);
    }
}

static const ek_case cases[] = {
    EK_CASE(a_measured_shape_has_its_rate),
    EK_CASE(a_shape_in_the_middle_has_the_geometric_mean),
    EK_CASE(a_shape_near_a_measured_one_has_nearly_its_rate),
    EK_CASE(a_kernel_that_was_not_measured_has_no_rate),
    EK_CASE(more_rows_take_no_less_time_for_any_shape),
    EK_CASE(every_kernel_has_a_name_of_its_own_and_units),
};

EK_TEST_MAIN(cases)
