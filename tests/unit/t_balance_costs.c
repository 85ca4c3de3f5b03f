/* Planner costs from the tables of a machine, by hand. */
#include "balance/costs.h"
#include "ek_test.h"
#include "machine_fixture.h"

/* A hop of more than 10 kB from one of four ranks on two nodes: one other rank is on its node. */
static double hop(double bytes)
{
    return (bytes / 1e9 + 2 * bytes / 1e8) / 3;
}

static void by_the_book(void)
{
    ek_machine m = by_hand();
    ek_model_spec spec = small_moe();
    /* 4 ranks on 2 nodes, 2 experts each, so 16 rows per expert: the best rates */
    ek_plan_setting s = {&spec, 0, 4, 2, 32, 0};
    ek_plan_costs c, twice;
    double flops = 6.0 * 64 * 100, row = 4 * 64 * 2 + 2 * 4, sent = 24;

    CHECK(ek_plan_costs_of(&m, &s, &c, NULL) == EK_OK);
    CHECK_NEAR(c.compute_s_per_row,
               flops * (1 / 1e12 + 1 / 2e12 + 1 / 0.5e12) + (8 * 64 + 9 * 100) * 2 / 20e9);
    /* 24 rows leave; a message is a third of a quarter of them: 1040 B take the latency, as twice
     * as many would */
    CHECK(2 * sent * row / 4 / 3 < 1e4);
    CHECK(c.comm_s_per_row == 0);
    CHECK_NEAR(c.exchange_s, 4 * (2 * 100e-6));
    CHECK_NEAR(c.replica_bytes, 3 * 64 * 100 * (2 + 4));
    CHECK_NEAR(c.state_bytes, 3 * 64 * 100 * 12);
    CHECK_NEAR(c.migrate_s_per_expert, hop(3 * 64 * 100 * 12));
    /* 38 and 77 kB */
    CHECK_NEAR(c.replica_s, hop(3 * 64 * 100 * (2 + 4)));
    CHECK_NEAR(c.exposed_s, hop(3 * 64 * 100 * 2));
    CHECK_NEAR(c.gradient_s, 2 * (3 * 64 * 100 * 4 / 1e8)); /* two ranks a node */
    s.sends_twice = 1;
    CHECK(ek_plan_costs_of(&m, &s, &twice, NULL) == EK_OK);
    CHECK_NEAR(twice.replica_bytes, 3 * 64 * 100 * (2 * 2 + 4));
    CHECK_NEAR(twice.replica_s, hop(3 * 64 * 100 * (2 * 2 + 4)));
    CHECK_NEAR(twice.exposed_s, c.exposed_s);
}

static void skinny_products_are_dear(void)
{
    ek_machine m = by_hand();
    ek_model_spec spec = small_moe();
    ek_plan_setting s = {&spec, 0, 4, 1, 8, 0};
    ek_plan_costs few, many, best;

    CHECK(ek_plan_costs_of(&m, &s, &few, NULL) == EK_OK);
    s.rows = 1e5;
    CHECK(ek_plan_costs_of(&m, &s, &many, NULL) == EK_OK);
    s.rows = 0;
    CHECK(ek_plan_costs_of(&m, &s, &best, NULL) == EK_OK);
    CHECK(few.compute_s_per_row > 1.4 * many.compute_s_per_row);
    CHECK(few.comm_s_per_row == 0 && few.exchange_s > 0);
    CHECK_NEAR(many.exchange_s, 0); /* long messages take as long as their bytes */
    CHECK_NEAR(best.compute_s_per_row, many.compute_s_per_row);
    CHECK_NEAR(best.comm_s_per_row, (4 * 64 * 2 + 2 * 4) / 1e9);
}

/* Some time of short messages is latency, which more rows do not add to. */
static void a_row_costs_what_it_adds(void)
{
    ek_machine m = by_hand();
    ek_model_spec spec = small_moe();
    ek_plan_setting s = {&spec, 0, 4, 1, 0, 0};
    double row = 4 * 64 * 2 + 2 * 4, one, two, away;
    ek_plan_costs c;

    s.rows = 4 * 3 * 8e3 / row / 0.75; /* messages of 8 kB, and of 16 kB with twice the rows */
    away = 0.75 * s.rows;
    CHECK(ek_plan_costs_of(&m, &s, &c, NULL) == EK_OK);
    one = 4 * ek_cost_all_to_all(&m, 4, 1, away * row / 4, NULL, 0);
    two = 4 * ek_cost_all_to_all(&m, 4, 1, 2 * away * row / 4, NULL, 0);
    CHECK_NEAR(c.comm_s_per_row, (two - one) / away);
    CHECK_NEAR(c.exchange_s + c.comm_s_per_row * away, one);
    CHECK(c.comm_s_per_row > 0 && c.exchange_s > 0.3 * one);
}

static void types(void)
{
    ek_machine m = by_hand();
    ek_model_spec spec = small_moe();
    ek_plan_setting s = {&spec, 0, 2, 1, 100, 0};
    ek_plan_costs c;

    strcpy(m.dtype, "fp32"); /* the weights are the master weights */
    CHECK(ek_plan_costs_of(&m, &s, &c, NULL) == EK_OK);
    CHECK_NEAR(c.replica_bytes, 3 * 64 * 100 * 8);
    CHECK_NEAR(c.state_bytes, 3 * 64 * 100 * 12);
    strcpy(m.dtype, "fp64");
    CHECK(ek_plan_costs_of(&m, &s, &c, NULL) == EK_OK);
    CHECK_NEAR(c.replica_bytes, 3 * 64 * 100 * 16);
    CHECK_NEAR(c.state_bytes, 3 * 64 * 100 * 24);
}

static void edges(void)
{
    ek_machine m = by_hand();
    ek_model_spec spec = small_moe();
    ek_plan_setting s = {&spec, 0, 1, 1, 100, 0};
    ek_plan_costs c, other;
    ek_cost_reason reason = {0};

    CHECK(ek_plan_costs_of(&m, &s, &c, NULL) == EK_OK); /* a single rank */
    CHECK(c.comm_s_per_row == 0 && c.replica_s == 0 && c.compute_s_per_row > 0);
    memset(m.link, 0, sizeof(m.link));
    CHECK(ek_plan_costs_of(&m, &s, &c, NULL) == EK_OK);
    s.ranks = 2;
    CHECK(ek_plan_costs_of(&m, &s, &c, NULL) == EK_EINVAL);
    CHECK(strstr(ek_err_message(), "measured with one rank") != NULL);
    m = by_hand();
    s.ranks = 20; /* more ranks than experts: one each */
    CHECK(ek_plan_costs_of(&m, &s, &c, &reason) == EK_OK);
    CHECK(strstr(reason.line[0].text, "copies, 100 rows an expert") != NULL);
    s.experts = 20; /* from a trace instead of the model */
    CHECK(ek_plan_costs_of(&m, &s, &other, NULL) == EK_OK);
    CHECK_NEAR(c.compute_s_per_row, other.compute_s_per_row);
    s.ranks = 0;
    CHECK(ek_plan_costs_of(&m, &s, &c, NULL) == EK_EINVAL);
}

/* Every factor has a reason line, and lines of one depth add up to the one above. */
static void reasons(void)
{
    ek_machine m = by_hand();
    ek_model_spec spec = small_moe();
    ek_plan_setting s = {&spec, 0, 4, 2, 32, 0};
    ek_plan_costs c;
    ek_cost_reason reason = {0};
    double sum = 0;

    CHECK(ek_plan_costs_of(&m, &s, &c, &reason) == EK_OK);
    CHECK_INT(reason.n, 14);
    CHECK(strcmp(reason.line[0].name, "expert row") == 0 &&
          reason.line[0].value == c.compute_s_per_row);
    for (int i = 1; i <= 4; i++)
        sum += reason.line[i].value;
    CHECK_NEAR(sum, c.compute_s_per_row);
    CHECK(strcmp(reason.line[1].text, "6 x 64 x 100 = 38.4 kFLOP at 1.00 TFLOP/s") == 0);
    CHECK(strcmp(reason.line[5].name, "row sent") == 0 && reason.line[5].value == c.comm_s_per_row);
    CHECK(strcmp(reason.line[9].name, "replica") == 0 && reason.line[9].value == c.replica_s);
    CHECK(reason.line[12].value == c.replica_bytes && reason.line[13].value == c.state_bytes);
    CHECK(strstr(reason.line[0].text, "another size") == NULL);
    spec.ff = 50;
    reason.n = 0;
    CHECK(ek_plan_costs_of(&m, &s, &c, &reason) == EK_OK);
    CHECK(strstr(reason.line[0].text, "measured with experts of another size") != NULL);
}

static const ek_case cases[] = {
    EK_CASE(by_the_book),
    EK_CASE(skinny_products_are_dear),
    EK_CASE(a_row_costs_what_it_adds),
    EK_CASE(types),
    EK_CASE(edges),
    EK_CASE(reasons),
};
EK_TEST_MAIN(cases)
