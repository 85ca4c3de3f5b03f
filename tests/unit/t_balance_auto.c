/* auto: when a replica pays and when a move pays, by hand; edge cases; persistent against transient
 * plans; recorded traces; properties over random layers. */
#include "balance/replay.h"
#include "balance_golden.h"
#include "base/random.h"
#include "plan_fixture.h"

enum { DRAWS = 300 };

/* Block order, no assignments, horizon 0; costs are chosen so that times are assignment counts. */
static void setup(fixture *f, int32_t experts, int32_t ranks, int32_t spare, double replica_s)
{
    plan_setup(f, &ek_planner_auto, experts, ranks, (experts + ranks - 1) / ranks + spare,
               (ek_plan_costs){.compute_s_per_row = 1, .replica_s = replica_s});
}

/* All assignments of an expert come from rank 0. */
static void set_totals(fixture *f, const int64_t *total)
{
    memcpy(f->counts, total, (size_t)f->l.experts * sizeof(*total));
}

static int64_t run(fixture *f)
{
    plan_make(f, f->counts);
    CHECK(f->p.after_s <= f->p.before_s);
    return ek_plan_loads(&f->l, &f->p, f->load);
}

static int32_t replicas(const fixture *f)
{
    int32_t n = -f->l.experts;

    for (int32_t s = 0; s < f->l.ranks * f->l.slots; s++)
        n += f->p.placement.expert_of[s] >= 0;
    return n;
}

/* Runs plan_persistent only. */
static void plan_persistently(fixture *f)
{
    CHECK(f->planner->plan_persistent(f->memory, &f->l, f->counts, &f->p) == EK_OK);
    CHECK(ek_plan_check(&f->l, f->counts, &f->p) == EK_OK);
}

static int32_t rank_of(const fixture *f, int32_t expert)
{
    return f->p.placement.primary[expert] / f->l.slots;
}

/* Number of experts off their block-order rank. */
static int32_t moved(const fixture *f)
{
    int32_t each = f->l.experts / f->l.ranks, longer = f->l.experts % f->l.ranks, n = 0;

    for (int32_t e = 0; e < f->l.experts; e++) {
        int32_t in_longer = longer * (each + 1);
        int32_t was = e < in_longer ? e / (each + 1) : longer + (e - in_longer) / each;

        n += rank_of(f, e) != was;
    }
    return n;
}

/* --- replicas by hand ------------------------------------------------------------------------- */

/* 900, 300, 200, 200 become 400 with one replica per link, which may take as long as 500
 * assignments. */
static void a_replica_has_to_pay(void)
{
    const int64_t total[] = {900, 300, 200, 200};
    fixture f;

    setup(&f, 4, 4, 1, 499);
    set_totals(&f, total);
    CHECK_INT(run(&f), 400);
    CHECK_INT(replicas(&f), 3);
    CHECK(f.p.before_s == 900 && f.p.after_s == 899);
    CHECK(strstr(f.p.reason, "3 replicas, at most 1 per link: busiest rank 900 -> 400") != NULL);
    f.l.costs.replica_s = 501;
    CHECK_INT(run(&f), 900);
    CHECK_INT(replicas(&f), 0);
    CHECK(f.p.after_s == 900);
    CHECK(strstr(f.p.reason, "no replicas") != NULL);
    teardown(&f);
}

/* Rank 0 has two experts of 300, the others none.  For 200 it must give of both, for 300 of one. */
static void as_many_a_link_as_pay(void)
{
    const int64_t total[] = {300, 300, 0, 0, 0, 0};
    fixture f;

    setup(&f, 6, 3, 2, 50);
    set_totals(&f, total);
    CHECK_INT(run(&f), 200);
    CHECK(f.p.after_s == 300);
    f.l.costs.replica_s = 150;
    CHECK_INT(run(&f), 300);
    CHECK_INT(replicas(&f), 1);
    CHECK(f.p.after_s == 450);
    f.l.costs.replica_s = 350;
    CHECK_INT(run(&f), 600);
    CHECK_INT(replicas(&f), 0);
    teardown(&f);
}

/* Where rank 0 sends everything, balancing only shortens the products; locality replicas help if
 * they pay. */
static void what_the_busiest_source_sends_stays(void)
{
    const int64_t total[] = {900, 300, 200, 200};
    fixture f;

    setup(&f, 4, 4, 1, 200);
    f.l.costs.compute_s_per_row = 0.1;
    f.l.costs.comm_s_per_row = 0.9;
    set_totals(&f, total);
    f.l.costs.replica_s = 0;
    CHECK_INT(run(&f), 1200);
    CHECK(fabs(f.p.after_s - (1200 * 0.1 + 400 * 0.9)) < 1e-9);
    CHECK(strstr(f.p.reason, "locality replicas") != NULL);
    f.l.costs.replica_s = 271; /* 300 that stay save 270, balancing saves 50 */
    CHECK_INT(run(&f), 900);
    CHECK_INT(replicas(&f), 0);
    for (int32_t r = 0; r < 4; r++) /* the same from four equal sources */
        for (int32_t e = 0; e < 4; e++)
            f.counts[r * 4 + e] = total[e] / 4;
    f.l.costs.replica_s = 200;
    CHECK_INT(run(&f), 400);
    teardown(&f);
}

/* With all costs 0 only balance counts. */
static void without_prices(void)
{
    const int64_t total[] = {900, 300, 200, 200};
    fixture f;

    setup(&f, 4, 4, 1, 5000);
    f.l.costs.compute_s_per_row = 0;
    set_totals(&f, total);
    CHECK_INT(run(&f), 400);
    teardown(&f);
}

/* --- moves by hand ---------------------------------------------------------------------------- */

/* Rank 0 has four experts of 40, rank 1 four of none, no spare slot: two per link move, so that 160
 * become 80, if that pays. */
static void a_move_has_to_pay(void)
{
    const int64_t total[] = {40, 40, 40, 40, 0, 0, 0, 0};
    fixture f;

    setup(&f, 8, 2, 0, 0);
    set_totals(&f, total);
    f.l.costs.migrate_s_per_expert = 1;
    CHECK_INT(run(&f), 160); /* horizon: 0 */
    CHECK_INT(moved(&f), 0);
    f.l.horizon = 10;
    f.l.costs.migrate_s_per_expert = 1000;
    plan_persistently(&f);
    CHECK_INT(moved(&f), 0);
    CHECK(strstr(f.p.reason, "no move") != NULL);
    f.l.costs.migrate_s_per_expert = 100;
    plan_persistently(&f);
    CHECK_INT(moved(&f), 4);
    CHECK(strstr(f.p.reason, "4 of 8 experts move") != NULL);
    CHECK_INT(ek_plan_loads(&f.l, &f.p, f.load), 80);
    f.l.costs.migrate_s_per_expert = 1; /* they stay afterwards, even if moves are nearly free */
    plan_persistently(&f);
    CHECK_INT(moved(&f), 4);
    CHECK(strstr(f.p.reason, "no move") != NULL);
    teardown(&f);
}

/* 40, 40 and 10, 10, half of each from either rank: balanced by a replica for 50 + 25, or by a move
 * for 50.  But half of rank 0's 80 come from rank 0 itself: links carry 40, and 25 after the move.
 */
static void replicas_keep_tokens_where_they_are(void)
{
    const int64_t half[] = {20, 20, 5, 5};
    fixture f;

    for (int sent = 0; sent < 2; sent++) {
        plan_setup(&f, &ek_planner_auto, 4, 2, 3,
                   (ek_plan_costs){
                       .compute_s_per_row = 1 - sent, .comm_s_per_row = sent, .replica_s = 25});
        f.l.horizon = 10;
        memcpy(f.counts, half, sizeof(half));
        memcpy(f.counts + 4, half, sizeof(half));
        f.l.costs.migrate_s_per_expert = 80; /* 160 must be saved in ten micro-batches */
        plan_persistently(&f);
        CHECK_INT(moved(&f), sent ? 0 : 2);
        f.l.costs.migrate_s_per_expert = 70; /* 140, of which the links save 150 */
        plan_persistently(&f);
        CHECK_INT(moved(&f), 2);
        ek_placement_block(&f.p.placement, 1);
        f.l.costs.migrate_s_per_expert = 20; /* 40: a gain of 250 by the coarse model leaves no
                                                doubt */
        plan_persistently(&f);
        CHECK_INT(moved(&f), 2);
        teardown(&f);
    }
}

/* The same, with rows that cost both products and communication: 50 + 20 + 25 with a replica, 50 +
 * 25 after the move, so ten times 20 is saved, for 160.  If only 5 of the 25 are exposed, nothing
 * is saved. */
static void what_is_hidden_does_not_count(void)
{
    const int64_t half[] = {20, 20, 5, 5};
    fixture f;

    for (int hidden = 0; hidden < 2; hidden++) {
        plan_setup(&f, &ek_planner_auto, 4, 2, 3,
                   (ek_plan_costs){.compute_s_per_row = 1,
                                   .comm_s_per_row = 1,
                                   .replica_s = 25,
                                   .migrate_s_per_expert = 80});
        f.l.costs.exposed_s = hidden ? 5 : 0;
        f.l.horizon = 10;
        memcpy(f.counts, half, sizeof(half));
        memcpy(f.counts + 4, half, sizeof(half));
        plan_persistently(&f);
        CHECK_INT(moved(&f), hidden ? 0 : 2);
        teardown(&f);
    }
}

/* Two hot experts on rank 0 of four: after parting them, each rank gives of one only. */
static void hot_experts_part(void)
{
    const int64_t total[] = {500, 500, 40, 40, 40, 40, 40, 40};
    fixture f;

    setup(&f, 8, 4, 1, 20);
    set_totals(&f, total);
    f.l.costs.migrate_s_per_expert = 1;
    f.l.horizon = 100;
    plan_persistently(&f);
    CHECK(rank_of(&f, 0) != rank_of(&f, 1));
    CHECK_INT(moved(&f), 2);
    CHECK_INT(run(&f), 310);
    CHECK(strstr(f.p.reason, "at most 1 per link") != NULL);
    teardown(&f);
}

/* No move where transient replicas suffice. */
static void spare_slots_spare_moves(void)
{
    const int64_t total[] = {1000, 10, 10, 10, 10, 10, 10, 10};
    fixture f;

    setup(&f, 8, 4, 1, 0);
    set_totals(&f, total);
    f.l.costs.migrate_s_per_expert = 1;
    f.l.horizon = 1000;
    plan_persistently(&f);
    CHECK_INT(moved(&f), 0);
    teardown(&f);
}

/* Rank 1 must give of two experts until one of its three leaves.  The experts beside rank 0's heavy
 * one, which alone exceeds the mean, stay. */
static void experts_beside_a_heavy_one_stay(void)
{
    const int64_t total[] = {1000, 50, 50, 400, 400, 400, 20, 20, 20, 20, 20, 20};
    fixture f;

    setup(&f, 12, 4, 1, 50);
    set_totals(&f, total);
    f.l.costs.migrate_s_per_expert = 1;
    f.l.horizon = 100;
    plan_persistently(&f);
    CHECK_INT(moved(&f), 2);
    CHECK(rank_of(&f, 1) == 0 && rank_of(&f, 2) == 0);
    teardown(&f);
}

/* Ranks with three, two and two primary copies keep these numbers; old replicas are removed, spare
 * slots stay empty. */
static void ranks_keep_their_number(void)
{
    const int64_t total[] = {90, 80, 70, 1, 2, 3, 4};
    int32_t primaries[3] = {0};
    fixture f;

    setup(&f, 7, 3, 1, 20);
    set_totals(&f, total);
    f.p.placement.expert_of[3] = 6;
    f.l.horizon = 100;
    plan_persistently(&f);
    CHECK(moved(&f) > 0);
    CHECK_INT(replicas(&f), 0);
    for (int32_t e = 0; e < 7; e++)
        primaries[rank_of(&f, e)]++;
    CHECK(primaries[0] == 3 && primaries[1] == 2 && primaries[2] == 2);
    CHECK_INT(f.p.placement.expert_of[3], -1);
    teardown(&f);
}

/* A sum over ten micro-batches is planned for as one of them. */
static void a_sum_is_of_its_micro_batches(void)
{
    const int64_t total[] = {40, 40, 40, 40, 0, 0, 0, 0};
    double one;
    fixture f;

    setup(&f, 8, 2, 0, 0);
    f.l.costs.migrate_s_per_expert = 100;
    f.l.horizon = 2;
    set_totals(&f, total);
    plan_persistently(&f);
    one = f.p.before_s;
    CHECK_INT(moved(&f), 0);
    for (int32_t e = 0; e < 8; e++)
        f.counts[e] *= 10;
    f.p.of = 10;
    plan_persistently(&f);
    CHECK_INT(moved(&f), 0);
    CHECK(f.p.before_s == one);
    f.p.of = 1; /* taken as one micro-batch, the move pays */
    plan_persistently(&f);
    CHECK_INT(moved(&f), 4);
    teardown(&f);
}

/* --- edges ------------------------------------------------------------------------------------ */

static void nothing_to_do(void)
{
    fixture f;

    setup(&f, 6, 3, 1, 0);
    f.l.horizon = 100;
    CHECK_INT(run(&f), 0); /* no assignments */
    CHECK_INT(replicas(&f), 0);
    for (int32_t e = 0; e < 6; e++)
        f.counts[e] = 7;
    CHECK_INT(run(&f), 14); /* already even */
    CHECK_INT(replicas(&f), 0);
    CHECK_INT(moved(&f), 0);
    teardown(&f);
}

static void no_spare_slot(void)
{
    fixture f;

    setup(&f, 4, 4, 0, 0);
    f.l.horizon = 100;
    f.counts[2] = 100;
    CHECK_INT(run(&f), 100);
    CHECK_INT(replicas(&f), 0);
    CHECK_INT(moved(&f), 0);
    teardown(&f);
}

static void one_rank(void)
{
    fixture f;

    setup(&f, 5, 1, 3, 0);
    f.l.horizon = 100;
    f.counts[4] = 100;
    CHECK_INT(run(&f), 100);
    CHECK_INT(replicas(&f), 0);
    teardown(&f);
}

static void one_expert_takes_all_on_more_ranks_than_experts(void)
{
    fixture f;

    setup(&f, 3, 7, 1, 1);
    f.l.horizon = 100;
    f.counts[1] = 700;
    CHECK_INT(run(&f), 100);
    CHECK_INT(replicas(&f), 6);
    f.counts[1] = 5; /* fewer assignments than ranks */
    CHECK_INT(run(&f), 1);
    f.l.costs.replica_s = 1e30;
    CHECK_INT(run(&f), 5);
    CHECK_INT(replicas(&f), 0);
    teardown(&f);
}

/* Replicas of the previous plan are not kept. */
static void starts_afresh(void)
{
    fixture f;

    setup(&f, 4, 4, 1, 10);
    f.counts[0] = 400;
    CHECK_INT(run(&f), 100);
    f.counts[0] = 0;
    f.counts[3] = 400;
    CHECK_INT(run(&f), 100);
    CHECK_INT(replicas(&f), 3);
    CHECK_INT(ek_plan_slot(&f.p.placement, 1, 0), -1);
    teardown(&f);
}

/* The largest counts that the library accepts. */
static void huge_counts(void)
{
    fixture f;

    setup(&f, 4, 2, 1, 1e-3);
    f.l.costs = (ek_plan_costs){.compute_s_per_row = 1e-6,
                                .comm_s_per_row = 1e-6,
                                .replica_s = 1e-3,
                                .migrate_s_per_expert = 1};
    f.l.horizon = 100;
    f.counts[0] = f.counts[5] = (int64_t)1 << 61; /* experts 0 and 1, both on rank 0 */
    CHECK(run(&f) <= ((int64_t)1 << 61) + ((int64_t)1 << 51));
    teardown(&f);
}

/* --- recorded traces -------------------------------------------------------------------------- */

/* The default machine of `evenkeel plan`, with replica cost multiplied. */
static ek_plan_costs machine(double replicas_price)
{
    const double weights = 3.0 * 2048 * 1024, flops = 200e12, link = 50e9;

    return (ek_plan_costs){.compute_s_per_row = 3 * 2 * weights / flops,
                           .comm_s_per_row = 4 * 2048 * 2 / link,
                           .replica_s = replicas_price * 2 * weights * 2 / link,
                           .migrate_s_per_expert = weights * 14 / link};
}

static int replay(const ek_planner *planner, const char *name, const char *history, int32_t ranks,
                  double replicas_price, ek_replay_result *r)
{
    ek_replay_config cfg = {.planner = planner};
    ek_trace t, before;

    if (!golden_open(name, &t))
        return 0;
    cfg.limits = (ek_plan_limits){.experts = (int32_t)t.experts,
                                  .ranks = ranks,
                                  .slots = (int32_t)(t.experts + ranks - 1) / ranks + 1,
                                  .horizon = 100,
                                  .costs = machine(replicas_price)};
    if (history != NULL && golden_open(history, &before))
        cfg.history = &before;
    CHECK(ek_replay(&t, &cfg, r) == EK_OK);
    if (cfg.history != NULL)
        ek_trace_close(&before);
    ek_trace_close(&t);
    return 1;
}

static const char missing[] = "EK_TRACES does not name a folder with this trace";

static void persistent_from_prefill_on_decode(void)
{
    ek_replay_result r;

    if (!replay(&ek_planner_auto, "deepseek_r1_decode_in1000out1000.npy",
                "deepseek_r1_prefill_in4096.npy", 32, 1, &r))
        SKIP(missing);
    if (r.mean > 1.001 || r.worst > 1.006)
        EK_T_FAIL("max/mean %.5f, worst %.5f", r.mean, r.worst);
    CHECK(r.persistent_us > 0);
}

static void gpt_16_ranks(void)
{
    ek_replay_result r;

    if (!replay(&ek_planner_auto, "gpt_moe_e32_r16.npy", NULL, 16, 0, &r))
        SKIP(missing);
    if (r.mean > 1.001 || r.worst > 1.003)
        EK_T_FAIL("replicas for nothing: max/mean %.5f, worst %.5f", r.mean, r.worst);
}

/* By ek_plan_time, which it does not optimise: the more replicas cost, the further ahead of
 * `exact`, and never behind no replicas. */
static void weighs_replicas(void)
{
    static const double prices[] = {4, 512};
    double lead = 1;

    for (size_t i = 0; i < sizeof(prices) / sizeof(prices[0]); i++) {
        ek_replay_result r, exact;

        if (!replay(&ek_planner_auto, "gpt_moe_e32_r16.npy", NULL, 16, prices[i], &r) ||
            !replay(&ek_planner_exact, "gpt_moe_e32_r16.npy", NULL, 16, prices[i], &exact))
            SKIP(missing);
        CHECK(r.speedup >= 1);
        if (r.speedup < lead * exact.speedup)
            EK_T_FAIL("%g times: %.4f, exact %.4f", prices[i], r.speedup, exact.speedup);
        lead = r.speedup / exact.speedup;
    }
    CHECK(lead > 4);
}

/* --- random layers ---------------------------------------------------------------------------- */

static int64_t drawn(int draw, int i, uint64_t below)
{
    return (int64_t)(ek_random_bits(9, (uint64_t)draw, (uint64_t)i) % below);
}

/* Skewed counts: the expectation falls as 1 / (1 + rank of the expert squared). */
static void draw_counts(fixture *f, int draw)
{
    for (int32_t r = 0; r < f->l.ranks; r++)
        for (int32_t e = 0; e < f->l.experts; e++) {
            int64_t rank = drawn(draw, 10 + e, (uint64_t)f->l.experts);

            f->counts[(int64_t)r * f->l.experts + e] =
                drawn(draw, 1000 + r * f->l.experts + e, (uint64_t)(1 + 4000 / (1 + rank * rank)));
        }
}

static int32_t most_of(const int32_t *x, int32_t n)
{
    int32_t most = 0;

    for (int32_t i = 0; i < n; i++)
        most = x[i] > most ? x[i] : most;
    return most;
}

/* Replicas on the busiest link, counted from the plan. */
static int32_t links(const fixture *f)
{
    enum { RANKS = 16 };
    int32_t gets[RANKS] = {0}, gives[RANKS] = {0};

    for (int32_t e = 0; e < f->l.experts; e++) {
        int given = 0;

        for (int32_t s = 0; s < f->l.ranks * f->l.slots; s++)
            if (f->p.placement.expert_of[s] == e && ek_plan_is_replica(&f->p.placement, s)) {
                gets[s / f->l.slots]++;
                given = 1;
            }
        gives[rank_of(f, e)] += given;
    }
    return most_of(gets, RANKS) > most_of(gives, RANKS) ? most_of(gets, RANKS)
                                                        : most_of(gives, RANKS);
}

/* The predicted time is that of the plan; primary copies stay; with free replicas the plan is that
 * of `exact`; costlier replicas are not more. */
static void random_layers(void)
{
    for (int draw = 0; draw < DRAWS; draw++) {
        int32_t ranks = 1 + (int32_t)drawn(draw, 0, 12), experts = 1 + (int32_t)drawn(draw, 1, 30);
        int32_t spare = 1 + (int32_t)drawn(draw, 2, 2), n, before = INT32_MAX;
        int64_t most;
        fixture f, exact;

        setup(&f, experts, ranks, spare, 0);
        plan_setup(&exact, &ek_planner_exact, experts, ranks, f.l.slots, f.l.costs);
        draw_counts(&f, draw);
        most = run(&f);
        plan_make(&exact, f.counts);
        CHECK_INT(most, ek_plan_loads(&exact.l, &exact.p, exact.load));
        for (double price = 1; price < 1e6; price *= 10) {
            f.l.costs.replica_s = price;
            most = run(&f);
            CHECK(fabs(f.p.after_s - (double)most - price * links(&f)) < 1e-6 * f.p.after_s + 1e-9);
            n = links(&f);
            CHECK(n <= before);
            before = n;
            CHECK_INT(moved(&f), 0);
        }
        CHECK_INT(before, 0);
        teardown(&exact);
        teardown(&f);
    }
}

/* A deterministic permutation that is expected to be no slower; it leaves no replicas. */
static void random_histories(void)
{
    int32_t some = 0;

    for (int draw = 0; draw < DRAWS; draw++) {
        int32_t ranks = 1 + (int32_t)drawn(draw, 0, 12), experts = 1 + (int32_t)drawn(draw, 1, 30);
        int32_t primaries[16] = {0}, first[32], was;
        fixture f;

        setup(&f, experts, ranks, (int32_t)drawn(draw, 2, 3), 10);
        draw_counts(&f, draw);
        f.l.costs.comm_s_per_row = (double)drawn(draw, 4, 3);
        f.l.costs.migrate_s_per_expert = 100;
        f.l.horizon = 1 << drawn(draw, 3, 10);
        plan_persistently(&f);
        CHECK(f.p.after_s <= f.p.before_s);
        CHECK_INT(replicas(&f), 0);
        for (int32_t e = 0; e < experts; e++)
            primaries[rank_of(&f, e)]++;
        for (int32_t r = 0; r < ranks; r++)
            CHECK_INT(primaries[r], experts / ranks + (r < experts % ranks));
        was = moved(&f);
        some += was > 0;
        memcpy(first, f.p.placement.primary, (size_t)experts * sizeof(*first));
        ek_placement_block(&f.p.placement, 1);
        f.p.explain = 0; /* one rank may explain, and all must decide alike */
        plan_persistently(&f);
        CHECK(memcmp(first, f.p.placement.primary, (size_t)experts * sizeof(*first)) == 0);
        teardown(&f);
    }
    if (some < DRAWS / 10 || some > DRAWS * 9 / 10)
        EK_T_FAIL("homes move in %d of %d draws", (int)some, (int)DRAWS);
}

static const ek_case cases[] = {
    EK_CASE(a_replica_has_to_pay),
    EK_CASE(as_many_a_link_as_pay),
    EK_CASE(what_the_busiest_source_sends_stays),
    EK_CASE(without_prices),
    EK_CASE(a_move_has_to_pay),
    EK_CASE(replicas_keep_tokens_where_they_are),
    EK_CASE(what_is_hidden_does_not_count),
    EK_CASE(hot_experts_part),
    EK_CASE(spare_slots_spare_moves),
    EK_CASE(experts_beside_a_heavy_one_stay),
    EK_CASE(ranks_keep_their_number),
    EK_CASE(a_sum_is_of_its_micro_batches),
    EK_CASE(nothing_to_do),
    EK_CASE(no_spare_slot),
    EK_CASE(one_rank),
    EK_CASE(one_expert_takes_all_on_more_ranks_than_experts),
    EK_CASE(starts_afresh),
    EK_CASE(huge_counts),
    EK_CASE(persistent_from_prefill_on_decode),
    EK_CASE(gpt_16_ranks),
    EK_CASE(weighs_replicas),
    EK_CASE(random_layers),
    EK_CASE(random_histories),
};

EK_TEST_MAIN(cases)
