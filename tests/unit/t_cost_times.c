/* Times of products, all-to-alls and multicasts by hand; reasons; predicted against measured. */
#include "cost/compare.h"
#include "cost/cost.h"
#include "ek_test.h"
#include "machine_fixture.h"

static void products(void)
{
    ek_machine m = by_hand();
    double flops = 6.0 * 64 * 100;

    CHECK(ek_cost_row_flops(64, 100) == flops);
    CHECK_NEAR(ek_cost_products(&m, EK_COST_FORWARD, 64, 100, 32, 2), 32 * flops / 1e12);
    CHECK_NEAR(ek_cost_products(&m, EK_COST_BACKWARD_INPUT, 64, 100, 320, 2), 320 * flops / 2e12);
    CHECK_NEAR(ek_cost_products(&m, EK_COST_FORWARD, 64, 100, 8, 2), 8 * flops / 0.5e12);
    /* one row an expert takes as long as the 4 that were measured */
    CHECK_NEAR(ek_cost_products(&m, EK_COST_FORWARD, 64, 100, 2, 2), 8 * flops / 0.5e12);
    CHECK_NEAR(ek_cost_products(&m, EK_COST_FORWARD, 64, 100, 4, 0), 4 * flops / 0.5e12);
    CHECK(ek_cost_products(&m, EK_COST_FORWARD, 64, 100, 0, 2) == 0);
    CHECK_NEAR(ek_cost_copies(&m, 1e6), 50e-6);
    CHECK(ek_machine_comp_bytes(&m) == 2 && ek_machine_real_bytes(&m) == 4);
    strcpy(m.dtype, "fp64");
    CHECK(ek_machine_comp_bytes(&m) == 8 && ek_machine_real_bytes(&m) == 8);
}

static void all_to_alls(void)
{
    ek_machine m = by_hand();

    CHECK(ek_cost_all_to_all(&m, 1, 1, 1e6, NULL, 0) == 0);
    /* 3 messages of 1 MB on one node */
    CHECK_NEAR(ek_cost_all_to_all(&m, 4, 1, 3e6, NULL, 0), 3 * 1e-3);
    /* 2 ranks on each of 2 nodes: 1 near, 2 far */
    CHECK_NEAR(ek_cost_all_to_all(&m, 4, 2, 3e6, NULL, 0), 2 * 10e-3);
    /* alone on a node: what two shared is one's */
    CHECK_NEAR(ek_cost_all_to_all(&m, 4, 4, 6e6, NULL, 0), 3 * 10e-3);
    /* 4 share what 2 had */
    CHECK_NEAR(ek_cost_all_to_all(&m, 8, 2, 7 * 0.5e6, NULL, 0), 4 * 10e-3);
    /* small ones cost their latency */
    CHECK_NEAR(ek_cost_all_to_all(&m, 4, 1, 3, NULL, 0), 3 * 10e-6);
    /* more nodes than ranks is one rank a node */
    CHECK_NEAR(ek_cost_all_to_all(&m, 2, 9, 2e6, NULL, 0), 10e-3);
}

static void missing_classes(void)
{
    ek_machine m = by_hand();

    memset(&m.link[EK_LINK_NET], 0, sizeof(m.link[0]));
    CHECK(ek_cost_has_links(&m));
    CHECK(ek_cost_link_of(&m, EK_LINK_NET) == EK_LINK_NODE);
    CHECK_NEAR(ek_cost_all_to_all(&m, 2, 2, 1e6, NULL, 0), 1e-3);
    memset(&m.link[EK_LINK_NODE], 0, sizeof(m.link[0]));
    CHECK(!ek_cost_has_links(&m));
    m = by_hand();
    memset(&m.link[EK_LINK_NODE], 0, sizeof(m.link[0]));
    CHECK_NEAR(ek_cost_all_to_all(&m, 2, 1, 1e6, NULL, 0), 10e-3);
}

static void multicasts(void)
{
    ek_machine m = by_hand();

    CHECK(ek_cost_multicast(&m, EK_LINK_NODE, 1, 1e6) == 0);
    CHECK_NEAR(ek_cost_multicast(&m, EK_LINK_NODE, 2, 1e6), 1e-3);
    CHECK_NEAR(ek_cost_multicast(&m, EK_LINK_NET, 2, 2e6), 20e-3);
    /* tree: 3 hops of latency; a chain would take 7 */
    CHECK_NEAR(ek_cost_multicast(&m, EK_LINK_NODE, 8, 100), 30e-6);
    /* chain: the last piece follows the first by 2 hops of an eighth */
    CHECK_NEAR(ek_cost_multicast(&m, EK_LINK_NODE, 4, 1e6),
               1e-3 + 2 * ek_cost_time_at(&m.link[EK_LINK_NODE].hop, 1.25e5));
}

static void says(double x, const char *unit, const char *want)
{
    char text[EK_COST_QUANTITY];

    if (strcmp(ek_cost_quantity(text, x, unit), want) != 0)
        EK_T_FAIL("%g %s is \"%s\", expected \"%s\"", x, unit, text, want);
}

static void quantities(void)
{
    says(3.14e-6, "s", "3.14 us");
    says(2.1e12, "FLOP/s", "2.10 TFLOP/s");
    says(30e-3, "s", "30.0 ms");
    says(-9.994, "s", "-9.99 s");
    says(9.996, "s", "10.0 s");
    says(99.96e-6, "s", "100 us");
    says(0, "s", "0 s");
    says(1, "s", "1.00 s");
    says(999.9e-6, "s", "1.00 ms");
    says(999.6, "s", "1.00 ks");
    says(999.4, "s", "999 s");
    says(1e-15, "s", "1e-06 ns");
    says(1e30, "B", "1e+15 PB");
}

static void reasons(void)
{
    ek_machine m = by_hand();
    ek_cost_reason reason = {0};
    char text[200];
    double t = ek_cost_all_to_all(&m, 4, 2, 3e6, &reason, 1);

    CHECK_INT(reason.n, 3);
    CHECK(reason.line[0].depth == 1 && reason.line[0].value == t);
    CHECK(reason.line[1].depth == 2 && fmax(reason.line[1].value, reason.line[2].value) == t);
    CHECK(strcmp(reason.line[2].name, "between nodes") == 0);
    CHECK(strcmp(ek_cost_line_text(&reason.line[2], text, sizeof(text)),
                 "    between nodes        20.0 ms  = 2 messages of 1.00 MB x 10.0 ms") == 0);
    for (int i = 0; i < 2 * EK_COST_LINES; i++)
        ek_cost_add_line(&reason, 0, "x", i, "s", "%d", i);
    CHECK_INT(reason.n, EK_COST_LINES);
    ek_cost_add_line(NULL, 0, "x", 1, "s", "nobody asks");
}

/* --- predicted against measured --------------------------------------------------------------- */

static void comparing(void)
{
    static ek_compare c;
    const ek_compare_row *worst;
    char text[256];

    ek_compare_begin(&c);
    CHECK_INT(ek_compare_parted(&c, &worst), 0);
    CHECK(worst == NULL && ek_compare_warning(&c, text, sizeof(text))[0] == '\0');
    ek_compare_add(&c, 0, "close", 1.0, 1.19);
    ek_compare_add(&c, 1, "far off", 1.0, 1.0);
    ek_compare_add(&c, 1, "far off", 1.0, 2.0);
    ek_compare_add(&c, 2, "too fast", 1.0, 0.7);
    ek_compare_add(&c, 3, "small", 1e-3, 9e-3); /* parts, but is nothing */
    ek_compare_add(&c, 4, "unknown", -1, 5);
    ek_compare_add(&c, 5, "partly known", 1, 1);
    ek_compare_add(&c, 5, "partly known", -1, 1);
    ek_compare_add(&c, 6, "not at all", 0, 0.5);
    ek_compare_sort(&c);
    CHECK_INT(c.n, 7);
    CHECK(strcmp(c.row[0].name, "unknown") == 0 && strcmp(c.row[1].name, "far off") == 0);
    CHECK(c.row[1].count == 2 && is_near(ek_compare_ratio(&c.row[1]), 1.5));
    CHECK(ek_compare_ratio(&c.row[0]) == 0 && !ek_compare_parts(&c, &c.row[0]));
    CHECK_INT(ek_compare_parted(&c, &worst), 3); /* far off, too fast, not at all */
    CHECK(worst == &c.row[1]);
    CHECK(strcmp(ek_compare_warning(&c, text, sizeof(text)),
                 "predicted and measured times differ by more than 20 % in 3 ops, most in far off: "
                 "2.00 s predicted, 3.00 s measured") == 0);
    ek_compare_row_text(&c, &c.row[1], text, sizeof(text));
    CHECK(strcmp(text, "far off                        2     2.00 s     3.00 s  1.50 !") == 0);
    ek_compare_row_text(&c, &c.row[0], text, sizeof(text));
    CHECK(strcmp(text, "unknown                        1          -     5.00 s  -") == 0);
}

static void equal_is_equal(void)
{
    static ek_compare c;
    const ek_compare_row *worst;

    ek_compare_begin(&c);
    ek_compare_add(&c, 7, "b", 1.0, 1.0);
    ek_compare_add(&c, 8, "a", 1.0, 1.0);
    ek_compare_add(&c, 9, "nothing", 0, 0);
    ek_compare_sort(&c);
    CHECK(strcmp(c.row[0].name, "a") == 0 && strcmp(c.row[1].name, "b") == 0);
    CHECK_INT(ek_compare_parted(&c, &worst), 0);
}

static void too_many_names(void)
{
    static char names[EK_COMPARE_ROWS + 5][16];
    static ek_compare c;

    ek_compare_begin(&c);
    for (int i = 0; i < EK_COMPARE_ROWS + 5; i++) {
        snprintf(names[i], sizeof(names[i]), "op %d", i);
        ek_compare_add(&c, (int)i, names[i], 1, 1);
    }
    CHECK_INT(c.n, EK_COMPARE_ROWS);
    CHECK_INT(c.lost, 5);
    CHECK(c.measured_s == EK_COMPARE_ROWS + 5);
}

static void the_best_product_is_of_any_table(void)
{
    ek_machine plain = by_hand(), kernels = by_hand_with_kernels();

    CHECK(ek_cost_best_product(&plain) == 2e12);
    CHECK(ek_cost_best_product(&kernels) == 5e12); /* attention at 7 is none */
}

static const ek_case cases[] = {
    EK_CASE(the_best_product_is_of_any_table),
    EK_CASE(products),
    EK_CASE(all_to_alls),
    EK_CASE(missing_classes),
    EK_CASE(multicasts),
    EK_CASE(quantities),
    EK_CASE(reasons),
    EK_CASE(comparing),
    EK_CASE(equal_is_equal),
    EK_CASE(too_many_names),
};
EK_TEST_MAIN(cases)
