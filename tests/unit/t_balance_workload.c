/* Synthetic routing traces: apportionment, what all workloads have in common, each workload, and
 * the file they are written to. */
#include "balance/trace.h"
#include "balance/workload.h"
#include "base/random.h"
#include "ek_test.h"
#include "placement/apportion.h"

enum { N_MAX = 64, ITERATIONS = 66 };

/* Products of sums. */
__extension__ typedef __int128 wide;

/* --- apportionment ---------------------------------------------------------------------------- */

static void apportion(const int64_t *weight, int32_t n, int64_t total, int64_t most, int64_t *share)
{
    int64_t remainder[N_MAX];
    int32_t open[N_MAX];
    ek_apportion_scratch room = {remainder, open};

    ek_apportion(&room, weight, n, total, most, share);
}

static void check_apportion(const int64_t *weight, int32_t n, int64_t total, int64_t most,
                            const int64_t *want)
{
    int64_t share[N_MAX];

    apportion(weight, n, total, most, share);
    for (int32_t i = 0; i < n; i++)
        if (share[i] != want[i])
            EK_T_FAIL("share %d of %lld is %lld, expected %lld", (int)i, (long long)total,
                      (long long)share[i], (long long)want[i]);
}

static void apportion_by_hand(void)
{
    check_apportion((int64_t[]){5, 3, 2}, 3, 10, 10, (int64_t[]){5, 3, 2});
    check_apportion((int64_t[]){1, 1, 1}, 3, 5, 5,
                    (int64_t[]){2, 2, 1}); /* ties: the lower index */
    check_apportion((int64_t[]){10, 14, 6}, 3, 7, 9, (int64_t[]){2, 3, 2}); /* 2.3 3.27 1.4 */
    check_apportion((int64_t[]){0, 7, 0, 1}, 4, 8, 8, (int64_t[]){0, 7, 0, 1});
    check_apportion((int64_t[]){100, 2, 1}, 3, 6, 3,
                    (int64_t[]){3, 2, 1}); /* one above the limit */
    check_apportion((int64_t[]){100, 50, 1}, 3, 7, 3,
                    (int64_t[]){3, 3, 1});                                /* which lifts another */
    check_apportion((int64_t[]){9, 0, 0}, 3, 5, 3, (int64_t[]){3, 1, 1}); /* all weights 0 */
    check_apportion((int64_t[]){0, 0, 0}, 3, 4, 2, (int64_t[]){2, 1, 1});
    check_apportion((int64_t[]){0, 3}, 2, 8, 4, (int64_t[]){4, 4}); /* all at the limit */
    check_apportion((int64_t[]){0, 3}, 2, 0, 4, (int64_t[]){0, 0});
    check_apportion((int64_t[]){4}, 1, 9, 9, (int64_t[]){9});
    check_apportion((int64_t[]){(int64_t)1 << 61, (int64_t)1 << 61}, 2, (int64_t)1 << 40,
                    (int64_t)1 << 40, (int64_t[]){(int64_t)1 << 39, (int64_t)1 << 39});
}

/* Checks largest-remainder shares, except at the limit. */
static void check_fair(const int64_t *weight, const int64_t *share, int32_t n, int64_t most)
{
    int64_t left = 0, sum = 0;
    wide up = -1, down = -1; /* the least remainder rounded up, the largest rounded down */

    for (int32_t i = 0; i < n; i++)
        if (share[i] < most) {
            left += share[i];
            sum += weight[i];
        }
    for (int32_t i = 0; i < n && sum > 0; i++) {
        wide exact = (wide)weight[i] * left, floor = exact / sum, rest = exact % sum;

        if (share[i] == most)
            continue;
        if (share[i] == floor)
            down = rest > down ? rest : down;
        else if (share[i] == floor + 1)
            up = up < 0 || rest < up ? rest : up;
        else
            EK_T_FAIL("share %d is %lld", (int)i, (long long)share[i]);
    }
    CHECK(up < 0 || down < 0 || up >= down);
}

static void apportion_at_random(void)
{
    for (uint64_t i = 0; i < 20000; i++) {
        int32_t n = 1 + (int32_t)(ek_random_bits(1, i, 0) % 20);
        int64_t most = 1 + (int64_t)(ek_random_bits(1, i, 1) % 50), weight[N_MAX], share[N_MAX];
        int64_t total = (int64_t)(ek_random_bits(1, i, 2) % (uint64_t)(n * most + 1)), sum = 0;
        int full = 0;

        for (int32_t e = 0; e < n; e++) {
            uint64_t bits = ek_random_bits(2, i, (uint64_t)e);

            weight[e] = bits % 4 == 0 ? 0 : (int64_t)(bits >> (40 + bits % 24));
        }
        apportion(weight, n, total, most, share);
        for (int32_t e = 0; e < n; e++) {
            sum += share[e];
            full += share[e] == most;
            CHECK(share[e] >= 0 && share[e] <= most);
        }
        CHECK_INT(sum, total);
        if (full == 0) /* otherwise a remainder may have filled one */
            check_fair(weight, share, n, most);
        for (int32_t e = 1; e < n; e++) /* more weight never gets less */
            CHECK(weight[e] <= weight[e - 1] || share[e] >= share[e - 1]);
    }
}

/* --- all workloads ---------------------------------------------------------------------------- */

typedef struct {
    ek_workload_shape s;
    uint32_t *x; /* [iterations][layers][sources][experts] */
} loads;

static void make(const char *name, ek_workload_shape s, loads *l)
{
    int64_t layer = (int64_t)s.sources * s.experts;
    ek_workload_maker *m = NULL;

    l->s = s;
    l->x = calloc((size_t)(s.iterations * s.layers * layer), sizeof(*l->x));
    CHECK(ek_workload_find(name) != NULL && l->x != NULL);
    CHECK(ek_workload_open(ek_workload_find(name), &s, &m) == EK_OK);
    for (int64_t i = 0; i < s.iterations * s.layers; i++)
        ek_workload_counts(m, i / s.layers, i % s.layers, l->x + i * layer);
    ek_workload_close(&m);
}

static int64_t at(const loads *l, int64_t iteration, int64_t layer, int32_t source, int32_t expert)
{
    return l
        ->x[((iteration * l->s.layers + layer) * l->s.sources + source) * l->s.experts + expert];
}

/* Of all sources. */
static int64_t load(const loads *l, int64_t iteration, int64_t layer, int32_t expert)
{
    int64_t sum = 0;

    for (int32_t r = 0; r < l->s.sources; r++)
        sum += at(l, iteration, layer, r, expert);
    return sum;
}

static int64_t assignments(const loads *l, int64_t iteration, int64_t layer, int32_t source)
{
    int64_t sum = 0;

    for (int32_t e = 0; e < l->s.experts; e++)
        sum += at(l, iteration, layer, source, e);
    return sum;
}

static int32_t hottest(const loads *l, int64_t iteration, int64_t layer)
{
    int32_t best = 0;

    for (int32_t e = 1; e < l->s.experts; e++)
        if (load(l, iteration, layer, e) > load(l, iteration, layer, best))
            best = e;
    return best;
}

/* The hottest expert's part of an iteration's tokens. */
static double heat(const loads *l, int64_t iteration, int64_t layer)
{
    int32_t e = hottest(l, iteration, layer);

    return (double)load(l, iteration, layer, e) / (double)(l->s.sources * l->s.tokens);
}

static const ek_workload_shape usual = {.iterations = ITERATIONS,
                                        .layers = 3,
                                        .sources = 4,
                                        .experts = 16,
                                        .tokens = 2000,
                                        .top_k = 2,
                                        .seed = 5};

/* Tokens pick different experts: sources have whole tokens, as many in every layer, and no expert
 * more than these. */
static void check_counts(const char *name, ek_workload_shape s)
{
    loads l;

    make(name, s, &l);
    for (int64_t i = 0; i < s.iterations; i++)
        for (int64_t layer = 0; layer < s.layers; layer++) {
            int64_t all = 0;

            for (int32_t r = 0; r < s.sources; r++) {
                int64_t sum = assignments(&l, i, layer, r);

                all += sum;
                CHECK_INT(sum, assignments(&l, i, 0, r));
                CHECK_INT(sum % s.top_k, 0);
                for (int32_t e = 0; e < s.experts; e++)
                    CHECK(at(&l, i, layer, r, e) <= sum / s.top_k);
            }
            CHECK_INT(all, s.sources * s.tokens * s.top_k);
        }
    free(l.x);
}

static void counts_can_be(void)
{
    static const ek_workload_shape shapes[] = {
        {9, 2, 4, 16, 100, 2, 1}, {9, 2, 3, 7, 33, 3, 2}, {9, 1, 1, 1, 10, 1, 3},
        {9, 1, 1, 8, 50, 2, 4},   {9, 2, 7, 3, 5, 2, 5},  {9, 1, 5, 4, 20, 4, 6},
        {9, 1, 2, 6, 0, 2, 7},    {9, 1, 3, 40, 1, 8, 8}, {40, 1, 2, 5, 3, 1, 9},
    };

    for (size_t w = 0; w < ek_workload_count; w++)
        for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
            int before = ek_t.failed;

            check_counts(ek_workloads[w].name, shapes[i]);
            if (ek_t.failed > before)
                fprintf(stderr, "  %s, shape %d\n", ek_workloads[w].name, (int)i);
        }
}

/* By the seed, and in any order. */
static void the_seed_determines_all(void)
{
    ek_workload_shape s = usual, other = usual;
    size_t bytes;

    s.iterations = other.iterations = 6;
    other.seed = 6;
    bytes = (size_t)(s.iterations * s.layers * s.sources * s.experts) * sizeof(uint32_t);
    for (size_t w = 0; w < ek_workload_count; w++) {
        const char *name = ek_workloads[w].name;
        ek_workload_maker *m = NULL;
        uint32_t last[64];
        loads a, b, c;

        make(name, s, &a);
        make(name, s, &b);
        make(name, other, &c);
        CHECK(memcmp(a.x, b.x, bytes) == 0);
        if (strcmp(name, "W0") != 0 && memcmp(a.x, c.x, bytes) == 0)
            EK_T_FAIL("%s does not go by the seed", name);
        CHECK(ek_workload_open(&ek_workloads[w], &s, &m) == EK_OK);
        ek_workload_counts(m, 5, 2, last);
        CHECK(memcmp(last, a.x + (5 * 3 + 2) * 64, sizeof(last)) == 0);
        ek_workload_close(&m);
        free(a.x);
        free(b.x);
        free(c.x);
    }
}

/* --- what each of them is --------------------------------------------------------------------- */

static void uniform_is_even(void)
{
    ek_workload_shape s = usual;
    loads l;

    s.tokens = 101; /* 202 assignments over 16 experts */
    make("W0", s, &l);
    for (int64_t i = 0; i < 5; i++)
        for (int32_t e = 0; e < s.experts; e++) {
            for (int32_t r = 0; r < s.sources; r++)
                CHECK(at(&l, i, 1, r, e) == 12 || at(&l, i, 1, r, e) == 13);
            CHECK(load(&l, i, 1, e) == 50 || load(&l, i, 1, e) == 51);
        }
    free(l.x);
    s.tokens = usual.tokens;
    make("flat", s, &l);
    CHECK(heat(&l, 0, 0) > 0.127 && heat(&l, 0, 0) < 0.15); /* an even share is 0.125 */
    CHECK(hottest(&l, 0, 0) != hottest(&l, 1, 0) || hottest(&l, 1, 0) != hottest(&l, 2, 0));
    free(l.x);
}

static void one_expert_is_hot(void)
{
    int differ = 0;
    loads l;

    make("W1", usual, &l);
    for (int64_t i = 0; i < usual.iterations; i++)
        for (int64_t layer = 0; layer < usual.layers; layer++) {
            CHECK_INT(hottest(&l, i, layer), hottest(&l, 0, layer));
            CHECK(fabs(heat(&l, i, layer) - 0.8) < 0.03);
            differ += hottest(&l, 0, layer) != hottest(&l, 0, 0);
        }
    CHECK(differ > 0);
    free(l.x);
}

static void one_rank_is_hot(void)
{
    static const int32_t first[] = {0, 4, 8, 11, 14}; /* 14 experts on 4 ranks */
    ek_workload_shape s = usual;
    loads l;

    s.experts = 14;
    make("W2", s, &l);
    for (int64_t layer = 0; layer < s.layers; layer++) {
        int32_t hot = 0, e = hottest(&l, 0, layer);
        int64_t least = INT64_MAX, most = 0;

        while (e >= first[hot + 1])
            hot++;
        for (e = 0; e < s.experts; e++) {
            int64_t n = load(&l, 0, layer, e);

            if (e >= first[hot] && e < first[hot + 1])
                least = n < least ? n : least;
            else
                most = n > most ? n : most;
        }
        CHECK(least > 5 * most);
    }
    free(l.x);
}

static void sources_are_ragged(void)
{
    int changes = 0;
    loads l;

    make("W3", usual, &l);
    for (int64_t i = 0; i < usual.iterations; i++) {
        int64_t least = INT64_MAX, most = 0;

        for (int32_t r = 0; r < usual.sources; r++) {
            int64_t n = assignments(&l, i, 0, r);

            least = n < least ? n : least;
            most = n > most ? n : most;
            changes += n != assignments(&l, 0, 0, r);
        }
        CHECK(fabs((double)most / (double)least - 16) < 0.5);
    }
    CHECK(changes > 0);
    free(l.x);
}

static void a_rank_is_empty(void)
{
    int32_t source = 0;
    loads l;

    make("W4", usual, &l);
    while (source < usual.sources && assignments(&l, 0, 0, source) > 0)
        source++;
    CHECK(source < usual.sources);
    for (int64_t i = 0; i < usual.iterations; i++) {
        int empty = 0;

        for (int32_t r = 0; r < usual.sources; r++)
            CHECK((assignments(&l, i, 0, r) == 0) == (r == source));
        for (int32_t r = 0; r < usual.sources; r++) {
            int64_t sum = 0;

            for (int32_t e = 4 * r; e < 4 * r + 4; e++)
                sum += load(&l, i, 0, e);
            empty += sum == 0;
        }
        CHECK_INT(empty, 1);
    }
    free(l.x);
}

static void the_hot_spot_rotates(void)
{
    int32_t seen[16] = {0};
    loads l;

    make("W5", usual, &l);
    for (int64_t i = 0; i < 64; i++) {
        int32_t e = hottest(&l, i, 0);

        CHECK(heat(&l, i, 0) > 0.75);
        if (i % EK_WORKLOAD_ROTATION == 0)
            CHECK_INT(seen[e]++, 0);
        else
            CHECK_INT(e, hottest(&l, i - 1, 0));
    }
    free(l.x);
}

static void bursts_are_periodic(void)
{
    loads l;

    make("W6", usual, &l);
    for (int64_t i = 0; i < usual.iterations; i++)
        if (i % 16 >= 4 && i % 16 < 8)
            CHECK(heat(&l, i, 0) > 0.92);
        else
            CHECK(heat(&l, i, 0) < 0.16);
    free(l.x);
}

static int by_load(const void *a, const void *b)
{
    const int64_t *x = a, *y = b;

    return (*y > *x) - (*y < *x);
}

static void popularity_is_zipfs(void)
{
    ek_workload_shape s = usual;
    int differ = 0;
    loads l;

    s.tokens = 1000000;
    s.iterations = 2;
    make("W7", s, &l);
    for (int64_t layer = 0; layer < s.layers; layer++) {
        int64_t n[16];
        double exponent;

        for (int32_t e = 0; e < 16; e++)
            n[e] = load(&l, 0, layer, e);
        qsort(n, 16, sizeof(*n), by_load);
        exponent = log((double)n[0] / (double)n[15]) / log(16);
        CHECK(exponent > 0.98 && exponent < 1.22);
        CHECK(fabs(log((double)n[0] / (double)n[3]) / log(4) - exponent) < 0.01);
        CHECK_INT(hottest(&l, 0, layer), hottest(&l, 1, layer));
        differ += hottest(&l, 0, layer) != hottest(&l, 0, 0);
    }
    CHECK(differ > 0);
    free(l.x);
}

/* Half the sum of differences between two iterations' loads, of all. */
static double change(const loads *l, int64_t from, int64_t to)
{
    int64_t sum = 0;

    for (int32_t e = 0; e < l->s.experts; e++)
        sum += llabs(load(l, from, 0, e) - load(l, to, 0, e));
    return (double)sum / 2 / (double)(l->s.sources * l->s.tokens * l->s.top_k);
}

static void popularity_drifts_stays_or_switches(void)
{
    loads drifting, stable, switching;
    ek_workload_shape s = usual;

    s.tokens = 20000; /* of less, chance would hide it */
    make("drifting", s, &drifting);
    make("stable", s, &stable);
    make("switching", s, &switching);
    for (int64_t i = 1; i < usual.iterations; i++) {
        CHECK(change(&drifting, i - 1, i) > 0.004 && change(&drifting, i - 1, i) < 0.06);
        CHECK(change(&stable, 0, i) < 0.02);
        if (i % EK_WORKLOAD_SWITCHING == 0)
            CHECK(change(&switching, i - 1, i) > 0.15);
        else
            CHECK(change(&switching, i - 1, i) < 0.02);
    }
    CHECK(change(&drifting, 0, EK_WORKLOAD_DRIFT) > 0.15);
    CHECK(heat(&stable, 0, 0) > 0.25);
    free(drifting.x);
    free(stable.x);
    free(switching.x);
}

static void refuses_what_cannot_be(void)
{
    ek_workload_maker *m = NULL;
    ek_workload_shape s = usual;

    CHECK(ek_workload_find("W8") == NULL);
    s.top_k = 17;
    CHECK_INT(ek_workload_open(&ek_workloads[0], &s, &m), EK_EINVAL);
    s = usual;
    s.sources = 0;
    CHECK_INT(ek_workload_open(&ek_workloads[0], &s, &m), EK_EINVAL);
    s = usual;
    s.tokens = (int64_t)1 << 40;
    CHECK_INT(ek_workload_open(&ek_workloads[0], &s, &m), EK_EINVAL);
    CHECK(m == NULL);
}

/* --- the file --------------------------------------------------------------------------------- */

static void written_and_read(void)
{
    const int64_t shape[] = {2, 3, 4, 16}, wrong[] = {1, 1, 1 << 12, 1 << 11};
    char path[] = "/tmp/ek_workload_XXXXXX";
    ek_workload_shape s = usual;
    int fd = mkstemp(path);
    ek_file_out f;
    ek_trace t;
    loads l;

    CHECK(fd >= 0 && close(fd) == 0);
    s.iterations = 2;
    make("W7", s, &l);
    CHECK_INT(ek_trace_out_open(path, wrong, &f), EK_EINVAL);
    CHECK(ek_trace_out_open(path, shape, &f) == EK_OK);
    CHECK(ek_file_out_write(&f, l.x, 2 * 3 * 4 * 16 * sizeof(*l.x)) == EK_OK);
    CHECK(ek_file_out_close(&f) == EK_OK);
    CHECK(ek_trace_read(path, &t) == EK_OK);
    CHECK(truncate(path, 0) == 0); /* it is in memory */
    CHECK(t.iterations == 2 && t.layers == 3 && t.sources == 4 && t.experts == 16);
    CHECK_INT(ek_trace_numbers(&t), 2 * 3 * 4 * 16);
    for (int64_t i = 0; i < ek_trace_numbers(&t); i++)
        CHECK_INT(ek_trace_number(&t, i), l.x[i]);
    ek_trace_close(&t);
    CHECK_INT(ek_trace_read(path, &t), EK_EFORMAT);
    free(l.x);
    CHECK(unlink(path) == 0);
}

static const ek_case cases[] = {
    EK_CASE(apportion_by_hand),
    EK_CASE(apportion_at_random),
    EK_CASE(counts_can_be),
    EK_CASE(the_seed_determines_all),
    EK_CASE(uniform_is_even),
    EK_CASE(one_expert_is_hot),
    EK_CASE(one_rank_is_hot),
    EK_CASE(sources_are_ragged),
    EK_CASE(a_rank_is_empty),
    EK_CASE(the_hot_spot_rotates),
    EK_CASE(bursts_are_periodic),
    EK_CASE(popularity_is_zipfs),
    EK_CASE(popularity_drifts_stays_or_switches),
    EK_CASE(refuses_what_cannot_be),
    EK_CASE(written_and_read),
};
EK_TEST_MAIN(cases)
