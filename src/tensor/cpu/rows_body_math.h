/* rows_body_math.h - row kernels that compute and round to C: rmsnorm_forward,
 * swiglu, cross_entropy, vocab_gradient.
 *
 * Included by rows_body.h with the definitions for rows_body_move.h, and with
 *   comp_sigmoid    the logistic function, to the precision of C */

/* --- norm ------------------------------------------------------------------------------------- */

static void FN(rmsnorm_forward)(int64_t n, int64_t d, double eps, const void *x, const void *w,
                                void *y, void *y_real, void *rstd)
{
    const int stream = rows_stream(y, d * (int64_t)sizeof(COMP), n);
    const int stream_real = rows_stream(y_real, d * 4, n);

#pragma omp parallel if (n * d >= ROWS_SERIAL)
    {
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < n; i++) {
            const float *xi = (const float *)x + i * d;
            const float scale = (float)(1 / sqrt((double)sum_squares_row(d, xi) / (double)d + eps));
            const vf r = vf_set(scale);

            ((float *)rstd)[i] = scale;
            for (int64_t c = 0; c < d; c += VF) {
                const vf v = vf_load(xi + c, d - c) * r * vf_load((const float *)w + c, d - c);

                if (y != NULL)
                    comp_store((COMP *)y + i * d + c, v, d - c, stream);
                if (y_real != NULL)
                    vf_store((float *)y_real + i * d + c, v, d - c, stream_real);
            }
        }
        vf_fence();
    }
}

/* --- experts ---------------------------------------------------------------------------------- */

static void FN(swiglu_forward)(int64_t n, int64_t f, const void *gu, const void *scale, void *h)
{
    const int stream = rows_stream(h, f * (int64_t)sizeof(COMP), n);

#pragma omp parallel if (n * f >= ROWS_SERIAL)
    {
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < n; i++) {
            const COMP *gate = (const COMP *)gu + i * 2 * f, *up = gate + f;
            const vf s = vf_set(scale != NULL ? ((const float *)scale)[i] : 1);

            for (int64_t c = 0; c < f; c += VF) {
                const vf g = comp_load(gate + c, f - c);

                comp_store((COMP *)h + i * f + c,
                           s * (g * comp_sigmoid(g) * comp_load(up + c, f - c)), f - c, stream);
            }
        }
        vf_fence();
    }
}

/* One row; returns sum dh silu(gate) up.  Each element is read before it is written, so that dgu
 * may be gu and h may be dh. */
static inline float FN(swiglu_backward_row)(int64_t f, const COMP *gu, float scale, const COMP *dh,
                                            COMP *dgu, COMP *h)
{
    const vf s = vf_set(scale), one = vf_set(1);
    vf sum = vf_set(0);

    for (int64_t c = 0; c < f; c += VF) {
        const int64_t m = f - c;
        const vf g = comp_load(gu + c, m), u = comp_load(gu + f + c, m), d = comp_load(dh + c, m);
        const vf sigma = comp_sigmoid(g), silu = g * sigma, sd = s * d;
        const vf slope = sigma * vf_fma(g, one - sigma, one);

        sum = vf_fma(d, silu * u, sum);
        comp_store(dgu + c, sd * u * slope, m, 0);
        comp_store(dgu + f + c, sd * silu, m, 0);
        if (h != NULL)
            comp_store(h + c, s * (silu * u), m, 0);
    }
    return vf_sum(sum);
}

static void FN(swiglu_backward)(int64_t n, int64_t f, const void *gu, const void *scale,
                                const void *dh, void *dgu, void *h, void *dscale)
{
#pragma omp parallel for schedule(static) if (n * f >= ROWS_SERIAL)
    for (int64_t i = 0; i < n; i++) {
        const float s = scale != NULL ? ((const float *)scale)[i] : 1;
        const float ds =
            FN(swiglu_backward_row)(f, (const COMP *)gu + i * 2 * f, s, (const COMP *)dh + i * f,
                                    (COMP *)dgu + i * 2 * f, h != NULL ? (COMP *)h + i * f : NULL);

        if (dscale != NULL)
            ((float *)dscale)[i] = ds;
    }
}

/* --- loss ------------------------------------------------------------------------------------- */

/* One row: returns the loss and leaves dx / scale * total in x.  The target's exponential is left
 * out of the float sum and added in double, because a loss near 0 is determined by the others. */
static inline double FN(cross_entropy_row)(int64_t v, float *x, int64_t target, double scale,
                                           COMP *dx, int stream)
{
    const vf low = vf_set(-INFINITY);
    vf max = low, factor;
    double total, hit;
    float top;

    for (int64_t c = 0; c < v; c += VF)
        max = vf_max(vf_load_fill(x + c, v - c, low), max);
    top = vf_top(max);
    hit = (double)x[target] - (double)top;
    x[target] = -INFINITY;
    total = exponentials(v, x, top) + exp(hit);
    if (dx == NULL)
        return log(total) - hit;
    x[target] = (float)(exp(hit) - total);
    factor = vf_set((float)(scale / total));
    for (int64_t c = 0; c < v; c += VF)
        comp_store(dx + c, vf_load(x + c, v - c) * factor, v - c, stream);
    return log(total) - hit;
}

static void FN(cross_entropy)(int64_t n, int64_t v, void *logits, int64_t ld, const int32_t *target,
                              double scale, double *loss, void *dlogits, int64_t ldd)
{
    const int stream = rows_stream(dlogits, ldd * (int64_t)sizeof(COMP), n);

#pragma omp parallel if (n * v >= ROWS_SERIAL)
    {
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < n; i++) {
            COMP *dx = dlogits != NULL ? (COMP *)dlogits + i * ldd : NULL;

            loss[i] = 0;
            if (target[i] >= 0)
                loss[i] = FN(cross_entropy_row)(v, (float *)logits + i * ld, target[i], scale, dx,
                                                stream);
            else if (dx != NULL)
                memset(dx, 0, (size_t)v * sizeof(COMP));
        }
        vf_fence();
    }
}

static void FN(vocab_gradient)(int64_t n, int64_t v, const void *exps, int64_t ld,
                               const int32_t *target, const double *factor, const double *hit,
                               void *dlogits, int64_t ldd)
{
#pragma omp parallel for schedule(static) if (n * v >= ROWS_SERIAL)
    for (int64_t i = 0; i < n; i++) {
        const float *x = (const float *)exps + i * ld;
        COMP *dx = (COMP *)dlogits + i * ldd;
        const vf f = vf_set((float)factor[i]);

        for (int64_t c = 0; c < v; c += VF)
            comp_store(dx + c, vf_load(x + c, v - c) * f, v - c, 0);
        if (target[i] >= 0)
            comp_store(dx + target[i], vf_set((float)hit[i]), 1, 0);
    }
}

static void FN(fill_math)(ek_kernels *k)
{
    k->rmsnorm_forward = FN(rmsnorm_forward);
    k->swiglu_forward = FN(swiglu_forward);
    k->swiglu_backward = FN(swiglu_backward);
    k->cross_entropy = FN(cross_entropy);
    k->vocab_gradient = FN(vocab_gradient);
}
