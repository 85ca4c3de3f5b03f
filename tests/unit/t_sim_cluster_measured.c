/* A cluster from the tables of a machine: exact where tables are lines, sensible where they are
 * not. */
#include "ek_test.h"
#include "machine_fixture.h"
#include "sim/cluster_measured.h"
#include "sim/price_net.h"

/* constant + bytes / rate, at sizes of a measurement. */
static ek_cost_table line_of(double constant, double rate)
{
    ek_cost_table t = {0};

    for (double x = 1024; x <= 4 << 20; x *= 4) {
        t.x[t.n] = x;
        t.y[t.n++] = constant + x / rate;
    }
    return t;
}

/* Nodes of 2 ranks, 4 of them: 20 us and 2 us a message at 1 GB/s in a node, where one message is
 * sent at once; 50 us and 4 us at 0.1 GB/s between nodes, with 6 messages at once. */
static ek_machine measured(void)
{
    ek_machine m = by_hand();

    m.ranks = 8;
    m.nodes = 4;
    m.threads = 3;
    m.link[EK_LINK_NODE] = (ek_link_cost){2, line_of(22e-6, 1e9), line_of(22e-6, 2e9), 0, 1e-3, 0};
    m.link[EK_LINK_NET] = (ek_link_cost){
        2, line_of(50e-6 / 6 + 4e-6, 0.1e9), line_of(54e-6, 0.19e9), 3e-9, 2e-3, 60e3};
    return m;
}

static int is_close(double got, double want)
{
    return fabs(got - want) <= 1e-3 * want; /* numbers have 4 digits */
}

static void lines_are_found_exactly(void)
{
    ek_machine m = measured();
    ek_cluster c;

    CHECK(ek_cluster_of_machine(&m, &c) == EK_OK);
    CHECK_INT(c.n_levels, 2);
    CHECK(strcmp(c.level[0].name, "node") == 0 && strcmp(c.level[1].name, "net") == 0);
    CHECK(c.level[0].ranks == 2 && c.level[1].ranks == 8 && c.level[1].rails == 1);
    CHECK(is_close(c.level[0].bytes_s, 1e9) && is_close(c.level[1].bytes_s, 0.1e9));
    CHECK(is_close(c.level[0].latency_s, 22e-6) && c.level[0].overhead_s == 0);
    CHECK(c.level[0].byte_s == 0 && c.level[1].byte_s == 3e-9);
    CHECK(c.level[0].arrival_skew_s == 1e-3 && c.level[1].arrival_skew_s == 2e-3);
    CHECK(c.level[0].burst == 0 && c.level[1].burst == 60e3);
    CHECK(is_close(c.level[1].latency_s, 50e-6) && is_close(c.level[1].overhead_s, 4e-6));
    CHECK(memcmp(&c.machine, &m, sizeof(m)) == 0 && c.cores == 3);
    CHECK(c.level[0].shared_by == 1 &&
          c.level[1].shared_by == 2); /* one rank is 1.9 times as fast */
    m.link[EK_LINK_NET].hop = line_of(54e-6, 0.12e9);
    CHECK(ek_cluster_of_machine(&m, &c) == EK_OK && c.level[1].shared_by == 1);
}

/* What was measured is what is predicted. */
static void predicts_the_measured_all_to_all(void)
{
    ek_machine m = measured();
    ek_cost_table *t = &m.link[EK_LINK_NET].message;
    ek_cluster c;

    CHECK(ek_cluster_of_machine(&m, &c) == EK_OK);
    c.level[0].bytes_s = 1e18; /* each class was measured alone */
    c.level[0].latency_s = c.level[0].overhead_s = 0;
    for (int i = 0; i < t->n; i++) {
        ek_net_work w = {.collective = EK_COLLECTIVE_A2A_LINEAR,
                         .group = {0, 1, 8},
                         .span = 8,
                         .bytes = 7 * t->x[i]};
        ek_net_time of = ek_price_net(&c, &w);

        CHECK(is_close(of.overhead_s + of.wire_s + of.latency_s, 6 * t->y[i]));
    }
}

static void one_class_makes_one_level(void)
{
    ek_machine m = measured();
    ek_cluster c;

    memset(&m.link[EK_LINK_NET], 0, sizeof(m.link[0]));
    m.ranks = 2;
    m.nodes = 1;
    CHECK(ek_cluster_of_machine(&m, &c) == EK_OK);
    CHECK(c.n_levels == 1 && ek_cluster_node_ranks(&c) == 2 && ek_cluster_ranks(&c) == 2);
    m = measured();
    memset(&m.link[EK_LINK_NODE], 0, sizeof(m.link[0]));
    m.link[EK_LINK_NET].ranks_a_node = 1;
    m.ranks = m.nodes = 4;
    CHECK(ek_cluster_of_machine(&m, &c) == EK_OK);
    CHECK(c.n_levels == 1 && ek_cluster_node_ranks(&c) == 1 && ek_cluster_ranks(&c) == 4);
    memset(&m.link[EK_LINK_NET], 0, sizeof(m.link[0]));
    CHECK_INT(ek_cluster_of_machine(&m, &c), EK_EINVAL);
    CHECK(strstr(ek_err_message(), "one rank") != NULL);
}

/* Tables that are no lines give numbers that a cluster file may have. */
static void tables_that_are_no_lines(void)
{
    const double x[] = {1e3, 1e6}, flat[] = {1e-3, 1e-3}, steep[] = {1e-6, 1e-2};
    const ek_cost_table tables[] = {table_of(1, x, flat), table_of(2, x, flat),
                                    table_of(2, x, steep)};

    for (int a = 0; a < 3; a++)
        for (int b = 0; b < 3; b++) {
            ek_machine m = measured();
            ek_cluster c, back;
            char *text = NULL;
            size_t bytes = 0;

            m.link[EK_LINK_NET] = (ek_link_cost){2, tables[a], tables[b], 0, 0, 0};
            CHECK(ek_cluster_of_machine(&m, &c) == EK_OK);
            CHECK(c.level[1].latency_s >= 0 && c.level[1].overhead_s >= 0);
            CHECK(ek_cluster_text(&c, &text, &bytes) == EK_OK);
            CHECK(ek_cluster_parse(text, bytes, "c.json", &back) == EK_OK);
            free(text);
        }
}

static const ek_case cases[] = {
    EK_CASE(lines_are_found_exactly),
    EK_CASE(predicts_the_measured_all_to_all),
    EK_CASE(one_class_makes_one_level),
    EK_CASE(tables_that_are_no_lines),
};
EK_TEST_MAIN(cases)
