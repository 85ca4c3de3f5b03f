/* Traces between even loads and those of another: shares, iterations; synthetic ones. */
#include "balance/skew.h"
#include "ek_test.h"

enum { ITERATIONS = 5, LAYERS = 2, SOURCES = 2, EXPERTS = 4 };

/* Counts that say where they are from; expert 0 has all of a row that is not even. */
static uint16_t counts[ITERATIONS][LAYERS][SOURCES][EXPERTS];

static ek_trace make_trace(void)
{
    for (int i = 0; i < ITERATIONS; i++)
        for (int l = 0; l < LAYERS; l++)
            for (int s = 0; s < SOURCES; s++)
                counts[i][l][s][0] = (uint16_t)(400 * (1 + i + 10 * l + 100 * s));
    return (ek_trace){.data = (const unsigned char *)counts,
                      .width = 2,
                      .iterations = ITERATIONS,
                      .layers = LAYERS,
                      .sources = SOURCES,
                      .experts = EXPERTS};
}

static int64_t number(const ek_trace *t, int i, int l, int s, int e)
{
    return ek_trace_number(t, ((i * LAYERS + l) * SOURCES + s) * EXPERTS + e);
}

static void shares_lie_between_even_and_the_trace(void)
{
    const ek_trace t = make_trace();

    for (int quarter = 0; quarter <= 4; quarter++) {
        ek_trace mixed;

        CHECK_INT(ek_trace_skewed(&t, quarter / 4.0, ITERATIONS, &mixed), EK_OK);
        CHECK_INT(mixed.iterations, ITERATIONS);
        for (int i = 0; i < ITERATIONS; i++)
            for (int l = 0; l < LAYERS; l++)
                for (int s = 0; s < SOURCES; s++) {
                    int64_t unit = 25 * (1 + i + 10 * l + 100 * s); /* 1/16 of the row */

                    CHECK_INT(number(&mixed, i, l, s, 0), unit * (4 + 3 * quarter));
                    for (int e = 1; e < EXPERTS; e++)
                        CHECK_INT(number(&mixed, i, l, s, e), unit * (4 - quarter));
                }
        ek_trace_close(&mixed);
    }
}

static void iterations_are_from_the_middle(void)
{
    const ek_trace t = make_trace();
    ek_trace mixed;

    CHECK_INT(ek_trace_skewed(&t, 1, 3, &mixed), EK_OK);
    CHECK_INT(mixed.iterations, 3);
    for (int i = 0; i < 3; i++)
        CHECK_INT(number(&mixed, i, 1, 1, 0), counts[i + 1][1][1][0]);
    ek_trace_close(&mixed);
    CHECK_INT(ek_trace_skewed(&t, 1, 100, &mixed), EK_OK);
    CHECK_INT(mixed.iterations, ITERATIONS);
    ek_trace_close(&mixed);
}

static void a_synthetic_trace_is_of_its_workload(void)
{
    ek_trace_shape shape = {
        .workload = "W1", .iterations = 3, .layers = 2, .experts = 16, .tokens = 1000, .top_k = 2};
    ek_trace t;

    CHECK_INT(ek_trace_synthetic(&shape, &t), EK_OK);
    CHECK_INT(ek_trace_numbers(&t), 3 * 2 * 16);
    for (int64_t row = 0; row < 6; row++) {
        int64_t sum = 0, most = 0;

        for (int64_t e = 0; e < 16; e++) {
            int64_t n = ek_trace_number(&t, row * 16 + e);

            sum += n;
            most = n > most ? n : most;
        }
        CHECK_INT(sum, 2000);
        CHECK(most > 700); /* of 80 % of the tokens */
    }
    ek_trace_close(&t);
    shape.top_k = 17;
    CHECK_INT(ek_trace_synthetic(&shape, &t), EK_EINVAL);
    ek_trace_close(&t);
}

static const ek_case cases[] = {EK_CASE(shares_lie_between_even_and_the_trace),
                                EK_CASE(iterations_are_from_the_middle),
                                EK_CASE(a_synthetic_trace_is_of_its_workload)};
EK_TEST_MAIN(cases)
