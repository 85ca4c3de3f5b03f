/* What is sent for the sums of persistent copies (sim/copy_sums.h): by hand, and for drawn
 * placements as many messages as copies need. */
#include "base/random.h"
#include "ek_test.h"
#include "sim/copy_sums.h"

enum { RANKS = 6, SLOTS = 4, EXPERTS = 9, DRAWS = 300 };

static int32_t expert_of[RANKS * SLOTS], primary[EXPERTS];
static int64_t quota[RANKS * SLOTS];
static ek_copy_messages messages[4 * RANKS];
static int32_t passed[RANKS * RANKS];
static int32_t lists[EXPERTS * RANKS];
static double to_sum[RANKS], of_sum[RANKS];
static const ek_copy_results by_rank = {messages, to_sum, of_sum};

/* Two ranks a node. */
static ek_cluster two_a_node(void)
{
    return (ek_cluster){.n_levels = 2,
                        .level = {{.name = "node", .ranks = 2, .bytes_s = 10},
                                  {.name = "net", .ranks = 6, .bytes_s = 1}}};
}

static ek_plan plan_of(int32_t experts, int32_t ranks, int32_t slots)
{
    return (ek_plan){.placement = {experts, ranks, slots, expert_of, primary}, .quota = quota};
}

/* Rank 0: 0 1, rank 1: 1 0, rank 2: 0 -: expert 0 on three ranks, of which rank 0 (the primary) and
 * rank 2 serve; expert 1 on two, of which rank 1 alone serves, though rank 0 is primary. */
static void chains_by_hand(void)
{
    static const int32_t held[] = {0, 1, 1, 0, 0, -1};
    static const int64_t rows[] = {5, 0, 7, 0, 3, 0};
    ek_cluster c = two_a_node();
    ek_plan p = plan_of(2, 3, 2);
    ek_net_traffic sent;
    ek_copy_sums s;

    memcpy(expert_of, held, sizeof(held));
    memcpy(quota, rows, sizeof(rows));
    primary[0] = 0;
    primary[1] = 1;
    ek_copy_sums_of(&(ek_copy_sums_config){&c, 1, 2, 0}, &p, &by_rank, passed, &s);
    CHECK_INT((int)s.to_sum.all.bytes[0], 0); /* rank 2 to rank 0, over the network */
    CHECK_INT((int)s.to_sum.all.bytes[1], 1);
    CHECK_INT((int)s.to_sum.all.messages[1], 2);
    CHECK(to_sum[0] == 1 && to_sum[1] == 0 && to_sum[2] == 1);
    sent = ek_copy_messages_traffic(&s.to_sum.sent[2], 10);
    CHECK(sent.bytes[1] == 10 && sent.messages[1] == 2 && sent.largest[1] == 10);
    CHECK(s.to_sum.got[0].gradients[1] == 1 && s.to_sum.got[2].gradients[1] == 0);
    CHECK_INT((int)s.of_sum.all.bytes[0], 2); /* expert 0: 0 to 1; expert 1: 1 to 0 */
    CHECK_INT((int)s.of_sum.all.bytes[1], 1); /* expert 0: 1 to 2 */
    CHECK_INT((int)s.of_sum.busiest.bytes[1], 1);
    CHECK(of_sum[1] == 1 && of_sum[2] == 1 && fabs(of_sum[0] - 0.1) < 1e-12);
    ek_copy_sums_of(&(ek_copy_sums_config){&c, 1, 2, 1}, &p, &by_rank, passed, &s);
    CHECK_INT((int)(s.to_sum.all.bytes[0] + s.to_sum.all.bytes[1]), 3); /* all serve */
    ek_copy_sums_of(&(ek_copy_sums_config){&c, 2, 2, 0}, &p, &by_rank, passed, &s);
    CHECK_INT((int)s.of_sum.all.bytes[0], 0); /* an expert rank is a node */
    ek_copy_sums_lists(&(ek_copy_sums_config){&c, 1, 2, 0}, &p, 1, lists);
    CHECK(memcmp(lists, (int32_t[]){0, 2, -1, -1, -1, -1}, 6 * sizeof(*lists)) == 0);
    ek_copy_sums_lists(&(ek_copy_sums_config){&c, 1, 2, 0}, &p, 0, lists);
    CHECK(memcmp(lists, (int32_t[]){0, 1, 2, 1, 0, -1}, 6 * sizeof(*lists)) == 0);
}

/* A transient replica's rows count as its primary's. */
static void transient_copies_serve_for_the_primary(void)
{
    static const int32_t held[] = {0, -1, 0, -1, -1, 0};
    static const int64_t rows[] = {0, 0, 4, 0, 0, 6};
    ek_cluster c = two_a_node();
    ek_plan p = plan_of(1, 3, 2);
    ek_copy_sums s;

    memcpy(expert_of, held, sizeof(held));
    memcpy(quota, rows, sizeof(rows));
    primary[0] = 0;
    ek_copy_sums_of(&(ek_copy_sums_config){&c, 1, 1, 0}, &p, &by_rank, passed, &s);
    CHECK_INT((int)s.to_sum.all.bytes[0], 1); /* ranks 0 and 1 have gradients, */
    CHECK_INT((int)s.to_sum.all.bytes[1], 0);
    CHECK_INT((int)s.of_sum.all.bytes[0], 1); /* and persistent copies */
    CHECK_INT((int)s.of_sum.all.bytes[1], 0);
}

/* Rank 0 has two experts' copies for rank 1, and sends one to rank 2. */
static void what_a_pair_exchanges_has_its_bandwidth(void)
{
    static const int32_t held[] = {0, 1, 2, 0, 1, -1, 2, -1, -1};
    static const int64_t rows[] = {1, 1, 1, 0, 0, 0, 0, 0, 0};
    ek_cluster c = two_a_node();
    ek_plan p = plan_of(3, 3, 3);
    ek_copy_sums s;

    c.level[0].peer_bytes_s = 0.25;
    c.level[0].gap_s = c.level[1].gap_s = 100;
    memcpy(expert_of, held, sizeof(held));
    memcpy(quota, rows, sizeof(rows));
    for (int e = 0; e < 3; e++)
        primary[e] = e;
    ek_copy_sums_of(&(ek_copy_sums_config){&c, 1, 3, 0}, &p, &by_rank, passed, &s);
    CHECK(s.of_sum.busiest.bytes[0] == 2 && s.of_sum.busiest.largest[0] == 2);
    CHECK(s.of_sum.busiest.largest[1] == 1 && s.of_sum.all.largest[0] == 2);
    CHECK(fabs(of_sum[1] - 1) < 1e-12); /* 2 from rank 0 take 8; */
    CHECK(fabs(of_sum[2] - 1.0 / 8) < 1e-12);
    CHECK(fabs(ek_price_traffic(&c, &s.of_sum.busiest).wire_s - (8 + 6 * 100)) < 1e-9);
}

static int draw(uint64_t seed, int what, int n)
{
    return (int)(ek_random_uniform(5, seed, (uint64_t)what) * n);
}

/* Fills the slots of ranks with different experts; returns messages of sums and of their copies. */
static void draw_plan(uint64_t seed, double *sums, double *copies)
{
    int served[EXPERTS] = {0}, held[EXPERTS] = {0};

    for (int e = 0; e < EXPERTS; e++)
        primary[e] = -1;
    for (int s = 0; s < RANKS * SLOTS; s++) {
        int e = s < EXPERTS ? s : draw(seed, s, EXPERTS + 3), again = e >= EXPERTS;

        for (int o = s / SLOTS * SLOTS; o < s; o++)
            again |= expert_of[o] == e;
        expert_of[s] = again ? -1 : e;
        quota[s] = again ? 0 : draw(seed, 100 + s, 3);
        if (again)
            continue;
        primary[e] = primary[e] < 0 ? s : primary[e];
        held[e]++;
        served[e] += quota[s] > 0;
    }
    *sums = *copies = 0;
    for (int e = 0; e < EXPERTS; e++) {
        *sums += served[e] > 1 ? served[e] - 1 : 0;
        *copies += served[e] > 0 ? held[e] - 1 : 0;
    }
}

static void drawn_placements_need_a_message_for_each_copy(void)
{
    ek_cluster c = two_a_node();
    double all = 0;

    for (uint64_t seed = 0; seed < DRAWS; seed++) {
        ek_plan p = plan_of(EXPERTS, RANKS, SLOTS);
        double sums, copies, most = 0;
        ek_copy_sums s;

        draw_plan(seed, &sums, &copies);
        ek_copy_sums_of(&(ek_copy_sums_config){&c, 1, SLOTS, 0}, &p, &by_rank, passed, &s);
        all += sums;
        CHECK(s.to_sum.all.bytes[0] + s.to_sum.all.bytes[1] == sums);
        CHECK(s.of_sum.all.bytes[0] + s.of_sum.all.bytes[1] == copies);
        CHECK(s.of_sum.all.messages[0] + s.of_sum.all.messages[1] == 2 * copies);
        for (int r = 0; r < RANKS; r++)
            most = fmax(most, to_sum[r]);
        CHECK(most == (sums > 0));
    }
    CHECK(all > DRAWS);
}

static const ek_case cases[] = {
    EK_CASE(chains_by_hand),
    EK_CASE(transient_copies_serve_for_the_primary),
    EK_CASE(what_a_pair_exchanges_has_its_bandwidth),
    EK_CASE(drawn_placements_need_a_message_for_each_copy),
};
EK_TEST_MAIN(cases)
