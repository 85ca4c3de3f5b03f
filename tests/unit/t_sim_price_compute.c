/* Seconds of the work of ops by a machine's tables. */
#include "ek_test.h"
#include "machine_fixture.h"
#include "sim/price_compute.h"

static double price(const ek_machine *m, ek_op_kind kind, ek_work work, double bytes)
{
    ek_op op = {.kind = kind, .flops = ek_work_flops(&work), .bytes = bytes, .work = work};

    return ek_price_compute(m, &op);
}

static double price_of_rows(const ek_machine *m, double rows, double groups, int32_t passes)
{
    return price(m, EK_OP_QKV, ek_work_of_product((ek_product){rows, groups, 200, 64, passes}), 7);
}

static void a_product_takes_its_flops_at_the_rate_of_its_rows_a_group(void)
{
    ek_machine m = by_hand();
    double row = 2.0 * 200 * 64; /* of a pass */

    CHECK_NEAR(price_of_rows(&m, 32, 2, EK_PRODUCT_FORWARD), 32 * row / 1e12);
    CHECK_NEAR(price_of_rows(&m, 8, 2, EK_PRODUCT_FORWARD), 8 * row / 0.5e12);
    CHECK_NEAR(price_of_rows(&m, 16, 1, EK_PRODUCT_INPUT), 16 * row / 2e12);
    CHECK_NEAR(price_of_rows(&m, 16, 1, EK_PRODUCT_WEIGHT), 16 * row / 0.5e12);
}

static void passes_and_products_of_an_op_are_summed(void)
{
    ek_machine m = by_hand();
    ek_product up = {32, 2, 200, 64, EK_PRODUCT_INPUT | EK_PRODUCT_WEIGHT};
    ek_product down = {32, 2, 64, 100, EK_PRODUCT_FORWARD};

    CHECK_NEAR(price(&m, EK_OP_SHARED_EXPERT, ek_work_of_products(up, down), 0),
               price_of_rows(&m, 32, 2, EK_PRODUCT_INPUT) +
                   price_of_rows(&m, 32, 2, EK_PRODUCT_WEIGHT) + 32 * 2.0 * 64 * 100 / 1e12);
}

static void attention_takes_its_flops_at_the_best_rate(void)
{
    ek_machine m = by_hand();
    ek_work w = ek_work_of_attention(&(ek_attention_work){2, 1, 8, 0, 10, 55, 0, 0});

    CHECK_NEAR(price(&m, EK_OP_ATTENTION, w, 1e9), 4.0 * 2 * 8 * 55 / 2e12);
    w.attention.score_passes = 6;
    CHECK(price(&m, EK_OP_ATTENTION, w, 0) > 4.0 * 2 * 8 * 55 / 2e12);
    w.attention.score_passes = 0;
    w.attention.backward = 1;
    CHECK_NEAR(price(&m, EK_OP_ATTENTION_BACKWARD, w, 1e9), 8.0 * 2 * 8 * 55 / 2e12);
}

static void rows_take_their_bytes_at_the_copy_bandwidth(void)
{
    ek_machine m = by_hand();

    CHECK_NEAR(price(&m, EK_OP_SWIGLU, ek_work_of_rows(10, 64), 2e6), 1e-4);
    CHECK(price(&m, EK_OP_LAYOUT, ek_work_of_rows(10, 1), 0) == 0);
}

static void other_work_takes_no_time_of_the_machine(void)
{
    ek_machine m = by_hand();
    ek_work disk = {.kind = EK_WORK_DISK}, none = {0};
    ek_work net = {.kind = EK_WORK_NET,
                   .net = {.collective = EK_COLLECTIVE_ALL_REDUCE,
                           .group = {.first = 0, .stride = 1, .n = 8},
                           .span = 8,
                           .peer = -1,
                           .element = 4,
                           .bytes = 1e6}};

    CHECK(price(&m, EK_OP_READ_STATE, disk, 1e6) == 0);
    CHECK(price(&m, EK_OP_LOSSES, none, 1e6) == 0);
    CHECK(price(&m, EK_OP_REDUCE_GRADIENTS, net, 1e6) == 0);
}

static void no_rows_take_no_time(void)
{
    ek_machine m = by_hand();

    CHECK(price_of_rows(&m, 0, 2, EK_PRODUCT_FORWARD | EK_PRODUCT_WEIGHT) == 0);
    CHECK(price(&m, EK_OP_ATTENTION,
                ek_work_of_attention(&(ek_attention_work){2, 1, 8, 0, 0, 0, 0, 0}), 0) == 0);
    CHECK(price(&m, EK_OP_SWIGLU, ek_work_of_rows(0, 64), 0) == 0);
}

static void more_rows_never_take_less_time(void)
{
    ek_machine m = by_hand();

    for (int pass = EK_PRODUCT_FORWARD; pass <= EK_PRODUCT_WEIGHT; pass *= 2) {
        double before = 0;

        for (double rows = 0.25; rows < 1e6; rows *= 1.3) {
            double seconds = price_of_rows(&m, rows, 2, pass);

            CHECK(seconds >= before * (1 - 1e-12) && seconds > 0);
            before = seconds;
        }
    }
}

/* Every kind of work, some rows of it. */
static double price_of_all(const ek_machine *m)
{
    ek_work heads = ek_work_of_attention(&(ek_attention_work){2, 1, 8, 1, 10, 55, 0, 0});

    return price_of_rows(m, 11, 2, EK_PRODUCT_FORWARD | EK_PRODUCT_INPUT | EK_PRODUCT_WEIGHT) +
           price(m, EK_OP_ATTENTION_BACKWARD, heads, 0) +
           price(m, EK_OP_NORM, ek_work_of_rows(10, 64), 1e6);
}

static void a_machine_of_half_the_speed_takes_twice_the_time(void)
{
    ek_machine m = by_hand(), half = by_hand();

    half.copy /= 2;
    for (int p = 0; p < EK_COST_PRODUCTS; p++)
        for (int32_t i = 0; i < half.rate[p].n; i++)
            half.rate[p].y[i] /= 2;
    CHECK_NEAR(price_of_all(&half), 2 * price_of_all(&m));
}

/* --- with measured kernels -------------------------------------------------------------------- */

static void a_measured_shape_takes_its_rate(void)
{
    ek_machine m = by_hand_with_kernels();
    double row = 2.0 * 200 * 64;

    CHECK_NEAR(price_of_rows(&m, 32, 2, EK_PRODUCT_FORWARD), 32 * row / 3e12);
    CHECK_NEAR(price_of_rows(&m, 8, 2, EK_PRODUCT_INPUT), 8 * row / 2e12);
    CHECK_NEAR(price_of_rows(&m, 32, 2, EK_PRODUCT_WEIGHT), 32 * row / 5e12);
}

static void attention_takes_the_rate_of_sequences_with_as_many_keys_a_query(void)
{
    ek_machine m = by_hand_with_kernels();
    ek_work w = ek_work_of_attention(&(ek_attention_work){2, 1, 8, 0, 32, 32 * 17 / 2.0, 0, 0});

    CHECK_NEAR(price(&m, EK_OP_ATTENTION, w, 0), 4.0 * 16 * (32 * 17 / 2.0) / 7e12);
    w.attention.pairs = 32 * 5 / 2.0; /* of sequences of 4 tokens */
    CHECK_NEAR(price(&m, EK_OP_ATTENTION, w, 0), 4.0 * 16 * (32 * 5 / 2.0) / 3.5e12);
    w.attention.backward = 1; /* not measured: the best product */
    CHECK_NEAR(price(&m, EK_OP_ATTENTION_BACKWARD, w, 0), 8.0 * 16 * (32 * 5 / 2.0) / 5e12);
}

static void rows_take_the_rate_of_the_kernel_of_their_kind(void)
{
    ek_machine m = by_hand_with_kernels();

    CHECK_NEAR(price(&m, EK_OP_NORM, ek_work_of_rows(10, 64), 3e6), 1e-4);
    CHECK_NEAR(price(&m, EK_OP_NORM_RECOMPUTE, ek_work_of_rows(10, 64), 3e6), 1e-4);
    CHECK_NEAR(price(&m, EK_OP_SWIGLU, ek_work_of_rows(10, 64), 2e6), 1e-4); /* not measured */
}

static void an_update_is_priced_apart_from_what_it_packs(void)
{
    ek_machine m = by_hand_with_kernels();
    double update = 8 * 4 * 1e6, packed = 6e6;

    CHECK_NEAR(price(&m, EK_OP_ADAMW, ek_work_of_rows(1e6, 1), update + packed),
               update / 60e9 + packed / 15e9);
    CHECK_NEAR(price(&m, EK_OP_ADAMW, ek_work_of_rows(1e6, 1), update), update / 60e9);
}

/* The logits' op normalises its rows first. */
static void what_an_op_moves_besides_its_products_is_priced_as_rows(void)
{
    ek_machine m = by_hand_with_kernels();
    ek_work w = ek_work_of_product(ek_product_of(16, 200, 64, EK_PRODUCT_FORWARD));
    double operands = 16 * (64 * 2 + 200 * 4) + 200 * 64 * 2, norm = 16 * 64 * (4 + 2);
    double product = price(&m, EK_OP_LOGITS, w, operands);

    CHECK_NEAR(product, 16 * 2.0 * 200 * 64 / 3e12);
    CHECK_NEAR(price(&m, EK_OP_LOGITS, w, operands + norm), product + norm / 30e9);
}

static void half_the_speed_of_every_kernel_is_twice_the_time(void)
{
    ek_machine m = by_hand_with_kernels(), half = by_hand_with_kernels();

    for (int p = 0; p < EK_COST_PRODUCTS; p++) /* for attention backward */
        for (int32_t i = 0; i < half.rate[p].n; i++)
            half.rate[p].y[i] /= 2;
    for (int32_t k = 0; k < half.kernels.n; k++)
        for (int32_t i = 0; i < half.kernels.cost[k].rate.n; i++)
            half.kernels.cost[k].rate.y[i] /= 2;
    CHECK_NEAR(price_of_all(&half), 2 * price_of_all(&m));
}

static const ek_case cases[] = {
    EK_CASE(a_product_takes_its_flops_at_the_rate_of_its_rows_a_group),
    EK_CASE(passes_and_products_of_an_op_are_summed),
    EK_CASE(attention_takes_its_flops_at_the_best_rate),
    EK_CASE(rows_take_their_bytes_at_the_copy_bandwidth),
    EK_CASE(other_work_takes_no_time_of_the_machine),
    EK_CASE(no_rows_take_no_time),
    EK_CASE(more_rows_never_take_less_time),
    EK_CASE(a_measured_shape_takes_its_rate),
    EK_CASE(attention_takes_the_rate_of_sequences_with_as_many_keys_a_query),
    EK_CASE(rows_take_the_rate_of_the_kernel_of_their_kind),
    EK_CASE(an_update_is_priced_apart_from_what_it_packs),
    EK_CASE(what_an_op_moves_besides_its_products_is_priced_as_rows),
    EK_CASE(half_the_speed_of_every_kernel_is_twice_the_time),
    EK_CASE(a_machine_of_half_the_speed_takes_twice_the_time),
};

EK_TEST_MAIN(cases)
