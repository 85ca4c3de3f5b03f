/* Reference kernels that move rows: gather, combine, embedding, bias.  A body file, see
 * body_matrix.h.  Sums over rows are split by column, so that each runs in the order of rows. */

static void NAME(gather_comp)(int64_t n, int64_t d, const int32_t *idx, const void *src,
                              int64_t lds, void *dst, int64_t ldd)
{
    const C *from = src;
    C *to = dst;

#pragma omp parallel for if (n * d > SMALL)
    for (int64_t i = 0; i < n; i++) {
        for (int64_t c = 0; c < d; c++)
            to[i * ldd + c] = idx[i] < 0 ? TO_C(0) : from[idx[i] * lds + c];
    }
}

static void NAME(gather_real)(int64_t n, int64_t d, const int32_t *idx, const void *src,
                              int64_t lds, void *dst, int64_t ldd)
{
    const R *from = src;
    C *to = dst;

#pragma omp parallel for if (n * d > SMALL)
    for (int64_t i = 0; i < n; i++) {
        for (int64_t c = 0; c < d; c++)
            to[i * ldd + c] = TO_C(idx[i] < 0 ? 0 : from[idx[i] * lds + c]);
    }
}

static void NAME(combine)(int64_t n, int64_t d, int64_t k, const int32_t *row_of, const void *rows,
                          int64_t ld, int add, void *x)
{
    const C *from = rows;
    R *to = x;

#pragma omp parallel for if (n * d * k > SMALL)
    for (int64_t i = 0; i < n; i++) {
        for (int64_t c = 0; c < d; c++) {
            R sum = 0;

            for (int64_t j = 0; j < k; j++) {
                int64_t row = row_of[i * k + j];

                if (row >= 0)
                    sum += TO_R(from[row * ld + c]);
            }
            to[i * d + c] = add ? to[i * d + c] + sum : sum;
        }
    }
}

static void NAME(gather_numbers)(int64_t n, const int32_t *idx, const void *from, void *to)
{
    for (int64_t i = 0; i < n; i++)
        ((R *)to)[i] = idx[i] >= 0 ? ((const R *)from)[idx[i]] : (R)0;
}

static void NAME(scatter_numbers)(int64_t n, const int32_t *idx, const void *from, void *to)
{
    for (int64_t i = 0; i < n; i++)
        if (idx[i] >= 0)
            ((R *)to)[idx[i]] = ((const R *)from)[i];
}

static void NAME(to_comp)(int64_t n, int64_t d, const void *x, void *y)
{
    const R *from = x;
    C *to = y;

#pragma omp parallel for if (n * d > SMALL)
    for (int64_t i = 0; i < n * d; i++)
        to[i] = TO_C(from[i]);
}

static void NAME(embed_forward)(int64_t n, int64_t d, const int32_t *ids, const void *table,
                                void *x)
{
    const R *from = table;
    R *to = x;

#pragma omp parallel for if (n * d > SMALL)
    for (int64_t i = 0; i < n; i++) {
        for (int64_t c = 0; c < d; c++)
            to[i * d + c] = ids[i] < 0 ? 0 : from[ids[i] * d + c];
    }
}

static void NAME(embed_backward)(int64_t n, int64_t d, const int32_t *ids, const void *dx,
                                 void *dtable)
{
    const R *from = dx;
    R *to = dtable;

#pragma omp parallel for if (n * d > SMALL)
    for (int64_t c0 = 0; c0 < d; c0 += 64) {
        int64_t end = NAME(least)(c0 + 64, d);

        for (int64_t i = 0; i < n; i++) {
            for (int64_t c = c0; c < end && ids[i] >= 0; c++)
                to[ids[i] * d + c] += from[i * d + c];
        }
    }
}

static void NAME(bias_forward)(int64_t n, int64_t d, const void *b, void *x, int64_t ld)
{
    const R *bias = b;
    C *to = x;

#pragma omp parallel for if (n * d > SMALL)
    for (int64_t i = 0; i < n; i++) {
        for (int64_t c = 0; c < d; c++)
            to[i * ld + c] = TO_C(TO_R(to[i * ld + c]) + bias[c]);
    }
}

static void NAME(bias_backward)(int64_t n, int64_t d, const void *dy, int64_t ld, void *db)
{
    const C *from = dy;
    R *to = db;

#pragma omp parallel for if (n * d > SMALL)
    for (int64_t c0 = 0; c0 < d; c0 += 64) {
        int64_t end = NAME(least)(c0 + 64, d);

        for (int64_t i = 0; i < n; i++) {
            for (int64_t c = c0; c < end; c++)
                to[c] += TO_R(from[i * ld + c]);
        }
    }
}
