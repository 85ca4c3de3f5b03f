/* Layers cut into pipeline stages: against all cuts of a few layers. */
#include "base/random.h"
#include "comm/mesh.h"
#include "ek_test.h"
#include "model/stage_cut.h"

#include <math.h>
#include <string.h>

enum { LAYERS = 9 };

typedef struct {
    double cost[LAYERS], before, after;
    int32_t layers, n;
} problem;

static double squares_of(const problem *p, const int32_t *part)
{
    double sum = 0;
    int32_t l = 0;

    for (int32_t s = 0; s < p->n; s++) {
        double stage = (s == 0 ? p->before : 0) + (s == p->n - 1 ? p->after : 0);

        for (int32_t i = 0; i < part[s]; i++)
            stage += p->cost[l++];
        sum += stage * stage;
    }
    return sum;
}

static double most_of(const problem *p, const int32_t *part)
{
    return ek_stage_cut_most(p->cost, p->before, p->after, p->n, part);
}

/* Tries all cuts whose first `at` stages have the layers of part. */
static void try_all(const problem *p, int32_t *part, int32_t at, int32_t left, double *most,
                    double *squares)
{
    if (at == p->n - 1) {
        double m, q;

        part[at] = left;
        m = most_of(p, part);
        q = squares_of(p, part);
        if (m < *most || (m <= *most && q < *squares)) {
            *most = m;
            *squares = q;
        }
        return;
    }
    for (part[at] = 1; part[at] <= left - (p->n - 1 - at); part[at]++)
        try_all(p, part, at + 1, left - part[at], most, squares);
}

static problem draw(int i)
{
    problem p = {.layers = 1 + i % LAYERS};

    p.n = 1 + i / LAYERS % p.layers;
    for (int32_t l = 0; l < p.layers; l++)
        p.cost[l] = (double)(ek_random_bits(1, (uint64_t)i, (uint64_t)l) % (i % 3 ? 20 : 2));
    p.before = (double)(ek_random_bits(2, (uint64_t)i, 0) % 10);
    p.after = (double)(ek_random_bits(2, (uint64_t)i, 1) % 60);
    return p;
}

static void the_cut_is_the_best_of_all(void)
{
    for (int i = 0; i < 3000; i++) {
        problem p = draw(i);
        int32_t part[LAYERS], tried[LAYERS], sum = 0;
        double most = INFINITY, squares = INFINITY;

        CHECK(ek_stage_cut(p.cost, p.layers, p.before, p.after, p.n, part) == EK_OK);
        try_all(&p, tried, 0, p.layers, &most, &squares);
        for (int32_t s = 0; s < p.n; s++) {
            CHECK(part[s] > 0);
            sum += part[s];
        }
        CHECK_INT(sum, p.layers);
        if (most_of(&p, part) > most || squares_of(&p, part) > squares)
            EK_T_FAIL("case %d: a stage costs %g, squares %g; possible are %g and %g", i,
                      most_of(&p, part), squares_of(&p, part), most, squares);
    }
}

static void equal_layers_are_cut_evenly(void)
{
    for (int32_t layers = 1; layers <= 64; layers++)
        for (int32_t n = 1; n <= layers; n++) {
            double cost[64];
            int32_t part[64];

            for (int32_t l = 0; l < layers; l++)
                cost[l] = 3;
            CHECK(ek_stage_cut(cost, layers, 0, 0, n, part) == EK_OK);
            for (int32_t s = 0; s < n; s++)
                CHECK_INT(part[s], (int)ek_range_length(layers, n, s));
        }
}

static void a_head_takes_layers_from_its_stage(void)
{
    static const double cost[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    int32_t part[2];

    CHECK(ek_stage_cut(cost, 8, 0, 4, 2, part) == EK_OK);
    CHECK(part[0] == 6 && part[1] == 2);
    CHECK(fabs(ek_stage_cut_evenness(cost, 0, 4, 2, part) - 1) < 1e-12);
    CHECK(fabs(ek_stage_cut_most(cost, 0, 4, 2, part) - 6) < 1e-12);
}

static const ek_case cases[] = {
    EK_CASE(the_cut_is_the_best_of_all),
    EK_CASE(equal_layers_are_cut_evenly),
    EK_CASE(a_head_takes_layers_from_its_stage),
};
EK_TEST_MAIN(cases)
