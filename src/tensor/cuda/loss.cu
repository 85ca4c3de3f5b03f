/* Cross entropy over the whole vocabulary, and vocabulary-parallel.  One block per row;
 * exponentials of the whole vocabulary are in the real type, sums in double, as in tensor/cpu. */
#include "tensor/cuda/device.h"
#include "tensor/cuda/fill.h"
#include "tensor/cuda/launch.h"

template <class R> __device__ static double row_max(int64_t v, const R *x, double *scratch)
{
    double top = -INFINITY;

    for (int64_t c = threadIdx.x; c < v; c += blockDim.x)
        top = (double)x[c] > top ? (double)x[c] : top;
    return block_max(top, scratch);
}

/* Few, large blocks, so that their rows stay in the L2 cache between the two passes. */
enum { LOSS_BLOCK = 1024, LOSS_STEP = LOSS_BLOCK * EK_VEC };

/* The sum of exp(x - *top) over a row, and its maximum *top, reading it once: a thread rescales its
 * sum when it finds a larger element. */
template <bool ALIGNED, class R>
__device__ static double sum_exponentials(int64_t v, const R *x, R *top)
{
    __shared__ R tops[LOSS_BLOCK / EK_WARP];
    __shared__ double sums[LOSS_BLOCK / EK_WARP];
    R high = (R)(sizeof(R) == sizeof(double) ? -1e308 : -3e38); /* so -inf adds 0, not NaN */
    double sum = 0;

#pragma unroll 2
    for (int64_t c = threadIdx.x * EK_VEC; c < v; c += LOSS_STEP) {
        vec<R> xi = load_vec<ALIGNED>(x, c, v);
        R old = high;

        for (int e = 0; e < EK_VEC; e++)
            high = (ALIGNED || c + e < v) && xi.x[e] > high ? xi.x[e] : high;
        if (high > old)
            sum *= (double)real_exp(old - high);
        for (int e = 0; e < EK_VEC; e++)
            sum += ALIGNED || c + e < v ? (double)real_exp(xi.x[e] - high) : 0;
    }
    *top = block_max(high, tops);
    return block_sum(sum * (double)real_exp(high - *top), sums);
}

template <bool ALIGNED, class R, class C>
__global__ void __launch_bounds__(LOSS_BLOCK)
    entropy_row(int64_t v, const R *logits, int64_t ld, const int32_t *target, double scale,
                double *loss, C *dlogits, int64_t ldd)
{
    int64_t i = blockIdx.x, t = target[i];
    const R *x = logits + i * ld;
    R top;
    double total = sum_exponentials<ALIGNED>(v, x, &top);
    R factor = (R)(scale / total);

    if (threadIdx.x == 0)
        loss[i] = t < 0 ? 0 : log(total) - ((double)x[t] - (double)top);
    for (int64_t c = threadIdx.x * EK_VEC; dlogits != nullptr && c < v; c += LOSS_STEP) {
        vec<R> xi = load_vec<ALIGNED>(x, c, v);
        vec<C> d;

        for (int e = 0; e < EK_VEC; e++) {
            R p = real_exp(xi.x[e] - top);
            R g = c + e == t ? (R)(((double)p - total) * (scale / total)) : p * factor;

            store_value(&d.x[e], t < 0 ? 0 : g);
        }
        store_vec<ALIGNED>(dlogits + i * ldd, c, v, d);
    }
}

template <class R, class C>
static void cross_entropy(int64_t n, int64_t v, void *logits, int64_t ld, const int32_t *target,
                          double scale, double *loss, void *dlogits, int64_t ldd)
{
    bool whole =
        is_vec_aligned((const R *)logits, v, ld) && is_vec_aligned((const C *)dlogits, v, ldd);

    launch("cross_entropy", whole ? entropy_row<true, R, C> : entropy_row<false, R, C>, n,
           LOSS_BLOCK, v, (const R *)logits, ld, target, scale, loss, (C *)dlogits, ldd);
}

template <class R>
__global__ void exponentials_row(int64_t v, R *logits, int64_t ld, const int32_t *target,
                                 double *stats)
{
    __shared__ double scratch[EK_WARPS];
    int64_t i = blockIdx.x, t = target[i];
    R *x = logits + i * ld;
    double top = row_max(v, x, scratch), sum = 0;

    if (threadIdx.x == 0)
        stats[3 * i + 2] = t < 0 ? 0 : (double)x[t];
    __syncthreads(); /* before the target's element is set to 0 */
    for (int64_t c = threadIdx.x; c < v; c += blockDim.x) {
        double e = c == t ? 0 : exp((double)x[c] - top);

        sum += e;
        x[c] = (R)e;
    }
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0) {
        stats[3 * i] = top;
        stats[3 * i + 1] = sum;
    }
}

template <class R>
static void vocab_exponentials(int64_t n, int64_t v, void *logits, int64_t ld,
                               const int32_t *target, double *stats)
{
    launch("vocab_exponentials", exponentials_row<R>, n, EK_BLOCK, v, (R *)logits, ld, target,
           stats);
}

template <class R, class C>
__global__ void gradient_row(int64_t v, const R *exponentials, int64_t ld, const int32_t *target,
                             const double *factor, const double *hit, C *dlogits, int64_t ldd)
{
    int64_t i = blockIdx.x;

    for (int64_t c = threadIdx.x; c < v; c += blockDim.x)
        store_value(&dlogits[i * ldd + c],
                    (R)(c == target[i] ? hit[i] : factor[i] * (double)exponentials[i * ld + c]));
}

template <class R, class C>
static void vocab_gradient(int64_t n, int64_t v, const void *exponentials, int64_t ld,
                           const int32_t *target, const double *factor, const double *hit,
                           void *dlogits, int64_t ldd)
{
    launch("vocab_gradient", gradient_row<R, C>, n, EK_BLOCK, v, (const R *)exponentials, ld,
           target, factor, hit, (C *)dlogits, ldd);
}

template <class R, class C> static void fill(ek_kernels *k)
{
    k->cross_entropy = cross_entropy<R, C>;
    k->vocab_exponentials = vocab_exponentials<R>;
    k->vocab_gradient = vocab_gradient<R, C>;
}

EK_CUDA_FILL(ek_cuda_fill_loss, fill)
