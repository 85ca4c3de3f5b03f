/* Windows: their positions, each visited once per epoch, independent of everything else. */
#include "data/sources.h"
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
    CHECK_INT(s.sources[0].windows, WINDOWS);
    return s;
}

/* First token of a row, after checking that the rest follows it. */
static int32_t row_start(const ek_windows *s, int64_t step, int64_t row)
{
    int32_t inputs[SEQ], targets[SEQ];

    CHECK_INT(ek_windows_row(s, step, row, inputs, targets), EK_OK);
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
        int64_t now = ek_windows_at(&s, i / BATCH, i % BATCH, NULL);

        moved += now != i;
        other += now != ek_windows_at(&s, next / BATCH, next % BATCH, NULL);
    }
    CHECK(moved > WINDOWS / 2); /* shuffled, differently in each epoch */
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

    wide.batch = 1; /* row r of step s is window s * batch + r, whatever the batch size */
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
    CHECK_INT(s.sources[0].windows, 1);
    CHECK_INT(ek_windows_at(&s, 12345, 0, NULL), 0);
    CHECK_INT(ek_windows_init(&s, t, 0, SEQ - 1, EK_ORDER_SHUFFLED, 0), EK_EINVAL);
    CHECK_INT(ek_windows_init(&s, t, 1, 0, EK_ORDER_SHUFFLED, 0), EK_EINVAL);
    ek_tokens_close(&t);
}

/* Sources of 2, 7 and 31 windows, with tokens a million apart. */
static ek_sources open_sources(int32_t *ids, const uint64_t *shares)
{
    static const int64_t windows[3] = {2, 7, 31};
    ek_sources s = {.n = 3};

    for (int j = 0; j < 3; j++) {
        int64_t n = windows[j] * SEQ + 1;

        for (int64_t i = 0; i < n; i++)
            ids[i] = (int32_t)(j * 1000000 + i);
        CHECK(ek_tokens_wrap(ids, (size_t)n * sizeof(*ids), 4, 1 << 30, "source", &s.tokens[j]) ==
              EK_OK);
        s.share[j] = shares[j];
        ids += n;
    }
    return s;
}

/* Every prefix of a run has each source's share, and a source's windows come in its own epochs and
 * order; counted draw by draw. */
static void sources_are_drawn_by_weight(void)
{
    static const uint64_t shares[][3] = {
        {1, 1, 1}, {300, 700, 1}, {2147483648u / 2, 5, 1000000000u}};
    static int32_t ids[42 * SEQ];

    for (int c = 0; c < 6; c++) {
        const uint64_t *share = shares[c / 2];
        ek_data_order order = c % 2 ? EK_ORDER_SHUFFLED : EK_ORDER_SEQUENTIAL;
        double total = (double)(share[0] + share[1] + share[2]);
        ek_sources sources = open_sources(ids, share);
        int64_t count[3] = {0}, seen[3][31] = {{0}};
        ek_windows s;

        CHECK(ek_windows_init_sources(&s, &sources, BATCH, SEQ, order, 9) == EK_OK);
        for (int64_t step = 0; step < 2000; step++) {
            for (int64_t row = 0; row < BATCH; row++) {
                int64_t j, w = ek_windows_at(&s, step, row, &j);
                int32_t inputs[SEQ], targets[SEQ];

                CHECK(j >= 0 && j < 3 && w >= 0 && w < s.sources[j].windows);
                CHECK_INT(ek_windows_row(&s, step, row, inputs, targets), EK_OK);
                CHECK_INT(inputs[0], j * 1000000 + w * SEQ);
                CHECK_INT(targets[SEQ - 1], j * 1000000 + w * SEQ + SEQ);
                count[j]++;
                seen[j][w]++;
            }
            for (int j = 0; j < 3; j++)
                CHECK(fabs((double)count[j] -
                           (double)((step + 1) * BATCH) * (double)share[j] / total) < 3);
        }
        for (int j = 0; j < 3; j++)
            for (int64_t w = 0; w < s.sources[j].windows; w++) { /* each once per whole epoch */
                int64_t epochs = count[j] / s.sources[j].windows;

                CHECK(seen[j][w] == epochs || seen[j][w] == epochs + 1);
            }
        ek_sources_close(&sources);
    }
}

/* The sources of a step follow from weights alone, their rows from the seed, too. */
static void mixtures_follow_from_seed_and_place_alone(void)
{
    static const uint64_t share[3] = {3, 5, 8};
    static int32_t ids[42 * SEQ];
    ek_sources sources = open_sources(ids, share);
    ek_windows a, b, c;
    int moved = 0;

    CHECK(ek_windows_init_sources(&a, &sources, 16, SEQ, EK_ORDER_SHUFFLED, 1) == EK_OK);
    CHECK(ek_windows_init_sources(&b, &sources, 16, SEQ, EK_ORDER_SHUFFLED, 1) == EK_OK);
    CHECK(ek_windows_init_sources(&c, &sources, 16, SEQ, EK_ORDER_SHUFFLED, 2) == EK_OK);
    for (int64_t step = 99; step >= 0; step--) {
        int64_t of[3] = {0};

        for (int64_t row = 0; row < 16; row++) {
            int64_t ja, jb, jc;

            CHECK_INT(ek_windows_at(&a, step, row, &ja), ek_windows_at(&b, step, row, &jb));
            (void)ek_windows_at(&c, step, row, &jc);
            CHECK_INT(ja, jb);
            moved += ja != jc;
            of[ja]++;
        }
        CHECK(of[0] == 3 && of[1] == 5 && of[2] == 8);
    }
    CHECK(moved > 500);
    ek_sources_close(&sources);
}

static void weights_are_read_from_paths(void)
{
    char folder[] = "/tmp/ek-sources-XXXXXX";
    static const struct {
        const char *text, *path;
        int weight;
    } texts[] = {{"x:0.3", "x", 1},         {"a:b:12", "a:b", 1}, {"x:.5", "x", 1},
                 {"x:1e3", "x:1e3", 0},     {"x:", "x:", 0},      {":1", ":1", 0},
                 {"x:1.2.3", "x:1.2.3", 0}, {"x:-1", "x:-1", 0}};
    char there[64], with[72];
    const char *weight;
    ek_path path;

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        CHECK(ek_source_path(texts[i].text, &path, &weight) == EK_OK);
        CHECK(strcmp(path.s, texts[i].path) == 0 && (weight != NULL) == texts[i].weight);
    }
    CHECK(mkdtemp(folder) != NULL);
    snprintf(there, sizeof(there), "%s/a:7", folder);
    snprintf(with, sizeof(with), "%s:2", there);
    CHECK(ek_file_write(NULL, there, "x", 1) == EK_OK);
    CHECK(ek_source_path(there, &path, &weight) == EK_OK);
    CHECK(weight == NULL && strcmp(path.s, there) == 0); /* exists literally */
    CHECK(ek_source_path(with, &path, &weight) == EK_OK);
    CHECK(weight != NULL && strcmp(path.s, there) == 0);
    CHECK(ek_folder_remove(NULL, folder) == EK_OK);
}

/* Every token but the first is a target exactly once, whatever the length. */
static void evaluation_covers_the_stream_once(void)
{
    for (int64_t n = 1; n < 45; n++) {
        ek_tokens *t = open_stream(n);
        int64_t next = 0;

        for (int64_t w = 0; w < ek_eval_windows(t, SEQ); w++) {
            int32_t inputs[SEQ], targets[SEQ];
            int64_t len = 0;

            CHECK_INT(ek_eval_window(t, SEQ, w, inputs, targets, &len), EK_OK);
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
    EK_CASE(sequential_rows_follow_each_other_and_wrap),
    EK_CASE(an_epoch_is_a_permutation),
    EK_CASE(sources_are_drawn_by_weight),
    EK_CASE(mixtures_follow_from_seed_and_place_alone),
    EK_CASE(weights_are_read_from_paths),
    EK_CASE(rows_follow_from_seed_and_place_alone),
    EK_CASE(too_few_tokens_are_refused),
    EK_CASE(evaluation_covers_the_stream_once),
};

EK_TEST_MAIN(cases)
