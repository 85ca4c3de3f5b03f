/* RMSNorm over rows, over heads, and over rows divided among ranks.
 *
 * With h = x rstd:  dx = rstd (w dy - h mean(w dy h)),  dw = sum over rows of dy h. */
#include "tensor/cuda/device.h"
#include "tensor/cuda/fill.h"
#include "tensor/cuda/launch.h"

/* --- rows ------------------------------------------------------------------------------------- */

template <class R, class C>
__global__ void norm_row(int64_t d, double eps, const R *x, const R *w, C *y, R *y_real, R *rstd)
{
    __shared__ R scratch[EK_WARPS];
    int64_t i = blockIdx.x;
    const R *xi = x + i * d;
    R sum = 0, s;

    for (int64_t c = threadIdx.x; c < d; c += blockDim.x)
        sum += xi[c] * xi[c];
    s = 1 / real_sqrt(block_sum(sum, scratch) / (R)d + (R)eps);
    if (threadIdx.x == 0)
        rstd[i] = s;
    for (int64_t c = threadIdx.x; c < d; c += blockDim.x) {
        R v = xi[c] * s * w[c];

        if (y != nullptr)
            store_value(&y[i * d + c], v);
        if (y_real != nullptr)
            y_real[i * d + c] = v;
    }
}

template <class R, class C>
static void rmsnorm_forward(int64_t n, int64_t d, double eps, const void *x, const void *w, void *y,
                            void *y_real, void *rstd)
{
    launch("rmsnorm_forward", norm_row<R, C>, n, EK_BLOCK, d, eps, (const R *)x, (const R *)w,
           (C *)y, (R *)y_real, (R *)rstd);
}

template <class R>
__global__ void norm_row_back(int64_t d, const R *x, const R *w, const R *rstd, const R *dy, R *dx)
{
    __shared__ R scratch[EK_WARPS];
    int64_t i = blockIdx.x;
    const R *xi = x + i * d, *gi = dy + i * d;
    R s = rstd[i], mean = 0;

    for (int64_t c = threadIdx.x; c < d; c += blockDim.x)
        mean += w[c] * gi[c] * xi[c];
    mean = block_sum(mean, scratch) * (s / (R)d);
    for (int64_t c = threadIdx.x; c < d; c += blockDim.x)
        dx[i * d + c] += s * (w[c] * gi[c] - xi[c] * s * mean);
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

template <class R>
static void rmsnorm_backward(int64_t n, int64_t d, const void *x, const void *w, const void *rstd,
                             const void *dy, void *dx, void *dw, void *ws)
{
    weight_term<R, R> f = {(const R *)dy, (const R *)x, d, d, (const R *)rstd};

    (void)ws;
    launch("rmsnorm_backward", norm_row_back<R>, n, EK_BLOCK, d, (const R *)x, (const R *)w,
           (const R *)rstd, (const R *)dy, (R *)dx);
    launch("rmsnorm_backward dw", norm_weight_back<R, R>, blocks_of_columns(d), EK_BLOCK, n, d, f,
           (R *)dw);
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

template <class R, class C>
__global__ void norm_head(int64_t n, int64_t heads, int64_t width, double eps, const R *w, C *x,
                          int64_t ld, C *raw, R *rstd)
{
    int64_t s = head_of_warp();
    C *xi = x + s / heads * ld + s % heads * width;
    R sum = 0, r;

    if (s >= n * heads)
        return;
    for (int64_t c = lane_of(); c < width; c += EK_WARP)
        sum += to_real(xi[c]) * to_real(xi[c]);
    r = 1 / real_sqrt(warp_sum(sum) / (R)width + (R)eps);
    if (lane_of() == 0)
        rstd[s] = r;
    for (int64_t c = lane_of(); c < width; c += EK_WARP) {
        if (raw != nullptr)
            raw[s * width + c] = xi[c];
        store_value(&xi[c], to_real(xi[c]) * r * w[c]);
    }
}

template <class R, class C>
static void headnorm_forward(int64_t n, int64_t heads, int64_t width, double eps, const void *w,
                             void *x, int64_t ld, void *raw, void *rstd)
{
    launch("headnorm_forward", norm_head<R, C>, blocks_of_heads(n * heads), EK_BLOCK, n, heads,
           width, eps, (const R *)w, (C *)x, ld, (C *)raw, (R *)rstd);
}

template <class R, class C>
__global__ void norm_head_back(int64_t n, int64_t heads, int64_t width, const R *w, const C *raw,
                               const R *rstd, C *dx, int64_t ld)
{
    int64_t s = head_of_warp();
    const C *xi = raw + s * width;
    C *gi = dx + s / heads * ld + s % heads * width;
    R mean = 0;

    if (s >= n * heads)
        return;
    for (int64_t c = lane_of(); c < width; c += EK_WARP)
        mean += w[c] * to_real(gi[c]) * to_real(xi[c]);
    mean = warp_sum(mean) * (rstd[s] / (R)width);
    for (int64_t c = lane_of(); c < width; c += EK_WARP)
        store_value(&gi[c], rstd[s] * (w[c] * to_real(gi[c]) - to_real(xi[c]) * rstd[s] * mean));
}

/* The term of all heads of a row, which share one dw. */
template <class R, class C> struct head_term {
    const C *dy, *raw;
    int64_t heads, width, ld;
    const R *rstd;

    __device__ R operator()(int64_t s, int64_t c) const
    {
        return to_real(dy[s / heads * ld + s % heads * width + c]) * to_real(raw[s * width + c]) *
               rstd[s];
    }
};

template <class R, class C>
__global__ void head_weight_back(int64_t n, int64_t width, head_term<R, C> f, R *dw)
{
    sum_columns(n, width, f, dw);
}

template <class R, class C>
static void headnorm_backward(int64_t n, int64_t heads, int64_t width, const void *w,
                              const void *raw, const void *rstd, void *dx, int64_t ld, void *dw,
                              void *ws)
{
    head_term<R, C> f = {(const C *)dx, (const C *)raw, heads, width, ld, (const R *)rstd};

    (void)ws; /* dw first: dx overwrites dy */
    launch("headnorm_backward dw", head_weight_back<R, C>, blocks_of_columns(width), EK_BLOCK,
           n * heads, width, f, (R *)dw);
    launch("headnorm_backward", norm_head_back<R, C>, blocks_of_heads(n * heads), EK_BLOCK, n,
           heads, width, (const R *)w, (const C *)raw, (const R *)rstd, (C *)dx, ld);
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
    k->headnorm_forward = headnorm_forward<R, C>;
    k->headnorm_backward = headnorm_backward<R, C>;
    k->widenorm_squares = widenorm_squares<R, C>;
    k->widenorm_forward = widenorm_forward<R, C>;
    k->widenorm_dots = widenorm_dots<R, C>;
    k->widenorm_backward = widenorm_backward<R, C>;
}

EK_CUDA_FILL(ek_cuda_fill_norm, fill)
