/* ledger_fixture.h - a small rank with a ledger, its steps, and what they should come to. */
#ifndef LEDGER_FIXTURE_H
#define LEDGER_FIXTURE_H

#include "base/random.h"
#include "ek_test.h"
#include "elastic/ledger.h"

enum { RUNS = 5, NUMBERS = 2 * EK_LEDGER_CHUNK + 1000 };

/* Of runs, one of them of three chunks: in an order that is not that of memory. */
static const int64_t numbers_of[RUNS] = {100, NUMBERS, 1, EK_LEDGER_CHUNK, 777};
enum { CHUNKS = 1 + 3 + 1 + 1 + 1, ALL = 100 + NUMBERS + 1 + EK_LEDGER_CHUNK + 777 };

/* What the update goes by, beside gradients. */
typedef struct {
    float scale, rate;
} toy_record;

static inline size_t toy_bytes(void)
{
    return ek_ledger_bytes(RUNS, sizeof(float)) +
           EK_LEDGER_ARRAYS * sizeof(float) * (ALL + 16 * RUNS);
}

static inline void toy_runs(ek_ledger_run *runs)
{
    int64_t at = (int64_t)ek_ledger_bytes(RUNS, sizeof(float));

    memset(runs, 0, RUNS * sizeof(*runs));
    for (int j = 0; j < EK_LEDGER_ARRAYS; j++)
        for (int i = RUNS - 1; i >= 0; i--) {
            runs[i].n = numbers_of[i];
            runs[i].decays = i % 2;
            runs[i].at[j] = at;
            at += (numbers_of[i] * (int64_t)sizeof(float) + 63) / 64 * 64;
        }
}

static inline float *toy_array(const ek_ledger *l, int run, int array)
{
    return (float *)(void *)(l->memory + l->run[run].at[array]);
}

static inline float toy_gradient(int rank, int64_t step, int run, int64_t i)
{
    uint32_t x = (uint32_t)(i * 2654435761u) ^ (uint32_t)(step * 40503 + run * 97 + rank * 131);

    return (float)((int)(x >> 8 & 0xffff) - 32768) / 32768.0f;
}

static inline void toy_backward(const ek_ledger *l, int rank, int64_t step)
{
    for (int run = 0; run < RUNS; run++)
        for (int64_t i = 0; i < numbers_of[run]; i++)
            toy_array(l, run, 1)[i] += toy_gradient(rank, step, run, i);
}

static inline toy_record toy_record_of(int64_t step)
{
    return (toy_record){1.0f / (float)(step % 3 + 1), 0.01f / (float)(step + 1)};
}

/* In place, and the gradient is used up: doing it twice, or half, shows. */
static inline void toy_numbers(const toy_record *by, int decays, int64_t n, float *p, float *g,
                               float *m, float *v)
{
    for (int64_t i = 0; i < n; i++) {
        float d = g[i] * by->scale;

        p[i] *= decays ? 0.999f : 1.0f;
        m[i] = 0.9f * m[i] + 0.1f * d;
        v[i] = 0.95f * v[i] + 0.05f * d * d;
        p[i] -= by->rate * m[i] / (sqrtf(v[i]) + 1e-6f);
        g[i] = 0;
    }
}

static inline void toy_update(void *context, const void *record, const ek_ledger_run *run,
                              int64_t n, void *const arrays[EK_LEDGER_ARRAYS])
{
    (void)context;
    toy_numbers(record, (int)run->decays, n, arrays[0], arrays[1], arrays[2], arrays[3]);
}

/* What should be there: masters and moments [3][RUNS][] of a rank, without any ledger. */
typedef struct {
    int rank;
    int64_t steps_done;
    float *at[EK_LEDGER_ARRAYS][RUNS];
} toy_truth;

static inline void toy_truth_init(toy_truth *t, int rank)
{
    *t = (toy_truth){.rank = rank};
    for (int j = 0; j < EK_LEDGER_ARRAYS; j++)
        for (int run = 0; run < RUNS; run++)
            t->at[j][run] = calloc((size_t)numbers_of[run], sizeof(float));
}

static inline void toy_truth_fini(toy_truth *t)
{
    for (int j = 0; j < EK_LEDGER_ARRAYS; j++)
        for (int run = 0; run < RUNS; run++)
            free(t->at[j][run]);
}

static inline void toy_truth_step(toy_truth *t)
{
    toy_record by = toy_record_of(t->steps_done);

    for (int run = 0; run < RUNS; run++) {
        for (int64_t i = 0; i < numbers_of[run]; i++)
            t->at[1][run][i] = 0 + toy_gradient(t->rank, t->steps_done, run, i);
        toy_numbers(&by, run % 2, numbers_of[run], t->at[0][run], t->at[1][run], t->at[2][run],
                    t->at[3][run]);
    }
    t->steps_done++;
}

/* Masters and moments, bit for bit. */
static inline int toy_is(const ek_ledger *l, const toy_truth *t)
{
    int same = 1;

    for (int run = 0; run < RUNS; run++)
        for (int j = 0; j < EK_LEDGER_ARRAYS; j++)
            same &= j == 1 || memcmp(toy_array(l, run, j), t->at[j][run],
                                     (size_t)numbers_of[run] * sizeof(float)) == 0;
    return same;
}

#endif
