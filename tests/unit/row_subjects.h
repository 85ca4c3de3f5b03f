/* Test subjects for row kernels, over ragged shapes, with and without non-finite values.  A test
 * includes this once and defines its tables (each_table).
 *
 * A subject creates its buffers once; the reference, and the table under test several times, work
 * on copies.  All buffers are compared, inputs and gaps between rows included: those with tolerance
 * 0 bit by bit, others element by element; repetitions of the table under test bit by bit.  Where a
 * NaN is expected, any NaN will do: processors differ in its sign and payload. */
#ifndef UNIT_ROW_SUBJECTS_H
#define UNIT_ROW_SUBJECTS_H

#include "base/random.h"
#include "ek_test.h"
#include "tensor/kernels.h"

enum { BUFFERS = 8 };

/* Defined by the test: memory that its kernels can use, aligned to 64 bytes. */
static void *alloc_array(size_t bytes);
static void free_array(void *p);

typedef enum { REAL, COMP, INT, DOUBLE } kind;

typedef struct {
    void *p;
    int64_t n;
    kind type;
    double tol; /* relative to the element plus the size of the buffer's elements */
    int own;    /* tol is relative to the element only */
} buf;

typedef struct {
    int64_t n, d, k;
    int variant;
    int wild; /* with NaN and infinities */
} shape;

typedef struct {
    const char *name;
    void (*make)(const shape *s, buf *b);
    void (*run)(const ek_kernels *k, const shape *s, buf *b);
} subject;

static ek_mode mode;
static uint64_t stream;

/* From a table, as a test needs hundreds of millions. */
static double normal(int64_t i)
{
    enum { TABLE = 65521 };
    static double table[TABLE];

    for (int64_t j = 0; table[TABLE - 1] == 0 && j < TABLE; j++)
        table[j] = ek_random_normal(1, 0, (uint64_t)j);
    return table[(uint64_t)(i + 7919 * (int64_t)stream) % TABLE];
}

static int64_t below(int64_t n, int64_t i)
{
    return (int64_t)(ek_random_bits(2, stream, (uint64_t)i) % (uint64_t)n);
}

static size_t width(kind t)
{
    if (t == DOUBLE || (t != INT && mode == EK_MODE_FP64))
        return 8;
    return t == COMP && mode == EK_MODE_BF16 ? 2 : 4;
}

static double get(const buf *b, int64_t i)
{
    if (b->type == INT)
        return ((const int32_t *)b->p)[i];
    if (width(b->type) == 8)
        return ((const double *)b->p)[i];
    if (width(b->type) == 2)
        return (double)ek_bf16_to_float(((const ek_bf16 *)b->p)[i]);
    return (double)((const float *)b->p)[i];
}

static void set(buf *b, int64_t i, double x)
{
    if (b->type == INT)
        ((int32_t *)b->p)[i] = (int32_t)x;
    else if (width(b->type) == 8)
        ((double *)b->p)[i] = x;
    else if (width(b->type) == 2)
        ((ek_bf16 *)b->p)[i] = ek_bf16_from_float((float)x);
    else
        ((float *)b->p)[i] = (float)x;
}

/* Non-temporal stores need rows at multiples of 64 bytes. */
static void *alloc_checked(size_t bytes)
{
    return alloc_array((bytes + 64) / 64 * 64);
}

/* Normally distributed values of a given scale; in wild shapes some are not finite. */
static buf numbers(kind t, int64_t n, double size, double tol, int wild)
{
    const double odd[3] = {(double)NAN, (double)INFINITY, -(double)INFINITY};
    buf b = {alloc_checked((size_t)n * width(t)), n, t, tol, 0};

    stream++;
    for (int64_t i = 0; i < n; i++)
        set(&b, i, size * normal(i));
    for (int64_t i = 0; wild && n > 0 && i < 3; i++)
        set(&b, below(n, i), odd[i]);
    return b;
}

/* Integers in [from, to), or [-1, to) if `from` is -1; exact. */
static buf integers(int64_t n, int64_t from, int64_t to)
{
    buf b = {alloc_checked((size_t)n * 4), n, INT, 0, 0};

    stream++;
    for (int64_t i = 0; i < n; i++)
        set(&b, i, (double)(from + below(to - from, i)));
    return b;
}

static buf copy(const buf *b)
{
    buf c = *b;

    if (b->p != NULL) {
        c.p = alloc_checked((size_t)b->n * width(b->type));
        memcpy(c.p, b->p, (size_t)b->n * width(b->type));
    }
    return c;
}

static double size_of(const buf *b)
{
    double sum = 0;
    int64_t n = 0;

    for (int64_t i = 0; i < b->n; i++) {
        double x = get(b, i);

        if (isfinite(x)) {
            sum += x * x;
            n++;
        }
    }
    return n > 0 ? sqrt(sum / (double)n) : 0;
}

static int near(double got, double want, double tol, double size)
{
    if (isnan(want)) /* inf is accepted, too */
        return !isfinite(got);
    if (isinf(want))
        return isinf(got) && signbit(want) == signbit(got);
    return isfinite(got) && fabs(got - want) <= tol * (fabs(want) + size) + 1e-30;
}

/* Defined by the test: the processor's NaNs have bits of its own. */
static const int own_nans;

static void compare(const char *who, const shape *s, int index, const buf *got, const buf *want)
{
    double tol = want->tol > 0 && width(want->type) == 2 ? 0x1p-7 : want->tol;
    double size = tol > 0 && !want->own ? size_of(want) : 0;

    if (want->n == 0 || memcmp(got->p, want->p, (size_t)want->n * width(want->type)) == 0)
        return;
    if (tol > 0 && width(want->type) == 2)
        size *= 1e-3; /* at most another rounding to bf16 */
    for (int64_t i = 0; i < want->n; i++) {
        const size_t w = width(want->type), at = (size_t)i * w;
        const int same = memcmp((char *)got->p + at, (char *)want->p + at, w) == 0 ||
                         (own_nans && isnan(get(got, i)) && isnan(get(want, i)));

        if (!same && (tol <= 0 || !near(get(got, i), get(want, i), tol, size))) {
            EK_T_FAIL("%s n=%lld d=%lld k=%lld variant %d wild %d: buffer %d [%lld] is %.9g, "
                      "expected %.9g",
                      who, (long long)s->n, (long long)s->d, (long long)s->k, s->variant, s->wild,
                      index, (long long)i, get(got, i), get(want, i));
            return;
        }
    }
}

/* Defined by the test: a change before repetition 1, 2, ... that must not change the bits. */
static void begin_repetition(int repetition);
static const int repetitions;

/* One subject at one shape: the reference, then all repetitions of the table. */
static void check(const subject *t, const ek_kernels *ref, const ek_kernels *fast, const shape *s)
{
    buf made[BUFFERS] = {0}, want[BUFFERS] = {0}, first[BUFFERS] = {0};
    char who[64];

    snprintf(who, sizeof(who), "%s %s %s", t->name, ek_mode_name(mode), fast->name);
    t->make(s, made);
    for (int i = 0; i < BUFFERS; i++)
        want[i] = copy(&made[i]);
    t->run(ref, s, want);
    for (int repetition = 1; repetition <= repetitions; repetition++) {
        buf got[BUFFERS];

        for (int i = 0; i < BUFFERS; i++)
            got[i] = copy(&made[i]);
        begin_repetition(repetition);
        t->run(fast, s, got);
        for (int i = 0; i < BUFFERS; i++) {
            if (repetition == 1) {
                compare(who, s, i, &got[i], &want[i]);
                first[i] = got[i];
                continue;
            }
            first[i].tol = 0;
            compare(who, s, i, &got[i], &first[i]);
            free_array(got[i].p);
        }
    }
    for (int i = 0; i < BUFFERS; i++) {
        free_array(made[i].p);
        free_array(want[i].p);
        free_array(first[i].p);
    }
}

/* Defined by the test: checks a subject at these shapes with each of its tables. */
static void each_table(const subject *t, const shape *shapes, size_t n_shapes);

/* Ragged widths, no rows, one row; enough for several threads; enough for non-temporal stores. */
static void each_shape(const subject *t)
{
    static const int64_t rows[] = {0, 1, 5, 33}, widths[] = {1, 7, 15, 16, 17, 100, 513};
    shape s[64];
    size_t n = 0;

    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++)
        for (size_t j = 0; j < sizeof(widths) / sizeof(*widths); j++)
            s[n++] = (shape){rows[i], widths[j], 2, (int)(i + j) & 1, 0};
    s[n++] = (shape){300, 130, 3, 0, 0};
    s[n++] = (shape){90, 1152, 2, 0, 0}; /* whole groups of 16 bytes, several per thread */
    s[n++] = (shape){1100, 33, 1, 1, 0};
    s[n++] = (shape){EK_T_SLOW ? 410 : 4100, 512, 2, 0, 0};
    s[n++] = (shape){40, 100, 2, 0, 1};
    s[n++] = (shape){40, 9, 3, 1, 1};
    s[n++] = (shape){200, 100, 2, 1, 1};
    each_table(t, s, n);
}

/* A row stride: of whole groups of 16 bytes, or ragged. */
static int64_t stride_of(const shape *s)
{
    return s->d % 64 == 0 ? s->d + 8 : s->d + 1;
}

/* --- moves: exact ----------------------------------------------------------------------------- */

static void gather_make(const shape *s, buf *b)
{
    b[0] = integers(s->n, -1, s->n + 3);
    b[1] = numbers(COMP, (s->n + 3) * stride_of(s), 1, 0, s->wild);
    b[2] = numbers(REAL, (s->n + 3) * stride_of(s), 1, 0, s->wild);
    b[3] = numbers(COMP, s->n * (s->d + 64), 1, 0, 0);
    b[4] = numbers(COMP, s->n * (s->d + 64), 1, 0, 0);
}

static void gather_run(const ek_kernels *k, const shape *s, buf *b)
{
    const int64_t ldd = s->variant ? s->d + 3 : (s->d + 63) / 64 * 64;

    k->gather_comp(s->n, s->d, b[0].p, b[1].p, stride_of(s), b[3].p, ldd);
    k->gather_real(s->n, s->d, b[0].p, b[2].p, stride_of(s), b[4].p, ldd);
}

static void test_gather(void)
{
    const subject t = {"gather", gather_make, gather_run};
    const shape padded = {4200, 500, 1, 0, 0}; /* non-temporal stores, a remainder in each row */

    each_shape(&t);
    each_table(&t, &padded, 1);
}

/* Bytes, also of odd length; then a range of them is cleared. */
static void copy_make(const shape *s, buf *b)
{
    b[0] = numbers(REAL, s->n * (s->d + 3) + 8, 1, 0, s->wild);
    b[1] = numbers(REAL, s->n * (s->d + 2) + 8, 1, 0, 0);
}

static void copy_run(const ek_kernels *k, const shape *s, buf *b)
{
    int64_t real = (int64_t)width(REAL);

    k->copy_rows(s->n, s->d * real - s->variant, b[0].p, (s->d + 3) * real, (char *)b[1].p + real,
                 (s->d + 2) * real);
    k->copy_rows(s->n, s->d * real, b[1].p, s->d * real, b[0].p, s->d * real);
    k->clear(s->n * s->d * real / 2 - s->variant * (s->n > 0), (char *)b[1].p + s->variant);
}

static void test_copy(void)
{
    const subject t = {"copy_rows, clear", copy_make, copy_run};

    each_shape(&t);
}

static void combine_make(const shape *s, buf *b)
{
    b[0] = integers(s->n * s->k, -1, s->n * s->k + 1);
    b[1] = numbers(COMP, (s->n * s->k + 1) * (s->d + 1), 1, 0, s->wild);
    b[2] = numbers(REAL, s->n * s->d, 1, 0, 0);
    b[3] = numbers(REAL, s->n * s->d, 1, 0, 0);
}

static void combine_run(const ek_kernels *k, const shape *s, buf *b)
{
    k->combine(s->n, s->d, s->k, b[0].p, b[1].p, s->d, 0, b[2].p);
    k->combine(s->n, s->d, s->k, b[0].p, b[1].p, s->d + 1, 1, b[3].p);
}

static void test_combine(void)
{
    const subject t = {"combine", combine_make, combine_run};
    const shape many = {7, 65, 20, 0, 0}, none = {7, 65, 0, 0, 0};

    each_shape(&t);
    each_table(&t, &many, 1);
    each_table(&t, &none, 1);
}

/* All bit patterns: every rounding, NaN and infinity. */
static void to_comp_make(const shape *s, buf *b)
{
    b[0] = numbers(REAL, s->n * s->d, 1, 0, s->wild);
    for (int64_t i = 0; i < s->n * s->d && !s->variant; i++)
        ((uint32_t *)b[0].p)[i * (int64_t)(width(REAL) / 4)] =
            (uint32_t)ek_random_bits(3, stream, (uint64_t)i);
    b[1] = numbers(COMP, s->n * s->d, 1, 0, 0);
}

static void to_comp_run(const ek_kernels *k, const shape *s, buf *b)
{
    k->to_comp(s->n, s->d, b[0].p, b[1].p);
}

static void test_to_comp(void)
{
    const subject t = {"to_comp", to_comp_make, to_comp_run};

    each_shape(&t);
}

static void embed_make(const shape *s, buf *b)
{
    b[0] = integers(s->n, -1, s->k == 1 ? 2 : 11); /* so few that tokens repeat */
    b[1] = numbers(REAL, 11 * s->d, 1, 0, s->wild);
    b[2] = numbers(REAL, s->n * s->d, 1, 0, 0);
    b[3] = numbers(REAL, s->n * s->d, 1, 0, s->wild);
    b[4] = numbers(REAL, 11 * s->d, 1, 0, 0);
}

static void embed_run(const ek_kernels *k, const shape *s, buf *b)
{
    k->embed_forward(s->n, s->d, b[0].p, b[1].p, b[2].p);
    k->embed_backward(s->n, s->d, b[0].p, b[3].p, b[4].p);
}

static void test_embed(void)
{
    const subject t = {"embed", embed_make, embed_run};
    const shape frequent = {3000, 1, 1, 0, 0};

    each_shape(&t);
    each_table(&t, &frequent, 1);
}

static void bias_make(const shape *s, buf *b)
{
    b[0] = numbers(REAL, s->d, 1, 0, s->wild);
    b[1] = numbers(COMP, s->n * (s->d + 2), 1, 0, s->wild);
    b[2] = numbers(COMP, s->n * (s->d + 2), 1, 0, 0);
    b[3] = numbers(REAL, s->d, 1, 1e-5, 0);
}

static void bias_run(const ek_kernels *k, const shape *s, buf *b)
{
    k->bias_forward(s->n, s->d, b[0].p, b[1].p, s->d + 2);
    k->bias_backward(s->n, s->d, b[2].p, s->d + 2, b[3].p);
}

static void test_bias(void)
{
    const subject t = {"bias", bias_make, bias_run};
    const shape wide = {70, 2500, 1, 0, 0};

    each_shape(&t);
    each_table(&t, &wide, 1);
}

/* --- norm ------------------------------------------------------------------------------------- */

static void norm_forward_make(const shape *s, buf *b)
{
    b[0] = numbers(REAL, s->n * s->d, 2, 0, s->wild);
    b[1] = numbers(REAL, s->d, 1, 0, 0);
    b[2] = numbers(COMP, s->n * s->d, 1, 2e-6, 0);
    b[3] = numbers(REAL, s->n * s->d, 1, 2e-6, 0);
    b[4] = numbers(REAL, s->n, 1, 2e-6, 0);
}

static void norm_forward_run(const ek_kernels *k, const shape *s, buf *b)
{
    const int only = s->variant ? (int)(s->n % 2) : 2; /* one of the outputs, or both */

    k->rmsnorm_forward(s->n, s->d, 1e-5, b[0].p, b[1].p, only == 1 ? NULL : b[2].p,
                       only == 0 ? NULL : b[3].p, b[4].p);
}

static void test_norm_forward(void)
{
    const subject t = {"rmsnorm_forward", norm_forward_make, norm_forward_run};

    each_shape(&t);
}

static void norm_backward_make(const shape *s, buf *b)
{
    b[0] = numbers(REAL, s->n * s->d, 1, 0, s->wild);
    b[1] = numbers(REAL, s->d, 1, 0, 0);
    b[2] = numbers(REAL, s->n, 1, 0, 0);
    b[3] = numbers(REAL, s->n * s->d, 1, 0, s->wild);
    b[4] = numbers(REAL, s->n * s->d, 1, 1e-5, 0);
    b[5] = numbers(REAL, s->d, 1, 1e-5, 0);
}

static void norm_backward_run(const ek_kernels *k, const shape *s, buf *b)
{
    void *ws = alloc_checked(k->rmsnorm_workspace(k, s->d));

    k->rmsnorm_backward(s->n, s->d, b[0].p, b[1].p, b[2].p, b[3].p, b[4].p, b[5].p, ws);
    free_array(ws);
}

static void test_norm_backward(void)
{
    const subject t = {"rmsnorm_backward", norm_backward_make, norm_backward_run};

    each_shape(&t);
}

/* Half of rows twice as wide; the sums stand for those over two ranks. */
static void wide_norm_make(const shape *s, buf *b)
{
    b[0] = numbers(COMP, s->n * (s->d + 2), 1, 2e-6, 0);
    b[1] = numbers(REAL, s->d, 1, 0, 0);
    b[2] = numbers(DOUBLE, s->n, 1, 1e-5, 0);
    b[3] = numbers(COMP, s->n * s->d, 1, 0, 0);
    b[4] = numbers(REAL, s->n, 1, 2e-6, 0);
    b[5] = numbers(COMP, s->n * (s->d + 2), 1, 1e-5, 0);
    b[6] = numbers(DOUBLE, s->n, 1, 1e-5, 0);
    b[7] = numbers(REAL, s->d, 1, 1e-5, 0);
}

static void wide_norm_run(const ek_kernels *k, const shape *s, buf *b)
{
    const int64_t ld = s->d + 2, whole = 2 * s->d;

    k->widenorm_squares(s->n, s->d, b[0].p, ld, b[2].p);
    k->widenorm_forward(s->n, s->d, whole, 1e-5, b[2].p, b[1].p, b[0].p, ld, b[3].p, b[4].p);
    k->widenorm_dots(s->n, s->d, b[1].p, b[3].p, b[5].p, ld, b[6].p);
    k->widenorm_backward(s->n, s->d, whole, b[6].p, b[1].p, b[3].p, b[4].p, b[5].p, ld, b[7].p);
}

static void test_wide_norm(void)
{
    const subject t = {"widenorm", wide_norm_make, wide_norm_run};

    each_shape(&t);
}

/* --- router ----------------------------------------------------------------------------------- */

/* d experts.  Variant 1 makes ties by taking a few values only. */
static void router_make(const shape *s, buf *b)
{
    b[0] = numbers(REAL, s->n * s->d, 3, 0, s->wild);
    for (int64_t i = 0; i < s->n * s->d && s->variant; i++)
        set(&b[0], i, (double)below(3, i) * 40);
    if (s->wild && s->n > 2) {
        for (int64_t c = 0; c < s->d; c++)
            set(&b[0], c, -(double)INFINITY); /* nothing left in row 0 */
        set(&b[0], s->d, (double)NAN);
        set(&b[0], 3 * s->d - 1, -(double)INFINITY);
    }
    b[1] = numbers(REAL, s->n * s->d, 1, 2e-6, 0);
    b[2] = integers(s->n * s->k, 0, 1);
    b[3] = numbers(REAL, s->n, 1, 1e-6, 0);
}

static void router_run(const ek_kernels *k, const shape *s, buf *b)
{
    if (s->n % 2) { /* in place, without lse */
        memcpy(b[1].p, b[0].p, (size_t)(s->n * s->d) * width(REAL));
        k->softmax_topk(s->n, s->d, s->k, b[1].p, b[1].p, b[2].p, NULL);
    } else {
        k->softmax_topk(s->n, s->d, s->k, b[0].p, b[1].p, b[2].p, b[3].p);
    }
}

static void test_router(void)
{
    static const int64_t experts[] = {1, 2, 5, 8, 15, 16, 17, 60, 64, 128, 512};
    const subject t = {"softmax_topk", router_make, router_run};
    shape s[80];
    size_t n = 0;

    for (size_t i = 0; i < sizeof(experts) / sizeof(*experts); i++) {
        const int64_t e = experts[i];

        for (int v = 0; v < 4; v++)
            s[n++] = (shape){10 + v % 3, e, e < 8 ? e : 2 + 6 * (v & 1), v & 1, v == 3};
        s[n++] = (shape){3, e, e, 0, 0};
    }
    s[n++] = (shape){0, 8, 2, 0, 0};
    s[n++] = (shape){1, 8, 2, 0, 0};
    s[n++] = (shape){5000, 8, 2, 0, 0};
    each_table(&t, s, n);
}

/* n assignments of d experts, k per token: none, dropped, or an expert. */
static buf choices(const shape *s)
{
    buf b = integers(s->n * s->k, -1 - s->d, s->d);

    for (int64_t i = 0; i < b.n && s->variant; i++) /* few experts of many, most in one */
        ((int32_t *)b.p)[i] = below(3, i) > 0 ? (int32_t)(s->d / 2) : ((int32_t *)b.p)[i];
    return b;
}

static void weigh_make(const shape *s, buf *b)
{
    b[0] = numbers(REAL, s->n * s->d, 1, 0, s->wild);
    for (int64_t i = 0; i < s->n * s->d && !s->wild; i++)
        set(&b[0], i, fabs(get(&b[0], i)));
    b[1] = choices(s);
    b[2] = numbers(REAL, s->n * s->k, 1, 2e-6, 0);
    b[3] = numbers(REAL, s->n * s->k, 1, 0, 0);
    b[4] = numbers(DOUBLE, s->d, 1, 0, 0);
    b[5] = numbers(REAL, s->n, 1, 0, 0);
    b[6] = numbers(REAL, s->n * s->d, 1, 1e-5 * (1 + (double)s->d / 100), 0);
}

/* Results for the host are in host memory. */
static void weigh_run(const ek_kernels *k, const shape *s, buf *b)
{
    const ek_weighing by = {s->d, s->k, (int)(s->n / 2 % 2), s->variant, 1.5};
    double *balance = malloc((size_t)(s->d + 1) * sizeof(*balance));

    memcpy(balance, b[4].p, (size_t)s->d * sizeof(*balance));
    k->weigh(&by, s->n, b[0].p, b[1].p, b[2].p);
    k->weigh_backward(&by, s->n, b[0].p, b[5].p, b[1].p, b[2].p, b[3].p, balance, 0.3, b[6].p);
    free(balance);
}

static void test_weights(void)
{
    static const int64_t experts[] = {1, 2, 8, 31, 32, 33, 64, 2000};
    const subject t = {"weigh, weigh_backward", weigh_make, weigh_run};
    shape s[40];
    size_t n = 0;

    for (size_t i = 0; i < sizeof(experts) / sizeof(*experts); i++)
        for (int v = 0; v < 4; v++)
            s[n++] = (shape){10 + v, experts[i], i % 2 ? 40 : 1 + v, v & 1, 0};
    s[n++] = (shape){0, 8, 2, 0, 0};
    s[n++] = (shape){5000, 8, 2, 1, 0};
    each_table(&t, s, n);
}

static void count_make(const shape *s, buf *b)
{
    b[0] = choices(s);
    b[1] = numbers(DOUBLE, 2 * s->d, 1, 0, 0);
    b[2] = numbers(REAL, s->n * s->d, 1, 0, 0);
    b[3] = numbers(DOUBLE, s->d, 1, 1e-13, 0);
}

static void count_run(const ek_kernels *k, const shape *s, buf *b)
{
    int64_t *counts = malloc((size_t)(2 * s->d) * sizeof(*counts));
    double *sums = malloc((size_t)s->d * sizeof(*sums));

    k->count_choices(s->n * s->k, s->d, b[0].p, counts);
    k->sum_columns(s->n, s->d, b[2].p, sums);
    for (int64_t i = 0; i < 2 * s->d; i++)
        set(&b[1], i, (double)counts[i]);
    for (int64_t c = 0; c < s->d; c++)
        set(&b[3], c, sums[c]);
    free(counts);
    free(sums);
}

static void test_counts(void)
{
    const subject t = {"count_choices, sum_columns", count_make, count_run};

    each_shape(&t);
}

/* d experts in their own slots, from 5 on, with 3 empty slots: in order or reversed. */
static void sort_make(const shape *s, buf *b)
{
    b[0] = choices(s);
    b[1] = integers(s->n * s->k, 0, 9);
    b[2] = integers(s->n * s->k, 0, 9);
    b[3] = numbers(DOUBLE, s->d + 4, 1, 0, 0);
    b[4] = numbers(REAL, s->n * s->k, 1, 0, s->wild);
    b[5] = numbers(REAL, s->n * s->k, 1, 0, 0);
    b[6] = numbers(REAL, s->n * s->k, 1, 0, 0);
}

static void sort_run(const ek_kernels *k, const shape *s, buf *b)
{
    int32_t *slot_of = malloc((size_t)s->d * sizeof(*slot_of));
    int64_t *offset = malloc((size_t)(s->d + 4) * sizeof(*offset));
    const ek_sorting by = {slot_of, s->d, 5, (int32_t)s->d + 3};

    for (int64_t e = 0; e < s->d; e++)
        slot_of[e] = 5 + (int32_t)(s->variant ? s->d + 2 - e : e);
    CHECK_INT(k->sort_choices(&by, s->n, s->k, b[0].p, b[1].p, b[2].p, offset), offset[s->d + 3]);
    for (int64_t i = 0; i < s->d + 4; i++)
        set(&b[3], i, (double)offset[i]);
    k->scatter_numbers(s->n * s->k, b[1].p, b[4].p, b[5].p);
    k->gather_numbers(s->n * s->k, b[1].p, b[5].p, b[6].p);
    free(slot_of);
    free(offset);
}

static void test_sort(void)
{
    const subject t = {"sort_choices, scatter_numbers, gather_numbers", sort_make, sort_run};
    const shape many = {3000, 60, 8, 0, 0};

    each_shape(&t);
    each_table(&t, &many, 1);
}

/* --- experts ---------------------------------------------------------------------------------- */

/* Gates of all magnitudes: exp must neither overflow into NaN nor lose precision. */
static void swiglu_make(const shape *s, buf *b)
{
    b[0] = numbers(COMP, s->n * 2 * s->d, 3, s->variant ? 2e-6 : 0, s->wild);
    for (int64_t i = 0; i < s->n * 2 * s->d; i += 5)
        set(&b[0], i, 60 * normal(i));
    b[1] = numbers(REAL, s->n, 1, 0, 0);
    b[2] = numbers(COMP, s->n * s->d, 1, s->variant ? 2e-6 : 0, s->wild);
    b[3] = numbers(COMP, s->n * 2 * s->d, 1, 2e-6, 0);
    b[4] = numbers(COMP, s->n * s->d, 1, 2e-6, 0);
    b[5] = numbers(REAL, s->n, 1, 1e-5, 0);
    b[6] = numbers(COMP, s->n * s->d, 1, 2e-6, 0);
}

/* Variant 1 works in place, and every other one has no scale. */
static void swiglu_run(const ek_kernels *k, const shape *s, buf *b)
{
    const int scaled = s->d % 2 == 0;
    void *scale = scaled ? b[1].p : NULL, *dscale = scaled ? b[5].p : NULL;

    k->swiglu_forward(s->n, s->d, b[0].p, scale, b[6].p);
    if (s->variant)
        k->swiglu_backward(s->n, s->d, b[0].p, scale, b[2].p, b[0].p, b[2].p, dscale);
    else
        k->swiglu_backward(s->n, s->d, b[0].p, scale, b[2].p, b[3].p, s->n % 5 ? b[4].p : NULL,
                           dscale);
}

static void test_swiglu(void)
{
    const subject t = {"swiglu", swiglu_make, swiglu_run};

    each_shape(&t);
}

/* --- loss ------------------------------------------------------------------------------------- */

static void loss_make(const shape *s, buf *b)
{
    b[0] = numbers(REAL, s->n * stride_of(s), 3, 0, s->wild);
    b[1] = integers(s->n, -1, s->d);
    for (int64_t i = 0; i < s->n && s->variant; i++) { /* near certainty: losses close to 0 */
        if (get(&b[1], i) >= 0)
            set(&b[0], i * stride_of(s) + (int64_t)get(&b[1], i), 8);
    }
    b[2] = numbers(DOUBLE, s->n, 1, 1e-6, 0);
    b[2].own = 1; /* also for small losses */
    b[3] = numbers(COMP, s->n * (s->d + 64), 1, 2e-6, 0);
}

static void loss_run(const ek_kernels *k, const shape *s, buf *b)
{
    const int64_t ldd = s->n % 2 ? s->d + 3 : (s->d + 63) / 64 * 64;
    buf x = copy(&b[0]); /* may be overwritten */

    k->cross_entropy(s->n, s->d, x.p, stride_of(s), b[1].p, 0.01, b[2].p, s->k == 1 ? NULL : b[3].p,
                     ldd);
    free_array(x.p);
}

static void test_loss(void)
{
    const subject t = {"cross_entropy", loss_make, loss_run};
    const shape large = {5, 50257, 2, 0, 0}, whole = {4, 50304, 2, 1, 0}, wild = {40, 64, 2, 0, 1};

    each_shape(&t);
    each_table(&t, &large, 1);
    each_table(&t, &whole, 1);
    each_table(&t, &wild, 1);
}

static void vocab_make(const shape *s, buf *b)
{
    loss_make(s, b);
    free_array(b[2].p);
    b[2] = numbers(DOUBLE, s->n * 3, 1, 1e-6, 0);
    b[2].own = 1;
    b[4] = numbers(DOUBLE, s->n, 1, 0, 0);
    b[5] = numbers(DOUBLE, s->n, 1, 0, 0);
    b[0].tol = 1e-6;
}

static void vocab_run(const ek_kernels *k, const shape *s, buf *b)
{
    k->vocab_exponentials(s->n, s->d, b[0].p, stride_of(s), b[1].p, b[2].p);
    k->vocab_gradient(s->n, s->d, b[0].p, stride_of(s), b[1].p, b[4].p, b[5].p, b[3].p, s->d + 3);
}

static void test_vocab(void)
{
    const subject t = {"vocab", vocab_make, vocab_run};
    const shape large = {5, 50257, 2, 0, 0};

    each_shape(&t);
    each_table(&t, &large, 1);
}

/* --- optimizer -------------------------------------------------------------------------------- */

enum { ARRAYS = 67 /* of sum_squares_each */ };

static void adamw_make(const shape *s, buf *b)
{
    const int64_t n = s->n * s->d;

    b[0] = numbers(REAL, n, 1, 1e-6, 0);
    b[1] = numbers(REAL, n, 1, 0, s->wild);
    b[2] = numbers(REAL, n, 1, 1e-6, 0);
    b[3] = numbers(REAL, n, 1, 1e-6, 0);
    for (int64_t i = 0; i < n; i++)
        set(&b[3], i, fabs(get(&b[3], i)));
    b[4] = numbers(DOUBLE, 1 + ARRAYS, 1, 1e-12, 0);
    b[4].own = 1;
}

static void adamw_run(const ek_kernels *k, const shape *s, buf *b)
{
    const ek_adamw h = {0.1, 0.2, 0.9, 0.95, 1e-8, 0.4, 0.2, 0.7};

    int64_t n[ARRAYS];
    const void *x[ARRAYS];
    double sums[ARRAYS];

    for (int i = 0; i < ARRAYS; i++) {
        n[i] = i == 1 ? 0 : s->n * s->d / (1 + i);
        x[i] = b[i > 0].p;
    }
    k->sum_squares_each(k, ARRAYS, n, x, sums);
    set(&b[4], 0, k->sum_squares(s->n * s->d, b[1].p));
    for (int i = 0; i < ARRAYS; i++)
        set(&b[4], 1 + i, sums[i]);
    k->adamw(&h, s->n * s->d, b[0].p, b[1].p, b[2].p, b[3].p);
}

static void test_optimizer(void)
{
    const subject t = {"sum_squares, adamw", adamw_make, adamw_run};

    each_shape(&t);
}

static const ek_case cases[] = {
    EK_CASE(test_copy),         EK_CASE(test_gather),    EK_CASE(test_combine),
    EK_CASE(test_to_comp),      EK_CASE(test_embed),     EK_CASE(test_bias),
    EK_CASE(test_norm_forward), EK_CASE(test_router),    EK_CASE(test_weights),
    EK_CASE(test_counts),       EK_CASE(test_sort),      EK_CASE(test_norm_backward),
    EK_CASE(test_swiglu),       EK_CASE(test_loss),      EK_CASE(test_vocab),
    EK_CASE(test_optimizer),    EK_CASE(test_wide_norm),
};

#endif
