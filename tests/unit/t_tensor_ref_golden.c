/* The reference kernels against hand-made values and short formulas, cached attention against
 * attention over the whole sequence, and the float and bf16 kernels against double. */
#include "base/random.h"
#include "ek_test.h"
#include "tensor/kernels.h"
#include "tensor/ref/ref.h"

#include <omp.h>

static ek_kernels table(ek_mode mode)
{
    ek_kernels k = {.threads = omp_get_max_threads()};

    ek_kernels_ref(&k, mode);
    return k;
}

static int near(double got, double want)
{
    return fabs(got - want) <= 1e-13 * (1 + fabs(want));
}

/* No entry is missing; name and types are right. */
static void complete(void)
{
    static const char *const name[] = {"ref fp64", "ref fp32", "ref bf16"};
    static const ek_dtype real[] = {EK_F64, EK_F32, EK_F32}, comp[] = {EK_F64, EK_F32, EK_BF16};

    for (int mode = EK_MODE_FP64; mode <= EK_MODE_BF16; mode++) {
        ek_kernels k = {.threads = 3};
        size_t first = offsetof(ek_kernels, packed_bytes);
        void *entry;

        ek_kernels_ref(&k, (ek_mode)mode);
        CHECK(strcmp(k.name, name[mode]) == 0);
        CHECK(k.real == real[mode] && k.comp == comp[mode]);
        CHECK(k.threads == 3 && k.state == NULL);
        for (size_t at = first; at < sizeof(k); at += sizeof(entry)) {
            memcpy(&entry, (char *)&k + at, sizeof(entry));
            CHECK(entry != NULL || at == offsetof(ek_kernels, repack)); /* one form: none */
        }
        CHECK_INT(k.packed_bytes(&k, 3, 5, EK_PACKED_BACKWARD), mode == EK_MODE_BF16 ? 30 : 0);
    }
}

static void softmax_topk_ties(void)
{
    enum { N = 4, E = 5, TOP = 3 };
    static const int32_t want[N][TOP] = {{1, 3, 0}, {0, 1, 2}, {4, 2, 0}, {0, 1, 2}};
    ek_kernels k = table(EK_MODE_FP64);
    double x[N][E] = {{log(2), log(3), 0, log(3), log(2)},
                      {-7, -7, -7, -7, -7},
                      {0, -1000, 500, -1000, 1000},
                      {NAN, 0, 1, 2, 3}};
    double probs[N][E], lse[N];
    int32_t ids[N][TOP];

    k.softmax_topk(N, E, TOP, x, probs, ids[0], lse);
    for (int i = 0; i < N; i++) {
        for (int j = 0; j < TOP; j++)
            CHECK_INT(ids[i][j], want[i][j]);
    }
    CHECK(near(probs[0][0], 2.0 / 11) && near(probs[0][1], 3.0 / 11));
    CHECK(near(probs[0][2], 1.0 / 11) && near(lse[0], log(11)));
    CHECK(near(probs[1][4], 0.2) && near(lse[1], -7 + log(5)));
    CHECK(probs[2][4] == 1 && near(lse[2], 1000));
    /* In place, and without the lse. */
    k.softmax_topk(3, E, TOP, x, x, ids[0], NULL);
    for (int c = 0; c < 3 * E; c++)
        CHECK(x[c / E][c % E] == probs[c / E][c % E]);
    CHECK_INT(ids[2][0], 4);
}

static void cross_entropy_values(void)
{
    enum { N = 3, V = 3, LD = 4 };
    static const int32_t target[N] = {2, -1, 0};
    ek_kernels k = table(EK_MODE_FP64);
    double x[N][LD] = {{log(2), log(5), log(3), 9}, {1, 2, 3, 9}, {-2000, 0, -2000, 9}};
    double loss[N], d[N][LD] = {{7, 7, 7, 7}, {7, 7, 7, 7}, {7, 7, 7, 7}};

    k.cross_entropy(N, V, x, LD, target, 0.5, loss, d, LD);
    CHECK(near(loss[0], log(10.0 / 3)) && loss[1] == 0 && near(loss[2], 2000));
    CHECK(near(d[0][0], 0.1) && near(d[0][1], 0.25) && near(d[0][2], -0.35));
    CHECK(d[1][0] == 0 && d[1][1] == 0 && d[1][2] == 0);
    CHECK(near(d[2][0], -0.5) && near(d[2][1], 0.5));
    CHECK(d[0][3] == 7 && d[1][3] == 7 && d[2][3] == 7);
}

/* Four steps against AdamW as its authors write it. */
static void adamw_formula(void)
{
    enum { N = 37, STEPS = 4 };
    ek_kernels k = table(EK_MODE_FP64);
    double p[N], g[N], m[N] = {0}, v[N] = {0}, wp[N], wm[N] = {0}, wv[N] = {0};
    const double lr = 0.01, decay = 0.1, beta1 = 0.9, beta2 = 0.95, eps = 1e-3, clip = 0.25;

    for (int i = 0; i < N; i++)
        wp[i] = p[i] = cos(i);
    for (int t = 1; t <= STEPS; t++) {
        ek_adamw h = {lr, decay, beta1, beta2, eps, 1 - pow(beta1, t), 1 - pow(beta2, t), clip};

        for (int i = 0; i < N; i++) {
            double d = sin(3 * i + t);

            g[i] = d;
            d *= clip;
            wp[i] *= 1 - lr * decay;
            wm[i] = beta1 * wm[i] + (1 - beta1) * d;
            wv[i] = beta2 * wv[i] + (1 - beta2) * d * d;
            wp[i] -= lr * (wm[i] / (1 - pow(beta1, t))) / (sqrt(wv[i] / (1 - pow(beta2, t))) + eps);
        }
        k.adamw(&h, N, p, g, m, v);
        for (int i = 0; i < N; i++)
            CHECK(near(p[i], wp[i]) && near(m[i], wm[i]) && near(v[i], wv[i]) && g[i] == 0);
    }
}

static void sum_squares_sizes(void)
{
    enum { N = 20011 };
    static float g[N];
    ek_kernels k = table(EK_MODE_FP32);
    double want = 0;

    CHECK(k.sum_squares(0, g) == 0);
    for (int64_t i = 0; i < N; i++) {
        g[i] = (float)(i % 17 - 8); /* squares are whole numbers: the sum is exact */
        want += (double)g[i] * (double)g[i];
        if (i == 0 || i == 62 || i == 63 || i == 64 || i == 999 || i == N - 1)
            CHECK(k.sum_squares(i + 1, g) == want);
    }
}

static void fill(double *x, int64_t n, uint64_t stream)
{
    for (int64_t i = 0; i < n; i++) {
        double u = 2 * ek_random_uniform(5, stream, (uint64_t)i) - 1;

        x[i] = (double)ek_bf16_to_float(ek_bf16_from_float((float)u)); /* exact in every mode */
    }
}

/* Seven tokens, then one, then four, with a cache, against all twelve at once. */
static void attention_cached_equals(void)
{
    enum { SEQ = 12, HEADS = 6, KV = 2, DIM = 5, LD = (HEADS + 2 * KV) * DIM + 3, ROOM = 1024 };
    static const int64_t chunk[] = {7, 1, 4};
    static double qkv[SEQ * LD], o[SEQ * HEADS * DIM], cached[SEQ * HEADS * DIM];
    static double keys[SEQ * KV * DIM], values[SEQ * KV * DIM], lse[HEADS * SEQ], ws[ROOM];
    ek_kernels k = table(EK_MODE_FP64);
    ek_attention a = {1, SEQ, HEADS, KV, DIM, LD, 1.5, NULL};
    int64_t pos = 0;

    fill(qkv, SEQ * LD, 1);
    CHECK(k.attention_workspace(&k, &a) <= sizeof(ws));
    k.attention_forward(&a, qkv, o, lse, ws);
    for (int i = 0; i < 3; i++) {
        for (int64_t t = pos; t < pos + chunk[i]; t++) {
            memcpy(keys + t * KV * DIM, qkv + t * LD + HEADS * DIM, KV * DIM * sizeof(double));
            memcpy(values + t * KV * DIM, qkv + t * LD + (HEADS + KV) * DIM,
                   KV * DIM * sizeof(double));
        }
        k.attention_cached(&a, chunk[i], pos, qkv + pos * LD, keys, values,
                           cached + pos * HEADS * DIM, ws);
        pos += chunk[i];
    }
    for (int64_t i = 0; i < SEQ * HEADS * DIM; i++)
        CHECK(near(cached[i], o[i]));
    /* Token 1 of head 4 (key head 1) by hand. */
    {
        const double *q = qkv + LD + 4 * DIM, *key = qkv + 7 * DIM, *value = key + KV * DIM;
        double s[2] = {0, 0};

        for (int c = 0; c < DIM; c++) {
            s[0] += 1.5 * q[c] * key[c];
            s[1] += 1.5 * q[c] * key[LD + c];
        }
        CHECK(near(lse[4 * SEQ + 1], log(exp(s[0]) + exp(s[1]))));
        for (int c = 0; c < DIM; c++)
            CHECK(
                near(o[(HEADS + 4) * DIM + c],
                     (exp(s[0]) * value[c] + exp(s[1]) * value[LD + c]) / (exp(s[0]) + exp(s[1]))));
    }
}

/* --- the modes against each other ------------------------------------------------------------- */

/* Sizes that no vector length divides. */
enum { N = 23, D = 70, F = 45, V = 131, HEADS = 3, KV = 1, DIM = 14, QKV = 5 * DIM, BUFFERS = 64 };
enum { BYTES = 1 << 20 };

/* One mode's buffers, freed together, and the results of its kernels. */
typedef struct {
    ek_kernels k;
    void *buffer[BUFFERS];
    int n;
} modes;

static void *alloc_checked(modes *m, int64_t elements)
{
    void *p = calloc((size_t)elements, sizeof(double));

    if (p == NULL || m->n == BUFFERS)
        abort();
    m->buffer[m->n++] = p;
    return p;
}

/* Random elements of type t, the same in every mode. */
static void *draw(modes *m, ek_dtype t, int64_t n, uint64_t stream)
{
    void *p = alloc_checked(m, n);
    double *x = alloc_checked(m, n);

    fill(x, n, stream);
    for (int64_t i = 0; i < n; i++) {
        if (t == EK_F64)
            ((double *)p)[i] = x[i];
        else if (t == EK_F32)
            ((float *)p)[i] = (float)x[i];
        else
            ((ek_bf16 *)p)[i] = ek_bf16_from_float((float)x[i]);
    }
    return p;
}

/* Results of the oracle and of the mode under test, as floats. */
static float *Got, *Want;
static int64_t At;

/* Records a result of n elements: the first run stores it, the second compares. */
static void note(const modes *m, const char *what, ek_dtype t, const void *p, int64_t n)
{
    float *to = (m->k.real == EK_F64 ? Want : Got) + At;
    /* bf16 results carry one rounding (2^-9 at most); attention's gradient reads a rounded o. */
    double allowed = t == EK_BF16 ? 6e-6 : 1e-12;

    for (int64_t i = 0; i < n; i++)
        to[i] = t == EK_F64   ? (float)((const double *)p)[i]
                : t == EK_F32 ? ((const float *)p)[i]
                              : ek_bf16_to_float(((const ek_bf16 *)p)[i]);
    if (m->k.real != EK_F64 && !(ek_nmse(to, Want + At, (size_t)n) <= allowed))
        EK_T_FAIL("%s in %s: nmse %.3g, allowed %.3g", what, m->k.name,
                  ek_nmse(to, Want + At, (size_t)n), allowed);
    At += n;
    if (At > BYTES / (int64_t)sizeof(float))
        abort();
}

static void run_matrix(modes *m)
{
    const ek_kernels *k = &m->k;
    ek_dtype r = k->real, c = k->comp;
    void *x = draw(m, c, N * D, 1), *dy = draw(m, c, N * F, 2), *master = draw(m, r, F * D, 3);
    void *packed = alloc_checked(m, F * D), *y = alloc_checked(m, N * F),
         *dx = alloc_checked(m, N * D);
    void *dw = draw(m, r, F * D, 4), *yr = draw(m, r, N * F, 5);
    ek_group g = {0, N, c == r ? master : packed, dw};

    CHECK_INT(k->pack(k, F, D, EK_PACKED_FORWARD, master, packed), EK_OK);
    CHECK_INT(k->linear_forward(k, &g, 1, F, D, x, D, y, F, EK_OUT_COMP, NULL), EK_OK);
    note(m, "linear y", c, y, N * F);
    CHECK_INT(k->linear_forward(k, &g, 1, F, D, x, D, yr, F, EK_OUT_ADD, NULL), EK_OK);
    note(m, "linear y +=", r, yr, N * F);
    CHECK_INT(k->linear_backward_input(k, &g, 1, F, D, dy, F, dx, D, EK_OUT_COMP, NULL), EK_OK);
    note(m, "linear dx", c, dx, N * D);
    CHECK_INT(k->linear_backward_weight(k, &g, 1, F, D, dy, F, x, D, NULL), EK_OK);
    note(m, "linear dw", r, dw, F * D);
    k->matmul_real(0, 1, N, F, D, draw(m, r, N * D, 6), D, master, D, 0, yr, F);
    note(m, "matmul", r, yr, N * F);
}

static void run_rows(modes *m)
{
    const ek_kernels *k = &m->k;
    ek_dtype r = k->real, c = k->comp;
    void *x = draw(m, r, N * D, 11), *xc = draw(m, c, N * D, 12), *w = draw(m, r, D, 13);
    void *y = alloc_checked(m, N * D), *rstd = alloc_checked(m, N * D), *dw = alloc_checked(m, D),
         *raw = alloc_checked(m, N * D);
    int32_t idx[2 * N];

    for (int i = 0; i < 2 * N; i++)
        idx[i] = i % 5 == 0 ? -1 : i * 7 % N;
    k->gather_comp(N, D, idx, xc, D, y, D);
    note(m, "gather_comp", c, y, N * D);
    k->gather_real(N, D, idx, x, D, y, D);
    note(m, "gather_real", c, y, N * D);
    k->combine(N, D, 2, idx, xc, D, 1, x);
    note(m, "combine", r, x, N * D);
    k->to_comp(N, D, x, y);
    note(m, "to_comp", c, y, N * D);
    k->bias_forward(N, D, w, y, D);
    note(m, "bias", c, y, N * D);
    k->bias_backward(N, D, xc, D, dw);
    note(m, "bias db", r, dw, D);
    k->rmsnorm_forward(N, D, 1e-5, x, w, y, NULL, rstd);
    note(m, "rmsnorm", c, y, N * D);
    k->rmsnorm_backward(N, D, x, w, rstd, draw(m, r, N * D, 14), x, dw, NULL);
    note(m, "rmsnorm dx", r, x, N * D);
    note(m, "rmsnorm dw", r, dw, D);
    k->headnorm_forward(N, HEADS, DIM, 1e-5, w, xc, D, raw, rstd);
    note(m, "headnorm", c, xc, N * D);
    y = draw(m, c, N * D, 15);
    k->headnorm_backward(N, HEADS, DIM, w, raw, rstd, y, D, dw, NULL);
    note(m, "headnorm dx", c, y, N * D);
    note(m, "headnorm dw", r, dw, D);
}

static void run_attention(modes *m)
{
    const ek_kernels *k = &m->k;
    ek_dtype r = k->real, c = k->comp;
    ek_attention a = {1, N, HEADS, KV, DIM, QKV, 0.8, NULL};
    void *qkv = draw(m, c, N * QKV, 21), *o = alloc_checked(m, N * HEADS * DIM),
         *lse = alloc_checked(m, HEADS * N);
    void *d = alloc_checked(m, N * QKV);
    void *ws = alloc_checked(m, (int64_t)(k->attention_workspace(k, &a) / sizeof(float)) + 1);

    k->attention_forward(&a, qkv, o, lse, ws);
    note(m, "attention o", c, o, N * HEADS * DIM);
    note(m, "attention lse", r, lse, HEADS * N);
    k->attention_backward(&a, qkv, o, lse, draw(m, c, N * HEADS * DIM, 22), d, ws);
    note(m, "attention dqkv", c, d, N * QKV);
    k->rope(N, N, 0, HEADS, DIM, draw(m, r, N * DIM, 23), 0, qkv, QKV);
    note(m, "rope", c, qkv, N * QKV);
}

static void run_expert(modes *m)
{
    const ek_kernels *k = &m->k;
    ek_dtype r = k->real, c = k->comp;
    void *x = draw(m, r, N * V, 31), *d = alloc_checked(m, N * V), *lse = alloc_checked(m, N);
    void *gu = draw(m, c, N * 2 * F, 32), *scale = draw(m, r, N, 33), *h = alloc_checked(m, N * F);
    double loss[N];
    int32_t ids[3 * N], target[N];
    ek_adamw w = {0.01, 0.1, 0.9, 0.95, 1e-8, 0.1, 0.05, 0.5};

    for (int i = 0; i < N; i++)
        target[i] = i * 31 % V;
    k->cross_entropy(N, V, x, V, target, 0.25, loss, d, V);
    note(m, "cross entropy", EK_F64, loss, N);
    note(m, "cross entropy dlogits", c, d, N * V);
    k->swiglu_forward(N, F, gu, scale, h);
    note(m, "swiglu", c, h, N * F);
    k->swiglu_backward(N, F, gu, scale, draw(m, c, N * F, 34), gu, h, lse);
    note(m, "swiglu dgu", c, gu, N * 2 * F);
    note(m, "swiglu h", c, h, N * F);
    note(m, "swiglu dscale", r, lse, N);
    x = draw(m, r, N * V, 31);
    k->softmax_topk(N, V, 3, x, d, ids, lse);
    note(m, "softmax", r, d, N * V);
    note(m, "softmax lse", r, lse, N);
    k->adamw(&w, N * V, x, draw(m, r, N * V, 35), alloc_checked(m, N * V), alloc_checked(m, N * V));
    note(m, "adamw", r, x, N * V);
}

static void run_mode(ek_mode mode)
{
    modes m = {.k = table(mode)};

    At = 0;
    run_matrix(&m);
    run_rows(&m);
    run_attention(&m);
    run_expert(&m);
    for (int i = 0; i < m.n; i++)
        free(m.buffer[i]);
}

static void modes_agree(void)
{
    Got = malloc(BYTES);
    Want = malloc(BYTES);
    if (Got == NULL || Want == NULL)
        abort();
    run_mode(EK_MODE_FP64);
    run_mode(EK_MODE_FP32);
    run_mode(EK_MODE_BF16);
    free(Got);
    free(Want);
}

/* The bits do not depend on the number of threads. */
static void threads_same_bits(void)
{
    enum { ROWS = 61, IN = 300, OUT = 70 };
    int threads = omp_get_max_threads();
    static double y[2][ROWS * OUT], dx[2][ROWS * IN], dw[2][OUT * IN], x[ROWS * IN], w[OUT * IN];
    ek_kernels k = table(EK_MODE_FP64);

    fill(x, ROWS * IN, 41);
    fill(w, OUT * IN, 42);
    for (int i = 0; i < 2; i++) {
        ek_group g = {0, ROWS, w, dw[i]};

        omp_set_num_threads(i == 0 ? 1 : 3);
        CHECK_INT(k.linear_forward(&k, &g, 1, OUT, IN, x, IN, y[i], OUT, EK_OUT_REAL, NULL), EK_OK);
        CHECK_INT(
            k.linear_backward_input(&k, &g, 1, OUT, IN, y[i], OUT, dx[i], IN, EK_OUT_REAL, NULL),
            EK_OK);
        CHECK_INT(k.linear_backward_weight(&k, &g, 1, OUT, IN, y[i], OUT, x, IN, NULL), EK_OK);
    }
    omp_set_num_threads(threads);
    CHECK(memcmp(y[0], y[1], sizeof(y[0])) == 0);
    CHECK(memcmp(dx[0], dx[1], sizeof(dx[0])) == 0);
    CHECK(memcmp(dw[0], dw[1], sizeof(dw[0])) == 0);
}

static const ek_case Cases[] = {
    EK_CASE(complete),      EK_CASE(softmax_topk_ties), EK_CASE(cross_entropy_values),
    EK_CASE(adamw_formula), EK_CASE(sum_squares_sizes), EK_CASE(attention_cached_equals),
    EK_CASE(modes_agree),   EK_CASE(threads_same_bits)};

EK_TEST_MAIN(Cases)
