/* Test subjects for matrix products, compared with sums in double.  Columns beyond a matrix's width
 * are NaN, to detect reads there, and results have guard values, to detect writes outside.  A test
 * includes this once. */
#ifndef UNIT_LINEAR_SUBJECTS_H
#define UNIT_LINEAR_SUBJECTS_H

#include "base/random.h"
#include "ek_test.h"
#include "tensor/kernels.h"
#include "tensor/ref/ref.h"

enum { GROUPS_MAX = 6, PAD = 3, FORMS = 2 };

/* Defined by the test: memory that its kernels can use, aligned to 64 bytes. */
static void *alloc_array(size_t bytes);
static void free_array(void *p);

static const float guard = 12345.0F; /* a bf16 rounds it, so it is compared as stored */

/* One call: sizes, operands as floats (representable in C), and as stored for the kernel. */
typedef struct {
    ek_mode mode;
    int64_t out, in, rows, n_groups;
    ek_group g[GROUPS_MAX];
    float *x, *dy, *w; /* [rows, in], [rows, out], [groups, out, in] */
    void *xc, *dyc;    /* C, with columns of NaN */
    void *packed[GROUPS_MAX][FORMS];
    void *ws;
} call;

static void *alloc_checked(size_t bytes)
{
    void *p = alloc_array((bytes + 64) / 64 * 64);

    if (p == NULL)
        abort();
    memset(p, 0xff, (bytes + 64) / 64 * 64); /* NaN in float and in bf16 */
    return p;
}

static size_t comp_size(ek_mode mode)
{
    return mode == EK_MODE_BF16 ? 2 : 4;
}

static float value(ek_mode mode, uint64_t stream, int64_t i)
{
    float v = (float)ek_random_normal(7, stream, (uint64_t)i);

    return mode == EK_MODE_BF16 ? ek_bf16_to_float(ek_bf16_from_float(v)) : v;
}

static void put(ek_mode mode, void *p, int64_t i, float v)
{
    if (mode == EK_MODE_BF16)
        ((ek_bf16 *)p)[i] = ek_bf16_from_float(v);
    else
        ((float *)p)[i] = v;
}

static float get(int bf16, const void *p, int64_t i)
{
    return bf16 ? ek_bf16_to_float(((const ek_bf16 *)p)[i]) : ((const float *)p)[i];
}

static float *values(ek_mode mode, uint64_t stream, int64_t n)
{
    float *v = alloc_checked((size_t)n * sizeof(float));

    for (int64_t i = 0; i < n; i++)
        v[i] = value(mode, stream, i);
    return v;
}

/* Row stride of a matrix: rows of an even width begin at multiples of 16 bytes, as some kernels
 * require. */
static int64_t stride_of(int64_t cols)
{
    return cols % 2 == 0 ? cols / 8 * 8 + 16 : cols + PAD;
}

/* v [rows, cols] as C at its stride. */
static void *stored(ek_mode mode, const float *v, int64_t rows, int64_t cols)
{
    int64_t ld = stride_of(cols);
    void *p = alloc_checked((size_t)(rows * ld) * comp_size(mode));

    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++)
            put(mode, p, r * ld + c, v[r * cols + c]);
    return p;
}

/* Passes the master weight, if the kernel needs no packed form. */
static void *master(const call *t, int64_t g)
{
    size_t bytes = (size_t)(t->out * t->in) * sizeof(float);
    void *p = alloc_checked(bytes);

    memcpy(p, t->w + g * t->out * t->in, bytes);
    return p;
}

/* Groups of the given sizes; the first starts at row 2, with a gap of one row between groups. */
static void call_init(call *t, const ek_kernels *k, ek_mode mode, int64_t out, int64_t in,
                      const int64_t *rows, int64_t n_groups)
{
    *t = (call){.mode = mode, .out = out, .in = in, .n_groups = n_groups, .rows = 2};
    for (int64_t i = 0; i < n_groups; i++) {
        t->g[i] = (ek_group){.row = t->rows, .rows = rows[i]};
        t->rows += rows[i] + 1;
    }
    t->x = values(mode, 1, t->rows * in);
    t->dy = values(mode, 2, t->rows * out);
    t->w = values(mode, 3, n_groups * out * in);
    t->xc = stored(mode, t->x, t->rows, in);
    t->dyc = stored(mode, t->dy, t->rows, out);
    for (int64_t i = 0; i < n_groups; i++) {
        for (int f = 0; f < FORMS; f++) {
            size_t bytes = k->packed_bytes(k, out, in, (ek_form)f);

            t->packed[i][f] = bytes > 0 ? alloc_checked(bytes) : master(t, i);
            if (bytes > 0)
                CHECK_INT(k->pack(k, out, in, (ek_form)f, t->w + i * out * in, t->packed[i][f]),
                          EK_OK);
        }
    }
    t->ws = alloc_checked(k->linear_workspace(k, t->rows, n_groups, out, in));
}

static void call_fini(call *t)
{
    for (int64_t i = 0; i < t->n_groups; i++)
        for (int f = 0; f < FORMS; f++)
            free_array(t->packed[i][f]);
    free_array(t->x);
    free_array(t->dy);
    free_array(t->w);
    free_array(t->xc);
    free_array(t->dyc);
    free_array(t->ws);
}

/* Normalised error allowed: rounding of sums in float, or of results to bf16 (half of 2^-7). */
static double allowed(int bf16)
{
    return bf16 ? 1.6e-5 : 1e-11;
}

/* want [rows, cols] (guards outside groups) of y or dx, in double, then as float. */
static float *product_want(const call *t, ek_form form, ek_out mode)
{
    int64_t cols = form == EK_PACKED_FORWARD ? t->out : t->in;
    int64_t kk = form == EK_PACKED_FORWARD ? t->in : t->out;
    const float *a = form == EK_PACKED_FORWARD ? t->x : t->dy;
    float *want = alloc_checked((size_t)(t->rows * cols) * sizeof(float));

    for (int64_t i = 0; i < t->rows * cols; i++)
        want[i] = guard;
    for (int64_t g = 0; g < t->n_groups; g++) {
        const float *w = t->w + g * t->out * t->in;

        for (int64_t r = t->g[g].row; r < t->g[g].row + t->g[g].rows; r++) {
            for (int64_t c = 0; c < cols; c++) {
                double sum = mode == EK_OUT_ADD ? (double)guard : 0;

                for (int64_t q = 0; q < kk; q++)
                    sum += (double)a[r * kk + q] *
                           (double)(form == EK_PACKED_FORWARD ? w[c * kk + q] : w[q * cols + c]);
                want[r * cols + c] = (float)sum;
            }
        }
    }
    return want;
}

/* Runs forward or backward_input into a fresh buffer of guards. */
static void *product_run(call *t, const ek_kernels *k, ek_form form, ek_out mode)
{
    int64_t cols = form == EK_PACKED_FORWARD ? t->out : t->in, ld = stride_of(cols);
    int bf16 = t->mode == EK_MODE_BF16 && mode == EK_OUT_COMP;
    void *y = alloc_checked((size_t)(t->rows * ld) * sizeof(float));
    ek_status st;

    for (int64_t i = 0; i < t->rows * ld; i++)
        put(bf16 ? EK_MODE_BF16 : EK_MODE_FP32, y, i, guard);
    for (int64_t g = 0; g < t->n_groups; g++)
        t->g[g].w = t->packed[g][form];
    if (form == EK_PACKED_FORWARD)
        st = k->linear_forward(k, t->g, t->n_groups, t->out, t->in, t->xc, stride_of(t->in), y, ld,
                               mode, t->ws);
    else
        st = k->linear_backward_input(k, t->g, t->n_groups, t->out, t->in, t->dyc,
                                      stride_of(t->out), y, ld, mode, t->ws);
    CHECK_INT(st, EK_OK);
    return y;
}

static void product_check(call *t, const ek_kernels *k, ek_form form, ek_out mode)
{
    int64_t cols = form == EK_PACKED_FORWARD ? t->out : t->in, ld = stride_of(cols), touched = 0;
    int bf16 = t->mode == EK_MODE_BF16 && mode == EK_OUT_COMP;
    float *want = product_want(t, form, mode), *got = alloc_checked((size_t)(t->rows * cols) * 4);
    void *y = product_run(t, k, form, mode);
    float kept = bf16 ? ek_bf16_to_float(ek_bf16_from_float(guard)) : guard;

    for (int64_t r = 0; r < t->rows; r++) {
        for (int64_t c = 0; c < cols; c++) {
            float v = get(bf16, y, r * ld + c);

            /* Rows in no group must be unchanged, and must not hide errors of the others. */
            touched += want[r * cols + c] == guard && v != kept;
            if (want[r * cols + c] == guard)
                v = want[r * cols + c] = 0;
            else if (mode == EK_OUT_ADD)
                v -= guard, want[r * cols + c] -= guard;
            got[r * cols + c] = v;
        }
        for (int64_t c = cols; c < ld; c++)
            touched += get(bf16, y, r * ld + c) != kept;
    }
    CHECK_INT(touched, 0);
    /* Adding to the guard rounds at its size: 2^-11 against sums of a few units. */
    CHECK_NMSE(got, want, (size_t)(t->rows * cols), mode == EK_OUT_ADD ? 1e-5 : allowed(bf16));
    free_array(want);
    free_array(got);
    free_array(y);
}

/* The weight of a group as C [out, in], one element behind a multiple of 64 bytes; *to_free: where
 * that memory begins. */
static const void *values_of(const call *t, int64_t group, void **to_free)
{
    int64_t n = t->out * t->in;
    char *p = alloc_checked((size_t)(n + 1) * comp_size(t->mode));

    for (int64_t i = 0; i < n; i++)
        put(t->mode, p, i + 1, t->w[group * n + i]);
    *to_free = p;
    return p + comp_size(t->mode);
}

/* Weights that are not packed must give the bits of packed ones. */
static void values_check(call *t, const ek_kernels *k, ek_out mode)
{
    int64_t ld = stride_of(t->out);
    int bf16 = t->mode == EK_MODE_BF16 && mode == EK_OUT_COMP;
    void *want = product_run(t, k, EK_PACKED_FORWARD, mode), *to_free[GROUPS_MAX];
    void *y = alloc_checked((size_t)(t->rows * ld) * sizeof(float));
    void *ws = alloc_checked(k->values_workspace(k, t->in));

    for (int64_t i = 0; i < t->rows * ld; i++)
        put(bf16 ? EK_MODE_BF16 : EK_MODE_FP32, y, i, guard);
    for (int64_t g = 0; g < t->n_groups; g++)
        t->g[g].w = values_of(t, g, &to_free[g]);
    CHECK_INT(k->linear_forward_values(k, t->g, t->n_groups, t->out, t->in, t->xc, stride_of(t->in),
                                       y, ld, mode, ws),
              EK_OK);
    CHECK(memcmp(y, want, (size_t)(t->rows * ld) * comp_size(bf16 ? EK_MODE_BF16 : EK_MODE_FP32)) ==
          0);
    for (int64_t g = 0; g < t->n_groups; g++)
        free_array(to_free[g]);
    free_array(want);
    free_array(y);
    free_array(ws);
}

static float *weight_run(call *t, const ek_kernels *k)
{
    int64_t n = t->n_groups * t->out * t->in;
    float *dw = alloc_checked((size_t)(n + 1) * sizeof(float));

    for (int64_t i = 0; i <= n; i++)
        dw[i] = 0.5F;
    for (int64_t g = 0; g < t->n_groups; g++)
        t->g[g].dw = dw + g * t->out * t->in;
    CHECK_INT(k->linear_backward_weight(k, t->g, t->n_groups, t->out, t->in, t->dyc,
                                        stride_of(t->out), t->xc, stride_of(t->in), t->ws),
              EK_OK);
    CHECK(dw[n] == 0.5F);
    return dw;
}

static void weight_check(call *t, const ek_kernels *k)
{
    int64_t n = t->n_groups * t->out * t->in, i = 0;
    float *dw = weight_run(t, k), *want = alloc_checked((size_t)n * sizeof(float));

    for (int64_t g = 0; g < t->n_groups; g++) {
        for (int64_t o = 0; o < t->out; o++) {
            for (int64_t c = 0; c < t->in; c++, i++) {
                double sum = 0.5;

                for (int64_t r = t->g[g].row; r < t->g[g].row + t->g[g].rows; r++)
                    sum += (double)t->dy[r * t->out + o] * (double)t->x[r * t->in + c];
                want[i] = (float)sum;
            }
        }
    }
    CHECK_NMSE(dw, want, (size_t)n, allowed(0));
    free_array(dw);
    free_array(want);
}

/* Defined by the test: a change before repetition 1 or 2 that must not change the bits. */
static void begin_repetition(int repetition);

/* Fills a reference table with the products under test. */
typedef void fill_fn(ek_kernels *k);

static void table(ek_kernels *k, ek_mode mode, fill_fn *fill, int threads)
{
    memset(k, 0, sizeof(*k));
    ek_kernels_ref(k, mode);
    k->threads = threads;
    fill(k);
}

static void shape_check(fill_fn *fill, ek_mode mode, int threads, int64_t out, int64_t in,
                        const int64_t *rows, int64_t n_groups)
{
    ek_kernels k;
    call t;

    table(&k, mode, fill, threads);
    call_init(&t, &k, mode, out, in, rows, n_groups);
    for (int f = 0; f < FORMS; f++) {
        product_check(&t, &k, (ek_form)f, EK_OUT_COMP);
        product_check(&t, &k, (ek_form)f, EK_OUT_REAL);
        product_check(&t, &k, (ek_form)f, EK_OUT_ADD);
    }
    values_check(&t, &k, EK_OUT_COMP);
    values_check(&t, &k, EK_OUT_REAL);
    values_check(&t, &k, EK_OUT_ADD);
    weight_check(&t, &k);
    call_fini(&t);
}

static void shapes_check(fill_fn *fill, ek_mode mode)
{
    static const int64_t sizes[][2] = {{1, 1},   {1, 37},   {33, 1},  {2, 2},   {31, 33},
                                       {32, 64}, {65, 17},  {47, 96}, {96, 31}, {128, 5},
                                       {7, 300}, {290, 34}, {0, 7},   {40, 0}};
    static const int64_t few[] = {0}, one[] = {1}, mixed[] = {3, 0, 1, 28, 15},
                         many[] = {0, 301, 14, 0}, steps[] = {513, 0, 2};

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        int64_t out = sizes[i][0], in = sizes[i][1];

        shape_check(fill, mode, 1, out, in, few, 1);
        shape_check(fill, mode, 2, out, in, one, 1);
        shape_check(fill, mode, 2, out, in, mixed, 5);
    }
    shape_check(fill, mode, 3, 45, 70, many, 4);
    shape_check(fill, mode, 2, 16, 530, steps, 3); /* several steps along tokens and columns */
    shape_check(fill, mode, 2, 300, 6, steps, 3);
    shape_check(fill, mode, 2, 31, 35, mixed, 0); /* no group at all */
    shape_check(fill, mode, 2, 136, 264, many, 4);
    shape_check(fill, mode, 1, 256, 40, mixed, 5);
    shape_check(fill, mode, 1, 50, 64, mixed, 5);
}

/* Bits must not depend on the number of threads, or on other rows of the call. */
static void threads_check(fill_fn *fill, ek_mode mode, int64_t out, int64_t in)
{
    static const int64_t rows[] = {77, 0, 530, 5};
    float *dw[2];
    void *y[2];
    call t;

    for (int i = 0; i < 2; i++) {
        ek_kernels k;

        begin_repetition(i + 1);
        table(&k, mode, fill, i + 1);
        call_init(&t, &k, mode, out, in, rows, 4);
        y[i] = product_run(&t, &k, EK_PACKED_FORWARD, EK_OUT_REAL);
        dw[i] = weight_run(&t, &k);
        if (i == 1)
            break;
        call_fini(&t);
    }
    CHECK(memcmp(y[0], y[1], (size_t)(t.rows * stride_of(out)) * 4) == 0);
    CHECK(memcmp(dw[0], dw[1], (size_t)(4 * out * in) * 4) == 0);
    call_fini(&t);
    for (int i = 0; i < 2; i++) {
        free_array(y[i]);
        free_array(dw[i]);
    }
    begin_repetition(1);
}

static void products_check(fill_fn *fill, ek_mode mode)
{
    shapes_check(fill, mode);
    threads_check(fill, mode, 75, 141);
    threads_check(fill, mode, 72, 136); /* whole chunks of 16 bytes */
}

typedef void matmul_fn(int ta, int tb, int64_t m, int64_t n, int64_t kk, const void *a, int64_t lda,
                       const void *b, int64_t ldb, int add, void *c, int64_t ldc);

static void matmul_check(matmul_fn *fn, int ta, int tb, int64_t m, int64_t n, int64_t kk, int add)
{
    float *a = values(EK_MODE_FP32, 4, m * kk), *b = values(EK_MODE_FP32, 5, n * kk);
    float *got = alloc_checked((size_t)(m * (n + PAD)) * 4),
          *want = alloc_checked((size_t)(m * (n + PAD)) * 4);

    for (int64_t i = 0; i < m * (n + PAD); i++)
        got[i] = want[i] = 1.0F;
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < n; j++) {
            double sum = add;

            for (int64_t q = 0; q < kk; q++)
                sum += (double)(ta ? a[q * m + i] : a[i * kk + q]) *
                       (double)(tb ? b[j * kk + q] : b[q * n + j]);
            want[i * (n + PAD) + j] = (float)sum;
        }
    }
    fn(ta, tb, m, n, kk, a, ta ? m : kk, b, tb ? kk : n, add, got, n + PAD);
    CHECK_NMSE(got, want, (size_t)(m * (n + PAD)), 1e-11);
    free_array(a);
    free_array(b);
    free_array(got);
    free_array(want);
}

static void matmul_checks(matmul_fn *fn)
{
    static const int64_t experts[] = {1, 5, 8, 14, 15, 60};

    for (size_t i = 0; i < sizeof(experts) / sizeof(experts[0]); i++) {
        int64_t e = experts[i];

        for (int add = 0; add < 2; add++) {
            matmul_check(fn, 0, 1, 129, e, 64, add);
            matmul_check(fn, 0, 1, e, 129, 300, add);
            matmul_check(fn, 0, 0, 129, 64, e, add);
            matmul_check(fn, 1, 0, e, 64, 1290, add);
            matmul_check(fn, 1, 1, 77, e, 65, add);
        }
    }
    matmul_check(fn, 0, 1, 2000, 8, 130, 0); /* several work items in either direction */
    matmul_check(fn, 0, 0, 200, 700, 130, 1);
    matmul_check(fn, 0, 1, 260, 70, 513, 1);
    matmul_check(fn, 0, 1, 260, 64, 512, 0); /* whole groups of 16 bytes */
    matmul_check(fn, 0, 0, 260, 64, 300, 1);
    matmul_check(fn, 1, 0, 70, 260, 700, 0);
    matmul_check(fn, 0, 1, 0, 8, 64, 0);
    matmul_check(fn, 1, 0, 8, 64, 0, 1);
    matmul_check(fn, 1, 0, 8, 64, 0, 0);
}

#endif
