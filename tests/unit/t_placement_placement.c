/* Placements: block order for any numbers of experts, ranks and slots, and what the check rejects.
 */
#include "ek_test.h"
#include "placement/placement.h"

enum { ROOM = 4096 };

typedef struct {
    ek_arena arena;
    ek_placement p;
} fixture;

static void setup_runs(fixture *f, int32_t experts, int32_t ranks, int32_t slots, int32_t runs)
{
    CHECK(ek_arena_init(&f->arena, ROOM, "a placement") == EK_OK);
    ek_placement_reserve(&f->p, &f->arena, experts, ranks, slots);
    CHECK(ek_arena_check(&f->arena, "a placement") == EK_OK);
    ek_placement_block(&f->p, runs);
}

static void setup(fixture *f, int32_t experts, int32_t ranks, int32_t slots)
{
    setup_runs(f, experts, ranks, slots, 1);
}

static void teardown(fixture *f)
{
    ek_arena_fini(&f->arena);
}

static void one_rank_holds_experts_in_order(void)
{
    fixture f;

    setup(&f, 5, 1, 7);
    for (int32_t e = 0; e < 5; e++) {
        CHECK_INT(f.p.primary[e], e);
        CHECK_INT(f.p.expert_of[e], e);
    }
    CHECK_INT(f.p.expert_of[5], -1);
    CHECK_INT(f.p.expert_of[6], -1);
    CHECK(ek_placement_check(&f.p) == EK_OK);
    teardown(&f);
}

/* Each expert once, ranks differ by at most one expert, experts of a rank are consecutive. */
static void check_blocks(int32_t experts, int32_t ranks)
{
    int32_t slots = (experts + ranks - 1) / ranks + 1, held = 0, before = -1;
    fixture f;

    setup(&f, experts, ranks, slots);
    CHECK(ek_placement_check(&f.p) == EK_OK);
    for (int32_t r = 0; r < ranks; r++) {
        int32_t here = 0;

        for (int32_t s = 0; s < slots; s++) {
            int32_t e = f.p.expert_of[r * slots + s];

            if (e < 0)
                continue;
            CHECK_INT(e, before + 1);
            before = e;
            here++;
        }
        CHECK(here == experts / ranks || here == (experts + ranks - 1) / ranks);
        held += here;
    }
    CHECK_INT(held, experts);
    teardown(&f);
}

static void blocks_for_any_numbers(void)
{
    for (int32_t experts = 1; experts <= 17; experts++)
        for (int32_t ranks = 1; ranks <= 20; ranks++)
            check_blocks(experts, ranks);
}

/* Each of several groups of ranks holds every expert once, in the same slots; primary copies are on
 * the first. */
static void check_runs(int32_t experts, int32_t runs, int32_t ranks)
{
    int32_t slots = (experts + ranks - 1) / ranks;
    fixture f;

    setup_runs(&f, experts, runs * ranks, slots, runs);
    CHECK(ek_placement_check(&f.p) == EK_OK);
    for (int32_t run = 0; run < runs; run++) {
        int32_t held = 0;

        for (int32_t i = 0; i < ranks * slots; i++) {
            CHECK_INT(f.p.expert_of[run * ranks * slots + i], f.p.expert_of[i]);
            held += f.p.expert_of[i] >= 0;
        }
        CHECK_INT(held, experts);
        for (int32_t e = 0; e < experts; e++)
            CHECK(f.p.primary[e] < ranks * slots);
    }
    teardown(&f);
}

static void runs_hold_every_expert(void)
{
    for (int32_t experts = 1; experts <= 9; experts++)
        for (int32_t runs = 1; runs <= 4; runs++)
            for (int32_t ranks = 1; ranks <= 11; ranks++)
                check_runs(experts, runs, ranks);
}

/* By hand: 5 experts on 3 ranks are 2, 2 and 1 of them. */
static void larger_ranks_first(void)
{
    const int32_t want[] = {0, 1, 2, 3, 4, -1};
    fixture f;

    setup(&f, 5, 3, 2);
    for (int i = 0; i < 6; i++)
        CHECK_INT(f.p.expert_of[i], want[i]);
    teardown(&f);
}

/* The check rejects `p`, naming `word`. */
static void refused(const ek_placement *p, const char *word)
{
    CHECK_INT(ek_placement_check(p), EK_EINVAL);
    if (strstr(ek_err_message(), word) == NULL)
        EK_T_FAIL("`%s` does not name %s", ek_err_message(), word);
}

static void check_finds_faults(void)
{
    fixture f;

    setup(&f, 4, 2, 3);
    f.p.primary[2] = 1; /* the primary slot of expert 1 */
    refused(&f.p, "expert 2");
    f.p.primary[2] = -1;
    refused(&f.p, "slot -1");
    f.p.primary[2] = 6;
    refused(&f.p, "slot 6");
    f.p.primary[2] = 3;
    CHECK(ek_placement_check(&f.p) == EK_OK);
    f.p.expert_of[5] = 4;
    refused(&f.p, "slot 5");
    f.p.expert_of[5] = -2;
    refused(&f.p, "slot 5");
    f.p.expert_of[5] = 0; /* a replica */
    CHECK(ek_placement_check(&f.p) == EK_OK);
    teardown(&f);
}

static void measuring_gives_the_size(void)
{
    ek_arena a;
    ek_placement p;
    fixture f;

    ek_arena_measure(&a);
    ek_placement_reserve(&p, &a, 9, 3, 5);
    CHECK(p.primary == NULL && p.expert_of == NULL);
    setup(&f, 9, 3, 5);
    CHECK_INT(f.arena.used, a.used);
    teardown(&f);
}

/* By hand: copies that fit on each domain, each expert once, against those wanted. */
static void spare_slots_suffice_for_copies_on_domains(void)
{
    static const int32_t apart[] = {0, 1, 2, 3}, pairs[] = {7, 7, 3, 3}, uneven[] = {0, 0, 0, 1},
                         one[] = {5, 5, 5, 5};

    CHECK_INT(ek_placement_spare_slots_for(apart, 4, 8, 2), 2);  /* 4 x 4 = 16 */
    CHECK_INT(ek_placement_spare_slots_for(apart, 3, 4, 2), 1);  /* 3 x 3 = 9 >= 8 */
    CHECK_INT(ek_placement_spare_slots_for(pairs, 4, 8, 2), 2);  /* 8 + 8 */
    CHECK_INT(ek_placement_spare_slots_for(uneven, 4, 8, 2), 6); /* all 8 on the last rank */
    CHECK_INT(ek_placement_spare_slots_for(one, 4, 8, 2), -1);
    CHECK_INT(ek_placement_spare_slots_for(pairs, 4, 8, 3), -1);
    CHECK_INT(ek_placement_spare_slots_for(apart, 4, 8, 4), 6);
    CHECK_INT(ek_placement_spare_slots_for(one, 4, 8, 1), 0);
}

static const ek_case cases[] = {
    EK_CASE(one_rank_holds_experts_in_order),
    EK_CASE(blocks_for_any_numbers),
    EK_CASE(runs_hold_every_expert),
    EK_CASE(larger_ranks_first),
    EK_CASE(check_finds_faults),
    EK_CASE(measuring_gives_the_size),
    EK_CASE(spare_slots_suffice_for_copies_on_domains),
};
EK_TEST_MAIN(cases)
