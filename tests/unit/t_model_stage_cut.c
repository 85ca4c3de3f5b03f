/* Layers cut into pipeline stages, of equal and of different speeds: against all cuts of a few
 * layers. */
#include "base/random.h"
#include "comm/mesh.h"
#include "ek_test.h"
#include "model/stage_cut.h"

#include <math.h>
#include <string.h>

enum { LAYERS = 9 };

typedef struct {
    double cost[LAYERS], speed[LAYERS];
    ek_stage_costs c;
} problem;

static double squares_of(const ek_stage_costs *c, const int32_t *part)
{
    double sum = 0;
    int32_t l = 0;

    for (int32_t s = 0; s < c->n; s++) {
        double stage = (s == 0 ? c->before : 0) + (s == c->n - 1 ? c->after : 0);

        for (int32_t i = 0; i < part[s]; i++)
            stage += c->layer[l++];
        stage /= c->speed != NULL ? c->speed[s] : 1;
        sum += stage * stage;
    }
    return sum;
}

/* Tries all cuts whose first `at` stages have the layers of part. */
static void try_all(const ek_stage_costs *c, int32_t *part, int32_t at, int32_t left, double *most,
                    double *squares)
{
    if (at == c->n - 1) {
        double m, q;

        part[at] = left;
        m = ek_stage_cut_most(c, part);
        q = squares_of(c, part);
        if (m < *most || (m <= *most && q < *squares)) {
            *most = m;
            *squares = q;
        }
        return;
    }
    for (part[at] = 1; part[at] <= left - (c->n - 1 - at); part[at]++)
        try_all(c, part, at + 1, left - part[at], most, squares);
}

/* Powers of two as speeds, so that times are exact. */
static void draw(problem *p, int i, int with_speeds)
{
    int32_t layers = 1 + i % LAYERS;

    *p = (problem){.c = {.layer = p->cost,
                         .layers = layers,
                         .n = 1 + i / LAYERS % layers,
                         .before = (double)(ek_random_bits(2, (uint64_t)i, 0) % 10),
                         .after = (double)(ek_random_bits(2, (uint64_t)i, 1) % 60),
                         .speed = with_speeds ? p->speed : NULL}};
    for (int32_t l = 0; l < layers; l++) {
        p->cost[l] = (double)(ek_random_bits(1, (uint64_t)i, (uint64_t)l) % (i % 3 ? 20 : 2));
        p->speed[l] = 1 / (double)(1 << ek_random_bits(3, (uint64_t)i, (uint64_t)l) % 4);
    }
}

static void check_best(const ek_stage_costs *c, int i)
{
    int32_t part[LAYERS], tried[LAYERS], sum = 0;
    double most = INFINITY, squares = INFINITY;

    CHECK(ek_stage_cut(c, part) == EK_OK);
    try_all(c, tried, 0, c->layers, &most, &squares);
    for (int32_t s = 0; s < c->n; s++) {
        CHECK(part[s] > 0);
        sum += part[s];
    }
    CHECK_INT(sum, c->layers);
    if (ek_stage_cut_most(c, part) > most || squares_of(c, part) > squares)
        EK_T_FAIL("case %d: a stage takes %g, squares %g; possible are %g and %g", i,
                  ek_stage_cut_most(c, part), squares_of(c, part), most, squares);
}

static void the_cut_is_the_best_of_all(void)
{
    for (int i = 0; i < 3000; i++) {
        problem p;

        draw(&p, i, i % 2);
        check_best(&p.c, i);
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
            CHECK(ek_stage_cut(&(ek_stage_costs){cost, layers, n, 0, 0, NULL}, part) == EK_OK);
            for (int32_t s = 0; s < n; s++)
                CHECK_INT(part[s], (int)ek_range_length(layers, n, s));
        }
}

static const double equal_costs[8] = {1, 1, 1, 1, 1, 1, 1, 1};

static void a_head_takes_layers_from_its_stage(void)
{
    const ek_stage_costs c = {equal_costs, 8, 2, 0, 4, NULL};
    int32_t part[2];

    CHECK(ek_stage_cut(&c, part) == EK_OK);
    CHECK(part[0] == 6 && part[1] == 2);
    CHECK(fabs(ek_stage_cut_evenness(&c, part) - 1) < 1e-12);
    CHECK(fabs(ek_stage_cut_most(&c, part) - 6) < 1e-12);
}

static void a_slow_stage_gets_fewer_layers(void)
{
    static const double speed[4] = {1, 0.5, 1, 0.5};
    const ek_stage_costs two = {equal_costs, 8, 2, 0, 1, speed};
    const ek_stage_costs chunks = {equal_costs, 6, 4, 0, 0, speed};
    int32_t part[4];

    CHECK(ek_stage_cut(&two, part) == EK_OK);
    CHECK(part[0] == 6 && part[1] == 2);
    CHECK(fabs(ek_stage_cut_most(&two, part) - 6) < 1e-12);
    CHECK(fabs(ek_stage_cut_evenness(&two, part) - 1) < 1e-12);
    CHECK(ek_stage_cut(&chunks, part) == EK_OK); /* of two stages in turn */
    CHECK(part[0] == 2 && part[1] == 1 && part[2] == 2 && part[3] == 1);
    CHECK(fabs(ek_stage_cut_evenness(&chunks, part) - 1) < 1e-12);
}

static void equal_speeds_give_the_cut_without_speeds(void)
{
    for (int i = 0; i < 1000; i++) {
        int32_t part[LAYERS], plain[LAYERS];
        problem p;

        draw(&p, i, 1);
        for (int32_t s = 0; s < p.c.n; s++)
            p.speed[s] = 1;
        CHECK(ek_stage_cut(&p.c, part) == EK_OK);
        p.c.speed = NULL;
        CHECK(ek_stage_cut(&p.c, plain) == EK_OK);
        CHECK(memcmp(part, plain, (size_t)p.c.n * sizeof(*part)) == 0);
    }
}

static const ek_case cases[] = {
    EK_CASE(the_cut_is_the_best_of_all),
    EK_CASE(equal_layers_are_cut_evenly),
    EK_CASE(a_head_takes_layers_from_its_stage),
    EK_CASE(a_slow_stage_gets_fewer_layers),
    EK_CASE(equal_speeds_give_the_cut_without_speeds),
};
EK_TEST_MAIN(cases)
