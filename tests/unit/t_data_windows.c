/* Windows: where they begin, that an epoch visits each once, and that nothing else matters. */
#include "data/windows.h"
#include "ek_test.h"

enum { TOKENS = 1000, SEQ = 10, WINDOWS = (TOKENS - 1) / SEQ, BATCH = 7 };

static uint16_t stream[TOKENS]; /* token i is i */

static ek_tokens *open_stream(int64_t n)
{
    ek_tokens *t = NULL;

    for (int i = 0; i < TOKENS; i++)
        stream[i] = (uint16_t)i;
    if (ek_tokens_wrap(stream, (size_t)n * 2, 2, TOKENS, "stream", &t) != EK_OK) {
        EK_T_FAIL("%s", ek_err_text());
        exit(1);
    }
    return t;
}

static ek_windows sampler(const ek_tokens *t, ek_data_order order, uint64_t seed)
{
    ek_windows s = {0};

    CHECK_INT(ek_windows_init(&s, t, BATCH, SEQ, order, seed), EK_OK);
    CHECK_INT(s.windows, WINDOWS);
    return s;
}

/* First token of a row, after checking that the rest follows it. */
static int32_t row_start(const ek_windows *s, int64_t step, int64_t row)
{
    int32_t inputs[SEQ], targets[SEQ];

    ek_windows_row(s, step, row, inputs, targets);
    for (int i = 0; i < SEQ; i++) {
        CHECK_INT(inputs[i], inputs[0] + i);
        CHECK_INT(targets[i], inputs[0] + i + 1);
    }
    return inputs[0];
}

static void sequential_rows_follow_each_other_and_wrap(void)
{
    ek_tokens *t = open_stream(TOKENS);
    ek_windows s = sampler(t, EK_ORDER_SEQUENTIAL, 1);

    for (int64_t step = 0; step < 40; step++)
        for (int64_t row = 0; row < BATCH; row++)
            CHECK_INT(row_start(&s, step, row), (step * BATCH + row) % WINDOWS * SEQ);
    ek_tokens_close(&t);
}

/* The windows of rows first, first + 1, ... counted over all steps. */
static void collect(const ek_windows *s, int64_t first, int *seen)
{
    memset(seen, 0, WINDOWS * sizeof(*seen));
    for (int64_t i = first; i < first + WINDOWS; i++) {
        int32_t start = row_start(s, i / BATCH, i % BATCH);

        CHECK_INT(start % SEQ, 0);
        seen[start / SEQ]++;
    }
}

static void an_epoch_is_a_permutation(void)
{
    ek_tokens *t = open_stream(TOKENS);
    ek_windows s = sampler(t, EK_ORDER_SHUFFLED, 42);
    int seen[WINDOWS], moved = 0, other = 0;

    for (int64_t epoch = 0; epoch < 3; epoch++) {
        collect(&s, epoch * WINDOWS, seen);
        for (int w = 0; w < WINDOWS; w++)
            CHECK_INT(seen[w], 1);
    }
    for (int64_t i = 0; i < WINDOWS; i++) {
        int64_t next = i + WINDOWS;
        int64_t now = ek_windows_at(&s, i / BATCH, i % BATCH);

        moved += now != i;
        other += now != ek_windows_at(&s, next / BATCH, next % BATCH);
    }
    CHECK(moved > WINDOWS / 2); /* it is shuffled, and each epoch otherwise */
    CHECK(other > WINDOWS / 2);
    ek_tokens_close(&t);
}

static void rows_follow_from_seed_and_place_alone(void)
{
    ek_tokens *t = open_stream(TOKENS);
    ek_windows a = sampler(t, EK_ORDER_SHUFFLED, 5), b = sampler(t, EK_ORDER_SHUFFLED, 5);
    ek_windows c = sampler(t, EK_ORDER_SHUFFLED, 6), wide = a;
    int32_t forward[200];
    int differ = 0;

    wide.batch = 1; /* row r of step s is window s * batch + r, however it is cut into steps */
    for (int i = 0; i < 200; i++)
        forward[i] = row_start(&a, i / BATCH, i % BATCH);
    for (int i = 199; i >= 0; i--) {
        CHECK_INT(row_start(&b, i / BATCH, i % BATCH), forward[i]);
        CHECK_INT(row_start(&wide, i, 0), forward[i]);
        differ += row_start(&c, i / BATCH, i % BATCH) != forward[i];
    }
    CHECK(differ > 100);
    ek_tokens_close(&t);
}

static void too_few_tokens_are_refused(void)
{
    ek_tokens *t = open_stream(SEQ);
    ek_windows s;

    CHECK_INT(ek_windows_init(&s, t, 1, SEQ, EK_ORDER_SHUFFLED, 0), EK_EFORMAT);
    CHECK(strstr(ek_err_message(), "has 10 tokens, less than the 11") != NULL);
    CHECK(strstr(ek_err_message(), "--seq of at most 9") != NULL);
    CHECK_INT(ek_windows_init(&s, t, 1, SEQ - 1, EK_ORDER_SHUFFLED, 0), EK_OK);
    CHECK_INT(s.windows, 1);
    CHECK_INT(ek_windows_at(&s, 12345, 0), 0);
    CHECK_INT(ek_windows_init(&s, t, 0, SEQ - 1, EK_ORDER_SHUFFLED, 0), EK_EINVAL);
    CHECK_INT(ek_windows_init(&s, t, 1, 0, EK_ORDER_SHUFFLED, 0), EK_EINVAL);
    ek_tokens_close(&t);
}

/* Every token but the first is a target exactly once, whatever the length. */
static void evaluation_covers_the_stream_once(void)
{
    for (int64_t n = 1; n < 45; n++) {
        ek_tokens *t = open_stream(n);
        int64_t next = 0;

        for (int64_t w = 0; w < ek_eval_windows(t, SEQ); w++) {
            int32_t inputs[SEQ], targets[SEQ];
            int64_t len = ek_eval_window(t, SEQ, w, inputs, targets);

            CHECK(len >= 1 && len <= SEQ);
            for (int64_t i = 0; i < len; i++, next++) {
                CHECK_INT(inputs[i], next);
                CHECK_INT(targets[i], next + 1);
            }
        }
        CHECK_INT(next, n - 1);
        ek_tokens_close(&t);
    }
}

static const ek_case cases[] = {
    EK_CASE(sequential_rows_follow_each_other_and_wrap), EK_CASE(an_epoch_is_a_permutation),
    EK_CASE(rows_follow_from_seed_and_place_alone),      EK_CASE(too_few_tokens_are_refused),
    EK_CASE(evaluation_covers_the_stream_once),
};

EK_TEST_MAIN(cases)
