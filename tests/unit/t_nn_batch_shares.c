/* Ranges of sequences in proportion to weights. */
#include "base/random.h"
#include "ek_test.h"
#include "nn/batch_shares.h"

enum { RANKS_MAX = 9 };

static int draw(int i, int64_t *weights, int64_t *sums)
{
    int ranks = 1 + i % RANKS_MAX;
    int64_t most = i % 3 == 0 ? 3 : EK_BATCH_WEIGHT_MAX;

    for (int r = 0; r < ranks; r++)
        weights[r] = 1 + (int64_t)(ek_random_bits(1, (uint64_t)i, (uint64_t)r) % (uint64_t)most);
    ek_shares_sum(weights, ranks, sums);
    return ranks;
}

/* Ranges follow one another, cover all sequences, and are within one of the exact share. */
static void ranges_partition_the_sequences_by_weight(void)
{
    int64_t weights[RANKS_MAX], sums[RANKS_MAX + 1];

    for (int i = 0; i < 3000; i++) {
        int ranks = draw(i, weights, sums);
        int64_t n = i % 40, longest = ek_shares_longest(sums, ranks, n), all = 0;

        for (int r = 0; r < ranks; r++) {
            int64_t length = ek_shares_length(sums, ranks, n, r);
            double exact = (double)n * (double)weights[r] / (double)sums[ranks];

            CHECK_INT(ek_shares_first(sums, ranks, n, r), all);
            CHECK(fabs((double)length - exact) <= 1);
            all += length;
            for (int64_t less = 0; less <= n; less++)
                CHECK(ek_shares_length(sums, ranks, less, r) <= longest);
        }
        CHECK_INT(all, n);
    }
}

static void without_weights_ranges_are_even(void)
{
    for (int64_t n = 0; n < 30; n++)
        for (int r = 0; r < 7; r++) {
            int64_t length = ek_shares_length(NULL, 7, n, r);

            CHECK(length == n / 7 || length == n / 7 + 1);
            CHECK(length <= ek_shares_longest(NULL, 7, n));
        }
}

/* Sequences of 5 tokens on three data-parallel ranks, each of two that split its tokens. */
static void ranks_that_split_tokens_follow_one_another(void)
{
    static const int64_t even[] = {0, 5, 10, 13, 15, 18, 20}, sums[] = {0, 1, 3, 4};
    static const int64_t weighted[] = {0, 3, 5, 10, 15, 18, 20}, one[] = {0, 3, 5, 5, 5, 5, 5};

    for (int r = 0; r <= 6; r++) {
        CHECK_INT(ek_shares_first_token(NULL, 3, 2, 4, 5, r), even[r]);
        CHECK_INT(ek_shares_first_token(sums, 3, 2, 4, 5, r), weighted[r]);
        CHECK_INT(ek_shares_first_token(NULL, 3, 2, 1, 5, r), one[r]);
    }
}

static void no_weight_is_above_the_limit(void)
{
    int64_t weights[RANKS_MAX], sums[RANKS_MAX + 1], two[] = {300, 100}, even[] = {7, 7, 7};

    for (int i = 0; i < 2000; i++) {
        int ranks = draw(i, weights, sums);

        ek_shares_limit(weights, ranks, 1.5);
        ek_shares_sum(weights, ranks, sums);
        for (int r = 0; r < ranks; r++)
            CHECK(weights[r] >= 1 && (double)weights[r] <= 1.5 * (double)sums[ranks] / ranks + 2);
    }
    ek_shares_limit(two, 2, 1.5);
    CHECK(two[1] == 100 && two[0] >= 298 && two[0] <= 300); /* 1.5 times 200 */
    ek_shares_limit(even, 3, 1.5);
    CHECK(even[0] == 7 && even[1] == 7 && even[2] == 7);
}

static const ek_case cases[] = {
    EK_CASE(ranges_partition_the_sequences_by_weight),
    EK_CASE(without_weights_ranges_are_even),
    EK_CASE(ranks_that_split_tokens_follow_one_another),
    EK_CASE(no_weight_is_above_the_limit),
};
EK_TEST_MAIN(cases)
