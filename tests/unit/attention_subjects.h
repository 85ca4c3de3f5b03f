/* Test subjects for attention, rope and head norms: comparison with the reference kernels in the
 * same mode, and (for attention) in fp64 on the same stored inputs.  A test includes this once and
 * defines its bodies. */
#ifndef UNIT_ATTENTION_SUBJECTS_H
#define UNIT_ATTENTION_SUBJECTS_H

#include "base/random.h"
#include "ek_test.h"
#include "tensor/kernels.h"
#include "tensor/ref/ref.h"

#include <stdbool.h>

/* Tolerances, as normalised mean square errors.  fp32: some units of 2^-24 squared, times the
 * length of sums.  bf16: a result rounded to 8 bits has 1.3e-6, scores rounded as well add about
 * 5e-6.  steep: scores of some thousands, so that one unit of fp32 in a score is 1e-4 in p; and
 * with p near 1, dp - delta cancels down to the rounding of a bf16 o. */
static const double tol_fp32 = 1e-11, tol_bf16 = 2e-5;
static const double tol_steep_fp32 = 1e-6, tol_steep_bf16 = 1e-3;

/* One compiled body. */
typedef struct {
    const char *name;
    ek_mode mode;
    ek_isa isa; /* required */
    void (*fill)(ek_kernels *k);
    void (*fill_rope)(ek_kernels *k);
} body;

/* Defined by the test: memory that its kernels can use, aligned to 64 bytes. */
static void *alloc_array(size_t bytes);
static void free_array(void *p);

/* Defined by the test: its bodies by index, NULL after the last one that runs here; a change before
 * repetition 1 or 2 that must not change the bits, such as the number of threads; whether it is
 * slow. */
static const body *body_at(int i);
static void begin_repetition(int repetition);
static int slow(void);

static double tol(const body *b)
{
    return b->mode == EK_MODE_FP32 ? tol_fp32 : tol_bf16;
}

static void *must(void *p)
{
    if (p == NULL)
        exit(1);
    return p;
}

static ek_kernels reference(ek_mode mode, int threads)
{
    ek_kernels k = {0};

    ek_kernels_ref(&k, mode);
    k.threads = threads;
    return k;
}

/* begin_repetition(threads) goes with it. */
static ek_kernels fast(const body *b, int threads)
{
    ek_kernels k = reference(b->mode, threads);

    b->fill(&k);
    b->fill_rope(&k);
    return k;
}

/* --- arrays of any mode ----------------------------------------------------------------------- */

static size_t comp_size(ek_mode mode)
{
    return mode == EK_MODE_FP64 ? 8 : mode == EK_MODE_FP32 ? 4 : 2;
}

static size_t real_size(ek_mode mode)
{
    return mode == EK_MODE_FP64 ? 8 : 4;
}

/* x as C of a mode, in new memory. */
static void *to_comp(ek_mode mode, const float *x, size_t n)
{
    void *y = must(alloc_array(n * comp_size(mode) + 1));

    for (size_t i = 0; i < n; i++) {
        if (mode == EK_MODE_FP64)
            ((double *)y)[i] = (double)x[i];
        else if (mode == EK_MODE_FP32)
            ((float *)y)[i] = x[i];
        else
            ((ek_bf16 *)y)[i] = ek_bf16_from_float(x[i]);
    }
    return y;
}

static float *to_float(ek_mode mode, const void *x, size_t n)
{
    float *y = must(alloc_array(n * sizeof(float) + 1));

    for (size_t i = 0; i < n; i++)
        y[i] = mode == EK_MODE_FP64   ? (float)((const double *)x)[i]
               : mode == EK_MODE_FP32 ? ((const float *)x)[i]
                                      : ek_bf16_to_float(((const ek_bf16 *)x)[i]);
    return y;
}

static float *reals(ek_mode mode, const void *x, size_t n)
{
    return to_float(mode == EK_MODE_FP64 ? EK_MODE_FP64 : EK_MODE_FP32, x, n);
}

/* Normally distributed values representable in bf16, so that every mode has the same inputs. */
static float *numbers(uint64_t seed, size_t n, double size)
{
    float *x = must(alloc_array(n * sizeof(float) + 1));

    for (size_t i = 0; i < n; i++)
        x[i] = ek_bf16_to_float(ek_bf16_from_float((float)(size * ek_random_normal(seed, 1, i))));
    return x;
}

static void compare(const char *what, const char *name, const ek_attention *a, const float *got,
                    const float *want, size_t n, double allowed)
{
    double e = ek_nmse(got, want, n);

    if (!(e <= allowed))
        EK_T_FAIL("%s, %s: nmse %.3g, allowed %.3g (batch %d seq %d heads %d/%d head_dim %d)", name,
                  what, e, allowed, (int)a->batch, (int)a->seq, (int)a->heads, (int)a->kv_heads,
                  (int)a->head_dim);
}

/* --- attention -------------------------------------------------------------------------------- */

/* All results of attention in one mode, as floats. */
typedef struct {
    float *o, *lse, *grad;
} results;

static void results_free(results *r)
{
    free_array(r->o);
    free_array(r->lse);
    free_array(r->grad);
}

enum { CANARY = 64 };

static const unsigned char canary[CANARY] = {0x5a, 0xa5, 0x11, 0xee};

/* Forward and backward; d_o is the gradient of o.  The workspace has exactly the required size. */
static results attend(const ek_kernels *k, ek_mode mode, const ek_attention *a, const float *qkv,
                      const float *d_o)
{
    size_t rows = (size_t)(a->batch * a->seq), in = rows * (size_t)a->ld;
    size_t out = rows * (size_t)(a->heads * a->head_dim), n_lse = rows * (size_t)a->heads;
    size_t bytes = k->attention_workspace(k, a);
    void *x = to_comp(mode, qkv, in), *g = to_comp(mode, d_o, out), *dx = to_comp(mode, qkv, in);
    void *o = must(alloc_array(out * comp_size(mode))),
         *lse = must(alloc_array(n_lse * real_size(mode)));
    unsigned char *ws = must(alloc_array(bytes + CANARY));
    results r;

    memset(ws, 0xff, bytes); /* NaN */
    memcpy(ws + bytes, canary, CANARY);
    k->attention_forward(a, x, o, lse, ws);
    k->attention_backward(a, x, o, lse, g, dx, ws);
    CHECK(memcmp(ws + bytes, canary, CANARY) == 0);
    r.o = to_float(mode, o, out);
    r.lse = reals(mode, lse, n_lse);
    r.grad = to_float(mode, dx, in);
    free_array(x);
    free_array(g);
    free_array(dx);
    free_array(o);
    free_array(lse);
    free_array(ws);
    return r;
}

static ek_attention shape(int64_t batch, int64_t seq, int64_t heads, int64_t kv_heads,
                          int64_t head_dim, int64_t more)
{
    ek_attention a = {
        .batch = batch, .seq = seq, .heads = heads, .kv_heads = kv_heads, .head_dim = head_dim};

    a.ld = (heads + 2 * kv_heads) * head_dim + more;
    a.scale = 1 / sqrt((double)head_dim);
    return a;
}

/* Every body on one shape, against the reference in its mode and in fp64. */
static void match_inputs(const ek_attention *a, const float *qkv, const float *d_o,
                         double allow_fp32, double allow_bf16)
{
    size_t rows = (size_t)(a->batch * a->seq), in = rows * (size_t)a->ld;
    size_t out = rows * (size_t)(a->heads * a->head_dim), n_lse = rows * (size_t)a->heads;
    ek_kernels exact = reference(EK_MODE_FP64, 1);
    results want = attend(&exact, EK_MODE_FP64, a, qkv, d_o);

    for (int i = 0; body_at(i) != NULL; i++) {
        const body *b = body_at(i);
        double allowed = b->mode == EK_MODE_FP32 ? allow_fp32 : allow_bf16;
        ek_kernels ref = reference(b->mode, 1), k;
        results plain, got;

        k = fast(b, 1);
        plain = attend(&ref, b->mode, a, qkv, d_o);
        got = attend(&k, b->mode, a, qkv, d_o);
        compare("o", b->name, a, got.o, plain.o, out, allowed);
        compare("lse", b->name, a, got.lse, plain.lse, n_lse, tol_fp32);
        compare("dqkv", b->name, a, got.grad, plain.grad, in, allowed);
        compare("o, fp64", b->name, a, got.o, want.o, out, allowed);
        compare("lse, fp64", b->name, a, got.lse, want.lse, n_lse, tol_fp32);
        compare("dqkv, fp64", b->name, a, got.grad, want.grad, in, allowed);
        results_free(&plain);
        results_free(&got);
    }
    results_free(&want);
}

static void match(const ek_attention *a, double size, double allow_fp32, double allow_bf16)
{
    size_t rows = (size_t)(a->batch * a->seq);
    float *qkv = numbers(7, rows * (size_t)a->ld, size);
    float *d_o = numbers(8, rows * (size_t)(a->heads * a->head_dim), 1);

    match_inputs(a, qkv, d_o, allow_fp32, allow_bf16);
    free_array(qkv);
    free_array(d_o);
}

static void forward_and_backward(void)
{
    static const int seqs[] = {1, 2, 17, 63, 64, 65, 200, 127, 128, 129, 255, 257, 390};
    static const int dims[] = {8, 16, 20, 64, 80, 128, 7};
    const int n_seqs = slow() ? 7 : 13;
    static const int heads[][2] = {{1, 1}, {4, 2}, {3, 1}, {6, 2}, {2, 2}};

    if (body_at(0) == NULL)
        SKIP("no body runs here");
    begin_repetition(1);
    for (int i = 0; i < n_seqs; i++) {
        for (int j = slow() ? 2 : 0; j < 3; j++) {
            int which = (i + 2 * j) % 7;
            ek_attention a = shape(1 + (i + j) % 2, seqs[i], heads[(i + j) % 5][0],
                                   heads[(i + j) % 5][1], dims[which], 5 * (j % 2));

            match(&a, 1, tol_fp32, tol_bf16);
        }
    }
}

/* --- documents -------------------------------------------------------------------------------- */

/* Document starts of `batch` sequences, in memory that kernels read; lengths are random, 1 to
 * `longest`. */
static int32_t *draw_starts(uint64_t seed, int64_t batch, int64_t seq, int64_t longest)
{
    int32_t *starts = must(alloc_array((size_t)(batch * seq) * sizeof(*starts)));

    for (int64_t b = 0; b < batch; b++) {
        int64_t first = 0, end = 0;

        for (int64_t t = 0; t < seq; t++) {
            if (t == end) {
                first = t;
                end += 1 + (int64_t)(ek_random_bits(seed, (uint64_t)b, (uint64_t)t) >> 9) % longest;
            }
            starts[b * seq + t] = (int32_t)first;
        }
    }
    return starts;
}

/* Random boundaries, documents of one token, long ones, and one for the whole sequence. */
static void documents(void)
{
    static const struct {
        int batch, seq, heads, kv, dim, more, longest;
    } shapes[] = {
        {2, 200, 2, 1, 16, 5, 9},   {1, 65, 3, 1, 20, 0, 1},     {2, 130, 4, 2, 64, 0, 40},
        {1, 257, 2, 2, 7, 3, 150},  {3, 63, 1, 1, 80, 0, 100},   {1, 1, 2, 1, 8, 0, 1},
        {2, 128, 2, 1, 128, 8, 64}, {1, 300, 2, 1, 64, 0, 1000},
    };

    if (body_at(0) == NULL)
        SKIP("no body runs here");
    begin_repetition(1);
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        int seq = slow() && shapes[i].seq > 140 ? 140 : shapes[i].seq;
        ek_attention a = shape(shapes[i].batch, seq, shapes[i].heads, shapes[i].kv, shapes[i].dim,
                               shapes[i].more);
        int32_t *starts = draw_starts(31 + i, a.batch, a.seq, shapes[i].longest);

        a.starts = starts;
        match(&a, 1, tol_fp32, tol_bf16);
        free_array(starts);
    }
}

/* Boundaries just before, at and after the block edges of any body. */
static void documents_at_the_edges_of_blocks(void)
{
    static const int edges[] = {15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257};

    if (body_at(0) == NULL)
        SKIP("no body runs here");
    begin_repetition(1);
    for (int i = 0; i < (slow() ? 12 : 15); i++) {
        int seq = slow() || edges[i] > 130 ? edges[i] + 20 : 150;
        ek_attention a = shape(1, seq, 2, 1, 16, 0);
        int32_t *starts;

        if (slow() && i % 3 != 1)
            continue;
        starts = must(alloc_array((size_t)seq * sizeof(*starts)));
        for (int t = 0; t < seq; t++)
            starts[t] = t >= edges[i] ? edges[i] : 0;
        a.starts = starts;
        match(&a, 1, tol_fp32, tol_bf16);
        match(&a, 24, tol_steep_fp32, tol_steep_bf16);
        free_array(starts);
    }
}

/* Boundaries that mask nothing change no bit. */
static void one_document_is_the_whole_sequence(void)
{
    ek_attention a = shape(2, slow() ? 70 : 150, 3, 1, 64, 0);
    size_t rows = (size_t)(a.batch * a.seq), in = rows * (size_t)a.ld, out = rows * 3 * 64;
    float *qkv = numbers(9, in, 1), *d_o = numbers(10, out, 1);
    int32_t *starts = must(alloc_array(rows * sizeof(*starts)));

    memset(starts, 0, rows * sizeof(*starts));
    if (body_at(0) == NULL)
        SKIP("no body runs here");
    begin_repetition(1);
    for (int i = 0; body_at(i) != NULL; i++) {
        ek_kernels k = fast(body_at(i), 1);
        results plain, masked;

        a.starts = NULL;
        plain = attend(&k, body_at(i)->mode, &a, qkv, d_o);
        a.starts = starts;
        masked = attend(&k, body_at(i)->mode, &a, qkv, d_o);
        CHECK(memcmp(plain.o, masked.o, out * sizeof(float)) == 0);
        CHECK(memcmp(plain.lse, masked.lse, rows * 3 * sizeof(float)) == 0);
        CHECK(memcmp(plain.grad, masked.grad, in * sizeof(float)) == 0);
        results_free(&plain);
        results_free(&masked);
    }
    free_array(starts);
    free_array(qkv);
    free_array(d_o);
}

/* Columns after k and v in a row of dqkv are not written. */
static void gradient_stays_in_its_columns(void)
{
    ek_attention a = shape(1, 70, 2, 1, 20, 9);
    int64_t width = (a.heads + 2 * a.kv_heads) * a.head_dim;
    float *qkv = numbers(3, (size_t)(a.seq * a.ld), 1), *d_o = numbers(4, 70 * 40, 1);

    if (body_at(0) == NULL)
        SKIP("no body runs here");
    for (int i = 0; body_at(i) != NULL; i++) {
        ek_kernels k;
        results r;
        int changed = 0;

        k = fast(body_at(i), 2);
        r = attend(&k, body_at(i)->mode, &a, qkv, d_o);
        for (int64_t t = 0; t < a.seq; t++) {
            for (int64_t c = width; c < a.ld; c++)
                changed += r.grad[t * a.ld + c] != qkv[t * a.ld + c];
        }
        CHECK_INT(changed, 0);
        results_free(&r);
    }
    free_array(qkv);
    free_array(d_o);
}

/* Scores of some thousands: nothing overflows, and nearly every p is 0 or 1. */
static void large_scores(void)
{
    ek_attention a = shape(1, 130, 2, 1, 64, 0);

    if (body_at(0) == NULL)
        SKIP("no body runs here");
    begin_repetition(1);
    match(&a, 24, tol_steep_fp32, tol_steep_bf16);
}

/* Scores that rise along the keys by `by` per key in every query, to base e: each step of an online
 * softmax finds larger ones, by less or by more than it tolerates, and a row's largest score is its
 * last or, falling, its first. */
static void match_rising(double by)
{
    ek_attention a = shape(1, slow() ? 100 : 700, 1, 1, 16, 0);
    size_t rows = (size_t)a.seq, in = rows * (size_t)a.ld;
    float *qkv = numbers(21, in, 0.5), *d_o = numbers(22, rows * 16, 1);

    for (size_t t = 0; t < rows; t++) {
        double key = by * (double)(by < 0 ? t : t / 4 * 4);

        qkv[t * (size_t)a.ld] = 4; /* the scale is 1/4 */
        qkv[t * (size_t)a.ld + 16] = ek_bf16_to_float(ek_bf16_from_float((float)key));
    }
    match_inputs(&a, qkv, d_o, tol_steep_fp32, tol_steep_bf16);
    free_array(qkv);
    free_array(d_o);
}

static void rising_scores(void)
{
    static const double by[] = {0.002, 0.01, 0.05, 0.1, -0.002, -0.1};

    if (body_at(0) == NULL)
        SKIP("no body runs here");
    begin_repetition(1);
    for (int i = 0; i < 6; i++)
        match_rising(by[i]);
}

/* A NaN in a key reaches exactly the queries from its position on. */
static void nan_at(int64_t seq, int64_t at)
{
    ek_attention a = shape(1, seq, 1, 1, 16, 0);
    float *qkv = numbers(5, (size_t)seq * 48, 1), *d_o = numbers(6, (size_t)seq * 16, 1);

    qkv[at * 48 + 16 + 3] = NAN;
    for (int i = 0; body_at(i) != NULL; i++) {
        ek_kernels k;
        results r;

        k = fast(body_at(i), 2);
        r = attend(&k, body_at(i)->mode, &a, qkv, d_o);
        for (int64_t t = 0; t < seq; t++) {
            CHECK(isnan(r.o[t * 16]) == (t >= at));
            CHECK(isnan(r.lse[t]) == (t >= at));
        }
        results_free(&r);
    }
    free_array(qkv);
    free_array(d_o);
}

static void nan_is_seen(void)
{
    if (body_at(0) == NULL)
        SKIP("no body runs here");
    nan_at(100, 70);
    if (!slow())
        nan_at(600, 301);
}

static void same_bits_each_repetition(void)
{
    ek_attention a = shape(slow() ? 1 : 4, slow() ? 100 : 250, 6, 3, 64, 0);
    size_t rows = (size_t)(a.batch * a.seq), in = rows * (size_t)a.ld, out = rows * 6 * 64;
    float *qkv = numbers(9, in, 1), *d_o = numbers(10, out, 1);

    if (body_at(0) == NULL)
        SKIP("no body runs here");
    for (int i = 0; body_at(i) != NULL; i++) {
        ek_kernels k;
        results one, two;

        begin_repetition(1);
        k = fast(body_at(i), 1);
        one = attend(&k, body_at(i)->mode, &a, qkv, d_o);
        begin_repetition(2);
        k = fast(body_at(i), 2);
        two = attend(&k, body_at(i)->mode, &a, qkv, d_o);
        CHECK(memcmp(one.o, two.o, out * sizeof(float)) == 0);
        CHECK(memcmp(one.lse, two.lse, rows * 6 * sizeof(float)) == 0);
        CHECK(memcmp(one.grad, two.grad, in * sizeof(float)) == 0);
        results_free(&one);
        results_free(&two);
    }
    begin_repetition(1);
    free_array(qkv);
    free_array(d_o);
}

/* --- with a cache ----------------------------------------------------------------------------- */

static float *attend_cached(const ek_kernels *k, ek_mode mode, const ek_attention *a, int64_t m,
                            int64_t pos0, const float *q, const float *keys, const float *values)
{
    size_t cache = (size_t)((pos0 + m) * a->kv_heads * a->head_dim);
    size_t out = (size_t)(m * a->heads * a->head_dim);
    void *x = to_comp(mode, q, (size_t)(m * a->ld)), *o = must(alloc_array(out * comp_size(mode)));
    void *kc = to_comp(mode, keys, cache), *vc = to_comp(mode, values, cache);
    size_t scores = (size_t)(k->threads * (pos0 + m)) * real_size(mode);
    size_t bytes = k->attention_workspace(k, a) > scores ? k->attention_workspace(k, a) : scores;
    unsigned char *ws = must(alloc_array(bytes + CANARY));
    float *got;

    memset(ws, 0xff, bytes); /* NaN */
    memcpy(ws + bytes, canary, CANARY);
    k->attention_cached(a, m, pos0, x, kc, vc, o, ws);
    CHECK(memcmp(ws + bytes, canary, CANARY) == 0);
    got = to_float(mode, o, out);
    free_array(x);
    free_array(o);
    free_array(kc);
    free_array(vc);
    free_array(ws);
    return got;
}

/* below: every score is some hundreds below zero. */
static void match_cached(const ek_attention *a, int64_t m, int64_t pos0, bool below)
{
    size_t cache = (size_t)((pos0 + m) * a->kv_heads * a->head_dim);
    size_t out = (size_t)(m * a->heads * a->head_dim);
    float *q = numbers(11, (size_t)(m * a->ld), 1);
    float *keys = numbers(12, cache, 1), *values = numbers(13, cache, 1);

    for (size_t i = 0; below && i < cache; i++)
        keys[i] = -8 * fabsf(keys[i]);
    for (size_t i = 0; below && i < (size_t)(m * a->ld); i++)
        q[i] = 8 * fabsf(q[i]);
    for (int i = 0; body_at(i) != NULL; i++) {
        const body *b = body_at(i);
        ek_kernels ref = reference(b->mode, 2), k;
        float *want, *one, *two;
        char what[64];

        snprintf(what, sizeof(what), "cached m %d pos0 %d", (int)m, (int)pos0);
        begin_repetition(2);
        k = fast(b, 2);
        want = attend_cached(&ref, b->mode, a, m, pos0, q, keys, values);
        two = attend_cached(&k, b->mode, a, m, pos0, q, keys, values);
        begin_repetition(1);
        one = attend_cached(&k, b->mode, a, m, pos0, q, keys, values);
        compare(what, b->name, a, two, want, out,
                below && b->mode == EK_MODE_FP32 ? tol_steep_fp32 : tol(b));
        CHECK(memcmp(one, two, out * sizeof(float)) == 0);
        free_array(want);
        free_array(one);
        free_array(two);
    }
    free_array(q);
    free_array(keys);
    free_array(values);
}

static void cached_tokens(void)
{
    static const int starts[] = {0, 5, 63, 64, 300};
    static const int counts[] = {1, 7, 40, 100, 129, 256};
    static const int dims[] = {64, 20, 128, 7, 256};

    if (body_at(0) == NULL)
        SKIP("no body runs here");
    for (int i = 0; i < 5; i++) {
        for (int j = 0; j < (slow() ? 4 : 6); j++) {
            int64_t kv = 1 + (i + j) % 2, per = 1 + (i + 2 * j) % 3;
            ek_attention a = shape(1, 1, kv * per, kv, dims[(i + j) % 5], 3 * (j % 2));

            if (slow() && (i + j) % 3 != 1)
                continue;
            match_cached(&a, counts[j], starts[i], false);
            match_cached(&a, counts[j], starts[i], true);
        }
    }
}

/* A token's output has the same bits whichever tokens are new with it, in chunks of `one` or `two`.
 */
static void match_chunks(const ek_attention *a, int64_t tokens, int64_t one, int64_t two)
{
    size_t width = (size_t)(a->kv_heads * a->head_dim), out = (size_t)(a->heads * a->head_dim);
    float *q = numbers(15, (size_t)(tokens * a->ld), 1);
    float *keys = numbers(16, (size_t)tokens * width, 1);
    float *values = numbers(17, (size_t)tokens * width, 1);

    for (int i = 0; body_at(i) != NULL; i++) {
        ek_kernels k = fast(body_at(i), 1);
        float *all = must(alloc_array((size_t)tokens * out * sizeof(float)));

        for (int64_t t = 0; t < tokens; t += one) {
            float *part =
                attend_cached(&k, body_at(i)->mode, a, one, t, q + t * a->ld, keys, values);

            memcpy(all + (size_t)t * out, part, (size_t)one * out * sizeof(float));
            free_array(part);
        }
        for (int64_t t = 0; t < tokens; t += two) {
            float *part =
                attend_cached(&k, body_at(i)->mode, a, two, t, q + t * a->ld, keys, values);

            CHECK(memcmp(all + (size_t)t * out, part, (size_t)two * out * sizeof(float)) == 0);
            free_array(part);
        }
        free_array(all);
    }
    free_array(q);
    free_array(keys);
    free_array(values);
}

static void chunks_change_no_bit(void)
{
    ek_attention few = shape(1, 1, 2, 2, 18, 0), many = shape(1, 1, 2, 1, 64, 0);

    if (body_at(0) == NULL)
        SKIP("no body runs here");
    begin_repetition(1);
    match_chunks(&few, slow() ? 36 : 144, 1, 6);
    match_chunks(&few, 36, 9, 4);
    match_chunks(&many, slow() ? 80 : 480, 40, slow() ? 80 : 240);
}

/* Heads wider than the fast path supports. */
static void cached_wide_heads(void)
{
    ek_attention a = shape(1, 1, 2, 1, 264, 0);

    if (body_at(0) == NULL)
        SKIP("no body runs here");
    match_cached(&a, 40, 10, false);
}

/* --- rope and head norms ---------------------------------------------------------------------- */

static float *angles(int64_t positions, int64_t head_dim)
{
    float *t = must(alloc_array((size_t)(positions * head_dim) * sizeof(float)));
    int64_t half = head_dim / 2;

    for (int64_t p = 0; p < positions; p++) {
        for (int64_t i = 0; i < half; i++) {
            double angle = (double)p * pow(1e4, -(double)i / (double)half);

            t[p * head_dim + i] = (float)cos(angle);
            t[p * head_dim + half + i] = (float)sin(angle);
        }
    }
    return t;
}

static void match_rope(int64_t heads, int64_t head_dim, int64_t gap)
{
    int64_t n = 74, seq = 37, pos0 = 3, ld = heads * head_dim + gap;
    size_t count = (size_t)(n * ld);
    float *table = angles(pos0 + seq, head_dim), *x = numbers(14, count, 1);
    ek_attention a = shape(2, seq, heads, heads, head_dim, 0);

    for (int i = 0; body_at(i) != NULL; i++) {
        const body *b = body_at(i);
        ek_kernels ref = reference(b->mode, 1), k;
        void *want, *got;
        float *fw, *fg;

        k = fast(b, 1);
        want = to_comp(b->mode, x, count);
        got = to_comp(b->mode, x, count);
        ref.rope(n, seq, pos0, heads, head_dim, table, 0, want, ld);
        k.rope(n, seq, pos0, heads, head_dim, table, 0, got, ld);
        fw = to_float(b->mode, want, count);
        fg = to_float(b->mode, got, count);
        compare("rope", b->name, &a, fg, fw, count, b->mode == EK_MODE_FP32 ? 1e-14 : 1e-7);
        CHECK(memcmp(fg, x, count * sizeof(float)) != 0);
        free_array(fg);
        k.rope(n, seq, pos0, heads, head_dim, table, 1, got, ld);
        fg = to_float(b->mode, got, count);
        compare("rope and back", b->name, &a, fg, x, count,
                b->mode == EK_MODE_FP32 ? 1e-13 : tol_bf16);
        free_array(fw);
        free_array(fg);
        free_array(want);
        free_array(got);
    }
    free_array(table);
    free_array(x);
}

static void rope_rotates_and_reverts(void)
{
    if (body_at(0) == NULL)
        SKIP("no body runs here");
    begin_repetition(1);
    match_rope(3, 64, 11);
    match_rope(1, 128, 11);
    match_rope(2, 20, 11);
    match_rope(5, 6, 11);
    match_rope(3, 64, 16); /* rows of whole groups of 16 bytes */
    match_rope(20, 128, 64);
}

/* x, raw, rstd after forward and dx, dw after backward. */
typedef struct {
    float *y, *raw, *rstd, *dx, *dw;
} normed;

static normed normalise(const ek_kernels *k, ek_mode mode, int64_t n, int64_t heads, int64_t width,
                        const float *in, const float *w, const float *dy)
{
    int64_t ld = heads * width + 9;
    size_t count = (size_t)(n * ld), inner = (size_t)(n * heads * width);
    void *x = to_comp(mode, in, count), *bare = to_comp(mode, in, count);
    void *g = to_comp(mode, dy, count), *raw = to_comp(mode, in, inner);
    void *ws = must(alloc_array(k->rmsnorm_workspace(k, width) + 1));
    normed r = {.rstd = must(alloc_array((size_t)(n * heads) * sizeof(float)))};

    r.dw = must(alloc_array((size_t)width * sizeof(float)));
    memcpy(r.dw, w, (size_t)width * sizeof(float));
    k->headnorm_forward(n, heads, width, 1e-6, w, bare, ld, NULL, r.rstd);
    k->headnorm_forward(n, heads, width, 1e-6, w, x, ld, raw, r.rstd);
    CHECK(memcmp(x, bare, count * comp_size(mode)) == 0);
    k->headnorm_backward(n, heads, width, w, raw, r.rstd, g, ld, r.dw, ws);
    r.y = to_float(mode, x, count);
    r.raw = to_float(mode, raw, inner);
    r.dx = to_float(mode, g, count);
    free_array(x);
    free_array(bare);
    free_array(g);
    free_array(raw);
    free_array(ws);
    return r;
}

static void normed_free(normed *r)
{
    free_array(r->y);
    free_array(r->raw);
    free_array(r->rstd);
    free_array(r->dx);
    free_array(r->dw);
}

static void match_headnorm(int64_t n, int64_t heads, int64_t width)
{
    size_t count = (size_t)(n * (heads * width + 9)), inner = (size_t)(n * heads * width);
    float *x = numbers(15, count, 2), *w = numbers(16, (size_t)width, 1);
    float *dy = numbers(17, count, 1);
    ek_attention a = shape(1, n, heads, heads, width, 0);

    for (int i = 0; body_at(i) != NULL; i++) {
        const body *b = body_at(i);
        /* bf16: one rounding on both sides, which differ at near ties */
        double allowed = b->mode == EK_MODE_FP32 ? tol_fp32 : 1e-7;
        ek_kernels ref = reference(b->mode, 1), k;
        normed want, one, two;

        k = fast(b, 2);
        want = normalise(&ref, b->mode, n, heads, width, x, w, dy);
        begin_repetition(2);
        two = normalise(&k, b->mode, n, heads, width, x, w, dy);
        begin_repetition(1);
        one = normalise(&k, b->mode, n, heads, width, x, w, dy);
        compare("headnorm y", b->name, &a, one.y, want.y, count, allowed);
        CHECK(memcmp(one.raw, want.raw, inner * sizeof(float)) == 0);
        compare("rstd", b->name, &a, one.rstd, want.rstd, (size_t)(n * heads), tol_fp32);
        compare("headnorm dx", b->name, &a, one.dx, want.dx, count, allowed);
        compare("headnorm dw", b->name, &a, one.dw, want.dw, (size_t)width, tol_fp32);
        CHECK(memcmp(one.y, two.y, count * sizeof(float)) == 0);
        CHECK(memcmp(one.dx, two.dx, count * sizeof(float)) == 0);
        CHECK(memcmp(one.dw, two.dw, (size_t)width * sizeof(float)) == 0);
        normed_free(&want);
        normed_free(&one);
        normed_free(&two);
    }
    free_array(x);
    free_array(w);
    free_array(dy);
}

static void headnorm(void)
{
    if (body_at(0) == NULL)
        SKIP("no body runs here");
    begin_repetition(1);
    match_headnorm(150, 4, 64);
    match_headnorm(33, 2, 128);
    match_headnorm(20, 3, 20);
    match_headnorm(5, 2, 7);
    match_headnorm(9, 1, 4096);
}

/* The cases of every test. */
#define ATTENTION_CASES                                                                            \
    EK_CASE(forward_and_backward), EK_CASE(gradient_stays_in_its_columns), EK_CASE(large_scores),  \
        EK_CASE(rising_scores), EK_CASE(nan_is_seen), EK_CASE(same_bits_each_repetition),          \
        EK_CASE(cached_tokens), EK_CASE(cached_wide_heads), EK_CASE(chunks_change_no_bit),         \
        EK_CASE(rope_rotates_and_reverts), EK_CASE(headnorm), EK_CASE(documents),                  \
        EK_CASE(documents_at_the_edges_of_blocks), EK_CASE(one_document_is_the_whole_sequence)

#endif
