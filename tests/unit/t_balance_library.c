/* evenkeel/balance.h: every policy plans and splits, nothing is allocated after create, persistent
 * placements are kept, and bad arguments are rejected. */
#include "evenkeel/balance.h"

#include "base/random.h"
#include "count_allocations.h"
#include "ek_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 5, EXPERTS = 7, SPARE = 2, SLOTS = 2 + SPARE, PLANS = 20, LASTS = 6 };

static ek_balance *create_with(const char *policy, int nodes, double comm_s_per_row)
{
    static const int32_t node_of[RANKS] = {0, 0, 1, 1, 2};
    ek_balance_config c = {.size = sizeof(c),
                           .policy = policy,
                           .experts = EXPERTS,
                           .ranks = RANKS,
                           .spare_slots = SPARE,
                           .node_of = node_of,
                           .replicas_min = nodes,
                           .compute_s_per_row = 1e-6,
                           .comm_s_per_row = comm_s_per_row,
                           .replica_s = 1e-5,
                           .migrate_s_per_expert = 1e-5,
                           .horizon = LASTS};
    ek_balance *b = NULL;

    if (ek_balance_create(&c, &b) < 0)
        EK_T_FAIL("%s: %s", policy, ek_err_text());
    return b;
}

static ek_balance *create_on(const char *policy, int nodes)
{
    return create_with(policy, nodes, 1e-6);
}

static ek_balance *create(const char *policy)
{
    return create_on(policy, 0);
}

static void draw(int64_t *counts, int n)
{
    for (int i = 0; i < RANKS * EXPERTS; i++)
        counts[i] = (int64_t)(ek_random_bits(1, (uint64_t)n, (uint64_t)i) %
                              (uint64_t)(i % EXPERTS == n % EXPERTS ? 900 : 100));
}

/* A split adds up to the counts by source and expert. */
static void check_split(const ek_balance_plan_result *p, const int64_t *counts, const int64_t *rows)
{
    int64_t got[RANKS * EXPERTS] = {0};

    for (int r = 0; r < RANKS; r++)
        for (int s = 0; s < RANKS * SLOTS; s++) {
            int64_t n = rows[r * RANKS * SLOTS + s];

            CHECK(n >= 0 && (n == 0 || p->expert_of[s] >= 0));
            if (n > 0)
                got[r * EXPERTS + p->expert_of[s]] += n;
        }
    CHECK(memcmp(got, counts, sizeof(got)) == 0);
}

static int64_t busiest(const int64_t *quota)
{
    int64_t most = 0;

    for (int r = 0; r < RANKS; r++) {
        int64_t sum = 0;

        for (int s = 0; s < SLOTS; s++)
            sum += quota[r * SLOTS + s];
        most = sum > most ? sum : most;
    }
    return most;
}

static int nodes_of(const ek_balance_plan_result *p, int expert)
{
    static const int32_t node_of[RANKS] = {0, 0, 1, 1, 2};
    int on[3] = {0};

    for (int s = 0; s < RANKS * SLOTS; s++)
        if (p->expert_of[s] == expert)
            on[node_of[s / SLOTS]] = 1;
    return on[0] + on[1] + on[2];
}

static void plans_of(const char *policy)
{
    int64_t counts[RANKS * EXPERTS], other[RANKS * EXPERTS], rows[RANKS * RANKS * SLOTS];
    ek_balance *b = create(policy);
    ek_balance_plan_result p;

    if (b == NULL)
        return;
    draw(other, 99);
    CHECK(ek_balance_split(b, other, rows) == EK_OK); /* before the first plan */
    atomic_store(&allocations, 0);
    atomic_store(&counting, 1);
    for (int n = 0; n < PLANS; n++) {
        draw(counts, n);
        CHECK(ek_balance_plan(b, counts, &p) == EK_OK);
        CHECK_INT(p.slots, SLOTS);
        CHECK(ek_balance_split(b, counts, rows) == EK_OK);
        check_split(&p, counts, rows);
        CHECK(ek_balance_split(b, other, rows) == EK_OK);
        check_split(&p, other, rows);
        for (int e = 0; e < EXPERTS; e++)
            CHECK_INT(p.expert_of[p.primary[e]], e);
    }
    atomic_store(&counting, 0);
    CHECK_INT(atomic_load(&allocations), 0);
    CHECK(busiest(p.quota) > 0);
    ek_balance_destroy(&b);
    CHECK(b == NULL);
}

static void every_policy(void)
{
    int n = 0;

    for (; ek_balance_policy(n) != NULL; n++)
        plans_of(ek_balance_policy(n));
    CHECK(n >= 5);
    CHECK(ek_balance_policy(-1) == NULL && ek_balance_policy(n + 1) == NULL);
}

/* A permutation of `place` stays when the next counts give no reason to move. */
static void place_starts_from_its_last_plan(void)
{
    int64_t counts[RANKS * EXPERTS] = {0};
    int32_t primary[EXPERTS];
    ek_balance *b = create("place");
    ek_balance_plan_result p;
    int moved = 0;

    counts[0] = 500;
    counts[1] = 500;
    CHECK(ek_balance_plan(b, counts, &p) == EK_OK);
    memcpy(primary, p.primary, sizeof(primary));
    for (int e = 0; e < EXPERTS; e++)
        moved += primary[e] / SLOTS != (e < 4 ? e / 2 : e - 2);
    CHECK(moved > 0);
    CHECK_INT(busiest(p.quota), 500);
    counts[0] = 510;
    CHECK(ek_balance_plan(b, counts, &p) == EK_OK);
    CHECK(memcmp(primary, p.primary, sizeof(primary)) == 0);
    ek_balance_destroy(&b);
}

static int32_t primaries_moved(const ek_balance_plan_result *p)
{
    int32_t n = 0;

    for (int e = 0; e < EXPERTS; e++)
        n += p->primary[e] / SLOTS != (e < 4 ? e / 2 : e - 2);
    return n;
}

/* Two experts of one rank take all, and communication is free: they are parted after `horizon`
 * plans; until then replicas help. */
static void auto_moves_primaries_by_history(void)
{
    int64_t counts[RANKS * EXPERTS] = {0};
    ek_balance *b = create_with("auto", 0, 0);
    ek_balance_plan_result p;

    if (b == NULL)
        return;
    for (int r = 0; r < RANKS; r++)
        counts[r * EXPERTS] = counts[r * EXPERTS + 1] = 1000;
    for (int n = 0; n < LASTS; n++) {
        CHECK(ek_balance_plan(b, counts, &p) == EK_OK);
        CHECK_INT(primaries_moved(&p), 0);
        CHECK(p.primary_reason[0] == '\0');
        CHECK(busiest(p.quota) < 5000);
    }
    CHECK(ek_balance_plan(b, counts, &p) == EK_OK);
    CHECK_INT(primaries_moved(&p), 2);
    CHECK(strstr(p.primary_reason, "2 of 7 experts move") != NULL);
    CHECK(strstr(p.reason, "replicas") != NULL);
    CHECK_INT(busiest(p.quota), 2000);
    CHECK(ek_balance_plan(b, counts, &p) == EK_OK);
    CHECK_INT(primaries_moved(&p), 2);
    ek_balance_destroy(&b);
}

/* Moves that cost more than `horizon` plans save are made once loads have been constant for so many
 * plans that they pay. */
static void auto_moves_once_loads_are_constant(void)
{
    int64_t counts[RANKS * EXPERTS] = {0};
    ek_balance_config c = {.size = sizeof(c),
                           .policy = "auto",
                           .experts = EXPERTS,
                           .ranks = RANKS,
                           .spare_slots = SPARE,
                           .compute_s_per_row = 1e-6,
                           .replica_s = 1,
                           .migrate_s_per_expert = 9 * LASTS * 1e-3, /* parted, a plan saves 5 ms */
                           .horizon = LASTS};
    ek_balance *b = NULL;
    ek_balance_plan_result p;

    CHECK(ek_balance_create(&c, &b) == EK_OK);
    for (int r = 0; r < RANKS && b != NULL; r++)
        counts[r * EXPERTS] = counts[r * EXPERTS + 1] = 1000;
    for (int n = 0; n <= 4 * LASTS && b != NULL; n++) {
        CHECK(ek_balance_plan(b, counts, &p) == EK_OK);
        CHECK_INT(primaries_moved(&p), n < 4 * LASTS ? 0 : 2);
    }
    ek_balance_destroy(&b);
}

static void refused(ek_balance_config c, const char *text)
{
    ek_balance *b = NULL;

    CHECK(ek_balance_create(&c, &b) < 0);
    CHECK(b == NULL);
    if (strstr(ek_err_text(), text) == NULL)
        EK_T_FAIL("\"%s\" does not say \"%s\"", ek_err_text(), text);
}

static int64_t largest_load(const ek_balance_plan_result *p)
{
    int64_t most = 0;

    for (int r = 0; r < RANKS; r++) {
        int64_t load = 0;

        for (int i = 0; i < SLOTS; i++)
            load += p->quota[r * SLOTS + i];
        most = load > most ? load : most;
    }
    return most;
}

/* Three plans with each expert on two nodes; returns the sum of their largest loads.  With `auto`
 * the last slot of each rank is for transient replicas: *replicas. */
static int64_t plan_on_two_nodes(const char *policy, int both, int *replicas)
{
    ek_balance *b = create_on(policy, 2);
    int32_t kept[RANKS * SLOTS], first[RANKS * SLOTS];
    int64_t counts[RANKS * EXPERTS], sum = 0;
    ek_balance_plan_result p;

    for (int n = 0; n < 3; n++) {
        draw(counts, n);
        CHECK(ek_balance_plan(b, counts, &p) == EK_OK);
        sum += largest_load(&p);
        for (int s = 0; s < RANKS * SLOTS; s++) {
            int transient = both && s % SLOTS == SLOTS - 1;

            kept[s] = transient ? -1 : p.expert_of[s];
            *replicas += transient && p.expert_of[s] >= 0;
        }
        p.expert_of = kept;
        for (int e = 0; e < EXPERTS; e++)
            CHECK(nodes_of(&p, e) >= 2);
        if (n == 0)
            memcpy(first, kept, sizeof(first));
        else if (both) /* before the horizon */
            CHECK(memcmp(first, kept, sizeof(first)) == 0);
    }
    ek_balance_destroy(&b);
    return sum;
}

static void experts_on_two_nodes(void)
{
    int replicas = 0;
    int64_t persistent = plan_on_two_nodes("replicate", 0, &replicas);
    int64_t both = plan_on_two_nodes("auto", 1, &replicas);

    CHECK(both < persistent);
    CHECK(replicas > 0);
}

/* The number of pairs of nodes that hold all replicas of some expert, by prefer_survival. */
static int fatal_pairs(int prefer_survival)
{
    enum { NODES = 10, OF_NODE = 6, FEW = 13, ALL = 16 };
    ek_balance_config c = {.size = sizeof(c),
                           .policy = "replicate",
                           .experts = ALL,
                           .ranks = NODES,
                           .spare_slots = OF_NODE - (ALL + NODES - 1) / NODES,
                           .replicas_min = 2,
                           .compute_s_per_row = 1e-6,
                           .prefer_survival = prefer_survival};
    int64_t counts[NODES * ALL];
    ek_balance_plan_result p;
    ek_balance *b = NULL;
    int fatal = 0;

    for (int i = 0; i < NODES * ALL; i++)
        counts[i] = i % ALL < FEW ? 1 : 400;
    CHECK(ek_balance_create(&c, &b) == EK_OK);
    CHECK(ek_balance_plan(b, counts, &p) == EK_OK);
    for (int i = 0; i < NODES; i++)
        for (int j = 0; j < i; j++) {
            int held[ALL] = {0}, lost = 0;

            for (int s = 0; s < NODES * OF_NODE; s++)
                if (p.expert_of[s] >= 0 && s / OF_NODE != i && s / OF_NODE != j)
                    held[p.expert_of[s]] = 1;
            for (int e = 0; e < ALL; e++)
                lost |= !held[e];
            fatal += lost;
        }
    ek_balance_destroy(&b);
    return fatal;
}

static void survival_is_preferred(void)
{
    CHECK_INT(fatal_pairs(1), 3);
    CHECK(fatal_pairs(0) > 3);
}

static void what_does_not_fit(void)
{
    const ek_balance_config good = {.size = sizeof(good), .experts = 4, .ranks = 2};
    ek_balance_config c = good;
    int64_t counts[8] = {0};
    ek_balance_plan_result p;
    ek_balance *b = NULL;

    c.size--;
    refused(c, "ek_balance_config");
    c = good;
    c.policy = "best";
    refused(c, "no balance policy best");
    c = good;
    c.experts = 0;
    refused(c, "0 experts");
    c = good;
    c.ranks = -1;
    refused(c, "-1 ranks");
    c = good;
    c.spare_slots = -2;
    refused(c, "-2 spare slots");
    c = good;
    c.compute_s_per_row = NAN;
    refused(c, "a cost is negative");
    c = good;
    c.migrate_s_per_expert = -1;
    refused(c, "a cost is negative");
    c = good;
    c.horizon = -1;
    refused(c, "a horizon of -1 plans");
    CHECK(ek_balance_create(&good, &b) == EK_OK);
    counts[5] = -1;
    CHECK(ek_balance_plan(b, counts, &p) == EK_EINVAL);
    CHECK(strstr(ek_err_text(), "rank 1 has -1 assignments to expert 1") != NULL);
    counts[5] = (int64_t)1 << 61;
    counts[6] = ((int64_t)1 << 61) + 1;
    CHECK(ek_balance_plan(b, counts, &p) == EK_EINVAL); /* more than 2^62 in all */
    counts[6]--;
    CHECK(ek_balance_plan(b, counts, &p) == EK_OK);
    ek_balance_destroy(&b);
    ek_balance_destroy(&b);
    ek_balance_destroy(NULL);
}

/* --- speeds of ranks -------------------------------------------------------------------------- */

static void copy_plan(ek_balance *b, const int64_t *counts, int64_t *quota)
{
    ek_balance_plan_result p;

    CHECK(ek_balance_plan(b, counts, &p) == EK_OK);
    memcpy(quota, p.quota, RANKS * SLOTS * sizeof(*quota));
}

static void speeds_change_plans_and_equal_ones_do_not(void)
{
    const double half[RANKS] = {2, 2, 1, 2, 2}, equal[RANKS] = {3, 3, 3, 3, 3};
    int64_t counts[RANKS * EXPERTS], before[RANKS * SLOTS], now[RANKS * SLOTS], load[RANKS] = {0};
    ek_balance *b = create("exact");

    draw(counts, 3);
    copy_plan(b, counts, before);
    CHECK(ek_balance_set_rank_speeds(b, equal) == EK_OK);
    copy_plan(b, counts, now);
    CHECK(memcmp(before, now, sizeof(now)) == 0);
    CHECK(ek_balance_set_rank_speeds(b, half) == EK_OK);
    copy_plan(b, counts, now);
    for (int s = 0; s < RANKS * SLOTS; s++)
        load[s / SLOTS] += now[s];
    for (int r = 0; r < RANKS; r++) /* small experts may leave a gap */
        CHECK(r == 2 || load[2] <= 0.6 * (double)load[r]);
    CHECK(ek_balance_set_rank_speeds(b, NULL) == EK_OK);
    copy_plan(b, counts, now);
    CHECK(memcmp(before, now, sizeof(now)) == 0);
    ek_balance_destroy(&b);
}

static void speeds_that_are_none_are_refused(void)
{
    const double bad[][RANKS] = {{1, 1, 0, 1, 1}, {1, 1, -1, 1, 1}, {1, 1, NAN, 1, 1}};
    ek_balance *b = create("exact");

    for (int i = 0; i < 3; i++) {
        CHECK(ek_balance_set_rank_speeds(b, bad[i]) == EK_EINVAL);
        CHECK(strstr(ek_err_text(), "the speed of rank 2") != NULL);
        refused((ek_balance_config){.size = sizeof(ek_balance_config),
                                    .experts = EXPERTS,
                                    .ranks = RANKS,
                                    .rank_speeds = bad[i]},
                "the speed of rank 2");
    }
    ek_balance_destroy(&b);
}

static void counts_with_speeds_have_a_lower_limit(void)
{
    const double half[RANKS] = {2, 2, 1, 2, 2};
    int64_t counts[RANKS * EXPERTS] = {((int64_t)1 << 48) + 1};
    ek_balance *b = create("exact");
    ek_balance_plan_result p;

    CHECK(ek_balance_plan(b, counts, &p) == EK_OK);
    CHECK(ek_balance_set_rank_speeds(b, half) == EK_OK);
    CHECK(ek_balance_plan(b, counts, &p) == EK_EINVAL);
    counts[0]--;
    CHECK(ek_balance_plan(b, counts, &p) == EK_OK);
    ek_balance_destroy(&b);
}

static const ek_case cases[] = {
    EK_CASE(every_policy),
    EK_CASE(place_starts_from_its_last_plan),
    EK_CASE(auto_moves_primaries_by_history),
    EK_CASE(auto_moves_once_loads_are_constant),
    EK_CASE(experts_on_two_nodes),
    EK_CASE(survival_is_preferred),
    EK_CASE(what_does_not_fit),
    EK_CASE(speeds_change_plans_and_equal_ones_do_not),
    EK_CASE(speeds_that_are_none_are_refused),
    EK_CASE(counts_with_speeds_have_a_lower_limit),
};

EK_TEST_MAIN(cases)
