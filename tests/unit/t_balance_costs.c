/* Planners' costs from a machine's tables, by hand. */
#include "balance/costs.h"
#include "ek_test.h"
#include "machine_fixture.h"

static ek_model_spec model(void)
{
    ek_model_spec s;

    ek_model_default(&s);
    s.hidden = 64;
    s.ff = 100;
    s.experts = 8;
    s.top_k = 2;
    return s;
}

static void by_the_book(void)
{
    ek_machine m = by_hand();
    ek_model_spec spec = model();
    /* 4 ranks on 2 nodes, 2 experts each, so 16 rows an expert: the best rates */
    ek_plan_setting s = {&spec, 0, 4, 2, 32};
    ek_plan_costs c;
    double flops = 6.0 * 64 * 100, row = 4 * 64 * 2 + 2 * 4, sent = 24;

    CHECK(ek_plan_costs_of(&m, &s, &c, NULL) == EK_OK);
    CHECK_NEAR(c.row_s, flops * (1 / 1e12 + 1 / 2e12 + 1 / 0.5e12) + (8 * 64 + 9 * 100) * 2 / 20e9);
    /* 24 rows leave; a message is a third of a quarter of them: 1040 B take the latency */
    CHECK(sent * row / 4 / 3 < 1e4);
    CHECK_NEAR(c.send_s, 4 * (2 * 100e-6) / sent);
    CHECK_NEAR(c.replica_bytes, 3 * 64 * 100 * (2 * 2 + 4));
    CHECK_NEAR(c.state_bytes, 3 * 64 * 100 * 12);
    CHECK_NEAR(c.move_s, 3 * 64 * 100 * 12 / 1e8);
    /* between nodes; 38 and 77 kB at 0.1 GB/s */
    CHECK_NEAR(c.replica_s, 3 * 64 * 100 * (2 * 2 + 4) / 1e8);
    CHECK_NEAR(c.waited_s, 3 * 64 * 100 * 2 / 1e8);
}

static void few_rows_are_dear(void)
{
    ek_machine m = by_hand();
    ek_model_spec spec = model();
    ek_plan_setting s = {&spec, 0, 4, 1, 8};
    ek_plan_costs few, many, best;

    CHECK(ek_plan_costs_of(&m, &s, &few, NULL) == EK_OK);
    s.rows = 1e5;
    CHECK(ek_plan_costs_of(&m, &s, &many, NULL) == EK_OK);
    s.rows = 0;
    CHECK(ek_plan_costs_of(&m, &s, &best, NULL) == EK_OK);
    CHECK(few.row_s > 1.4 * many.row_s && few.send_s > 3 * many.send_s);
    CHECK_NEAR(best.row_s, many.row_s);
    CHECK_NEAR(best.send_s, (4 * 64 * 2 + 2 * 4) / 1e9);
}

static void types(void)
{
    ek_machine m = by_hand();
    ek_model_spec spec = model();
    ek_plan_setting s = {&spec, 0, 2, 1, 100};
    ek_plan_costs c;

    strcpy(m.dtype, "fp32"); /* the weights are the master weights */
    CHECK(ek_plan_costs_of(&m, &s, &c, NULL) == EK_OK);
    CHECK_NEAR(c.replica_bytes, 3 * 64 * 100 * 12);
    CHECK_NEAR(c.state_bytes, 3 * 64 * 100 * 12);
    strcpy(m.dtype, "fp64");
    CHECK(ek_plan_costs_of(&m, &s, &c, NULL) == EK_OK);
    CHECK_NEAR(c.replica_bytes, 3 * 64 * 100 * 24);
    CHECK_NEAR(c.state_bytes, 3 * 64 * 100 * 24);
}

static void edges(void)
{
    ek_machine m = by_hand();
    ek_model_spec spec = model();
    ek_plan_setting s = {&spec, 0, 1, 1, 100};
    ek_plan_costs c, other;
    ek_cost_why why = {0};

    CHECK(ek_plan_costs_of(&m, &s, &c, NULL) == EK_OK); /* nobody to send to */
    CHECK(c.send_s == 0 && c.replica_s == 0 && c.row_s > 0);
    memset(m.link, 0, sizeof(m.link));
    CHECK(ek_plan_costs_of(&m, &s, &c, NULL) == EK_OK);
    s.ranks = 2;
    CHECK(ek_plan_costs_of(&m, &s, &c, NULL) == EK_EINVAL);
    CHECK(strstr(ek_err_message(), "measured with one rank") != NULL);
    m = by_hand();
    s.ranks = 20; /* more than experts: one each */
    CHECK(ek_plan_costs_of(&m, &s, &c, &why) == EK_OK);
    CHECK(strstr(why.line[0].text, "copies, 100 rows an expert") != NULL);
    s.experts = 20; /* of a trace, in place of the model's */
    CHECK(ek_plan_costs_of(&m, &s, &other, NULL) == EK_OK);
    CHECK_NEAR(c.row_s, other.row_s);
    s.ranks = 0;
    CHECK(ek_plan_costs_of(&m, &s, &c, NULL) == EK_EINVAL);
}

/* Every figure has a line, and lines of one depth add up to the one above. */
static void reasons(void)
{
    ek_machine m = by_hand();
    ek_model_spec spec = model();
    ek_plan_setting s = {&spec, 0, 4, 2, 32};
    ek_plan_costs c;
    ek_cost_why why = {0};
    double sum = 0;

    CHECK(ek_plan_costs_of(&m, &s, &c, &why) == EK_OK);
    CHECK_INT(why.n, 14);
    CHECK(strcmp(why.line[0].name, "expert row") == 0 && why.line[0].value == c.row_s);
    for (int i = 1; i <= 4; i++)
        sum += why.line[i].value;
    CHECK_NEAR(sum, c.row_s);
    CHECK(strcmp(why.line[1].text, "6 x 64 x 100 = 38.4 kFLOP at 1 TFLOP/s") == 0);
    CHECK(strcmp(why.line[5].name, "row sent") == 0 && why.line[5].value == c.send_s);
    CHECK(strcmp(why.line[9].name, "replica") == 0 && why.line[9].value == c.replica_s);
    CHECK(why.line[12].value == c.replica_bytes && why.line[13].value == c.state_bytes);
    CHECK(strstr(why.line[0].text, "another size") == NULL);
    spec.ff = 50;
    why.n = 0;
    CHECK(ek_plan_costs_of(&m, &s, &c, &why) == EK_OK);
    CHECK(strstr(why.line[0].text, "measured with experts of another size") != NULL);
}

static const ek_case cases[] = {
    EK_CASE(by_the_book), EK_CASE(few_rows_are_dear), EK_CASE(types),
    EK_CASE(edges),       EK_CASE(reasons),
};
EK_TEST_MAIN(cases)
