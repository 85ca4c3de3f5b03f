/* The sampler: frequencies against the definition, and every edge of its settings. */
#include "base/random.h"
#include "ek_test.h"
#include "infer/sampler.h"

enum { DRAWS = 40000 };

static ek_sampler *make(double temperature, double top_p, int64_t top_k, uint64_t seed, int64_t v)
{
    ek_sampler_config cfg = {
        .temperature = temperature, .top_p = top_p, .top_k = top_k, .seed = seed};
    ek_sampler *s = NULL;

    CHECK(ek_sampler_create(&cfg, v, &s) == EK_OK);
    return s;
}

static int32_t next(ek_sampler *s, const double *logits, int64_t position)
{
    int32_t id = -7;

    CHECK(ek_sampler_next(s, EK_F64, logits, position, &id) == EK_OK);
    return id;
}

/* Draws many times and compares counts with probabilities p [v] (sum 1). */
static void check_frequencies(ek_sampler *s, const double *logits, int v, const double *p)
{
    int count[16] = {0};

    for (int i = 0; i < DRAWS; i++) {
        int32_t id = next(s, logits, i);

        CHECK(id >= 0 && id < v);
        if (id >= 0 && id < v)
            count[id]++;
    }
    for (int i = 0; i < v; i++) {
        double error = sqrt(p[i] * (1 - p[i]) / DRAWS), got = (double)count[i] / DRAWS;

        if (p[i] == 0 ? count[i] != 0 : fabs(got - p[i]) > 4 * error)
            EK_T_FAIL("token %d: %d of %d draws, expected %.1f", i, count[i], DRAWS, p[i] * DRAWS);
    }
    ek_sampler_destroy(&s);
}

/* log(p), so that at temperature 1 the probabilities are p. */
static const double P[5] = {0.15, 0.4, 0.05, 0.3, 0.1};

static void logs(const double *p, int v, double *l)
{
    for (int i = 0; i < v; i++)
        l[i] = log(p[i]) + 3; /* a shift changes nothing */
}

static void plain(void)
{
    double l[5];

    logs(P, 5, l);
    check_frequencies(make(1, 1, 0, 3, 5), l, 5, P);
}

static void temperature(void)
{
    double l[5], p[5], sum = 0;

    logs(P, 5, l);
    for (int i = 0; i < 5; i++)
        sum += p[i] = pow(P[i], 1 / 0.6);
    for (int i = 0; i < 5; i++)
        p[i] /= sum;
    check_frequencies(make(0.6, 1, 0, 4, 5), l, 5, p);
}

static void nucleus(void)
{
    double l[5];
    const double two[5] = {0, 0.4 / 0.7, 0, 0.3 / 0.7, 0};
    const double three[5] = {0.15 / 0.85, 0.4 / 0.85, 0, 0.3 / 0.85, 0};

    logs(P, 5, l);
    check_frequencies(make(1, 0.5, 0, 5, 5), l, 5, two);
    check_frequencies(make(1, 0.6999, 0, 6, 5), l, 5, two);
    check_frequencies(make(1, 0.7001, 0, 7, 5), l, 5, three);
    check_frequencies(make(1, 0.9999999, 0, 8, 5), l, 5, P);
}

static void largest_k(void)
{
    double l[5];
    const double two[5] = {0, 0.4 / 0.7, 0, 0.3 / 0.7, 0};
    const double one[5] = {0, 1, 0, 0, 0};

    logs(P, 5, l);
    check_frequencies(make(1, 1, 2, 5, 5), l, 5, two);
    check_frequencies(make(1, 1, 5, 5, 5), l, 5, P);
    check_frequencies(make(1, 1, 99, 5, 5), l, 5, P);
    /* top_p counts within the k that stay: 0.4 / 0.7 is 0.571 */
    check_frequencies(make(1, 0.57, 2, 5, 5), l, 5, one);
    check_frequencies(make(1, 0.58, 2, 5, 5), l, 5, two);
}

/* Equal logits: the cut keeps the lower ids. */
static void ties(void)
{
    const double l[6] = {1, 2, 2, 2, 1, 2};
    const double two[6] = {0, 0.5, 0.5, 0, 0, 0};

    check_frequencies(make(1, 1, 2, 1, 6), l, 6, two);
    for (int i = 0; i < 50; i++) {
        ek_sampler *s = make(0, 1, 0, (uint64_t)i, 6);

        CHECK_INT(next(s, l, i), 1);
        ek_sampler_destroy(&s);
    }
}

/* Settings that always take the largest logit. */
static void greedy(void)
{
    static const double settings[][3] = {{0, 1, 0},      {1, 0, 0},        {1, 1, 1},
                                         {5e-324, 1, 0}, {1e-300, 0.9, 3}, {1, 1e-300, 0}};
    double l[5];

    logs(P, 5, l);
    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++) {
        ek_sampler *s = make(settings[i][0], settings[i][1], (int64_t)settings[i][2], 9, 5);

        for (int t = 0; t < 200; t++)
            CHECK_INT(next(s, l, t), 1);
        ek_sampler_destroy(&s);
    }
}

/* Far apart, huge, excluded: nothing overflows, nothing excluded is drawn. */
static void extremes(void)
{
    const double far[3] = {-1e308, 1e308, -INFINITY}, low[2] = {-INFINITY, -1e5};
    const double excluded[4] = {-INFINITY, 0, -INFINITY, 0}, half[4] = {0, 0.5, 0, 0.5};
    const float single[3] = {-3.4e38f, 1.0f, 3.4e38f};
    ek_sampler *s = make(1e308, 0.99, 0, 2, 3);
    int32_t id = -1;

    for (int t = 0; t < 200; t++)
        CHECK(next(s, far, t) != 2);
    CHECK(ek_sampler_next(s, EK_F32, single, 0, &id) == EK_OK && id >= 0 && id < 3);
    ek_sampler_destroy(&s);
    s = make(1e-5, 1, 0, 2, 3);
    CHECK(ek_sampler_next(s, EK_F32, single, 0, &id) == EK_OK && id == 2);
    ek_sampler_destroy(&s);
    s = make(1, 1, 0, 2, 2);
    for (int t = 0; t < 200; t++)
        CHECK_INT(next(s, low, t), 1);
    ek_sampler_destroy(&s);
    check_frequencies(make(1, 1, 0, 1, 4), excluded, 4, half);
    check_frequencies(make(1, 0.999, 3, 1, 4), excluded, 4, half);
    s = make(1, 0.5, 0, 1, 1);
    CHECK_INT(next(s, excluded + 1, 0), 0); /* a vocabulary of one */
    ek_sampler_destroy(&s);
}

/* Only the first `vocab` logits count. */
static void vocabulary_is_cut(void)
{
    const double l[4] = {0, 1, 50, (double)NAN};
    ek_sampler *s = make(1, 1, 0, 3, 2);

    for (int t = 0; t < 200; t++)
        CHECK(next(s, l, t) < 2);
    ek_sampler_destroy(&s);
}

static void seed_decides(void)
{
    enum { V = 1000 };
    double l[V];
    ek_sampler *a = make(1, 0.9, 0, 42, V), *b = make(1, 0.9, 0, 42, V),
               *c = make(1, 0.9, 0, 43, V);
    int same = 0, moved = 0;

    for (int i = 0; i < V; i++)
        l[i] = 2 * ek_random_normal(1, 2, (uint64_t)i);
    next(b, l, 77); /* earlier draws have no effect */
    for (int t = 0; t < 100; t++) {
        int32_t id = next(a, l, t);

        CHECK_INT(next(b, l, t), id);
        same += next(c, l, t) == id;
        moved += next(a, l, t + 1) != id;
    }
    CHECK(same < 20 && moved > 80);
    ek_sampler_destroy(&a);
    ek_sampler_destroy(&b);
    ek_sampler_destroy(&c);
}

static int by_logit(const void *a, const void *b)
{
    const double *x = *(double *const *)a, *y = *(double *const *)b;

    return *x != *y ? (*x < *y) - (*x > *y) : (x > y) - (x < y);
}

/* Against a literal implementation of the definition, over a vocabulary with many ties. */
static void as_defined(void)
{
    enum { V = 257 };
    static const double top_p[] = {0.1, 0.5, 0.93, 1};
    static const int64_t top_k[] = {0, 7, 100};
    double l[V], w[V], *order[V];

    for (int turn = 0; turn < 60; turn++) {
        double p = top_p[turn % 4], T = 0.4 + 0.1 * (turn % 9), all = 0, sum = 0, kept = 0, u;
        int64_t k = top_k[turn % 3], most = k > 0 ? k : V, n = 0;
        ek_sampler *s = make(T, p, k, (uint64_t)turn, V);
        int32_t want = -1;

        for (int i = 0; i < V; i++) {
            l[i] = round(8 * ek_random_normal(7, (uint64_t)turn, (uint64_t)i)) / 4;
            order[i] = &l[i];
        }
        qsort(order, V, sizeof(*order), by_logit);
        for (int i = 0; i < V; i++)
            w[i] = exp((l[i] - *order[0]) / T);
        for (int64_t i = 0; i < most; i++)
            all += w[order[i] - l];
        while (n < most && (n == 0 || p == 1 || sum < p * all))
            sum += w[order[n++] - l];
        for (int64_t i = n; i < V; i++)
            w[order[i] - l] = 0;
        for (int i = 0; i < V; i++)
            kept += w[i];
        u = ek_random_uniform((uint64_t)turn, ek_random_stream("sample"), 5) * kept;
        for (double run = 0; run <= u;)
            run += w[++want];
        CHECK_INT(next(s, l, 5), want);
        ek_sampler_destroy(&s);
    }
}

static void not_finite(void)
{
    const double nan_last[3] = {1, 2, (double)NAN}, inf[3] = {1, (double)INFINITY, 0};
    const double none[3] = {-INFINITY, -INFINITY, -INFINITY};
    const float nan_first[3] = {NAN, 1, 2};
    int32_t id = -7;

    for (int t = 0; t < 2; t++) {
        ek_sampler *s = make(t, 1, 0, 1, 3);

        CHECK(ek_sampler_next(s, EK_F64, nan_last, 12, &id) == EK_ENONFINITE);
        CHECK(strstr(ek_err_message(), "token 2 at position 12") != NULL);
        CHECK(ek_sampler_next(s, EK_F32, nan_first, 0, &id) == EK_ENONFINITE);
        CHECK(ek_sampler_next(s, EK_F64, inf, 0, &id) == EK_ENONFINITE);
        CHECK(ek_sampler_next(s, EK_F64, none, 0, &id) == EK_ENONFINITE);
        CHECK(ek_sampler_next(s, EK_BF16, none, 0, &id) == EK_EINVAL);
        CHECK_INT(id, -7);
        ek_sampler_destroy(&s);
    }
}

static void wrong_settings(void)
{
    static const struct {
        ek_sampler_config cfg;
        int64_t vocab;
        const char *names;
    } wrong[] = {
        {{-0.1, 1, 0, 0, 0, 0}, 5, "temperature"},
        {{(double)NAN, 1, 0, 0, 0, 0}, 5, "temperature"},
        {{INFINITY, 1, 0, 0, 0, 0}, 5, "temperature"},
        {{1, -0.1, 0, 0, 0, 0}, 5, "top-p"},
        {{1, 1.1, 0, 0, 0, 0}, 5, "top-p"},
        {{1, (double)NAN, 0, 0, 0, 0}, 5, "top-p"},
        {{1, 1, -1, 0, 0, 0}, 5, "top-k"},
        {{1, 1, 0, 0, -0.1, 0}, 5, "min-p"},
        {{1, 1, 0, 0, 1.1, 0}, 5, "min-p"},
        {{1, 1, 0, 0, (double)NAN, 0}, 5, "min-p"},
        {{1, 1, 0, 0, 0, -1}, 5, "repetition-penalty"},
        {{1, 1, 0, 0, 0, INFINITY}, 5, "repetition-penalty"},
        {{1, 1, 0, 0, 0, (double)NAN}, 5, "repetition-penalty"},
        {{1, 1, 0, 0, 0, 0}, 0, "tokens"},
    };

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        ek_sampler *s = NULL;

        CHECK(ek_sampler_create(&wrong[i].cfg, wrong[i].vocab, &s) == EK_EINVAL);
        CHECK(s == NULL && strstr(ek_err_message(), wrong[i].names) != NULL);
    }
}

/* All settings together, in their order, against a literal implementation of the definition. */
static void filters_apply_in_order(void)
{
    enum { V = 131 };
    static const double top_p[] = {0.5, 0.9, 1}, min_p[] = {0, 0.04, 0.3, 1};
    static const double penalty[] = {1, 1.4, 0.8, 0};
    static const int64_t top_k[] = {0, 9, 50};
    int filtered = 0, moved = 0;

    for (int turn = 0; turn < 144; turn++) {
        ek_sampler_config cfg = {.temperature = 0.7 + 0.1 * (turn % 7),
                                 .top_p = top_p[turn % 3],
                                 .top_k = top_k[turn / 3 % 3],
                                 .seed = (uint64_t)turn,
                                 .min_p = min_p[turn / 9 % 4],
                                 .repetition_penalty = penalty[turn / 36]};
        double l[V], x[V], w[V], *order[V], all = 0, sum = 0, kept = 0, u;
        int64_t most = cfg.top_k > 0 ? cfg.top_k : V, n = 0;
        ek_sampler *s = NULL;
        int32_t want = -1, got = -1;

        CHECK(ek_sampler_create(&cfg, V, &s) == EK_OK);
        for (int i = 0; i < V; i++) {
            l[i] = x[i] = round(8 * ek_random_normal(17, (uint64_t)turn, (uint64_t)i)) / 4;
            if (ek_random_bits(18, (uint64_t)turn, (uint64_t)i) % 3 == 0) {
                ek_sampler_count(s, i);
                if (cfg.repetition_penalty != 0)
                    x[i] = x[i] < 0 ? x[i] * cfg.repetition_penalty : x[i] / cfg.repetition_penalty;
                moved += x[i] != l[i];
            }
            order[i] = &x[i];
        }
        ek_sampler_count(s, -1);
        ek_sampler_count(s, V);
        qsort(order, V, sizeof(*order), by_logit);
        for (int i = 0; i < V; i++)
            w[i] = exp((x[i] - *order[0]) / cfg.temperature);
        for (int64_t i = 0; i < most; i++)
            all += w[order[i] - x];
        while (n < most && (n == 0 || cfg.top_p == 1 || sum < cfg.top_p * all))
            sum += w[order[n++] - x];
        for (int64_t i = n; i < V; i++)
            w[order[i] - x] = 0;
        for (int i = 0; i < V; i++) {
            filtered += w[i] > 0 && w[i] < cfg.min_p;
            if (w[i] < cfg.min_p)
                w[i] = 0;
            kept += w[i];
        }
        u = ek_random_uniform((uint64_t)turn, ek_random_stream("sample"), 5) * kept;
        for (double run = 0; run <= u;)
            run += w[++want];
        CHECK(ek_sampler_next(s, EK_F64, l, 5, &got) == EK_OK);
        CHECK_INT(got, want);
        ek_sampler_destroy(&s);
    }
    CHECK(filtered > 100 && moved > 100);
}

/* The penalty also applies when the largest logit is taken. */
static void a_penalty_changes_the_likeliest_token(void)
{
    ek_sampler_config cfg = {.top_p = 1, .repetition_penalty = 2};
    const double l[4] = {3, 2, 1, -1}, negative[4] = {-1, -1.5, -2.5, -9};
    const double minus = -INFINITY, none[4] = {minus, minus, 1, minus};
    ek_sampler *s = NULL;

    CHECK(ek_sampler_create(&cfg, 4, &s) == EK_OK);
    CHECK_INT(next(s, l, 0), 0);
    ek_sampler_count(s, 0);
    CHECK_INT(next(s, l, 0), 1);
    CHECK_INT(next(s, negative, 0), 1);
    ek_sampler_count(s, 1);
    CHECK_INT(next(s, l, 0), 0);
    CHECK_INT(next(s, negative, 0), 0);
    ek_sampler_count(s, 3);
    CHECK_INT(next(s, none, 0), 2); /* minus infinity stays */
    ek_sampler_destroy(&s);
}

static const ek_case cases[] = {
    EK_CASE(plain),
    EK_CASE(temperature),
    EK_CASE(nucleus),
    EK_CASE(largest_k),
    EK_CASE(ties),
    EK_CASE(greedy),
    EK_CASE(extremes),
    EK_CASE(vocabulary_is_cut),
    EK_CASE(seed_decides),
    EK_CASE(as_defined),
    EK_CASE(not_finite),
    EK_CASE(wrong_settings),
    EK_CASE(filters_apply_in_order),
    EK_CASE(a_penalty_changes_the_likeliest_token),
};
EK_TEST_MAIN(cases)
