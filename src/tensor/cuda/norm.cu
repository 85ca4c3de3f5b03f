/* RMSNorm over rows, over heads, and over rows divided among ranks.
 *
 * With h = x rstd:  dx = rstd (w dy - h mean(w dy h)),  dw = sum over rows of dy h. */
#include "tensor/cuda/device.h"
#include "tensor/cuda/fill.h"
#include "tensor/cuda/launch.h"

/* --- gradients of weights --------------------------------------------------------------------- */

/* The terms of a head, of rows with `heads` heads that share one dw. */
template <class R, class X> struct head_term {
    const X *dy, *x;
    int64_t heads, width, ldy, ldx;
    const R *rstd;

    template <bool ALIGNED> __device__ vec<R> at(int64_t s, int64_t c) const
    {
        int64_t i = heads == 1 ? s : s / heads, begin = (s - i * heads) * width;
        vec<X> y = load_vec<ALIGNED>(dy + i * ldy + begin, c, width);
        vec<X> v = load_vec<ALIGNED>(x + i * ldx + begin, c, width);
        vec<R> term;

        for (int e = 0; e < EK_VEC; e++)
            term.x[e] = to_real(y.x[e]) * to_real(v.x[e]) * rstd[s];
        return term;
    }
};

template <bool ALIGNED, class R, class X>
__global__ void weight_parts(int64_t n, int64_t parts, head_term<R, X> f, R *part)
{
    sum_strip<ALIGNED>(n, f.width, parts, f, part);
}

template <class R> __global__ void add_parts(int64_t parts, int64_t d, const R *part, R *dw)
{
    element<R> f = {part, d};

    sum_columns(parts, d, f, dw);
}

/* dw R [width] += over all heads of n rows; ws: rmsnorm_workspace. */
template <class R, class X>
static void weight_back(const char *name, int64_t n, const head_term<R, X> &f, void *dw, void *ws)
{
    int64_t d = f.width, all = n * f.heads, parts = parts_of_rows(all, d);
    bool whole = is_vec_aligned(f.dy, d, f.ldy) && is_vec_aligned(f.x, d, f.ldx);

    launch(name, whole ? weight_parts<true, R, X> : weight_parts<false, R, X>, strips_of(d) * parts,
           EK_BLOCK, all, parts, f, (R *)ws);
    launch(name, add_parts<R>, blocks_of_columns(d), EK_BLOCK, parts, d, (const R *)ws, (R *)dw);
}

template <class R> static size_t rmsnorm_workspace(const ek_kernels *, int64_t d)
{
    return (size_t)scratch_of_parts(d) * sizeof(R);
}

/* --- rows ------------------------------------------------------------------------------------- */

template <bool ALIGNED, class R, class C>
__global__ void norm_row(int64_t d, double eps, const R *x, const R *w, C *y, R *y_real, R *rstd)
{
    __shared__ R scratch[EK_WARPS];
    int64_t i = blockIdx.x;
    R sum = 0, s;

    for (int64_t c = threadIdx.x * EK_VEC; c < d; c += EK_BLOCK * EK_VEC) {
        vec<R> xi = load_vec<ALIGNED>(x + i * d, c, d);

        for (int e = 0; e < EK_VEC; e++)
            sum += xi.x[e] * xi.x[e];
    }
    s = 1 / real_sqrt(block_sum(sum, scratch) / (R)d + (R)eps);
    if (threadIdx.x == 0)
        rstd[i] = s;
    for (int64_t c = threadIdx.x * EK_VEC; c < d; c += EK_BLOCK * EK_VEC) {
        vec<R> v = load_vec<ALIGNED>(x + i * d, c, d), wi = load_vec<ALIGNED>(w, c, d);
        vec<C> rounded;

        for (int e = 0; e < EK_VEC; e++) {
            v.x[e] = v.x[e] * s * wi.x[e];
            store_value(&rounded.x[e], v.x[e]);
        }
        if (y != nullptr)
            store_vec<ALIGNED>(y + i * d, c, d, rounded);
        if (y_real != nullptr)
            store_vec<ALIGNED>(y_real + i * d, c, d, v);
    }
}

template <class R, class C>
static void rmsnorm_forward(int64_t n, int64_t d, double eps, const void *x, const void *w, void *y,
                            void *y_real, void *rstd)
{
    bool whole = is_vec_aligned((const R *)x, d, d) && is_vec_aligned((const R *)w, d, d) &&
                 is_vec_aligned((const C *)y, d, d) && is_vec_aligned((const R *)y_real, d, d);

    launch("rmsnorm_forward", whole ? norm_row<true, R, C> : norm_row<false, R, C>, n, EK_BLOCK, d,
           eps, (const R *)x, (const R *)w, (C *)y, (R *)y_real, (R *)rstd);
}

template <bool ALIGNED, class R>
__global__ void norm_row_back(int64_t d, const R *x, const R *w, const R *rstd, const R *dy, R *dx)
{
    __shared__ R scratch[EK_WARPS];
    int64_t i = blockIdx.x;
    const R *xi = x + i * d, *gi = dy + i * d;
    R s = rstd[i], mean = 0;

    for (int64_t c = threadIdx.x * EK_VEC; c < d; c += EK_BLOCK * EK_VEC) {
        vec<R> wc = load_vec<ALIGNED>(w, c, d), g = load_vec<ALIGNED>(gi, c, d);
        vec<R> v = load_vec<ALIGNED>(xi, c, d);

        for (int e = 0; e < EK_VEC; e++)
            mean += wc.x[e] * g.x[e] * v.x[e];
    }
    mean = block_sum(mean, scratch) * (s / (R)d);
    for (int64_t c = threadIdx.x * EK_VEC; c < d; c += EK_BLOCK * EK_VEC) {
        vec<R> wc = load_vec<ALIGNED>(w, c, d), g = load_vec<ALIGNED>(gi, c, d);
        vec<R> v = load_vec<ALIGNED>(xi, c, d), to = load_vec<ALIGNED>(dx + i * d, c, d);

        for (int e = 0; e < EK_VEC; e++)
            to.x[e] += s * (wc.x[e] * g.x[e] - v.x[e] * s * mean);
        store_vec<ALIGNED>(dx + i * d, c, d, to);
    }
}

template <class R>
static void rmsnorm_backward(int64_t n, int64_t d, const void *x, const void *w, const void *rstd,
                             const void *dy, void *dx, void *dw, void *ws)
{
    head_term<R, R> f = {(const R *)dy, (const R *)x, 1, d, d, d, (const R *)rstd};
    bool whole = is_vec_aligned((const R *)x, d, d) && is_vec_aligned((const R *)w, d, d) &&
                 is_vec_aligned((const R *)dy, d, d) && is_vec_aligned((const R *)dx, d, d);

    launch("rmsnorm_backward", whole ? norm_row_back<true, R> : norm_row_back<false, R>, n,
           EK_BLOCK, d, (const R *)x, (const R *)w, (const R *)rstd, (const R *)dy, (R *)dx);
    weight_back("rmsnorm_backward dw", n, f, dw, ws);
}

/* --- heads: a warp per head ------------------------------------------------------------------- */

/* The head of a warp; warps past the last head have none. */
__device__ static int64_t head_of_warp(void)
{
    return (int64_t)blockIdx.x * EK_WARPS + warp_of();
}

static int64_t blocks_of_heads(int64_t n)
{
    return (n + EK_WARPS - 1) / EK_WARPS;
}

template <bool ALIGNED, class R, class C>
__global__ void norm_head(int64_t n, int64_t heads, int64_t width, double eps, const R *w, C *x,
                          int64_t ld, C *raw, R *rstd)
{
    int64_t s = head_of_warp(), step = EK_WARP * EK_VEC;
    C *xi = x + s / heads * ld + s % heads * width;
    R sum = 0, r;

    if (s >= n * heads)
        return;
    for (int64_t c = lane_of() * EK_VEC; c < width; c += step) {
        vec<C> v = load_vec<ALIGNED>(xi, c, width);

        for (int e = 0; e < EK_VEC; e++)
            sum += to_real(v.x[e]) * to_real(v.x[e]);
    }
    r = 1 / real_sqrt(warp_sum(sum) / (R)width + (R)eps);
    if (lane_of() == 0)
        rstd[s] = r;
    for (int64_t c = lane_of() * EK_VEC; c < width; c += step) {
        vec<C> v = load_vec<ALIGNED>(xi, c, width);
        vec<R> wc = load_vec<ALIGNED>(w, c, width);

        if (raw != nullptr)
            store_vec<ALIGNED>(raw + s * width, c, width, v);
        for (int e = 0; e < EK_VEC; e++)
            store_value(&v.x[e], to_real(v.x[e]) * r * wc.x[e]);
        store_vec<ALIGNED>(xi, c, width, v);
    }
}

template <class R, class C>
static void headnorm_forward(int64_t n, int64_t heads, int64_t width, double eps, const void *w,
                             void *x, int64_t ld, void *raw, void *rstd)
{
    bool whole = is_vec_aligned((const R *)w, width, width) &&
                 is_vec_aligned((const C *)x, width, ld) &&
                 is_vec_aligned((const C *)raw, width, width);

    launch("headnorm_forward", whole ? norm_head<true, R, C> : norm_head<false, R, C>,
           blocks_of_heads(n * heads), EK_BLOCK, n, heads, width, eps, (const R *)w, (C *)x, ld,
           (C *)raw, (R *)rstd);
}

template <bool ALIGNED, class R, class C>
__global__ void norm_head_back(int64_t n, int64_t heads, int64_t width, const R *w, const C *raw,
                               const R *rstd, C *dx, int64_t ld)
{
    int64_t s = head_of_warp(), step = EK_WARP * EK_VEC;
    const C *xi = raw + s * width;
    C *gi = dx + s / heads * ld + s % heads * width;
    R mean = 0;

    if (s >= n * heads)
        return;
    for (int64_t c = lane_of() * EK_VEC; c < width; c += step) {
        vec<R> wc = load_vec<ALIGNED>(w, c, width);
        vec<C> g = load_vec<ALIGNED>(gi, c, width), v = load_vec<ALIGNED>(xi, c, width);

        for (int e = 0; e < EK_VEC; e++)
            mean += wc.x[e] * to_real(g.x[e]) * to_real(v.x[e]);
    }
    mean = warp_sum(mean) * (rstd[s] / (R)width);
    for (int64_t c = lane_of() * EK_VEC; c < width; c += step) {
        vec<R> wc = load_vec<ALIGNED>(w, c, width);
        vec<C> g = load_vec<ALIGNED>(gi, c, width), v = load_vec<ALIGNED>(xi, c, width);

        for (int e = 0; e < EK_VEC; e++)
            store_value(&g.x[e],
                        rstd[s] * (wc.x[e] * to_real(g.x[e]) - to_real(v.x[e]) * rstd[s] * mean));
        store_vec<ALIGNED>(gi, c, width, g);
    }
}

template <class R, class C>
static void headnorm_backward(int64_t n, int64_t heads, int64_t width, const void *w,
                              const void *raw, const void *rstd, void *dx, int64_t ld, void *dw,
                              void *ws)
{
    head_term<R, C> f = {(const C *)dx, (const C *)raw, heads, width, ld,
                         heads * width, (const R *)rstd};
    bool whole = is_vec_aligned((const R *)w, width, width) &&
                 is_vec_aligned((const C *)dx, width, ld) &&
                 is_vec_aligned((const C *)raw, width, width);

    weight_back("headnorm_backward dw", n, f, dw, ws); /* first: dx overwrites dy */
    launch("headnorm_backward", whole ? norm_head_back<true, R, C> : norm_head_back<false, R, C>,
           blocks_of_heads(n * heads), EK_BLOCK, n, heads, width, (const R *)w, (const C *)raw,
           (const R *)rstd, (C *)dx, ld);
}

/* --- rows divided among ranks ----------------------------------------------------------------- */

template <class R, class C>
__global__ void wide_squares(int64_t width, const C *x, int64_t ld, double *sums)
{
    __shared__ R scratch[EK_WARPS];
    const C *xi = x + blockIdx.x * ld;
    R sum = 0;

    for (int64_t c = threadIdx.x; c < width; c += blockDim.x)
        sum += to_real(xi[c]) * to_real(xi[c]);
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0)
        sums[blockIdx.x] = (double)sum;
}

template <class R, class C>
static void widenorm_squares(int64_t n, int64_t width, const void *x, int64_t ld, double *sums)
{
    launch("widenorm_squares", wide_squares<R, C>, n, EK_BLOCK, width, (const C *)x, ld, sums);
}

template <class R, class C>
__global__ void wide_norm(int64_t width, int64_t whole, double eps, const double *sums, const R *w,
                          C *x, int64_t ld, C *raw, R *rstd)
{
    int64_t i = blockIdx.x;
    R s = (R)(1 / sqrt(sums[i] / (double)whole + eps));
    C *xi = x + i * ld;

    if (threadIdx.x == 0)
        rstd[i] = s;
    for (int64_t c = threadIdx.x; c < width; c += blockDim.x) {
        raw[i * width + c] = xi[c];
        store_value(&xi[c], to_real(xi[c]) * s * w[c]);
    }
}

template <class R, class C>
static void widenorm_forward(int64_t n, int64_t width, int64_t whole, double eps,
                             const double *sums, const void *w, void *x, int64_t ld, void *raw,
                             void *rstd)
{
    launch("widenorm_forward", wide_norm<R, C>, n, EK_BLOCK, width, whole, eps, sums, (const R *)w,
           (C *)x, ld, (C *)raw, (R *)rstd);
}

template <class R, class C>
__global__ void wide_dots(int64_t width, const R *w, const C *raw, const C *dy, int64_t ld,
                          double *sums)
{
    __shared__ R scratch[EK_WARPS];
    int64_t i = blockIdx.x;
    R sum = 0;

    for (int64_t c = threadIdx.x; c < width; c += blockDim.x)
        sum += w[c] * to_real(dy[i * ld + c]) * to_real(raw[i * width + c]);
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0)
        sums[i] = (double)sum;
}

template <class R, class C>
static void widenorm_dots(int64_t n, int64_t width, const void *w, const void *raw, const void *dy,
                          int64_t ld, double *sums)
{
    launch("widenorm_dots", wide_dots<R, C>, n, EK_BLOCK, width, (const R *)w, (const C *)raw,
           (const C *)dy, ld, sums);
}

template <class R, class C>
__global__ void wide_norm_back(int64_t width, int64_t whole, const double *sums, const R *w,
                               const C *raw, const R *rstd, C *dx, int64_t ld)
{
    int64_t i = blockIdx.x;
    R s = rstd[i], mean = (R)(sums[i] * (double)s / (double)whole);

    for (int64_t c = threadIdx.x; c < width; c += blockDim.x) {
        C *g = &dx[i * ld + c];

        store_value(g, s * (w[c] * to_real(*g) - to_real(raw[i * width + c]) * s * mean));
    }
}

/* The term of a row in dw; dy and x of any layout. */
template <class R, class X> struct weight_term {
    const X *dy, *x;
    int64_t ldy, ldx;
    const R *rstd;

    __device__ R operator()(int64_t i, int64_t c) const
    {
        return to_real(dy[i * ldy + c]) * to_real(x[i * ldx + c]) * rstd[i];
    }
};

template <class R, class X>
__global__ void norm_weight_back(int64_t n, int64_t d, weight_term<R, X> f, R *dw)
{
    sum_columns(n, d, f, dw);
}

template <class R, class C>
static void widenorm_backward(int64_t n, int64_t width, int64_t whole, const double *sums,
                              const void *w, const void *raw, const void *rstd, void *dx,
                              int64_t ld, void *dw)
{
    weight_term<R, C> f = {(const C *)dx, (const C *)raw, ld, width, (const R *)rstd};

    launch("widenorm_backward dw", norm_weight_back<R, C>, blocks_of_columns(width), EK_BLOCK, n,
           width, f, (R *)dw);
    launch("widenorm_backward", wide_norm_back<R, C>, n, EK_BLOCK, width, whole, sums, (const R *)w,
           (const C *)raw, (const R *)rstd, (C *)dx, ld);
}

template <class R, class C> static void fill(ek_kernels *k)
{
    k->rmsnorm_forward = rmsnorm_forward<R, C>;
    k->rmsnorm_backward = rmsnorm_backward<R>;
    k->rmsnorm_workspace = rmsnorm_workspace<R>;
    k->headnorm_forward = headnorm_forward<R, C>;
    k->headnorm_backward = headnorm_backward<R, C>;
    k->widenorm_squares = widenorm_squares<R, C>;
    k->widenorm_forward = widenorm_forward<R, C>;
    k->widenorm_dots = widenorm_dots<R, C>;
    k->widenorm_backward = widenorm_backward<R, C>;
}

EK_CUDA_FILL(ek_cuda_fill_norm, fill)
