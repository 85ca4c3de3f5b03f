/* Reference RMSNorm, over rows and over heads.  A body file, see body.h.
 *
 * With h = x rstd:  dx = rstd (w dy - h mean(w dy h)),  dw = sum over rows of dy h. */

static void NAME(rmsnorm_forward)(int64_t n, int64_t d, double eps, const void *x, const void *w,
                                  void *y, void *y_real, void *rstd)
{
    const R *from = x, *weight = w;
    R *real = y_real, *rs = rstd;
    C *comp = y;

#pragma omp parallel for if (n * d > SMALL)
    for (int64_t i = 0; i < n; i++) {
        const R *xi = from + i * d;
        R s = 1 / R_SQRT(NAME(dot_real)(d, xi, xi) / (R)d + (R)eps);

        rs[i] = s;
        for (int64_t c = 0; c < d; c++) {
            R v = xi[c] * s * weight[c];

            if (comp != NULL)
                comp[i * d + c] = TO_C(v);
            if (real != NULL)
                real[i * d + c] = v;
        }
    }
}

static void NAME(rmsnorm_backward)(int64_t n, int64_t d, const void *x, const void *w,
                                   const void *rstd, const void *dy, void *dx, void *dw, void *ws)
{
    const R *from = x, *weight = w, *rs = rstd, *g = dy;
    R *gx = dx, *gw = dw;

    (void)ws;
#pragma omp parallel for if (n * d > SMALL)
    for (int64_t i = 0; i < n; i++) {
        const R *xi = from + i * d, *gi = g + i * d;
        R mean = 0;

        for (int64_t c = 0; c < d; c++)
            mean += weight[c] * gi[c] * xi[c];
        mean *= rs[i] / (R)d;
        for (int64_t c = 0; c < d; c++)
            gx[i * d + c] += rs[i] * (weight[c] * gi[c] - xi[c] * rs[i] * mean);
    }
#pragma omp parallel for if (n * d > SMALL)
    for (int64_t c0 = 0; c0 < d; c0 += 64) {
        int64_t end = NAME(least)(c0 + 64, d);

        for (int64_t i = 0; i < n; i++) {
            for (int64_t c = c0; c < end; c++)
                gw[c] += g[i * d + c] * from[i * d + c] * rs[i];
        }
    }
}

static void NAME(headnorm_forward)(int64_t n, int64_t heads, int64_t width, double eps,
                                   const void *w, void *x, int64_t ld, void *raw, void *rstd)
{
    const R *weight = w;
    C *to = x, *keep = raw;
    R *rs = rstd;

#pragma omp parallel for collapse(2) if (n * heads * width > SMALL)
    for (int64_t i = 0; i < n; i++) {
        for (int64_t h = 0; h < heads; h++) {
            C *xi = to + i * ld + h * width;
            R s = 1 / R_SQRT(NAME(dot)(width, xi, xi) / (R)width + (R)eps);

            rs[i * heads + h] = s;
            if (keep != NULL)
                memcpy(keep + (i * heads + h) * width, xi, (size_t)width * sizeof(C));
            for (int64_t c = 0; c < width; c++)
                xi[c] = TO_C(TO_R(xi[c]) * s * weight[c]);
        }
    }
}

static void NAME(headnorm_backward)(int64_t n, int64_t heads, int64_t width, const void *w,
                                    const void *raw, const void *rstd, void *dx, int64_t ld,
                                    void *dw, void *ws)
{
    const R *weight = w, *rs = rstd;
    const C *from = raw;
    C *g = dx;
    R *gw = dw;

    (void)ws;
    /* dw first: dx overwrites dy. */
    for (int64_t s = 0; s < n * heads; s++) {
        const C *gi = g + s / heads * ld + s % heads * width;

        for (int64_t c = 0; c < width; c++)
            gw[c] += TO_R(gi[c]) * TO_R(from[s * width + c]) * rs[s];
    }
#pragma omp parallel for if (n * heads * width > SMALL)
    for (int64_t s = 0; s < n * heads; s++) {
        const C *xi = from + s * width;
        C *gi = g + s / heads * ld + s % heads * width;
        R mean = 0;

        for (int64_t c = 0; c < width; c++)
            mean += weight[c] * TO_R(gi[c]) * TO_R(xi[c]);
        mean *= rs[s] / (R)width;
        for (int64_t c = 0; c < width; c++)
            gi[c] = TO_C(rs[s] * (weight[c] * TO_R(gi[c]) - TO_R(xi[c]) * rs[s] * mean));
    }
}

static void NAME(widenorm_squares)(int64_t n, int64_t width, const void *x, int64_t ld,
                                   double *sums)
{
    const C *from = x;

#pragma omp parallel for if (n * width > SMALL)
    for (int64_t i = 0; i < n; i++)
        sums[i] = (double)NAME(dot)(width, from + i * ld, from + i * ld);
}

static void NAME(widenorm_forward)(int64_t n, int64_t width, int64_t whole, double eps,
                                   const double *sums, const void *w, void *x, int64_t ld,
                                   void *raw, void *rstd)
{
    const R *weight = w;
    C *to = x, *keep = raw;
    R *rs = rstd;

#pragma omp parallel for if (n * width > SMALL)
    for (int64_t i = 0; i < n; i++) {
        C *xi = to + i * ld;
        R s = (R)(1 / sqrt(sums[i] / (double)whole + eps));

        rs[i] = s;
        memcpy(keep + i * width, xi, (size_t)width * sizeof(C));
        for (int64_t c = 0; c < width; c++)
            xi[c] = TO_C(TO_R(xi[c]) * s * weight[c]);
    }
}

static void NAME(widenorm_dots)(int64_t n, int64_t width, const void *w, const void *raw,
                                const void *dy, int64_t ld, double *sums)
{
    const R *weight = w;
    const C *from = raw, *g = dy;

#pragma omp parallel for if (n * width > SMALL)
    for (int64_t i = 0; i < n; i++) {
        R sum = 0;

        for (int64_t c = 0; c < width; c++)
            sum += weight[c] * TO_R(g[i * ld + c]) * TO_R(from[i * width + c]);
        sums[i] = (double)sum;
    }
}

static void NAME(widenorm_backward)(int64_t n, int64_t width, int64_t whole, const double *sums,
                                    const void *w, const void *raw, const void *rstd, void *dx,
                                    int64_t ld, void *dw)
{
    const R *weight = w, *rs = rstd;
    const C *from = raw;
    C *g = dx;
    R *gw = dw;

#pragma omp parallel for if (n * width > SMALL)
    for (int64_t c0 = 0; c0 < width; c0 += 64) {
        int64_t end = NAME(least)(c0 + 64, width);

        for (int64_t i = 0; i < n; i++) {
            R mean = (R)(sums[i] * (double)rs[i] / (double)whole);

            for (int64_t c = c0; c < end; c++) {
                R y = TO_R(g[i * ld + c]), x = TO_R(from[i * width + c]);

                gw[c] += y * x * rs[i];
                g[i * ld + c] = TO_C(rs[i] * (weight[c] * y - x * rs[i] * mean));
            }
        }
    }
}

static size_t NAME(rmsnorm_workspace)(const ek_kernels *k, int64_t d)
{
    (void)k;
    (void)d;
    return 0;
}
