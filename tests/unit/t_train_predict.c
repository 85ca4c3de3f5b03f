/* What ops should take by a machine's tables, and the sums over events. */
#include "cost/cost.h"
#include "ek_test.h"
#include "machine_fixture.h"
#include "sim/price_compute.h"
#include "train/timing/predict.h"

static ek_event event(ek_op_kind kind, ek_work work, double bytes, double seconds)
{
    return (ek_event){.kind = kind,
                      .lane = work.kind == EK_WORK_NET ? EK_LANE_NET : EK_LANE_COMPUTE,
                      .start_ns = 1000,
                      .end_ns = 1000 + (int64_t)(seconds * 1e9),
                      .flops = ek_work_flops(&work),
                      .bytes = bytes,
                      .work = work};
}

static double predicted(const ek_predict_config *cfg, ek_op_kind kind, ek_work work, double bytes)
{
    ek_event e = event(kind, work, bytes, 1);

    return ek_predict_op(cfg, &e);
}

/* Between four consecutive ranks of eight. */
static ek_work of_ranks(ek_collective collective, double bytes)
{
    return (ek_work){.kind = EK_WORK_NET,
                     .net = {.collective = collective,
                             .group = {.first = 0, .stride = 1, .n = 8},
                             .span = 4,
                             .peer = -1,
                             .element = 1,
                             .bytes = bytes}};
}

/* Of an op of this work. */
static double price(const ek_machine *m, ek_op_kind kind, ek_work work, double bytes)
{
    ek_op op = {.kind = kind, .bytes = bytes, .work = work};

    return ek_price_compute(m, &op);
}

static void what_is_computed_takes_its_price(void)
{
    ek_machine m = by_hand();
    ek_predict_config cfg = {&m, 2};
    ek_work up = ek_work_of_product((ek_product){8, 2, 200, 64, EK_PRODUCT_FORWARD});
    ek_work rows = ek_work_of_rows(10, 64);
    ek_work heads = ek_work_of_attention(&(ek_attention_work){2, 2, 8, 0, 10, 55, 0, 0});

    CHECK(predicted(&cfg, EK_OP_EXPERT_UP, up, 7) > 0);
    CHECK_NEAR(predicted(&cfg, EK_OP_EXPERT_UP, up, 7), price(&m, EK_OP_EXPERT_UP, up, 7));
    CHECK_NEAR(predicted(&cfg, EK_OP_SWIGLU, rows, 2e6), price(&m, EK_OP_SWIGLU, rows, 2e6));
    CHECK_NEAR(predicted(&cfg, EK_OP_ATTENTION, heads, 1e6),
               price(&m, EK_OP_ATTENTION, heads, 1e6));
    up.products.product[0].rows = 0;
    CHECK(predicted(&cfg, EK_OP_EXPERT_UP, up, 0) == 0);
}

static void an_all_to_all_is_predicted_on_a_machine_with_links(void)
{
    ek_machine m = by_hand();
    ek_predict_config cfg = {&m, 2};
    ek_work rows_out = of_ranks(EK_COLLECTIVE_A2A_LINEAR, 3e6);

    CHECK_NEAR(predicted(&cfg, EK_OP_COMBINE_A2A, rows_out, 3e6),
               ek_cost_all_to_all(&m, 4, 2, 3e6, NULL, 0));
    CHECK(predicted(&cfg, EK_OP_COMBINE_A2A, rows_out, 3e6) > 0);
    memset(m.link, 0, sizeof(m.link));
    CHECK(predicted(&cfg, EK_OP_COMBINE_A2A, rows_out, 3e6) < 0);
}

static void other_ops_are_not_predicted(void)
{
    ek_machine m = by_hand();
    ek_predict_config cfg = {&m, 2};
    ek_work gather = of_ranks(EK_COLLECTIVE_ALL_GATHER, 1e6);
    ek_work none = {0}, disk = {.kind = EK_WORK_DISK};

    CHECK(predicted(&cfg, EK_OP_LOSSES, none, 0) < 0);
    CHECK(predicted(&cfg, EK_OP_GATHER_WEIGHTS, gather, 1e6) < 0);
    CHECK(predicted(&cfg, EK_OP_READ_STATE, disk, 1e6) < 0);
}

static void events_of_a_kind_are_summed(void)
{
    static ek_compare c;
    ek_machine m = by_hand();
    ek_predict_config cfg = {&m, 1};
    ek_work rows = ek_work_of_rows(10, 64), none = {0};
    ek_event events[] = {event(EK_OP_SWIGLU, rows, 2e6, 1e-4), event(EK_OP_SWIGLU, rows, 2e6, 5e-4),
                         event(EK_OP_LOSSES, none, 0, 2e-4)};
    const ek_compare_row *worst;

    ek_compare_begin(&c);
    ek_predict_add(&cfg, events, 3, &c);
    CHECK_INT(c.n, 2);
    CHECK_NEAR(c.row[0].predicted_s, 2e-4);
    CHECK(fabs(c.row[0].measured_s - 6e-4) < 1e-8 && c.row[0].count == 2);
    CHECK(!c.row[1].predicted);
    CHECK_INT(ek_compare_parted(&c, &worst), 1);
}

static const ek_case cases[] = {
    EK_CASE(what_is_computed_takes_its_price),
    EK_CASE(an_all_to_all_is_predicted_on_a_machine_with_links),
    EK_CASE(other_ops_are_not_predicted),
    EK_CASE(events_of_a_kind_are_summed),
};

EK_TEST_MAIN(cases)
