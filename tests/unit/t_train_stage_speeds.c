/* Speeds of pipeline stages: what counts as equal, and what is measured of ranks that are threads.
 */
#include "base/clock.h"
#include "base/random.h"
#include "ek_test.h"
#include "small_spec.h"
#include "tensor/select/select.h"
#include "train/run/stage_speeds.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

enum { STAGES = 3, SIZE = 2, RANKS = STAGES * SIZE };

/* Every rank at 1 in every round. */
static void set_equal(double speed[EK_SPEED_ROUNDS][RANKS])
{
    for (int i = 0; i < EK_SPEED_ROUNDS; i++)
        for (int r = 0; r < RANKS; r++)
            speed[i][r] = 10;
}

static int compare(double speed[EK_SPEED_ROUNDS][RANKS], double *stage, double *relative)
{
    return ek_stage_speeds(&speed[0][0], RANKS, STAGES, stage, relative);
}

static void a_stage_is_as_fast_as_its_slowest_rank(void)
{
    double speed[EK_SPEED_ROUNDS][RANKS], stage[STAGES], relative[STAGES];

    set_equal(speed);
    for (int i = 0; i < EK_SPEED_ROUNDS; i++) {
        speed[i][3] = 5;                /* of the second stage */
        speed[i][4] = speed[i][5] = 15; /* of the last */
    }
    CHECK(compare(speed, stage, relative));
    CHECK(stage[0] == 10 && stage[1] == 5 && stage[2] == 15);
    CHECK(relative[0] == 1 && relative[1] == 0.5 && relative[2] == 1.5);
}

/* Of two stages the slower one is compared with the faster one. */
static void a_pair_of_stages(void)
{
    static const double speed[EK_SPEED_ROUNDS][2] = {{4, 16}, {4, 16}, {8, 16}};
    double stage[2], relative[2];

    CHECK(ek_stage_speeds(&speed[0][0], 2, 2, stage, relative));
    CHECK(stage[0] == 4 && relative[0] == 0.25 && relative[1] == 1);
}

static void less_than_an_eighth_counts_as_equal(void)
{
    double speed[EK_SPEED_ROUNDS][RANKS], stage[STAGES], relative[STAGES];

    for (int from = 0; from < 1000; from++) {
        set_equal(speed);
        for (int i = 0; i < EK_SPEED_ROUNDS; i++)
            for (int r = 0; r < RANKS; r++)
                speed[i][r] *=
                    1 + 0.11 *
                            (double)(ek_random_bits(1, (uint64_t)from, (uint64_t)(i * RANKS + r)) %
                                     1000) /
                            1000;
        CHECK(!compare(speed, stage, relative));
        for (int s = 0; s < STAGES; s++)
            CHECK(relative[s] == 1);
    }
}

/* A rank that is disturbed for one round of three, or fast in one. */
static void one_disturbed_round_changes_nothing(void)
{
    double speed[EK_SPEED_ROUNDS][RANKS], stage[STAGES], relative[STAGES];

    for (int i = 0; i < EK_SPEED_ROUNDS; i++)
        for (int r = 0; r < RANKS; r++) {
            set_equal(speed);
            speed[i][r] = 1;
            CHECK(!compare(speed, stage, relative));
        }
    set_equal(speed); /* nor two, if the third shows that it can do as much as the others */
    speed[0][2] = speed[1][2] = 5;
    CHECK(!compare(speed, stage, relative));
    speed[2][2] = 9;
    CHECK(compare(speed, stage, relative));
    CHECK(relative[1] == 0.5);
}

/* --- measuring -------------------------------------------------------------------------------- */

typedef struct {
    ek_comm *world;
    ek_mode mode;
    int64_t rows;
    int slow;
    ek_model_spec spec;
    double speed[EK_SPEED_ROUNDS][RANKS];
    ek_status st;
    pthread_t thread;
} measured_rank;

static ek_status (*plain_forward)(const ek_kernels *k, const ek_group *g, int64_t n_groups,
                                  int64_t out, int64_t in, const void *x, int64_t ldx, void *y,
                                  int64_t ldy, ek_out mode, void *ws);

static ek_status slow_forward(const ek_kernels *k, const ek_group *g, int64_t n_groups, int64_t out,
                              int64_t in, const void *x, int64_t ldx, void *y, int64_t ldy,
                              ek_out mode, void *ws)
{
    ek_clock_sleep_ms(120); /* longer than a busy machine takes a core away, on average */
    return plain_forward(k, g, n_groups, out, in, x, ldx, y, ldy, mode, ws);
}

static void *measure(void *arg)
{
    measured_rank *r = arg;
    ek_kernels *k = NULL;
    ek_speed_config cfg = {
        .spec = &r->spec, .world = r->world, .rows = r->rows, .top_k = 2, .round_s = 1e-4};

    r->st = ek_kernels_create(r->mode, ek_cpu_isa(), 1, &k);
    cfg.k = k;
    if (r->st == EK_OK && r->slow) {
        plain_forward = k->linear_forward;
        k->linear_forward = slow_forward;
    }
    if (r->st == EK_OK)
        r->st = ek_measure_speeds(&cfg, &r->speed[0][0]);
    ek_kernels_destroy(&k);
    return NULL;
}

static void check_speeds(const double *speed, int ranks)
{
    for (int i = 0; i < EK_SPEED_ROUNDS * ranks; i++)
        CHECK(speed[i] > 0 && isfinite(speed[i]));
}

/* slow: the rank whose products take long; -1: none. */
static const measured_rank *measure_ranks(const measured_rank *how, int slow)
{
    static measured_rank r[RANKS];
    ek_comm *worlds[RANKS];

    CHECK(ek_comm_open_threads(RANKS, worlds) == EK_OK);
    for (int i = 0; i < RANKS; i++) {
        r[i] = *how;
        r[i].world = worlds[i];
        r[i].slow = i == slow;
        CHECK(pthread_create(&r[i].thread, NULL, measure, &r[i]) == 0);
    }
    for (int i = 0; i < RANKS; i++)
        pthread_join(r[i].thread, NULL);
    for (int i = 0; i < RANKS; i++) {
        ek_comm_close(&worlds[i]);
        CHECK(r[i].st == EK_OK);
        CHECK(memcmp(r[i].speed, r[0].speed, sizeof(r[0].speed)) == 0);
    }
    check_speeds(&r[0].speed[0][0], RANKS);
    return r;
}

static void all_ranks_get_the_same_speeds(void)
{
    for (int mode = 0; mode < 3; mode++) {
        measured_rank how = {.mode = (ek_mode)mode, .rows = 5, .spec = small_spec()};

        measure_ranks(&how, -1);
    }
}

static void a_slow_rank_is_found(void)
{
    measured_rank how = {.mode = EK_MODE_FP32, .rows = 5, .spec = small_spec()};
    double speed[EK_SPEED_ROUNDS][RANKS], stage[STAGES], relative[STAGES];

    memcpy(speed, measure_ranks(&how, 3)->speed, sizeof(speed));
    CHECK(compare(speed, stage, relative));
    CHECK(relative[1] < 0.5);
}

/* Matrices of which a part is measured, and a model without experts; on one rank. */
static void large_and_dense_models(void)
{
    measured_rank r = {.mode = EK_MODE_FP32, .rows = 1 << 20, .spec = small_spec()};

    r.spec.hidden = 64;
    r.spec.vocab = r.spec.ff = 1 << 20;
    measure(&r);
    CHECK(r.st == EK_OK);
    check_speeds(&r.speed[0][0], 1);
    memset(r.spec.dense, 1, (size_t)r.spec.layers);
    r.spec.dense_ff = 48;
    measure(&r);
    CHECK(r.st == EK_OK);
    check_speeds(&r.speed[0][0], 1);
}

static const ek_case cases[] = {
    EK_CASE(a_stage_is_as_fast_as_its_slowest_rank),
    EK_CASE(a_pair_of_stages),
    EK_CASE(less_than_an_eighth_counts_as_equal),
    EK_CASE(one_disturbed_round_changes_nothing),
    EK_CASE(all_ranks_get_the_same_speeds),
    EK_CASE(a_slow_rank_is_found),
    EK_CASE(large_and_dense_models),
};
EK_TEST_MAIN(cases)
