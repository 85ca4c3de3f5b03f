/* What ops should take by a machine's tables, and the sums over events. */
#include "cost/cost.h"
#include "ek_test.h"
#include "machine_fixture.h"
#include "train/timing/predict.h"

static ek_model_spec model(void)
{
    ek_model_spec s;

    ek_model_default(&s);
    s.hidden = 64;
    s.ff = 100;
    return s;
}

static ek_event event(ek_op_kind kind, ek_lane lane, double flops, double bytes, double seconds)
{
    return (ek_event){.kind = kind,
                      .lane = lane,
                      .start_ns = 1000,
                      .end_ns = 1000 + (int64_t)(seconds * 1e9),
                      .flops = flops,
                      .bytes = bytes};
}

static double predicted(const ek_predict_config *cfg, ek_op_kind kind, ek_lane lane, double flops,
                        double bytes)
{
    ek_event e = event(kind, lane, flops, bytes, 1);

    return ek_predict_op(cfg, &e);
}

static void experts(void)
{
    ek_machine m = by_hand();
    ek_model_spec spec = model();
    ek_predict_config cfg = {&m, &spec, 4, 2, 2, 1};
    double row = 2.0 * 64 * 100;

    /* 32 rows, 16 an expert; 8 rows, 4 an expert */
    CHECK_NEAR(predicted(&cfg, EK_OP_EXPERT_UP, EK_LANE_COMPUTE, 32 * 2 * row, 7), 64 * row / 1e12);
    CHECK_NEAR(predicted(&cfg, EK_OP_EXPERT_DOWN, EK_LANE_COMPUTE, 32 * row, 7), 32 * row / 1e12);
    CHECK_NEAR(predicted(&cfg, EK_OP_EXPERT_DOWN, EK_LANE_COMPUTE, 8 * row, 7), 8 * row / 0.5e12);
    CHECK_NEAR(predicted(&cfg, EK_OP_EXPERT_UP_INPUT, EK_LANE_COMPUTE, 64 * row, 7),
               64 * row / 2e12);
    CHECK_NEAR(predicted(&cfg, EK_OP_EXPERT_DOWN_WEIGHT, EK_LANE_COMPUTE, 32 * row, 7),
               32 * row / 0.5e12);
    cfg.etp = 2; /* half as wide: as many FLOPs are twice as many rows */
    CHECK_NEAR(predicted(&cfg, EK_OP_EXPERT_DOWN, EK_LANE_COMPUTE, 16 * row, 7), 16 * row / 1e12);
    CHECK(predicted(&cfg, EK_OP_EXPERT_UP, EK_LANE_COMPUTE, 0, 0) == 0);
}

static void the_rest(void)
{
    ek_machine m = by_hand();
    ek_model_spec spec = model();
    ek_predict_config cfg = {&m, &spec, 4, 2, 2, 1};

    CHECK_NEAR(predicted(&cfg, EK_OP_SWIGLU, EK_LANE_COMPUTE, 0, 2e6), 1e-4);
    CHECK_NEAR(predicted(&cfg, EK_OP_COMBINE_A2A, EK_LANE_NET, 0, 3e6),
               ek_cost_all_to_all(&m, 4, 2, 3e6, NULL, 0));
    CHECK(predicted(&cfg, EK_OP_COMBINE_A2A, EK_LANE_NET, 0, 3e6) > 0);
    CHECK(predicted(&cfg, EK_OP_ATTENTION, EK_LANE_COMPUTE, 1e6, 1e6) < 0);
    CHECK(predicted(&cfg, EK_OP_LOSSES, EK_LANE_COMPUTE, 0, 0) < 0);
    CHECK(predicted(&cfg, EK_OP_GATHER_WEIGHTS, EK_LANE_NET, 0, 1e6) < 0);
    CHECK(predicted(&cfg, EK_OP_GATHER_WEIGHTS, EK_LANE_DISK, 0, 1e6) < 0);
    memset(m.link, 0, sizeof(m.link));
    CHECK(predicted(&cfg, EK_OP_COMBINE_A2A, EK_LANE_NET, 0, 3e6) < 0);
}

static void sums(void)
{
    static ek_compare c;
    ek_machine m = by_hand();
    ek_model_spec spec = model();
    ek_predict_config cfg = {&m, &spec, 1, 1, 2, 1};
    ek_event events[] = {event(EK_OP_SWIGLU, EK_LANE_COMPUTE, 0, 2e6, 1e-4),
                         event(EK_OP_SWIGLU, EK_LANE_COMPUTE, 0, 2e6, 5e-4),
                         event(EK_OP_ATTENTION, EK_LANE_COMPUTE, 1e6, 0, 2e-4)};
    const ek_compare_row *worst;

    ek_compare_begin(&c);
    ek_predict_add(&cfg, events, 3, &c);
    CHECK_INT(c.n, 2);
    CHECK_NEAR(c.row[0].predicted_s, 2e-4);
    CHECK(fabs(c.row[0].measured_s - 6e-4) < 1e-8 && c.row[0].count == 2);
    CHECK(!c.row[1].predicted);
    CHECK_INT(ek_compare_parted(&c, &worst), 1);
}

static const ek_case cases[] = {EK_CASE(experts), EK_CASE(the_rest), EK_CASE(sums)};
EK_TEST_MAIN(cases)
