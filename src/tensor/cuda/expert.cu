/* SwiGLU, gradient norm and AdamW. */
#include "tensor/cuda/device.h"
#include "tensor/cuda/fill.h"
#include "tensor/cuda/launch.h"

/* --- SwiGLU ----------------------------------------------------------------------------------- */

template <bool ALIGNED, class R, class C>
__global__ void swiglu(int64_t n, int64_t f, const C *gu, const R *scale, C *h)
{
    constexpr int N = in_16_bytes<C>;
    groups_of_thread<N, 1> mine(f);
    int64_t i = mine.row(0), c = mine.column(0);
    vec<C, N> gate, up;
    R s;

    if (i >= n)
        return;
    gate = load_vec<ALIGNED, N>(gu + i * 2 * f, c, f);
    up = load_vec<ALIGNED, N>(gu + i * 2 * f + f, c, f);
    s = scale != nullptr ? scale[i] : 1;
    for (int e = 0; e < N; e++) {
        R x = to_real(gate.x[e]);

        store_value(&up.x[e], s * (x / (1 + real_exp(-x)) * to_real(up.x[e])));
    }
    store_vec<ALIGNED, N>(h + i * f, c, f, up);
}

template <class R, class C>
static void swiglu_forward(int64_t n, int64_t f, const void *gu, const void *scale, void *h)
{
    constexpr int N = in_16_bytes<C>;
    bool whole = is_vec_aligned<N>((const C *)gu, f, f) && is_vec_aligned<N>((const C *)h, f, f);

    launch("swiglu_forward", whole ? swiglu<true, R, C> : swiglu<false, R, C>,
           blocks_of_groups<N, 1>(n, f), EK_BLOCK, n, f, (const C *)gu, (const R *)scale, (C *)h);
}

/* A warp per row. */
template <bool ALIGNED, class R, class C>
__global__ void swiglu_back(int64_t n, int64_t f, const C *gu, const R *scale, const C *dh, C *dgu,
                            C *h, R *dscale)
{
    constexpr int N = in_16_bytes<C>;
    int64_t i = (int64_t)blockIdx.x * EK_WARPS + warp_of();
    const C *gate = gu + i * 2 * f, *up = gate + f;
    C *dgate = dgu + i * 2 * f, *dup = dgate + f;
    R s, sum = 0;

    if (i >= n)
        return;
    s = scale != nullptr ? scale[i] : 1;
    for (int64_t c = lane_of() * N; c < f; c += EK_WARP * N) {
        vec<C, N> g = load_vec<ALIGNED, N>(gate, c, f), u = load_vec<ALIGNED, N>(up, c, f);
        vec<C, N> d = load_vec<ALIGNED, N>(dh + i * f, c, f), product;

        for (int e = 0; e < N; e++) {
            R x = to_real(g.x[e]), ue = to_real(u.x[e]), de = to_real(d.x[e]);
            R sigmoid = 1 / (1 + real_exp(-x)), silu = x * sigmoid;

            sum += de * (silu * ue);
            store_value(&g.x[e], s * de * ue * (sigmoid * (1 + x * (1 - sigmoid))));
            store_value(&u.x[e], s * de * silu);
            store_value(&product.x[e], s * (silu * ue));
        }
        store_vec<ALIGNED, N>(dgate, c, f, g);
        store_vec<ALIGNED, N>(dup, c, f, u);
        if (h != nullptr)
            store_vec<ALIGNED, N>(h + i * f, c, f, product);
    }
    sum = warp_sum(sum);
    if (dscale != nullptr && lane_of() == 0)
        dscale[i] = sum;
}

template <class R, class C>
static void swiglu_backward(int64_t n, int64_t f, const void *gu, const void *scale, const void *dh,
                            void *dgu, void *h, void *dscale)
{
    constexpr int N = in_16_bytes<C>;
    bool whole = is_vec_aligned<N>((const C *)gu, f, f) && is_vec_aligned<N>((const C *)dh, f, f) &&
                 is_vec_aligned<N>((const C *)dgu, f, f) && is_vec_aligned<N>((const C *)h, f, f);

    launch("swiglu_backward", whole ? swiglu_back<true, R, C> : swiglu_back<false, R, C>,
           (n + EK_WARPS - 1) / EK_WARPS, EK_BLOCK, n, f, (const C *)gu, (const R *)scale,
           (const C *)dh, (C *)dgu, (C *)h, (R *)dscale);
}

/* --- optimizer -------------------------------------------------------------------------------- */

enum { PARTS_MAX = 1024, PART_MIN = 16384, ARRAYS = 64 /* per launch */ };

/* Array i has blocks first[i] to first[i + 1] - 1, one per part. */
template <class R> struct arrays {
    struct {
        const R *g;
        int64_t n;
        bool whole;
    } of[ARRAYS];
    unsigned first[ARRAYS + 1];
};

/* This thread's squares of a part of g. */
template <bool ALIGNED, class R>
__device__ static double squares_of(int64_t n, const R *g, int64_t part, int64_t parts)
{
    int64_t groups = (n + EK_VEC - 1) / EK_VEC;
    int64_t per = (groups + parts - 1) / parts, begin = part * per;
    int64_t end = begin + per < groups ? begin + per : groups;
    double sum = 0;

#pragma unroll 4
    for (int64_t i = begin + threadIdx.x; i < end; i += EK_BLOCK) {
        vec<R> v = load_vec<ALIGNED>(g, i * EK_VEC, n);

        for (int e = 0; e < EK_VEC; e++)
            sum += (double)v.x[e] * (double)v.x[e];
    }
    return sum;
}

/* Each block sums a part of an array, in the order of its threads. */
template <class R> __global__ void sum_parts(const __grid_constant__ arrays<R> all, double *sums)
{
    __shared__ double scratch[EK_WARPS];
    int a = 0;
    int64_t part, parts;
    double sum;

    while (blockIdx.x >= all.first[a + 1])
        a++;
    part = blockIdx.x - all.first[a];
    parts = all.first[a + 1] - all.first[a];
    sum = all.of[a].whole ? squares_of<true>(all.of[a].n, all.of[a].g, part, parts)
                          : squares_of<false>(all.of[a].n, all.of[a].g, part, parts);
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0)
        sums[blockIdx.x] = sum;
}

static int64_t parts_of(int64_t n)
{
    return n / PART_MIN + 1 < PARTS_MAX ? n / PART_MIN + 1 : (int64_t)PARTS_MAX;
}

/* Enqueues the sums of up to ARRAYS arrays; returns their number of parts. */
template <class R>
static int64_t launch_sums(int64_t count, const int64_t *n, const void *const *g, double *sums)
{
    arrays<R> all = {};

    for (int64_t i = 0; i < count; i++) {
        all.of[i] = {(const R *)g[i], n[i], is_vec_aligned((const R *)g[i], n[i], 0)};
        all.first[i + 1] = all.first[i] + (unsigned)parts_of(n[i]);
    }
    launch("sum_squares", sum_parts<R>, all.first[count], EK_BLOCK, all, sums);
    return all.first[count];
}

/* All arrays' sums of parts, then one synchronisation. */
template <class R>
static void sum_squares_each(const ek_kernels *, int64_t count, const int64_t *n,
                             const void *const *g, double *sums)
{
    int64_t parts = 0;
    double *scratch;

    for (int64_t i = 0; i < count; i++) {
        sums[i] = 0;
        parts += parts_of(n[i]);
    }
    scratch = ek_cuda_results((int)parts);
    if (scratch == nullptr)
        return; /* ek_kernels_wait returns the error */
    parts = 0;
    for (int64_t i = 0; i < count; i += ARRAYS)
        parts += launch_sums<R>(count - i < ARRAYS ? count - i : (int64_t)ARRAYS, n + i, g + i,
                                scratch + parts);
    ek_cuda_synchronize();
    for (int64_t i = 0; i < count; i++)
        for (int64_t b = parts_of(n[i]); b > 0; b--)
            sums[i] += *scratch++;
}

template <class R> static double sum_squares(int64_t n, const void *g)
{
    double sum;

    sum_squares_each<R>(nullptr, 1, &n, &g, &sum);
    return sum;
}

template <class R> struct adamw_of {
    R keep, lr, eps, beta1, beta2, rest1, rest2, correction1, correction2, clip;
};

template <bool ALIGNED, class R>
__global__ void adamw_update(adamw_of<R> h, int64_t n, R *p, R *g, R *m, R *v)
{
    for (int64_t i = thread_of_all() * EK_VEC; i < n; i += threads_in_all() * EK_VEC) {
        vec<R> pi = load_vec<ALIGNED>(p, i, n), gi = load_vec<ALIGNED>(g, i, n);
        vec<R> mi = load_vec<ALIGNED>(m, i, n), vi = load_vec<ALIGNED>(v, i, n);

        for (int e = 0; e < EK_VEC; e++) {
            R d = gi.x[e] * h.clip;

            mi.x[e] = h.beta1 * mi.x[e] + h.rest1 * d;
            vi.x[e] = h.beta2 * vi.x[e] + h.rest2 * d * d;
            pi.x[e] = pi.x[e] * h.keep - h.lr * (mi.x[e] / h.correction1) /
                                             (real_sqrt(vi.x[e] / h.correction2) + h.eps);
        }
        store_vec<ALIGNED>(p, i, n, pi);
        store_vec<ALIGNED>(m, i, n, mi);
        store_vec<ALIGNED>(v, i, n, vi);
        store_vec<ALIGNED>(g, i, n, vec<R>{});
    }
}

template <class R>
static void adamw(const ek_adamw *h, int64_t n, void *p, void *g, void *m, void *v)
{
    adamw_of<R> of = {(R)(1 - h->lr * h->decay),
                      (R)h->lr,
                      (R)h->eps,
                      (R)h->beta1,
                      (R)h->beta2,
                      (R)(1 - h->beta1),
                      (R)(1 - h->beta2),
                      (R)h->correction1,
                      (R)h->correction2,
                      (R)h->grad_scale};
    bool whole = is_vec_aligned((const R *)p, n, 0) && is_vec_aligned((const R *)g, n, 0) &&
                 is_vec_aligned((const R *)m, n, 0) && is_vec_aligned((const R *)v, n, 0);

    launch("adamw", whole ? adamw_update<true, R> : adamw_update<false, R>,
           blocks_for(n, EK_BLOCK * EK_VEC), EK_BLOCK, of, n, (R *)p, (R *)g, (R *)m, (R *)v);
}

template <class R, class C> static void fill(ek_kernels *k)
{
    k->swiglu_forward = swiglu_forward<R, C>;
    k->swiglu_backward = swiglu_backward<R, C>;
    k->sum_squares = sum_squares<R>;
    k->sum_squares_each = sum_squares_each<R>;
    k->adamw = adamw<R>;
    k->adamw_resumable = NULL; /* device memory does not outlive the process */
}

EK_CUDA_FILL(ek_cuda_fill_expert, fill)
