/* Reference SwiGLU, loss and optimizer.  A body file, see body.h. */

static void NAME(swiglu_forward)(int64_t n, int64_t f, const void *gu, const void *scale, void *h)
{
    const R *factor = scale;
    C *out = h;

#pragma omp parallel for if (n * f > SMALL)
    for (int64_t i = 0; i < n; i++) {
        const C *gate = (const C *)gu + i * 2 * f, *up = gate + f;
        R s = factor != NULL ? factor[i] : 1;

        for (int64_t c = 0; c < f; c++) {
            R x = TO_R(gate[c]);

            out[i * f + c] = TO_C(s * (x / (1 + R_EXP(-x)) * TO_R(up[c])));
        }
    }
}

static void NAME(swiglu_backward)(int64_t n, int64_t f, const void *gu, const void *scale,
                                  const void *dh, void *dgu, void *h, void *dscale)
{
    const R *factor = scale;
    const C *g = dh;
    C *out = h;
    R *ds = dscale;

#pragma omp parallel for if (n * f > SMALL)
    for (int64_t i = 0; i < n; i++) {
        const C *gate = (const C *)gu + i * 2 * f, *up = gate + f;
        C *dgate = (C *)dgu + i * 2 * f, *dup = dgate + f;
        R s = factor != NULL ? factor[i] : 1, sum = 0;

        for (int64_t c = 0; c < f; c++) {
            R x = TO_R(gate[c]), u = TO_R(up[c]), d = TO_R(g[i * f + c]);
            R sigmoid = 1 / (1 + R_EXP(-x)), silu = x * sigmoid;

            sum += d * (silu * u);
            dgate[c] = TO_C(s * d * u * (sigmoid * (1 + x * (1 - sigmoid))));
            dup[c] = TO_C(s * d * silu);
            if (out != NULL)
                out[i * f + c] = TO_C(s * (silu * u));
        }
        if (ds != NULL)
            ds[i] = sum;
    }
}

static void NAME(cross_entropy)(int64_t n, int64_t v, void *logits, int64_t ld,
                                const int32_t *target, double scale, double *loss, void *dlogits,
                                int64_t ldd)
{
    const R *from = logits;
    C *grad = dlogits;

#pragma omp parallel for if (n * v > SMALL)
    for (int64_t i = 0; i < n; i++) {
        const R *x = from + i * ld;
        double top = (double)x[0], total = 0, lse;

        for (int64_t c = 1; c < v; c++)
            top = (double)x[c] > top ? (double)x[c] : top;
        for (int64_t c = 0; c < v; c++)
            total += exp((double)x[c] - top);
        lse = top + log(total);
        loss[i] = target[i] < 0 ? 0 : lse - (double)x[target[i]];
        for (int64_t c = 0; grad != NULL && c < v; c++) {
            double d = exp((double)x[c] - lse) - (c == target[i] ? 1 : 0);

            grad[i * ldd + c] = TO_C((R)(target[i] < 0 ? 0 : scale * d));
        }
    }
}

static void NAME(vocab_exponentials)(int64_t n, int64_t v, void *logits, int64_t ld,
                                     const int32_t *target, double *stats)
{
    R *rows = logits;

#pragma omp parallel for if (n * v > SMALL)
    for (int64_t i = 0; i < n; i++) {
        R *x = rows + i * ld;
        double top = -INFINITY, sum = 0;

        for (int64_t c = 0; c < v; c++)
            top = (double)x[c] > top ? (double)x[c] : top;
        stats[3 * i + 2] = target[i] < 0 ? 0 : (double)x[target[i]];
        for (int64_t c = 0; c < v; c++) {
            double e = c == target[i] ? 0 : exp((double)x[c] - top);

            sum += e;
            x[c] = (R)e;
        }
        stats[3 * i] = top;
        stats[3 * i + 1] = sum;
    }
}

static void NAME(vocab_gradient)(int64_t n, int64_t v, const void *exponentials, int64_t ld,
                                 const int32_t *target, const double *factor, const double *hit,
                                 void *dlogits, int64_t ldd)
{
    const R *from = exponentials;
    C *to = dlogits;

#pragma omp parallel for if (n * v > SMALL)
    for (int64_t i = 0; i < n; i++) {
        for (int64_t c = 0; c < v; c++)
            to[i * ldd + c] = TO_C((R)(factor[i] * (double)from[i * ld + c]));
        if (target[i] >= 0)
            to[i * ldd + target[i]] = TO_C((R)hit[i]);
    }
}

static double NAME(sum_squares)(int64_t n, const void *g)
{
    enum { PARTS = 64 };
    const R *from = g;
    double part[PARTS], sum = 0;

#pragma omp parallel for if (n > SMALL)
    for (int64_t b = 0; b < PARTS; b++) {
        int64_t end = n / PARTS * (b + 1) + NAME(least)(n % PARTS, b + 1);
        int64_t i = n / PARTS * b + NAME(least)(n % PARTS, b);

        for (part[b] = 0; i < end; i++)
            part[b] += (double)from[i] * (double)from[i];
    }
    for (int64_t b = 0; b < PARTS; b++)
        sum += part[b];
    return sum;
}

static inline void NAME(adamw_number)(const ek_adamw *h, R *p, R *g, R *m, R *v)
{
    R keep = (R)(1 - h->lr * h->decay), lr = (R)h->lr, eps = (R)h->eps;
    R beta1 = (R)h->beta1, beta2 = (R)h->beta2, clip = (R)h->grad_scale;
    R rest1 = (R)(1 - h->beta1), rest2 = (R)(1 - h->beta2);
    R correction1 = (R)h->correction1, correction2 = (R)h->correction2, d = *g * clip;

    *m = beta1 * *m + rest1 * d;
    *v = beta2 * *v + rest2 * d * d;
    *p = *p * keep - lr * (*m / correction1) / (R_SQRT(*v / correction2) + eps);
    *g = 0;
}

static void NAME(adamw)(const ek_adamw *h, int64_t n, void *p, void *g, void *m, void *v)
{
    const ek_adamw by = *h;
    R *pp = p, *pg = g, *pm = m, *pv = v;

#pragma omp parallel for if (n > SMALL)
    for (int64_t i = 0; i < n; i++)
        NAME(adamw_number)(&by, &pp[i], &pg[i], &pm[i], &pv[i]);
}

static void NAME(adamw_resumable)(const ek_adamw *h, int64_t n, void *p, void *g, void *m, void *v,
                                  int lanes, ek_undo_log *undo_logs)
{
    const ek_adamw by = *h;

#pragma omp parallel for if (n > SMALL)
    for (int lane = 0; lane < lanes; lane++) {
        ek_undo_log *t = &undo_logs[lane];
        int64_t at = ek_undo_lane_first(n, lanes, lane);
        int64_t own = ek_undo_lane_first(n, lanes, lane + 1) - at;
        R *a[] = {(R *)p + at, (R *)g + at, (R *)m + at, (R *)v + at};
        int64_t i = ek_undo_restore(t, sizeof(R), (void *const[]){a[0], a[1], a[2], a[3]});

        for (; i < own; i += EK_UNDO_BLOCK) {
            int64_t end = NAME(least)(i + EK_UNDO_BLOCK, own);

            for (int j = 0; j < EK_UNDO_ARRAYS; j++)
                memcpy(ek_undo_copy(t, i, j), a[j] + i, (size_t)(end - i) * sizeof(R));
            ek_undo_mark(t, end);
            for (int64_t k = i; k < end; k++)
                NAME(adamw_number)(&by, a[0] + k, a[1] + k, a[2] + k, a[3] + k);
        }
    }
}
