/* Any layout trains as one rank does, and continues a checkpoint of any other: a sample of layouts,
 * drawn by the seed EK_TEST_SEED (1).  EK_TEST_ONLY=i runs only layout i of each case;
 * EK_TEST_RANKS and EK_TEST_COUNT set the number of ranks and of layouts.  Ranks are threads. */
#include "equal_threads.h"

enum { SECONDS = 900 }; /* for a case: sanitizers make it slow */

static void run(int ranks, int count)
{
    alarm(SECONDS);
    equal_check_drawn(ranks, count, NULL);
}

static void one_rank(void)
{
    run(1, 6);
}

static void two_ranks(void)
{
    run(2, EQUAL_MODELS);
}

static void three_ranks(void)
{
    run(3, EQUAL_MODELS);
}

static void four_ranks(void)
{
    run(equal_number("EK_TEST_RANKS", 4), equal_number("EK_TEST_COUNT", 2 * EQUAL_MODELS));
}

static void saved_by_one_loaded_by_another(void)
{
    static const int ranks[][2] = {{4, 1}, {2, 3}, {1, 4}, {3, 2}, {4, 4}, {3, 4}, {2, 2}, {4, 2}};
    int n = (int)(sizeof(ranks) / sizeof(ranks[0])), only = equal_number("EK_TEST_ONLY", -1);
    uint64_t seed = (uint64_t)equal_number("EK_TEST_SEED", 1);

    alarm(SECONDS);
    for (int i = 0; i < n; i++)
        if (only < 0 || only == i)
            equal_check_drawn_pair(seed, ranks[i][0], ranks[i][1], i);
}

static const ek_case cases[] = {
    EK_CASE(one_rank),
    EK_CASE(two_ranks),
    EK_CASE(three_ranks),
    EK_CASE(four_ranks),
    EK_CASE(saved_by_one_loaded_by_another),
};

EK_TEST_MAIN(cases)
