/* What further copies of experts add to a step, by hand. */
#include "balance/copy_costs.h"
#include "ek_test.h"
#include "machine_fixture.h"

enum { GRADIENT = 3 * 64 * 100 * 4, LAYERS = 3 };

/* Four ranks on two nodes, two experts a rank: 16 rows an expert, so the best rates. */
static ek_copy_setting setting(const ek_model_spec *spec)
{
    return (ek_copy_setting){.layer = {spec, 0, 4, 2, 32, 0},
                             .layers = LAYERS,
                             .batches = 2,
                             .copies = 2,
                             .split = 0.5,
                             .overlap = 1};
}

static const double flops = 32 * 6.0 * 64 * 100;

static void by_the_book(void)
{
    ek_machine m = by_hand();
    ek_model_spec spec = small_moe();
    ek_copy_setting s = setting(&spec);
    ek_copy_costs c, more;
    double hop = GRADIENT / 1e8, window = flops / 2e12 + flops / 0.5e12, each = 2 * 2 * 1.5 * hop;

    CHECK(ek_copy_costs_of(&m, &s, &c, NULL) == EK_OK);
    CHECK_NEAR(c.bytes, LAYERS * 2 * 1.5 * GRADIENT);
    CHECK_NEAR(c.sums_s, LAYERS * each);
    CHECK_NEAR(c.window_s, window);
    CHECK(each > window);
    CHECK_NEAR(c.exposed_s, each + 2 * (each - window));
    /* bf16: 8 elements of 4 bytes, and for each of two forms one of 4 and one of 2 */
    CHECK_NEAR(c.update_s, LAYERS * 2 * 3.0 * 64 * 100 * (32 + 12) / 20e9);
    CHECK_NEAR(c.added_s, c.exposed_s + c.update_s);
    s.copies = 4;
    CHECK(ek_copy_costs_of(&m, &s, &more, NULL) == EK_OK);
    CHECK_NEAR(more.bytes, 3 * c.bytes);
    CHECK_NEAR(more.sums_s, 3 * c.sums_s);
    CHECK_NEAR(more.update_s, 3 * c.update_s);
}

/* Sums shorter than the products of a layer: only those of the first layer are waited for. */
static void hidden_by_products(void)
{
    ek_machine m = by_hand();
    ek_model_spec spec = small_moe();
    ek_copy_setting s = setting(&spec);
    ek_copy_costs c, exposed;

    s.layer.rows = 1e6;
    CHECK(ek_copy_costs_of(&m, &s, &c, NULL) == EK_OK);
    CHECK_NEAR(c.exposed_s, c.sums_s / LAYERS);
    s.layer.rows = 32;
    CHECK(ek_copy_costs_of(&m, &s, &c, NULL) == EK_OK);
    s.overlap = 0.5;
    CHECK(ek_copy_costs_of(&m, &s, &exposed, NULL) == EK_OK);
    CHECK_NEAR(exposed.window_s, 0.5 * c.window_s);
    s.overlap = 0;
    CHECK(ek_copy_costs_of(&m, &s, &exposed, NULL) == EK_OK);
    CHECK(exposed.window_s == 0);
    CHECK_NEAR(exposed.exposed_s, c.sums_s);
}

static void step_of_one_copy(void)
{
    ek_machine m = by_hand();
    ek_model_spec spec = small_moe();
    ek_copy_setting s = setting(&spec);
    ek_copy_costs c;
    ek_plan_costs p;

    s.layer.rows = 1e5;
    CHECK(ek_plan_costs_of(&m, &s.layer, &p, NULL) == EK_OK && p.comm_s_per_row > 0);
    CHECK(ek_copy_costs_of(&m, &s, &c, NULL) == EK_OK);
    CHECK_NEAR(c.step_s,
               LAYERS * 2 * (1e5 * (p.compute_s_per_row + 0.75 * p.comm_s_per_row) + p.exchange_s) +
                   c.update_s);
}

/* AdamW and packing at the rates that were measured for them. */
static void measured_kernels(void)
{
    ek_machine m = by_hand_with_kernels();
    ek_model_spec spec = small_moe();
    ek_copy_setting s = setting(&spec);
    ek_copy_costs c;

    CHECK(ek_copy_costs_of(&m, &s, &c, NULL) == EK_OK);
    CHECK_NEAR(c.update_s, LAYERS * 2 * 3.0 * 64 * 100 * (32 / 60e9 + 12 / 15e9));
    strcpy(m.dtype, "fp32"); /* masters are what products read */
    CHECK(ek_copy_costs_of(&m, &s, &c, NULL) == EK_OK);
    CHECK_NEAR(c.update_s, LAYERS * 2 * 3.0 * 64 * 100 * (32 / 60e9));
}

static void edges(void)
{
    ek_machine m = by_hand();
    ek_model_spec spec = small_moe();
    ek_copy_setting s = setting(&spec);
    ek_copy_costs c;
    ek_cost_reason reason = {0};

    s.copies = 1;
    CHECK(ek_copy_costs_of(&m, &s, &c, NULL) == EK_OK);
    CHECK(c.added_s == 0 && c.bytes == 0 && c.step_s > 0);
    s.copies = 2;
    CHECK(ek_copy_costs_of(&m, &s, &c, &reason) == EK_OK);
    CHECK_INT(reason.n, 4);
    CHECK(reason.line[0].value == c.added_s && reason.line[2].value == c.sums_s);
    CHECK_NEAR(reason.line[1].value + reason.line[3].value, c.added_s);
    CHECK(strncmp(reason.line[2].text, "2 ranks of a node x 6 copies x (1 + 0.50) x 768 us", 50) ==
          0);
    s.split = 1.5;
    CHECK(ek_copy_costs_of(&m, &s, &c, NULL) == EK_EINVAL);
    s.split = 0;
    s.layers = 0;
    CHECK(ek_copy_costs_of(&m, &s, &c, NULL) == EK_EINVAL);
    s.layers = 1;
    memset(m.link, 0, sizeof(m.link));
    CHECK(ek_copy_costs_of(&m, &s, &c, NULL) == EK_EINVAL);
}

static const ek_case cases[] = {
    EK_CASE(by_the_book),
    EK_CASE(hidden_by_products),
    EK_CASE(step_of_one_copy),
    EK_CASE(measured_kernels),
    EK_CASE(edges),
};
EK_TEST_MAIN(cases)
