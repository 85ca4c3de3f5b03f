/* Replayed loads: choices of experts for all sizes of micro-batches and any range of tokens. */
#include "base/random.h"
#include "ek_test.h"
#include "moe/replay_gate.h"

enum { EXPERTS_MAX = 12, TOKENS_MAX = 200, COLS_MAX = 13, NUMBERS = 4 * EXPERTS_MAX };

static const unsigned char numbers[] = {
    /* iteration 0, layer 0: sources of 10 tokens, top-2 */
    10,
    3,
    0,
    2,
    5,
    /**/ 1,
    9,
    1,
    8,
    1, /**/
    /* layer 1 */
    4,
    4,
    4,
    4,
    4,
    /**/ 0,
    0,
    0,
    10,
    10, /**/
    /* iteration 1: the first source has no load */
    0,
    0,
    0,
    0,
    0,
    /**/ 4,
    2,
    10,
    2,
    2, /**/
    0,
    0,
    0,
    0,
    0,
    /**/ 0,
    0,
    0,
    0,
    0,
};

static const ek_trace small = {
    .data = numbers, .width = 1, .iterations = 2, .layers = 2, .sources = 2, .experts = 5};

typedef struct {
    int64_t weight[EXPERTS_MAX], end[EXPERTS_MAX], remainder[EXPERTS_MAX];
    int32_t open[EXPERTS_MAX];
    int32_t ids[TOKENS_MAX * COLS_MAX];
} room;

static void choose(room *x, const ek_replay_of *of, int64_t cols)
{
    ek_replay_scratch r = {x->weight, x->end, {x->remainder, x->open}};

    for (int i = 0; i < TOKENS_MAX * COLS_MAX; i++)
        x->ids[i] = -1;
    ek_replay_choose(&r, of, cols, x->ids);
}

/* How often experts are chosen by tokens [first, end). */
static void count(const room *x, int64_t cols, int64_t first, int64_t end, int64_t *loads)
{
    memset(loads, 0, EXPERTS_MAX * sizeof(*loads));
    for (int64_t i = first * cols; i < end * cols; i++)
        if (x->ids[i] >= 0)
            loads[x->ids[i]]++;
}

static void check_loads(const room *x, int64_t first, int64_t end, const int64_t *want)
{
    int64_t loads[EXPERTS_MAX];

    count(x, 2, first, end, loads);
    for (int e = 0; e < 5; e++)
        if (loads[e] != want[e])
            EK_T_FAIL("expert %d has %lld of tokens %d to %d, expected %lld", e,
                      (long long)loads[e], (int)first, (int)end, (long long)want[e]);
}

static void recorded_loads_come_back(void)
{
    ek_replay_of of = {.trace = &small, .total = 20, .n = 20, .top_k = 2};
    room x;

    choose(&x, &of, 2);
    check_loads(&x, 0, 10, (int64_t[]){10, 3, 0, 2, 5});
    check_loads(&x, 10, 20, (int64_t[]){1, 9, 1, 8, 1});
    of.layer = 1;
    of.iteration = 4; /* modulo the trace's */
    choose(&x, &of, 2);
    check_loads(&x, 0, 10, (int64_t[]){4, 4, 4, 4, 4});
    check_loads(&x, 10, 20, (int64_t[]){0, 0, 0, 10, 10});
}

static void loads_are_scaled(void)
{
    ek_replay_of of = {.trace = &small, .total = 40, .n = 40, .top_k = 2};
    room x;

    choose(&x, &of, 2);
    check_loads(&x, 0, 20, (int64_t[]){20, 6, 0, 4, 10});
    of.total = of.n = 9; /* blocks of 5 and 4 tokens */
    choose(&x, &of, 2);
    check_loads(&x, 0, 5, (int64_t[]){5, 2, 0, 1, 2});
    check_loads(&x, 5, 9, (int64_t[]){1, 4, 0, 3, 0}); /* of 0.4 3.6 0.4 3.2 0.4 */
    of.total = of.n = 10;
    of.top_k = 1;
    choose(&x, &of, 2);
    check_loads(&x, 0, 5, (int64_t[]){3, 1, 0, 0, 1});
}

static void sources_without_loads(void)
{
    ek_replay_of of = {.trace = &small, .iteration = 1, .total = 20, .n = 20, .top_k = 2};
    room x;

    choose(&x, &of, 2);
    check_loads(&x, 0, 10, (int64_t[]){4, 2, 10, 2, 2}); /* the loads of the layer */
    check_loads(&x, 10, 20, (int64_t[]){4, 2, 10, 2, 2});
    of.layer = 1; /* the layer has no load either */
    choose(&x, &of, 2);
    check_loads(&x, 0, 10, (int64_t[]){4, 4, 4, 4, 4});
}

/* Random loads by seed, with popular and unpopular experts. */
static void draw(uint64_t seed, unsigned char *x, ek_trace *t)
{
    *t = (ek_trace){.data = x,
                    .width = 1,
                    .iterations = 1,
                    .layers = 1,
                    .sources = 1 + (int64_t)(ek_random_bits(3, seed, 0) % 4),
                    .experts = 1 + (int64_t)(ek_random_bits(3, seed, 1) % EXPERTS_MAX)};
    for (uint64_t i = 0; i < NUMBERS; i++) {
        uint64_t bits = ek_random_bits(4, seed, i);

        x[i] = (unsigned char)(bits % 3 == 0 ? 0 : bits >> 56 >> bits % 7);
    }
}

/* Each token has top_k different experts. */
static void check_tokens(const room *x, const ek_replay_of *of)
{
    int64_t cols = of->top_k;

    for (int64_t t = 0; t < of->n; t++)
        for (int64_t j = 0; j < cols; j++) {
            int32_t e = x->ids[t * cols + j];

            CHECK(e >= 0 && e < of->trace->experts);
            for (int64_t i = 0; i < j; i++)
                CHECK(x->ids[t * cols + i] != e);
        }
}

/* Ranges of tokens, and more columns, give the same choices. */
static void check_parts(const room *whole, const ek_replay_of *of, uint64_t seed)
{
    int64_t cols = of->top_k, parts[] = {0, 0, of->total};
    ek_replay_of part = *of;
    room x;

    parts[1] = (int64_t)(ek_random_bits(5, seed, 0) % (uint64_t)(of->total + 1));
    for (int i = 0; i < 2; i++) {
        part.first = parts[i];
        part.n = parts[i + 1] - parts[i];
        choose(&x, &part, cols);
        CHECK(memcmp(x.ids, whole->ids + part.first * cols,
                     (size_t)(part.n * cols) * sizeof(*x.ids)) == 0);
        for (int64_t k = part.n * cols; k < TOKENS_MAX * COLS_MAX; k++)
            CHECK_INT(x.ids[k], -1);
    }
    choose(&x, of, cols + 1); /* fills the first columns */
    for (int64_t t = 0; t < of->n; t++) {
        CHECK(memcmp(x.ids + t * (cols + 1), whole->ids + t * cols,
                     (size_t)cols * sizeof(*x.ids)) == 0);
        CHECK_INT(x.ids[t * (cols + 1) + cols], -1);
    }
}

static void experts_of_a_token_differ(void)
{
    for (uint64_t seed = 0; seed < 500; seed++) {
        unsigned char x[NUMBERS];
        ek_trace t;
        ek_replay_of of;
        room whole;

        draw(seed, x, &t);
        of = (ek_replay_of){.trace = &t,
                            .total = (int64_t)(ek_random_bits(3, seed, 2) % 60),
                            .top_k =
                                1 + (int64_t)(ek_random_bits(3, seed, 3) % (uint64_t)t.experts)};
        of.n = of.total;
        choose(&whole, &of, of.top_k);
        check_tokens(&whole, &of);
        check_parts(&whole, &of, seed);
    }
}

/* Any 20 consecutive tokens of 200 have the loads of all, within 10 % of their choices. */
static void ranges_have_the_loads_of_all(void)
{
    ek_trace one = small;
    ek_replay_of of = {.trace = &one, .total = 200, .n = 200, .top_k = 2};
    room x;

    one.sources = 1;
    choose(&x, &of, 2);
    for (int64_t t = 0; t + 20 <= 200; t++) {
        int64_t loads[EXPERTS_MAX];

        count(&x, 2, t, t + 20, loads);
        for (int e = 0; e < 5; e++)
            CHECK(llabs(loads[e] - 2 * numbers[e]) <= 4);
    }
}

static const ek_case cases[] = {
    EK_CASE(recorded_loads_come_back),     EK_CASE(loads_are_scaled),
    EK_CASE(sources_without_loads),        EK_CASE(experts_of_a_token_differ),
    EK_CASE(ranges_have_the_loads_of_all),
};
EK_TEST_MAIN(cases)
