/* Training where the expert products of one rank take three times as long: planners learn it from
 * the times of products and give that rank less, and losses are those of one rank alone.  Ranks are
 * threads; rows take their time by sleeping. */
#include "equal_threads.h"

enum { RANKS = 4, SLOW = 2 };

static equal_result train_with(const ek_planner *planner, int slow)
{
    static equal_result result[EQUAL_RANKS_MAX];
    equal_layout l = {.ranks = RANKS,
                      .pp = 1,
                      .model_chunks = 1,
                      .tp = 1,
                      .ep = RANKS,
                      .etp = 1,
                      .degree = 1,
                      .shape = 1,
                      .blind = 1,
                      .slow = slow};

    while (equal_planners[l.balance] != planner)
        l.balance++;
    equal_check_into(&l, result);
    for (int r = 1; r < RANKS; r++)
        CHECK(result[r].slowest == result[0].slowest); /* all know the same */
    return result[0];
}

/* Rows of the slow rank over the mean of the others. */
static double share_of_slow(const equal_result *x)
{
    double others = 0;

    for (int r = 0; r < RANKS; r++)
        others += r != SLOW - 1 ? (double)x->rank_rows[r] / (RANKS - 1) : 0;
    return (double)x->rank_rows[SLOW - 1] / others;
}

static int is_found(const ek_planner *planner)
{
    equal_result x = train_with(planner, SLOW);

    return x.slowest > 1.8 && x.slowest < 4.5 && share_of_slow(&x) < 0.7;
}

static void the_slow_rank_gets_fewer_rows_and_losses_stay(void)
{
    static const ek_planner *const planners[] = {&ek_planner_exact, &ek_planner_auto};

    for (int i = 0; i < 2; i++) {
        int found = is_found(planners[i]);

        for (equal_pace_factor = 2; !found && equal_pace_factor <= 8; equal_pace_factor *= 2)
            found = is_found(planners[i]);
        CHECK(found);
        equal_pace_factor = 1;
    }
}

static void speeds_are_not_followed_unless_asked_for(void)
{
    equal_result x = train_with(&ek_planner_exact, 0);

    CHECK(x.slowest == 1);
}

static const ek_case cases[] = {
    EK_CASE(the_slow_rank_gets_fewer_rows_and_losses_stay),
    EK_CASE(speeds_are_not_followed_unless_asked_for),
};
EK_TEST_MAIN(cases)
