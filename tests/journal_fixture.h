/* journal_fixture.h - a small rank with a step journal, its steps, and their expected results. */
#ifndef JOURNAL_FIXTURE_H
#define JOURNAL_FIXTURE_H

#include "base/random.h"
#include "ek_test.h"
#include "elastic/step_journal.h"

enum { EXTENTS = 5, LANES = 3, MUCH = 132072, SOME = 65536, ALL = 100 + MUCH + 1 + SOME + 777 };

/* Of extents, not in the order of memory. */
static const int64_t numbers_of[EXTENTS] = {100, MUCH, 1, SOME, 777};

/* Parameters of the update, besides gradients. */
typedef struct {
    float scale, rate;
} toy_record;

static inline size_t toy_bytes(void)
{
    return ek_journal_bytes(EXTENTS, LANES) +
           EK_JOURNAL_ARRAYS * sizeof(float) * (ALL + 16 * EXTENTS);
}

static inline void toy_runs(ek_journal_extent *runs)
{
    int64_t at = (int64_t)ek_journal_bytes(EXTENTS, LANES);

    memset(runs, 0, EXTENTS * sizeof(*runs));
    for (int j = 0; j < EK_JOURNAL_ARRAYS; j++)
        for (int i = EXTENTS - 1; i >= 0; i--) {
            runs[i].n = numbers_of[i];
            runs[i].kind = i % 2;
            runs[i].at[j] = at;
            at += (numbers_of[i] * (int64_t)sizeof(float) + 63) / 64 * 64;
        }
}

static inline float *toy_array(const ek_journal *l, int extent, int array)
{
    return (float *)(void *)(l->memory + l->extent[extent].at[array]);
}

static inline float toy_gradient(int rank, int64_t step, int extent, int64_t i)
{
    uint32_t x = (uint32_t)(i * 2654435761u) ^ (uint32_t)(step * 40503 + extent * 97 + rank * 131);

    return (float)((int)(x >> 8 & 0xffff) - 32768) / 32768.0f;
}

static inline void toy_backward(const ek_journal *l, int rank, int64_t step)
{
    for (int extent = 0; extent < EXTENTS; extent++)
        for (int64_t i = 0; i < numbers_of[extent]; i++)
            toy_array(l, extent, 1)[i] += toy_gradient(rank, step, extent, i);
}

static inline toy_record toy_record_of(int64_t step)
{
    return (toy_record){1.0f / (float)(step % 3 + 1), 0.01f / (float)(step + 1)};
}

/* In place, and the gradient is overwritten: a repeated or partial update changes the result. */
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

/* Called between the writes of an update; may not return. */
static void (*toy_tick)(void);

static inline void toy_pause(void)
{
    if (toy_tick != NULL)
        toy_tick();
}

/* A block of a lane, of n numbers after `done`, a few numbers at a time. */
static inline void toy_block(const toy_record *by, int decays, ek_undo_log *t, int64_t done,
                             int64_t n, float *const a[EK_JOURNAL_ARRAYS])
{
    for (int j = 0; j < EK_JOURNAL_ARRAYS; j++) {
        toy_pause();
        memcpy(ek_undo_copy(t, done, j), a[j] + done, (size_t)n * sizeof(float));
    }
    toy_pause();
    ek_undo_mark(t, done + n);
    for (int64_t i = done; i < done + n; i += n / 3 + 1) {
        int64_t some = done + n - i < n / 3 + 1 ? done + n - i : n / 3 + 1;

        toy_pause();
        toy_numbers(by, decays, some, a[0] + i, a[1] + i, a[2] + i, a[3] + i);
    }
    toy_pause();
}

/* Lanes by turns. */
static inline void toy_update(void *context, const void *record, const ek_journal_extent *extent,
                              void *const arrays[EK_JOURNAL_ARRAYS], int lanes,
                              ek_undo_log *undo_logs)
{
    float *a[LANES][EK_JOURNAL_ARRAYS];
    int64_t at[LANES], own[LANES];
    int left = 1;

    (void)context;
    for (int lane = 0; lane < lanes; lane++) {
        int64_t first = ek_undo_lane_first(extent->n, lanes, lane);

        own[lane] = ek_undo_lane_first(extent->n, lanes, lane + 1) - first;
        for (int j = 0; j < EK_JOURNAL_ARRAYS; j++)
            a[lane][j] = (float *)arrays[j] + first;
        at[lane] = ek_undo_restore(&undo_logs[lane], sizeof(float),
                                   (void *const[]){a[lane][0], a[lane][1], a[lane][2], a[lane][3]});
    }
    while (left) {
        left = 0;
        for (int lane = 0; lane < lanes; lane++) {
            int64_t n = own[lane] - at[lane];

            n = n < EK_UNDO_BLOCK ? n : EK_UNDO_BLOCK;
            if (n > 0)
                toy_block(record, (int)extent->kind, &undo_logs[lane], at[lane], n, a[lane]);
            at[lane] += n;
            left |= at[lane] < own[lane];
        }
    }
}

/* Expected masters and moments [3][EXTENTS][] of a rank, computed without a journal. */
typedef struct {
    int rank;
    int64_t steps_done;
    float *at[EK_JOURNAL_ARRAYS][EXTENTS];
} toy_truth;

static inline void toy_truth_init(toy_truth *t, int rank)
{
    *t = (toy_truth){.rank = rank};
    for (int j = 0; j < EK_JOURNAL_ARRAYS; j++)
        for (int extent = 0; extent < EXTENTS; extent++)
            t->at[j][extent] = calloc((size_t)numbers_of[extent], sizeof(float));
}

static inline void toy_truth_fini(toy_truth *t)
{
    for (int j = 0; j < EK_JOURNAL_ARRAYS; j++)
        for (int extent = 0; extent < EXTENTS; extent++)
            free(t->at[j][extent]);
}

static inline void toy_truth_step(toy_truth *t)
{
    toy_record by = toy_record_of(t->steps_done);

    for (int extent = 0; extent < EXTENTS; extent++) {
        for (int64_t i = 0; i < numbers_of[extent]; i++)
            t->at[1][extent][i] = 0 + toy_gradient(t->rank, t->steps_done, extent, i);
        toy_numbers(&by, extent % 2, numbers_of[extent], t->at[0][extent], t->at[1][extent],
                    t->at[2][extent], t->at[3][extent]);
    }
    t->steps_done++;
}

/* Masters and moments, bit for bit. */
static inline int toy_is(const ek_journal *l, const toy_truth *t)
{
    int same = 1;

    for (int extent = 0; extent < EXTENTS; extent++)
        for (int j = 0; j < EK_JOURNAL_ARRAYS; j++)
            same &= j == 1 || memcmp(toy_array(l, extent, j), t->at[j][extent],
                                     (size_t)numbers_of[extent] * sizeof(float)) == 0;
    return same;
}

#endif
