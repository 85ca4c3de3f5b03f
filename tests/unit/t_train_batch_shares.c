/* Data parallel ranks with other shares of each micro-batch than even ones: losses are those of one
 * rank.  Ranks are threads. */
#include "equal_threads.h"

static equal_layout over(int ranks, int ep)
{
    return (equal_layout){.ranks = ranks,
                          .pp = 1,
                          .model_chunks = 1,
                          .tp = 1,
                          .ep = ep,
                          .etp = 1,
                          .degree = 1,
                          .shape = 1, /* one micro-batch of 8 sequences */
                          .weights = {4, 1, 2, 1}};
}

static void check_sequences(const equal_layout *l, const int *want)
{
    static equal_result result[EQUAL_RANKS_MAX];

    equal_check_into(l, result);
    for (int r = 0; r < l->ranks; r++) {
        CHECK_INT(result[r].first_sequences, want[r]);
        CHECK_INT(result[r].last_sequences, want[r]);
    }
}

static void ranks_have_the_sequences_of_their_weights(void)
{
    equal_layout l = over(4, 1);

    check_sequences(&l, (const int[]){4, 1, 2, 1});
    l.ep = 4;
    l.balance = EQUAL_EXACT;
    check_sequences(&l, (const int[]){4, 1, 2, 1});
    l.ep = 2;
    l.zero = 3;
    l.columns = 1;
    check_sequences(&l, (const int[]){4, 1, 2, 1});
}

/* Ranks of a data parallel rank have its sequences. */
static void tensor_and_pipeline_parallel_ranks_share_a_weight(void)
{
    equal_layout l = over(4, 2);

    l.tp = 2;
    check_sequences(&l, (const int[]){6, 6, 2, 2});
    l.tp = 1;
    l.pp = 2;
    check_sequences(&l, (const int[]){6, 2, 6, 2});
    l.etp = 2;
    l.ep = 1;
    check_sequences(&l, (const int[]){6, 2, 6, 2});
}

/* A weight so small that a rank has no sequence at all. */
static void a_rank_may_have_none(void)
{
    equal_layout l = over(4, 4);

    l.weights[1] = l.weights[3] = 100;
    l.weights[0] = 1;
    l.weights[2] = 200;
    check_sequences(&l, (const int[]){0, 2, 4, 2});
}

/* Of smaller batches, such as an evaluation's last one, a rank may have more sequences than of a
 * whole one: for them, too, tokens have memory. */
static void smaller_batches_have_memory(void)
{
    for (int i = 0; i < 2000; i++) {
        int dp = 1 + i % 5;
        int64_t weights[5], sums[6];
        ek_mesh mesh = {.dp = dp, .dp_rank = i / 5 % dp};
        ek_batch_config c = {.batch = 1 + i / 7 % 12, .seq = 1, .shares = sums};

        for (int r = 0; r < dp; r++)
            weights[r] = 1 + (int64_t)(ek_random_bits(3, (uint64_t)i, (uint64_t)r) % 9);
        ek_shares_sum(weights, dp, sums);
        c.micro_batch = 1 + i / 11 % c.batch;
        for (int64_t n = 1; n <= c.batch; n++) {
            int64_t all = 0;

            for (int64_t at = 0; at < n; at += c.micro_batch)
                all += ek_shares_length(sums, dp, n - at < c.micro_batch ? n - at : c.micro_batch,
                                        mesh.dp_rank);
            CHECK((size_t)all * 2 * sizeof(int32_t) <= ek_batch_bytes(&mesh, &c));
        }
    }
}

/* A rank has one sequence of five, and two of an evaluation of four. */
static void an_evaluation_of_fewer_sequences_is_that_of_one_rank(void)
{
    equal_layout l = over(3, 3);

    l.shape = 0;
    for (int r = 0; r < 3; r++)
        l.weights[r] = 1;
    equal_check(&l);
}

/* The third rank computes at a third of the speed of the others: a tenth of the sequences. */
static int has_fewer_sequences(void)
{
    static equal_result result[EQUAL_RANKS_MAX];
    equal_layout l = over(4, 4);

    l.weights[0] = 0;
    l.follow = 1;
    l.slow = 3;
    l.blind = 1;
    l.balance = EQUAL_EXACT;
    equal_check_into(&l, result);
    for (int r = 0; r < 4; r++)
        CHECK_INT(result[r].first_sequences, 2);
    return result[2].last_sequences == 1 &&
           result[0].last_sequences + result[1].last_sequences + result[3].last_sequences == 7;
}

static void the_slow_rank_gets_fewer_sequences(void)
{
    int found = has_fewer_sequences();

    for (equal_pace_factor = 2; !found && equal_pace_factor <= 8; equal_pace_factor *= 2)
        found = has_fewer_sequences();
    CHECK(found);
    equal_pace_factor = 1;
}

static const ek_case cases[] = {
    EK_CASE(ranks_have_the_sequences_of_their_weights),
    EK_CASE(tensor_and_pipeline_parallel_ranks_share_a_weight),
    EK_CASE(a_rank_may_have_none),
    EK_CASE(smaller_batches_have_memory),
    EK_CASE(an_evaluation_of_fewer_sequences_is_that_of_one_rank),
    EK_CASE(the_slow_rank_gets_fewer_sequences),
};
EK_TEST_MAIN(cases)
