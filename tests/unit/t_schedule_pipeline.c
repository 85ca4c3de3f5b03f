/* The order of pipeline stages: each item once, textbook 1F1B, no deadlock, the bound on
 * micro-batches in flight, and smaller bubbles with model chunks. */
#include "ek_test.h"
#include "schedule/pipeline.h"

enum { STAGES = 6, CHUNKS = 4, MICROS = 24, ITEMS = 2 * CHUNKS * MICROS };

static ek_pipe_item list[STAGES][ITEMS];

/* Largest group: micro-batches that pass through a chunk before the next chunk. */
static int group_of(int stages, int micros)
{
    int groups = micros < stages ? 1 : micros / stages;

    return (micros + groups - 1) / groups;
}

static const int many_micros[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 16, 24};

#define EACH(i, array) for (size_t i = 0; i < sizeof(array) / sizeof((array)[0]); i++)

/* Makes the lists of all stages; returns the number of items of each. */
static int64_t fill(int stages, int chunks, int micros, int training)
{
    int64_t n = 0;

    for (int s = 0; s < stages; s++) {
        n = ek_pipe_order(stages, chunks, micros, s, training, list[s]);
        CHECK_INT(n, (training ? 2 : 1) * chunks * micros);
    }
    return n;
}

/* Every item occurs once, forward before backward, micro-batches of a chunk in order. */
static void check_list(const ek_pipe_item *items, int64_t n, int chunks, int micros, int training)
{
    int done[2][CHUNKS] = {{0}};

    for (int64_t i = 0; i < n; i++) {
        const ek_pipe_item *x = &items[i];

        if (x->model_chunk < 0 || x->model_chunk >= chunks || x->micro < 0 || x->micro >= micros) {
            EK_T_FAIL("item %d is chunk %d, micro-batch %d", (int)i, (int)x->model_chunk,
                      (int)x->micro);
            return;
        }
        CHECK_INT(x->micro, done[x->backward][x->model_chunk]);
        done[x->backward][x->model_chunk]++;
        CHECK(done[1][x->model_chunk] <= done[0][x->model_chunk]);
    }
    for (int c = 0; c < chunks; c++) {
        CHECK_INT(done[0][c], micros);
        CHECK_INT(done[1][c], training ? micros : 0);
    }
}

static char done[2][STAGES * CHUNKS][MICROS];

/* Whether the input of a stage's item has been sent. */
static int can_go(int stages, int chunks, int stage, const ek_pipe_item *x)
{
    int piece = x->model_chunk * stages + stage;

    if (!x->backward)
        return piece == 0 || done[0][piece - 1][x->micro];
    return done[0][piece][x->micro] &&
           (piece == stages * chunks - 1 || done[1][piece + 1][x->micro]);
}

/* Executes all lists, each item waiting for its input; all lists end. */
static void check_replay(int stages, int chunks, int micros, int64_t n)
{
    int64_t at[STAGES] = {0};
    int moved = 1;

    memset(done, 0, sizeof(done));
    while (moved) {
        moved = 0;
        for (int s = 0; s < stages; s++)
            while (at[s] < n && can_go(stages, chunks, s, &list[s][at[s]])) {
                const ek_pipe_item *x = &list[s][at[s]++];

                done[x->backward][x->model_chunk * stages + s][x->micro] = 1;
                moved = 1;
            }
    }
    for (int s = 0; s < stages; s++)
        if (at[s] < n)
            EK_T_FAIL("%d stages of %d chunks, %d micro-batches: stage %d stops at item %d", stages,
                      chunks, micros, s, (int)at[s]);
}

static void every_schedule_ends(void)
{
    for (int stages = 1; stages <= STAGES; stages++)
        for (int chunks = 1; chunks <= CHUNKS; chunks++)
            EACH(i, many_micros) for (int training = 0; training < 2; training++)
            {
                int micros = many_micros[i];
                int64_t n = fill(stages, chunks, micros, training);

                for (int s = 0; s < stages; s++)
                    check_list(list[s], n, chunks, micros, training);
                check_replay(stages, chunks, micros, n);
            }
}

/* 1F1B: stages - stage - 1 forwards, then one forward and one backward alternately, then the
 * remaining backwards. */
static int64_t textbook(int stages, int micros, int stage, ek_pipe_item *items)
{
    int warm = stages - stage - 1 < micros ? stages - stage - 1 : micros, f = 0, b = 0;
    int64_t n = 0;

    while (f < warm)
        items[n++] = (ek_pipe_item){.micro = f++};
    while (f < micros) {
        items[n++] = (ek_pipe_item){.micro = f++};
        items[n++] = (ek_pipe_item){.micro = b++, .backward = 1};
    }
    while (b < micros)
        items[n++] = (ek_pipe_item){.micro = b++, .backward = 1};
    return n;
}

static void plain_is_one_forward_one_backward(void)
{
    ek_pipe_item want[ITEMS];

    for (int stages = 1; stages <= STAGES; stages++)
        EACH(i, many_micros) for (int s = 0; s < stages; s++)
        {
            int64_t n = textbook(stages, many_micros[i], s, want);

            CHECK_INT(ek_pipe_order(stages, 1, many_micros[i], s, 1, list[s]), n);
            for (int64_t j = 0; j < n; j++)
                if (list[s][j].micro != want[j].micro || list[s][j].backward != want[j].backward)
                    EK_T_FAIL("stage %d of %d, %d micro-batches: item %d is another", s, stages,
                              many_micros[i], (int)j);
        }
}

/* The last of 2 stages: 0 1 of chunk 0, then 0 of chunk 1 and the first backward. */
static void groups_pass_through_chunks(void)
{
    const ek_pipe_item first[] = {{0, 0, 0}, {1, 0, 0}, {0, 1, 0}, {0, 1, 1},
                                  {1, 1, 0}, {1, 1, 1}, {2, 0, 0}, {0, 0, 1}};

    ek_pipe_order(2, 2, 4, 1, 1, list[1]);
    EACH(i, first)
    {
        CHECK_INT(list[1][i].micro, first[i].micro);
        CHECK_INT(list[1][i].model_chunk, first[i].model_chunk);
        CHECK_INT(list[1][i].backward, first[i].backward);
    }
}

static void forwards_alone_keep_their_order(void)
{
    const ek_pipe_item want[] = {{0, 0, 0}, {1, 0, 0}, {2, 0, 0}, {0, 1, 0}, {1, 1, 0},
                                 {2, 1, 0}, {3, 0, 0}, {4, 0, 0}, {3, 1, 0}, {4, 1, 0}};

    CHECK_INT(ek_pipe_order(2, 2, 5, 0, 0, list[0]), 10);
    EACH(i, want)
    {
        CHECK_INT(list[0][i].micro, want[i].micro);
        CHECK_INT(list[0][i].model_chunk, want[i].model_chunk);
        CHECK_INT(list[0][i].backward, 0);
    }
}

/* The number in flight along the list is as stated; slots m % slots never collide. */
static void check_in_flight(int stages, int chunks, int micros, int stage)
{
    int64_t n = ek_pipe_order(stages, chunks, micros, stage, 1, list[0]), now = 0, most = 0;
    int64_t limit = (stages - stage - 1) * 2 + (chunks - 1) * group_of(stages, micros) + 1;
    int64_t slots[CHUNKS], chunk_now[CHUNKS] = {0}, chunk_most[CHUNKS] = {0};
    int held[CHUNKS][MICROS];

    memset(held, -1, sizeof(held));
    for (int c = 0; c < chunks; c++)
        slots[c] = ek_pipe_slots(list[0], n, c);
    for (int64_t i = 0; i < n; i++) {
        const ek_pipe_item *x = &list[0][i];
        int *slot = &held[x->model_chunk][x->micro % slots[x->model_chunk]];

        now += x->backward ? -1 : 1;
        most = now > most ? now : most;
        chunk_now[x->model_chunk] += x->backward ? -1 : 1;
        if (chunk_now[x->model_chunk] > chunk_most[x->model_chunk])
            chunk_most[x->model_chunk] = chunk_now[x->model_chunk];
        CHECK_INT(*slot, x->backward ? x->micro : -1);
        *slot = x->backward ? -1 : x->micro;
    }
    for (int c = 0; c < chunks; c++)
        CHECK_INT(slots[c], chunk_most[c]);
    if (chunks == 1)
        limit = stages - stage;
    CHECK_INT(most, limit < micros * chunks ? limit : micros * chunks);
}

static void in_flight_is_counted(void)
{
    for (int stages = 1; stages <= STAGES; stages++)
        for (int chunks = 1; chunks <= CHUNKS; chunks++)
            EACH(i, many_micros)
    for (int s = 0; s < stages; s++)
        check_in_flight(stages, chunks, many_micros[i], s);
}

/* Activation slots of a stage: of the chunk with most of them. */
static int64_t slots_of(int stages, int chunks, int micros, int stage)
{
    int64_t n = ek_pipe_order(stages, chunks, micros, stage, 1, list[0]), most = 0;

    for (int c = 0; c < chunks; c++)
        most = ek_pipe_slots(list[0], n, c) > most ? ek_pipe_slots(list[0], n, c) : most;
    return most;
}

/* So the last stage has the fewest. */
static void later_stages_need_no_more(void)
{
    for (int stages = 2; stages <= STAGES; stages++)
        for (int chunks = 1; chunks <= CHUNKS; chunks++)
            EACH(i, many_micros)
    for (int s = 1; s < stages; s++)
        CHECK(slots_of(stages, chunks, many_micros[i], s) <=
              slots_of(stages, chunks, many_micros[i], s - 1));
}

/* The bubble, as a fraction of time, if a forward takes one unit and a backward two. */
static double bubble(int stages, int chunks, int micros)
{
    int64_t n = fill(stages, chunks, micros, 1), at[STAGES] = {0}, left = stages * n, time = 0;
    int64_t until[STAGES] = {0};

    memset(done, 0, sizeof(done));
    for (; left > 0 && time < 3 * stages * n; time++) {
        for (int s = 0; s < stages; s++) /* what ends now can be received now */
            if (at[s] > 0 && until[s] == time) {
                const ek_pipe_item *x = &list[s][at[s] - 1];

                left -= !done[x->backward][x->model_chunk * stages + s][x->micro];
                done[x->backward][x->model_chunk * stages + s][x->micro] = 1;
            }
        for (int s = 0; s < stages; s++)
            if (at[s] < n && until[s] <= time && can_go(stages, chunks, s, &list[s][at[s]]))
                until[s] = time + 1 + list[s][at[s]++].backward;
    }
    CHECK_INT(left, 0);
    return 1 - 3.0 * chunks * micros / (double)(time - 1);
}

/* As in the literature: (p - 1) / (v m + p - 1). */
static void chunks_make_bubbles_smaller(void)
{
    for (int stages = 1; stages <= STAGES; stages++)
        for (int micros = 1; micros <= MICROS; micros++)
            for (int chunks = 1; chunks <= CHUNKS; chunks++) {
                double got = bubble(stages, chunks, micros), b = stages - 1.0;
                double one = b / (micros + b), want = b / (chunks * micros + b);

                if (micros >= stages ? fabs(got - want) > 1e-12 : got > one + 1e-12)
                    EK_T_FAIL("%d stages of %d chunks, %d micro-batches: idle %.4f, not %.4f",
                              stages, chunks, micros, got, want);
            }
}

static const ek_case cases[] = {
    EK_CASE(every_schedule_ends),         EK_CASE(plain_is_one_forward_one_backward),
    EK_CASE(groups_pass_through_chunks),  EK_CASE(forwards_alone_keep_their_order),
    EK_CASE(in_flight_is_counted),        EK_CASE(later_stages_need_no_more),
    EK_CASE(chunks_make_bubbles_smaller),
};
EK_TEST_MAIN(cases)
