/* Cross entropy over the whole vocabulary, and vocabulary-parallel.  One block per row; sums are in
 * double, as in tensor/ref. */
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

template <class R, class C>
__global__ void entropy_row(int64_t v, const R *logits, int64_t ld, const int32_t *target,
                            double scale, double *loss, C *dlogits, int64_t ldd)
{
    __shared__ double scratch[EK_WARPS];
    int64_t i = blockIdx.x, t = target[i];
    const R *x = logits + i * ld;
    double top = row_max(v, x, scratch), total = 0, lse;

    for (int64_t c = threadIdx.x; c < v; c += blockDim.x)
        total += exp((double)x[c] - top);
    lse = top + log(block_sum(total, scratch));
    if (threadIdx.x == 0)
        loss[i] = t < 0 ? 0 : lse - (double)x[t];
    for (int64_t c = threadIdx.x; dlogits != nullptr && c < v; c += blockDim.x) {
        double d = exp((double)x[c] - lse) - (c == t ? 1 : 0);

        store_value(&dlogits[i * ldd + c], (R)(t < 0 ? 0 : scale * d));
    }
}

template <class R, class C>
static void cross_entropy(int64_t n, int64_t v, void *logits, int64_t ld, const int32_t *target,
                          double scale, double *loss, void *dlogits, int64_t ldd)
{
    launch("cross_entropy", entropy_row<R, C>, n, EK_BLOCK, v, (const R *)logits, ld, target, scale,
           loss, (C *)dlogits, ldd);
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
