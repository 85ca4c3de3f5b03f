/* Max-min fair rates of flows on links, against closed forms: time until each has done its work. */
#include "ek_test.h"
#include "sim/flow_rates.h"

enum { FLOWS = 64 };

static int is_near(double a, double b)
{
    return a > b - 1e-9 * (1 + b) && a < b + 1e-9 * (1 + b);
}

/* A flow that uses up to four links fully, -1: none. */
static int32_t begin(ek_flows *f, double seconds, int32_t a, int32_t b)
{
    ek_flow_use uses[] = {{a, 1}, {b, 1}};
    int32_t id;

    CHECK_INT(ek_flows_begin(f, seconds, 1, uses, b >= 0 ? 2 : a >= 0 ? 1 : 0, &id), EK_OK);
    return id;
}

static void update(ek_flows *f, double now)
{
    const int32_t *changed;
    int32_t n;

    CHECK_INT(ek_flows_update(f, now, &changed, &n), EK_OK);
}

static ek_flows *open_flows(int32_t links)
{
    ek_flows *f;

    CHECK_INT(ek_flows_open(links, &f), EK_OK);
    return f;
}

static void a_flow_alone_has_full_speed(void)
{
    ek_flows *f = open_flows(2);
    int32_t a = begin(f, 3, 0, 1), free_one = begin(f, 2, -1, -1);

    update(f, 10);
    CHECK(is_near(ek_flows_rate(f, a), 1) && is_near(ek_flows_due(f, a), 13));
    CHECK(is_near(ek_flows_due(f, free_one), 12));
    ek_flows_close(&f);
}

static void two_on_a_link_halve_and_the_rest_is_alone(void)
{
    ek_flows *f = open_flows(1);
    int32_t a = begin(f, 4, 0, -1), b;

    update(f, 0);
    CHECK(is_near(ek_flows_due(f, a), 4));
    b = begin(f, 1, 0, -1); /* at 2: both have half until 4 */
    update(f, 2);
    CHECK(is_near(ek_flows_rate(f, a), 0.5) && is_near(ek_flows_rate(f, b), 0.5));
    CHECK(is_near(ek_flows_due(f, b), 4));
    ek_flows_end(f, b);
    update(f, 4);
    CHECK(is_near(ek_flows_due(f, a), 5)); /* 2 + 2 at half + 1 */
    ek_flows_close(&f);
}

static void pairs_on_other_links_do_not_interact(void)
{
    ek_flows *f = open_flows(6);
    const int32_t *changed;
    int32_t n, a = begin(f, 1, 0, 1), b;

    update(f, 0);
    b = begin(f, 1, 2, 3);
    CHECK_INT(ek_flows_update(f, 0.5, &changed, &n), EK_OK);
    CHECK_INT(n, 1); /* the other is not even looked at */
    CHECK_INT(changed[0], b);
    CHECK(is_near(ek_flows_due(f, a), 1) && is_near(ek_flows_due(f, b), 1.5));
    ek_flows_close(&f);
}

/* n senders with links of their own, one receiver. */
static void incast_shares_the_link_of_the_receiver(void)
{
    ek_flows *f = open_flows(9);
    int32_t id[8];

    for (int i = 0; i < 8; i++)
        id[i] = begin(f, 1 + i, i, 8);
    update(f, 0);
    for (int i = 0; i < 8; i++)
        CHECK(is_near(ek_flows_rate(f, id[i]), 1.0 / 8));
    CHECK(is_near(ek_flows_due(f, id[0]), 8));
    ek_flows_end(f, id[0]);
    update(f, 8); /* all have done 1 */
    CHECK(is_near(ek_flows_due(f, id[1]), 8 + 7));
    ek_flows_close(&f);
}

/* Link 2 has room for two of three; the third, held by its own link, leaves some to the others. */
static void what_one_cannot_use_the_others_get(void)
{
    ek_flows *f = open_flows(3);
    const ek_flow_use both[] = {{0, 1}, {2, 0.5}}, other[] = {{1, 1}, {2, 0.5}};
    int32_t a, b, c, d;

    CHECK_INT(ek_flows_begin(f, 1, 1, both, 2, &a), EK_OK);
    CHECK_INT(ek_flows_begin(f, 1, 1, both, 2, &b), EK_OK);
    CHECK_INT(ek_flows_begin(f, 1, 1, both, 2, &d), EK_OK);
    CHECK_INT(ek_flows_begin(f, 1, 1, other, 2, &c), EK_OK);
    update(f, 0);
    CHECK(is_near(ek_flows_rate(f, a), 1.0 / 3)); /* three on link 0 */
    CHECK(is_near(ek_flows_rate(f, b), 1.0 / 3) && is_near(ek_flows_rate(f, d), 1.0 / 3));
    CHECK(is_near(ek_flows_rate(f, c), 1)); /* half of link 2 is left */
    ek_flows_close(&f);
}

/* Of two flows on a link, one can use a fifth of it at most. */
static void slow_flows_have_what_they_need(void)
{
    ek_flows *f = open_flows(1);
    const ek_flow_use whole = {0, 1}, fifth = {0, 0.2};
    int32_t a, b;

    CHECK_INT(ek_flows_begin(f, 1, 1, &whole, 1, &a), EK_OK);
    CHECK_INT(ek_flows_begin(f, 1, 5, &fifth, 1, &b), EK_OK); /* equal bandwidths grow together */
    update(f, 0);
    CHECK(is_near(ek_flows_rate(f, b), 1));
    CHECK(is_near(ek_flows_rate(f, a), 0.8));
    ek_flows_close(&f);
}

/* Pairs below different switches that cross a spine of a quarter of their bandwidth. */
static void a_shared_spine_bounds_all_that_cross_it(void)
{
    ek_flows *f = open_flows(17);
    const ek_flow_use inside[] = {{14, 1}, {15, 1}};
    int32_t id[7], near_pair;

    for (int i = 0; i < 7; i++) {
        const ek_flow_use uses[] = {{2 * i, 1}, {2 * i + 1, 1}, {16, 0.25}};

        CHECK_INT(ek_flows_begin(f, 1, 1, uses, 3, &id[i]), EK_OK);
    }
    CHECK_INT(ek_flows_begin(f, 1, 1, inside, 2, &near_pair), EK_OK);
    update(f, 0);
    for (int i = 0; i < 7; i++)
        CHECK(is_near(ek_flows_rate(f, id[i]), 4.0 / 7));
    CHECK(is_near(ek_flows_rate(f, near_pair), 1));
    for (int i = 0; i < 3; i++)
        ek_flows_end(f, id[i]);
    update(f, 1);
    CHECK(is_near(ek_flows_rate(f, id[6]), 1)); /* four fit */
    ek_flows_close(&f);
}

/* A merged flow of eight ranks on a link that each could fill. */
static void a_flow_may_need_more_than_a_link_has(void)
{
    ek_flows *f = open_flows(1);
    const ek_flow_use eight = {0, 8};
    int32_t a;

    CHECK_INT(ek_flows_begin(f, 1, 1, &eight, 1, &a), EK_OK);
    update(f, 0);
    CHECK(is_near(ek_flows_due(f, a), 8));
    ek_flows_close(&f);
}

/* On drawn flows and links: no link has more than it can, and each flow is held by something. */
static void rates_of_drawn_flows_are_max_min(void)
{
    uint64_t state = 1;

    for (int round = 0; round < 200; round++) {
        enum { LINKS = 7 };
        ek_flows *f = open_flows(LINKS);
        ek_flow_use uses[FLOWS][3];
        int32_t id[FLOWS], n = 1 + round % 40;
        double load[LINKS] = {0};

        for (int i = 0; i < n; i++) {
            for (int u = 0; u < 3; u++) {
                state = state * 6364136223846793005u + 1442695040888963407u;
                uses[i][u] = (ek_flow_use){(int32_t)((state >> 33) % 2 + 2 * (uint64_t)u),
                                           0.1 + (double)(state >> 40 & 1023) / 1024};
            }
            CHECK_INT(ek_flows_begin(f, 1, 0.5 + i % 3, uses[i], 3, &id[i]), EK_OK);
        }
        update(f, 0);
        for (int i = 0; i < n; i++)
            for (int u = 0; u < 3; u++)
                load[uses[i][u].link] += uses[i][u].use * ek_flows_rate(f, id[i]);
        for (int l = 0; l < LINKS; l++)
            CHECK(load[l] < 1 + 1e-9);
        for (int i = 0; i < n; i++) {
            double rate = ek_flows_rate(f, id[i]);
            int held = rate > 1 - 1e-9;

            /* on a full link on which no other has grown more */
            for (int u = 0; u < 3 && !held; u++) {
                int most = load[uses[i][u].link] > 1 - 1e-9;

                for (int k = 0; k < n && most; k++)
                    for (int v = 0; v < 3; v++)
                        if (uses[k][v].link == uses[i][u].link)
                            most &= ek_flows_rate(f, id[k]) / (0.5 + k % 3) <=
                                    rate / (0.5 + i % 3) * (1 + 1e-9);
                held = most;
            }
            CHECK(held);
            CHECK(rate > 0);
        }
        ek_flows_close(&f);
    }
}

/* What a link has saved passes at once; it saves again while it is not used, up to its burst. */
static void a_burst_passes_at_once_after_a_pause(void)
{
    ek_flows *f = open_flows(1);
    int32_t a;

    ek_flows_set_burst(f, 0, 2);
    a = begin(f, 3, 0, -1);
    update(f, 5);
    CHECK(is_near(ek_flows_due(f, a), 6)); /* two of three at once */
    ek_flows_end(f, a);
    a = begin(f, 3, 0, -1);
    update(f, 6);
    CHECK(is_near(ek_flows_due(f, a), 9)); /* nothing was saved meanwhile */
    ek_flows_end(f, a);
    update(f, 9);
    a = begin(f, 3, 0, -1);
    update(f, 10);
    CHECK(is_near(ek_flows_due(f, a), 12)); /* one was */
    ek_flows_end(f, a);
    update(f, 12);
    a = begin(f, 1, 0, -1);
    update(f, 100);
    CHECK(is_near(ek_flows_due(f, a), 100)); /* one of two is left */
    ek_flows_end(f, a);
    a = begin(f, 3, 0, -1);
    update(f, 100);
    CHECK(is_near(ek_flows_due(f, a), 102));
    ek_flows_close(&f);
}

/* Of several links the one that has saved least; half of a link that is half used is saved. */
static void all_links_of_a_flow_have_to_let_it_pass(void)
{
    ek_flows *f = open_flows(3);
    ek_flow_use half = {0, 0.5}, both[] = {{0, 1}, {1, 0.25}};
    int32_t a, b;

    ek_flows_set_burst(f, 0, 4);
    ek_flows_set_burst(f, 1, 1);
    a = begin(f, 4, 0, 1);
    update(f, 0);
    CHECK(is_near(ek_flows_due(f, a), 3));
    ek_flows_end(f, a);
    b = begin(f, 4, 1, 2); /* nothing passes link 2 at once */
    update(f, 3);
    CHECK(is_near(ek_flows_due(f, b), 7));
    ek_flows_close(&f);
    f = open_flows(2);
    ek_flows_set_burst(f, 0, 4);
    CHECK_INT(ek_flows_begin(f, 4, 1, both, 2, &a), EK_OK);
    update(f, 0);
    CHECK(is_near(ek_flows_due(f, a), 1)); /* link 1, which saves nothing, takes a second for it */
    ek_flows_close(&f);
    f = open_flows(1);
    ek_flows_set_burst(f, 0, 1);
    CHECK_INT(ek_flows_begin(f, 4, 1, &half, 1, &a), EK_OK);
    update(f, 0);
    CHECK(is_near(ek_flows_due(f, a), 2)); /* half of the work at once, as it needs half the link */
    b = begin(f, 1, 0, -1);
    update(f, 1); /* half a second was saved */
    CHECK(is_near(ek_flows_rate(f, b), 2.0 / 3) && is_near(ek_flows_due(f, b), 1.75));
    ek_flows_close(&f);
}

static const ek_case cases[] = {EK_CASE(a_flow_alone_has_full_speed),
                                EK_CASE(two_on_a_link_halve_and_the_rest_is_alone),
                                EK_CASE(pairs_on_other_links_do_not_interact),
                                EK_CASE(incast_shares_the_link_of_the_receiver),
                                EK_CASE(what_one_cannot_use_the_others_get),
                                EK_CASE(slow_flows_have_what_they_need),
                                EK_CASE(a_shared_spine_bounds_all_that_cross_it),
                                EK_CASE(a_flow_may_need_more_than_a_link_has),
                                EK_CASE(a_burst_passes_at_once_after_a_pause),
                                EK_CASE(all_links_of_a_flow_have_to_let_it_pass),
                                EK_CASE(rates_of_drawn_flows_are_max_min)};
EK_TEST_MAIN(cases)
