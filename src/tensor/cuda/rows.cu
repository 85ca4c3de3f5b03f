/* Kernels that move rows: gather, combine, embedding, bias. */
#include "tensor/cuda/device.h"
#include "tensor/cuda/fill.h"
#include "tensor/cuda/launch.h"

enum { GATHERED = 4 /* groups per thread, read at the same time */ };

template <bool ALIGNED, class S, class C>
__global__ void gather_rows(int64_t n, int64_t d, const int32_t *idx, const S *src, int64_t lds,
                            C *dst, int64_t ldd)
{
    constexpr int N = in_16_bytes<C>;
    groups_of_thread<N, GATHERED> mine(d);
    vec<S, N> v[GATHERED];
    int64_t from[GATHERED];

#pragma unroll
    for (int e = 0; e < GATHERED; e++)
        from[e] = mine.row(e) < n ? idx[mine.row(e)] : -1;
#pragma unroll
    for (int e = 0; e < GATHERED; e++) {
        v[e] = {};
        if (from[e] >= 0)
            v[e] = load_vec<ALIGNED, N>(src + from[e] * lds, mine.column(e), d);
    }
#pragma unroll
    for (int e = 0; e < GATHERED; e++)
        if (mine.row(e) < n)
            store_vec<ALIGNED, N>(dst + mine.row(e) * ldd, mine.column(e), d, rounded<C>(v[e]));
}

template <class S, class C>
static void gather_as(const char *name, int64_t n, int64_t d, const int32_t *idx, const S *src,
                      int64_t lds, C *dst, int64_t ldd)
{
    constexpr int N = in_16_bytes<C>;
    bool whole = is_vec_aligned<N>(src, d, lds) && is_vec_aligned<N>(dst, d, ldd);

    launch(name, whole ? gather_rows<true, S, C> : gather_rows<false, S, C>,
           blocks_of_groups<N, GATHERED>(n, d), EK_BLOCK, n, d, idx, src, lds, dst, ldd);
}

template <class S, class C>
static void gather(int64_t n, int64_t d, const int32_t *idx, const void *src, int64_t lds,
                   void *dst, int64_t ldd)
{
    gather_as("gather", n, d, idx, (const S *)src, lds, (C *)dst, ldd);
}

template <bool ALIGNED, class R, class C>
__global__ void combine_rows(int64_t n, int64_t d, int64_t k, const int32_t *row_of, const C *rows,
                             int64_t ld, int add, R *x)
{
    constexpr int N = in_16_bytes<C>;
    groups_of_thread<N, 1> mine(d);
    int64_t i = mine.row(0), c = mine.column(0);
    vec<R, N> sum = {};

    if (i >= n)
        return;
#pragma unroll 8
    for (int64_t j = 0; j < k; j++) {
        int64_t row = row_of[i * k + j];
        vec<C, N> v = {};

        if (row >= 0)
            v = load_vec<ALIGNED, N>(rows + row * ld, c, d);
        for (int e = 0; e < N && row >= 0; e++)
            sum.x[e] += to_real(v.x[e]);
    }
    if (add) {
        vec<R, N> to = load_vec<ALIGNED, N>(x + i * d, c, d);

        for (int e = 0; e < N; e++)
            sum.x[e] = to.x[e] + sum.x[e];
    }
    store_vec<ALIGNED, N>(x + i * d, c, d, sum);
}

template <class R, class C>
static void combine(int64_t n, int64_t d, int64_t k, const int32_t *row_of, const void *rows,
                    int64_t ld, int add, void *x)
{
    constexpr int N = in_16_bytes<C>;
    bool whole = is_vec_aligned<N>((const C *)rows, d, ld) && is_vec_aligned<N>((const R *)x, d, d);

    launch("combine", whole ? combine_rows<true, R, C> : combine_rows<false, R, C>,
           blocks_of_groups<N, 1>(n, d), EK_BLOCK, n, d, k, row_of, (const C *)rows, ld, add,
           (R *)x);
}

template <bool ALIGNED, class R, class C> __global__ void round_all(int64_t n, const R *x, C *y)
{
    constexpr int N = in_16_bytes<C>;

    for (int64_t i = thread_of_all() * N; i < n; i += threads_in_all() * N)
        store_vec<ALIGNED, N>(y, i, n, rounded<C>(load_vec<ALIGNED, N>(x, i, n)));
}

template <class R, class C> static void to_comp(int64_t n, int64_t d, const void *x, void *y)
{
    constexpr int N = in_16_bytes<C>;
    bool whole =
        is_vec_aligned<N>((const R *)x, n * d, 0) && is_vec_aligned<N>((const C *)y, n * d, 0);

    launch("to_comp", whole ? round_all<true, R, C> : round_all<false, R, C>,
           blocks_for(n * d, EK_BLOCK * N), EK_BLOCK, n * d, (const R *)x, (C *)y);
}

template <class R>
static void embed_forward(int64_t n, int64_t d, const int32_t *ids, const void *table, void *x)
{
    gather_as("embed_forward", n, d, ids, (const R *)table, d, (R *)x, d);
}

/* Whether an earlier token has the same id; called by all threads of the block. */
__device__ static int came_before(const int32_t *ids, int64_t i)
{
    __shared__ int found;

    if (threadIdx.x == 0)
        found = 0;
    __syncthreads();
    for (int64_t j = threadIdx.x; j < i; j += blockDim.x)
        if (ids[j] == ids[i])
            found = 1;
    __syncthreads();
    return found;
}

enum { FOUND_MAX = 1024 };

/* Adds to `found` the tokens from *next on with the id, in order, until all are searched or it is
 * nearly full; returns their number.  Called by all threads of the block. */
__device__ static int find_tokens(int64_t n, const int32_t *ids, int32_t id, int64_t *next,
                                  int32_t *found)
{
    __shared__ unsigned of_warp[EK_WARPS];
    int count = 0;

    for (; *next < n && count <= FOUND_MAX - EK_BLOCK; *next += EK_BLOCK) {
        int64_t j = *next + threadIdx.x;
        bool mine = j < n && ids[j < n ? j : 0] == id;
        unsigned in_warp = __ballot_sync(ek_all_lanes, mine);
        int at = count + __popc(in_warp & ((1u << lane_of()) - 1));

        if (lane_of() == 0)
            of_warp[warp_of()] = in_warp;
        __syncthreads();
        for (int w = 0; w < EK_WARPS; w++) {
            at += w < warp_of() ? __popc(of_warp[w]) : 0;
            count += __popc(of_warp[w]);
        }
        if (mine)
            found[at] = (int32_t)j;
        __syncthreads();
    }
    return count;
}

/* The block of the first token with an id adds the rows of all tokens with it, in order. */
template <bool ALIGNED, class R>
__global__ void add_rows_by_id(int64_t n, int64_t d, const int32_t *ids, const R *dx, R *dtable)
{
    __shared__ int32_t found[FOUND_MAX];
    int32_t id = ids[blockIdx.x];
    R *to = dtable + id * d;

    if (id < 0 || came_before(ids, blockIdx.x))
        return;
    for (int64_t next = blockIdx.x; next < n;) {
        int count = find_tokens(n, ids, id, &next, found);

        for (int64_t c = threadIdx.x * EK_VEC; c < d; c += EK_BLOCK * EK_VEC) {
            vec<R> sum = load_vec<ALIGNED>(to, c, d);

#pragma unroll 8
            for (int f = 0; f < count; f++) {
                vec<R> row = load_vec<ALIGNED>(dx + found[f] * d, c, d);

                for (int e = 0; e < EK_VEC; e++)
                    sum.x[e] += row.x[e];
            }
            store_vec<ALIGNED>(to, c, d, sum);
        }
        __syncthreads(); /* before found is written again */
    }
}

template <class R>
static void embed_backward(int64_t n, int64_t d, const int32_t *ids, const void *dx, void *dtable)
{
    bool whole = is_vec_aligned((const R *)dx, d, d) && is_vec_aligned((const R *)dtable, d, d);

    launch("embed_backward", whole ? add_rows_by_id<true, R> : add_rows_by_id<false, R>, n,
           EK_BLOCK, n, d, ids, (const R *)dx, (R *)dtable);
}

template <class R, class C> __global__ void add_bias(int64_t d, const R *b, C *x, int64_t ld)
{
    C *row = x + blockIdx.x * ld;

    for (int64_t c = threadIdx.x; c < d; c += blockDim.x)
        store_value(&row[c], to_real(row[c]) + b[c]);
}

template <class R, class C>
static void bias_forward(int64_t n, int64_t d, const void *b, void *x, int64_t ld)
{
    launch("bias_forward", add_bias<R, C>, n, EK_BLOCK, d, (const R *)b, (C *)x, ld);
}

template <class R, class C>
__global__ void sum_bias(int64_t n, int64_t d, const C *dy, int64_t ld, R *db)
{
    element<C> f = {dy, ld};

    sum_columns(n, d, f, db);
}

template <class R, class C>
static void bias_backward(int64_t n, int64_t d, const void *dy, int64_t ld, void *db)
{
    launch("bias_backward", sum_bias<R, C>, blocks_of_columns(d), EK_BLOCK, n, d, (const C *)dy, ld,
           (R *)db);
}

/* --- elements by index ------------------------------------------------------------------------ */

template <class R> __global__ void gather_each(int64_t n, const int32_t *idx, const R *from, R *to)
{
    for (int64_t i = thread_of_all(); i < n; i += threads_in_all())
        to[i] = idx[i] >= 0 ? from[idx[i]] : (R)0;
}

template <class R>
static void gather_numbers(int64_t n, const int32_t *idx, const void *from, void *to)
{
    launch("gather_numbers", gather_each<R>, blocks_for(n, EK_BLOCK), EK_BLOCK, n, idx,
           (const R *)from, (R *)to);
}

template <class R> __global__ void scatter_each(int64_t n, const int32_t *idx, const R *from, R *to)
{
    for (int64_t i = thread_of_all(); i < n; i += threads_in_all())
        if (idx[i] >= 0)
            to[idx[i]] = from[i];
}

template <class R>
static void scatter_numbers(int64_t n, const int32_t *idx, const void *from, void *to)
{
    launch("scatter_numbers", scatter_each<R>, blocks_for(n, EK_BLOCK), EK_BLOCK, n, idx,
           (const R *)from, (R *)to);
}

/* --- CUDA runtime functions ------------------------------------------------------------------- */

static void copy_rows(int64_t n, int64_t bytes, const void *src, int64_t lds, void *dst,
                      int64_t ldd)
{
    cudaStream_t stream = (cudaStream_t)ek_cuda_stream();
    cudaError_t e;

    if (n <= 0 || bytes <= 0)
        return;
    if (bytes == lds && bytes == ldd)
        e = cudaMemcpyAsync(dst, src, (size_t)(n * bytes), cudaMemcpyDeviceToDevice, stream);
    else
        e = cudaMemcpy2DAsync(dst, (size_t)ldd, src, (size_t)lds, (size_t)bytes, (size_t)n,
                              cudaMemcpyDeviceToDevice, stream);
    ek_cuda_launched("copy_rows", (int)e);
}

static void clear(int64_t bytes, void *x)
{
    if (bytes > 0)
        ek_cuda_launched("clear",
                         (int)cudaMemsetAsync(x, 0, (size_t)bytes, (cudaStream_t)ek_cuda_stream()));
}

template <class R, class C> static void fill(ek_kernels *k)
{
    k->gather_numbers = gather_numbers<R>;
    k->scatter_numbers = scatter_numbers<R>;
    k->copy_rows = copy_rows;
    k->clear = clear;
    k->gather_comp = gather<C, C>;
    k->gather_real = gather<R, C>;
    k->combine = combine<R, C>;
    k->to_comp = to_comp<R, C>;
    k->embed_forward = embed_forward<R>;
    k->embed_backward = embed_backward<R>;
    k->bias_forward = bias_forward<R, C>;
    k->bias_backward = bias_backward<R, C>;
}

EK_CUDA_FILL(ek_cuda_fill_rows, fill)
