/* auto with persistent and transient replicas: the persistent placement is that of replicate, the
 * transient plan never slower than its persistent copies alone, and each in its slots. */
#include "balance/planner.h"
#include "base/random.h"
#include "plan_fixture.h"

#include <string.h>

enum { DRAWS = 400 };

static const ek_planner *const planner = &ek_planner_auto_replicas;
static const ek_plan_costs free_replicas = {.compute_s_per_row = 1e-6};
static const ek_plan_costs cheap = {.compute_s_per_row = 1e-6,
                                    .comm_s_per_row = 1e-7,
                                    .replica_s = 1e-5,
                                    .migrate_s_per_expert = 1e-4};

static int64_t drawn(int draw, int i, int64_t below)
{
    return (int64_t)((ek_random_bits(83, (uint64_t)draw, (uint64_t)i) >> 9) % (uint64_t)below);
}

/* One rank a node, each expert on two. */
static void open_layer(fixture *f, int32_t experts, int32_t ranks, int32_t slots,
                       ek_plan_costs costs)
{
    memset(f, 0, sizeof(*f));
    f->planner = planner;
    f->l = (ek_plan_limits){.experts = experts,
                            .ranks = ranks,
                            .slots = slots,
                            .replicas_min = 2,
                            .horizon = 100,
                            .costs = costs};
    ek_arena_measure(&f->arena);
    plan_lay_out(f, &f->arena);
    CHECK(ek_arena_reserve(&f->arena, "a plan") == EK_OK);
    plan_lay_out(f, &f->arena);
    CHECK(ek_arena_check(&f->arena, "a plan") == EK_OK);
    ek_placement_block(&f->p.placement, 1);
    f->p.explain = 1;
}

static void fill_counts(fixture *f, int draw, int64_t most)
{
    for (int32_t r = 0; r < f->l.ranks; r++)
        for (int32_t e = 0; e < f->l.experts; e++)
            f->counts[r * f->l.experts + e] =
                drawn(draw, 100 + r * f->l.experts + e, most / (1 + drawn(draw, 20 + e, 12)) + 1);
}

static void plan_persistently(fixture *f)
{
    CHECK(planner->plan_persistent(f->memory, &f->l, f->counts, &f->p) == EK_OK);
    if (ek_plan_check(&f->l, f->counts, &f->p) != EK_OK)
        EK_T_FAIL("%s", ek_err_message());
}

static void plan_transiently(fixture *f)
{
    CHECK(planner->plan_transient(f->memory, &f->l, f->counts, &f->p) == EK_OK);
    if (ek_plan_check(&f->l, f->counts, &f->p) != EK_OK)
        EK_T_FAIL("%s", ek_err_message());
}

static int32_t count_in_last_slots(const fixture *f)
{
    int32_t n = 0;

    for (int32_t s = 0; s < f->l.ranks * f->l.slots; s++)
        n += s % f->l.slots == f->l.slots - 1 && f->p.placement.expert_of[s] >= 0;
    return n;
}

/* --- slots ------------------------------------------------------------------------------------ */

static void one_slot_is_transient_where_the_others_suffice(void)
{
    ek_plan_limits l = {.experts = 8, .ranks = 4, .slots = 5, .replicas_min = 2};

    CHECK_INT(ek_planner_transient_slots(planner, &l), 1);
    l.slots = 4; /* 16 copies fill them */
    CHECK_INT(ek_planner_transient_slots(planner, &l), 0);
    l.replicas_min = 9; /* as many copies as ranks */
    l.slots = 9;
    CHECK_INT(ek_planner_transient_slots(planner, &l), 1);
    CHECK_INT(ek_planner_transient_slots(&ek_planner_replicate, &l), 0);
    CHECK_INT(ek_planner_transient_slots(&ek_planner_auto, &l), 0);
    CHECK(ek_planner_fills_slots(planner) && ek_planner_fills_slots(&ek_planner_replicate));
    CHECK(!ek_planner_fills_slots(&ek_planner_auto) && !ek_planner_fills_slots(&ek_planner_exact));
}

/* --- persistent ------------------------------------------------------------------------------- */

static void the_persistent_placement_is_that_of_replicate(void)
{
    fixture f, plain;

    open_layer(&f, 24, 8, 8, cheap);
    fill_counts(&f, 1, 4000);
    plan_persistently(&f);
    plan_setup(&plain, &ek_planner_replicate, 24, 8, 7, cheap);
    plain.l.replicas_min = 2;
    plain.l.horizon = 100;
    CHECK(ek_planner_replicate.plan_persistent(plain.memory, &plain.l, f.counts, &plain.p) ==
          EK_OK);
    for (int32_t s = 0; s < 8 * 7; s++)
        CHECK_INT(f.p.placement.expert_of[s / 7 * 8 + s % 7], plain.p.placement.expert_of[s]);
    CHECK_INT(count_in_last_slots(&f), 0);
    teardown(&f);
    teardown(&plain);
}

/* Loads by which replicate moves experts; all are on two nodes already. */
static void move_for_load(fixture *f, int64_t horizon, double migrate_s)
{
    open_layer(f, 16, 4, 10, cheap);
    f->l.costs.migrate_s_per_expert = migrate_s;
    fill_counts(f, 2, 4000);
    plan_persistently(f);
    fill_counts(f, 3, 4000);
    for (int32_t r = 0; r < 4; r++)
        f->counts[r * 16 + 5] += 30000;
    f->l.horizon = horizon;
}

static void experts_move_for_less_load_where_it_pays(void)
{
    int32_t was[4 * 10];
    fixture f;

    move_for_load(&f, 100, 1e-4);
    memcpy(was, f.p.placement.expert_of, sizeof(was));
    plan_persistently(&f);
    CHECK(memcmp(was, f.p.placement.expert_of, sizeof(was)) != 0);
    CHECK(f.p.after_s < f.p.before_s);
    teardown(&f);
    move_for_load(&f, 100, 100);
    plan_persistently(&f);
    CHECK(memcmp(was, f.p.placement.expert_of, sizeof(was)) == 0);
    CHECK(strstr(f.p.reason, "kept: ") == f.p.reason);
    teardown(&f);
    move_for_load(&f, 0, 1e-4);
    plan_persistently(&f);
    CHECK(memcmp(was, f.p.placement.expert_of, sizeof(was)) == 0);
    teardown(&f);
}

/* Whatever it costs. */
static void missing_replicas_come_at_any_price(void)
{
    fixture f;

    open_layer(&f, 16, 4, 10, cheap);
    f.l.costs.migrate_s_per_expert = 1e6;
    fill_counts(&f, 2, 4000);
    plan_persistently(&f);
    for (int32_t e = 0; e < 16; e++) {
        int32_t ranks = 0;

        for (int32_t r = 0; r < 4; r++)
            ranks += ek_plan_slot(&f.p.placement, r, e) >= 0;
        CHECK(ranks >= 2);
    }
    teardown(&f);
}

static void a_foreign_placement_is_refused(void)
{
    fixture f;

    open_layer(&f, 4, 2, 6, cheap);
    f.p.placement.expert_of[5] = 0; /* the transient slot */
    f.p.placement.expert_of[0] = -1;
    f.p.placement.primary[0] = 5;
    CHECK_INT(planner->plan_persistent(f.memory, &f.l, f.counts, &f.p), EK_EINVAL);
    teardown(&f);
}

/* --- transient -------------------------------------------------------------------------------- */

/* What any layer promises; sums up how often replicas came, and what was gained. */
static void check_layer(int draw, ek_plan_costs costs, int64_t *replicas, double *over)
{
    int32_t ranks = 2 + (int32_t)drawn(draw, 0, 9), each = 1 + (int32_t)drawn(draw, 1, 4);
    int32_t experts = ranks * each, slots = 2 * each + 1 + (int32_t)drawn(draw, 2, 2);
    int32_t kept[11 * 10];
    int64_t load[11], most, mean = 0;
    fixture f;

    open_layer(&f, experts, ranks, slots, costs);
    fill_counts(&f, draw, 3000);
    plan_persistently(&f);
    fill_counts(&f, draw + DRAWS, 3000); /* other loads than those of the past */
    memcpy(kept, f.p.placement.expert_of, sizeof(*kept) * (size_t)(ranks * slots));
    plan_transiently(&f);
    most = ek_plan_loads(&f.l, &f.p, load);
    CHECK(f.p.after_s <= f.p.before_s);
    for (int32_t s = 0; s < ranks * slots; s++) {
        int32_t e = f.p.placement.expert_of[s];

        if (s % slots < slots - 1)
            CHECK_INT(e, kept[s]);
        else if (e >= 0)
            CHECK(f.p.quota[s] > 0 && ek_plan_slot(&f.p.placement, s / slots, e) == s);
    }
    *replicas += count_in_last_slots(&f);
    for (int32_t i = 0; i < ranks * experts; i++)
        mean += f.counts[i];
    *over += (double)most * ranks / (double)(mean > 0 ? mean : 1);
    teardown(&f);
}

static void any_layer_is_no_slower_and_in_its_slots(void)
{
    ek_plan_costs dear = cheap;
    int64_t n[3] = {0};
    double over[3] = {0};

    dear.replica_s = 10;
    for (int draw = 0; draw < DRAWS; draw++) {
        check_layer(draw, free_replicas, &n[0], &over[0]);
        check_layer(draw, cheap, &n[1], &over[1]);
        check_layer(draw, dear, &n[2], &over[2]);
    }
    CHECK(n[0] > DRAWS && n[1] > 0 && n[2] == 0);
    CHECK(over[0] < 1.005 * DRAWS);
    CHECK(over[0] <= over[1] && over[1] <= over[2] && over[2] > 1.01 * DRAWS);
}

/* Experts 0 and 1 of four are hot and on the same two ranks. */
static void a_replica_takes_what_persistent_copies_cannot(void)
{
    fixture f;

    open_layer(&f, 4, 4, 3, free_replicas);
    for (int32_t e = 0; e < 4; e++) {
        int32_t other = e < 2 ? 1 - e : 5 - e;

        f.p.placement.expert_of[e * 3] = e;
        f.p.placement.expert_of[e * 3 + 1] = other;
    }
    for (int32_t e = 0; e < 4; e++)
        f.counts[e] = e < 2 ? 100 : 20;
    plan_transiently(&f);
    CHECK(f.p.before_s == 100 * 1e-6 && f.p.after_s == 60 * 1e-6);
    CHECK_INT(count_in_last_slots(&f), 2);
    CHECK(f.p.placement.expert_of[8] >= 0 && f.p.placement.expert_of[8] < 2);
    CHECK(f.p.placement.expert_of[11] >= 0 && f.p.placement.expert_of[11] < 2);
    CHECK(strstr(f.p.reason, "2 transient replicas, at most 1 per link: busiest rank 100 -> 60") ==
          f.p.reason);
    teardown(&f);
}

static void copies_that_suffice_need_no_replica(void)
{
    fixture f;

    open_layer(&f, 4, 4, 3, free_replicas);
    for (int32_t e = 0; e < 4; e++)
        f.p.placement.expert_of[(e + 1) % 4 * 3 + 1] = e;
    for (int32_t e = 0; e < 4; e++)
        f.counts[e] = e % 2 == 0 ? 80 : 40;
    plan_transiently(&f);
    CHECK_INT(count_in_last_slots(&f), 0);
    CHECK(f.p.after_s == 60 * 1e-6);
    teardown(&f);
}

static const ek_case cases[] = {
    EK_CASE(one_slot_is_transient_where_the_others_suffice),
    EK_CASE(the_persistent_placement_is_that_of_replicate),
    EK_CASE(experts_move_for_less_load_where_it_pays),
    EK_CASE(missing_replicas_come_at_any_price),
    EK_CASE(a_foreign_placement_is_refused),
    EK_CASE(any_layer_is_no_slower_and_in_its_slots),
    EK_CASE(a_replica_takes_what_persistent_copies_cannot),
    EK_CASE(copies_that_suffice_need_no_replica),
};
EK_TEST_MAIN(cases)
