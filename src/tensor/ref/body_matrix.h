/* Reference matrix products.  A body file, see body.h.
 *
 * Forward is a dot product along both unit strides; the two backward products add multiples of
 * rows into a short strip of the result, which stays in L1 while rows of the other matrix are
 * streamed. */

static size_t NAME(packed_bytes)(const ek_kernels *k, int64_t out, int64_t in, ek_form form)
{
    (void)k;
    (void)form;
    return R_TYPE == C_TYPE ? 0 : (size_t)out * (size_t)in * sizeof(C);
}

/* Both forms are plain [out, in] in C. */
static ek_status NAME(pack)(const ek_kernels *k, int64_t out, int64_t in, ek_form form,
                            const void *master, void *packed)
{
    const R *from = master;
    C *to = packed;

    if (NAME(packed_bytes)(k, out, in, form) == 0)
        return EK_OK; /* kernels read the master */
    for (int64_t i = 0; i < out * in; i++)
        to[i] = TO_C(from[i]);
    return EK_OK;
}

static ek_status NAME(pack_comp)(const ek_kernels *k, int64_t out, int64_t in, const void *values,
                                 void *packed)
{
    memcpy(packed, values, NAME(packed_bytes)(k, out, in, EK_PACKED_FORWARD));
    return EK_OK;
}

/* Stores n sums as `mode` requires, from element `at` of the matrix `to` of C or R on. */
static void NAME(store_sums)(int64_t n, const R *sum, void *to, int64_t at, ek_out mode)
{
    R *real = to;
    C *comp = to;

    for (int64_t i = 0; i < n; i++) {
        switch (mode) {
        case EK_OUT_COMP: comp[at + i] = TO_C(sum[i]); break;
        case EK_OUT_REAL: real[at + i] = sum[i]; break;
        case EK_OUT_ADD: real[at + i] += sum[i]; break;
        }
    }
}

/* BLOCK rows of y at most, from row `row` on. */
static void NAME(forward_block)(int64_t row, int64_t rows, int64_t out, int64_t in, const C *w,
                                const C *x, int64_t ldx, void *y, int64_t ldy, ek_out mode)
{
    for (int64_t o = 0; o < out; o++) {
        for (int64_t i = row; i < row + rows; i++) {
            R sum = NAME(dot)(in, x + i * ldx, w + o * in);

            NAME(store_sums)(1, &sum, y, i * ldy + o, mode);
        }
        if (o % 32 == 0)
            ek_progress();
    }
}

static ek_status NAME(linear_forward)(const ek_kernels *k, const ek_group *g, int64_t n_groups,
                                      int64_t out, int64_t in, const void *x, int64_t ldx, void *y,
                                      int64_t ldy, ek_out mode, void *ws)
{
    (void)k;
    (void)ws;
    for (int64_t e = 0; e < n_groups; e++) {
        int64_t end = g[e].row + g[e].rows;

#pragma omp parallel for if (g[e].rows * out * in > SMALL)
        for (int64_t i = g[e].row; i < end; i += BLOCK)
            NAME(forward_block)
        (i, NAME(least)(BLOCK, end - i), out, in, g[e].w, x, ldx, y, ldy, mode);
    }
    return EK_OK;
}

static size_t NAME(values_workspace)(const ek_kernels *k, int64_t in)
{
    (void)k;
    (void)in;
    return 0;
}

/* sum[r][c] = sum over t of a[r * step_r + t * step_t] b[t][c], for r < rows, c < len, t < n. */
static void NAME(strip)(int64_t rows, int64_t len, int64_t n, const C *a, int64_t step_r,
                        int64_t step_t, const C *b, int64_t ldb, R sum[BLOCK][STRIP])
{
    int64_t t = 0;

    memset(sum, 0, sizeof(R) * BLOCK * STRIP);
    for (; t + 4 <= n; t += 4) {
        const C *b0 = b + t * ldb, *b1 = b0 + ldb, *b2 = b1 + ldb, *b3 = b2 + ldb;

        for (int64_t r = 0; r < rows; r++) {
            const C *ar = a + r * step_r + t * step_t;
            R a0 = TO_R(ar[0]), a1 = TO_R(ar[step_t]);
            R a2 = TO_R(ar[2 * step_t]), a3 = TO_R(ar[3 * step_t]);

            for (int64_t c = 0; c < len; c++)
                sum[r][c] +=
                    (a0 * TO_R(b0[c]) + a1 * TO_R(b1[c])) + (a2 * TO_R(b2[c]) + a3 * TO_R(b3[c]));
        }
        if (t % 64 == 0)
            ek_progress();
    }
    for (; t < n; t++) {
        for (int64_t r = 0; r < rows; r++) {
            R at = TO_R(a[r * step_r + t * step_t]);

            for (int64_t c = 0; c < len; c++)
                sum[r][c] += at * TO_R(b[t * ldb + c]);
        }
    }
}

static ek_status NAME(linear_backward_input)(const ek_kernels *k, const ek_group *g,
                                             int64_t n_groups, int64_t out, int64_t in,
                                             const void *dy, int64_t lddy, void *dx, int64_t lddx,
                                             ek_out mode, void *ws)
{
    (void)k;
    (void)ws;
    for (int64_t e = 0; e < n_groups; e++) {
        int64_t end = g[e].row + g[e].rows;
        const C *w = g[e].w, *d = dy;

#pragma omp parallel for collapse(2) if (g[e].rows * out * in > SMALL)
        for (int64_t i = g[e].row; i < end; i += BLOCK) {
            for (int64_t c = 0; c < in; c += STRIP) {
                R sum[BLOCK][STRIP];
                int64_t rows = NAME(least)(BLOCK, end - i), len = NAME(least)(STRIP, in - c);

                NAME(strip)(rows, len, out, d + i * lddy, lddy, 1, w + c, in, sum);
                for (int64_t r = 0; r < rows; r++)
                    NAME(store_sums)(len, sum[r], dx, (i + r) * lddx + c, mode);
            }
        }
    }
    return EK_OK;
}

static ek_status NAME(linear_backward_weight)(const ek_kernels *k, const ek_group *g,
                                              int64_t n_groups, int64_t out, int64_t in,
                                              const void *dy, int64_t lddy, const void *x,
                                              int64_t ldx, void *ws)
{
    (void)k;
    (void)ws;
    for (int64_t e = 0; e < n_groups; e++) {
        const C *d = (const C *)dy + g[e].row * lddy, *from = (const C *)x + g[e].row * ldx;
        int64_t n = g[e].rows;

        if (n == 0)
            continue;
#pragma omp parallel for collapse(2) if (n * out * in > SMALL)
        for (int64_t o = 0; o < out; o += BLOCK) {
            for (int64_t c = 0; c < in; c += STRIP) {
                R sum[BLOCK][STRIP];
                int64_t rows = NAME(least)(BLOCK, out - o), len = NAME(least)(STRIP, in - c);

                NAME(strip)(rows, len, n, d + o, 1, lddy, from + c, ldx, sum);
                for (int64_t r = 0; r < rows; r++)
                    NAME(store_sums)(len, sum[r], g[e].dw, (o + r) * in + c, EK_OUT_ADD);
            }
        }
    }
    return EK_OK;
}

static size_t NAME(linear_workspace)(const ek_kernels *k, int64_t rows, int64_t n_groups,
                                     int64_t out, int64_t in)
{
    (void)k;
    (void)rows;
    (void)n_groups;
    (void)out;
    (void)in;
    return 0;
}

/* One strip of a row of c.  a_step: distance of op(a)'s elements along the sum. */
static void NAME(matmul_strip)(int64_t len, int64_t kk, const R *a, int64_t a_step, const R *b,
                               int64_t ldb, int tb, R *sum)
{
    memset(sum, 0, sizeof(R) * STRIP);
    for (int64_t j = 0; tb && j < len; j++) {
        if (a_step == 1) {
            sum[j] = NAME(dot_real)(kk, a, b + j * ldb);
            continue;
        }
        for (int64_t t = 0; t < kk; t++)
            sum[j] += a[t * a_step] * b[j * ldb + t];
    }
    for (int64_t t = 0; !tb && t < kk; t++) {
        for (int64_t j = 0; j < len; j++)
            sum[j] += a[t * a_step] * b[t * ldb + j];
        if (t % 256 == 255)
            ek_progress();
    }
}

static void NAME(matmul_real)(int ta, int tb, int64_t m, int64_t n, int64_t kk, const void *a,
                              int64_t lda, const void *b, int64_t ldb, int add, void *c,
                              int64_t ldc)
{
    const R *ra = a, *rb = b;

#pragma omp parallel for collapse(2) if (m * n * kk > SMALL)
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < n; j += STRIP) {
            R sum[STRIP];
            int64_t len = NAME(least)(STRIP, n - j);

            NAME(matmul_strip)
            (len, kk, ra + (ta ? i : i * lda), ta ? lda : 1, rb + (tb ? j * ldb : j), ldb, tb, sum);
            NAME(store_sums)(len, sum, c, i * ldc + j, add ? EK_OUT_ADD : EK_OUT_REAL);
            if (i % 16 == 0)
                ek_progress();
        }
    }
}
