/* rows_body_move.h - row kernels that move C, or add to it: gather, combine, to_comp, bias.
 *
 * Included by rows_body.h once for each type of C, with
 *   COMP                     the element type: float or ek_bf16
 *   comp_load, comp_store    its vector load and store
 *   FN(name)                 the name of a function of this type */

/* --- moves ------------------------------------------------------------------------------------ */

static void FN(gather_comp)(int64_t n, int64_t d, const int32_t *idx, const void *src, int64_t lds,
                            void *dst, int64_t ldd)
{
    const int64_t size = (int64_t)sizeof(COMP);

    gather_bytes(n, d * size, idx, src, lds * size, dst, ldd * size);
}

static void FN(gather_real)(int64_t n, int64_t d, const int32_t *idx, const void *src, int64_t lds,
                            void *dst, int64_t ldd)
{
    const int stream = rows_stream(dst, ldd * (int64_t)sizeof(COMP), n);

#pragma omp parallel if (n * d >= ROWS_SERIAL)
    {
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < n; i++) {
            COMP *y = (COMP *)dst + i * ldd;

            if (idx[i] < 0) {
                memset(y, 0, (size_t)d * sizeof(COMP));
                continue;
            }
            const float *x = (const float *)src + idx[i] * lds;

            for (int64_t c = 0; c < d; c += VF)
                comp_store(y + c, vf_load(x + c, d - c), d - c, stream);
        }
        vf_fence();
    }
}

static void FN(combine)(int64_t n, int64_t d, int64_t k, const int32_t *row_of, const void *rows,
                        int64_t ld, int add, void *x)
{
    const int stream = !add && rows_stream(x, d * 4, n);

#pragma omp parallel if (n * d >= ROWS_SERIAL)
    {
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < n; i++) {
            const int32_t *from = row_of + i * k;
            float *y = (float *)x + i * d;

            for (int64_t c = 0; c < d; c += VF) {
                vf sum = vf_set(0);

                for (int64_t j = 0; j < k; j++)
                    if (from[j] >= 0)
                        sum = sum + comp_load((const COMP *)rows + from[j] * ld + c, d - c);
                if (add)
                    sum = vf_load(y + c, d - c) + sum;
                vf_store(y + c, sum, d - c, stream);
            }
        }
        vf_fence();
    }
}

static void FN(to_comp)(int64_t n, int64_t d, const void *x, void *y)
{
    const int64_t all = n * d;
    const int stream = rows_stream(y, 64, all * (int64_t)sizeof(COMP) / 64);

#pragma omp parallel if (all >= ROWS_SERIAL)
    {
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < all; i += VF)
            comp_store((COMP *)y + i, vf_load((const float *)x + i, all - i), all - i, stream);
        vf_fence();
    }
}

/* --- bias ------------------------------------------------------------------------------------- */

static void FN(bias_forward)(int64_t n, int64_t d, const void *b, void *x, int64_t ld)
{
#pragma omp parallel for schedule(static) if (n * d >= ROWS_SERIAL)
    for (int64_t i = 0; i < n; i++) {
        COMP *y = (COMP *)x + i * ld;

        for (int64_t c = 0; c < d; c += VF)
            comp_store(y + c, comp_load(y + c, d - c) + vf_load((const float *)b + c, d - c), d - c,
                       0);
    }
}

/* db += column sums of w <= BIAS_SPAN columns: sums over blocks of rows, added in order. */
#ifndef BIAS_SPAN
#define BIAS_SPAN  1024
#define BIAS_BLOCK 64
#endif
static void FN(bias_backward_span)(int64_t n, int64_t w, const COMP *dy, int64_t ld, float *db)
{
    float sum[BIAS_SPAN];

    for (int64_t first = 0; first < n; first += BIAS_BLOCK) {
        const int64_t end = first + BIAS_BLOCK < n ? first + BIAS_BLOCK : n;

        memset(sum, 0, sizeof(sum));
        for (int64_t i = first; i < end; i++)
            for (int64_t c = 0; c < w; c += VF)
                vf_store(sum + c, vf_load(sum + c, VF) + comp_load(dy + i * ld + c, w - c), VF, 0);
        for (int64_t c = 0; c < w; c += VF)
            vf_store(db + c, vf_load(db + c, w - c) + vf_load(sum + c, w - c), w - c, 0);
    }
}

/* Threads share the columns. */
static void FN(bias_backward)(int64_t n, int64_t d, const void *dy, int64_t ld, void *db)
{
#pragma omp parallel if (n * d >= ROWS_SERIAL)
    {
        int64_t from, to;

        rows_columns(d, &from, &to);
        for (int64_t c = from; c < to; c += BIAS_SPAN)
            FN(bias_backward_span)
        (n, to - c < BIAS_SPAN ? to - c : BIAS_SPAN, (const COMP *)dy + c, ld, (float *)db + c);
    }
}

static void FN(fill_moves)(ek_kernels *k)
{
    k->gather_comp = FN(gather_comp);
    k->gather_real = FN(gather_real);
    k->combine = FN(combine);
    k->to_comp = FN(to_comp);
    k->bias_forward = FN(bias_forward);
    k->bias_backward = FN(bias_backward);
}
