/* Matrix products of bf16 by wgmma, for GPUs of compute capability 9.0: tiles of 128 x WIDTH by two
 * warpgroups of 64 x WIDTH each, sums in float over stages of 64 terms.
 *
 * A step starts its stage's products and the copies of the stage STAGES - 2 steps on, and waits for
 * the products of the step before.  A stage is overwritten two steps after its products began, when
 * both warpgroups have passed a barrier after waiting for them. */
#include "tensor/cuda/feed.h"
#include "tensor/cuda/launch.h"
#include "tensor/cuda/results.h"
#include "tensor/cuda/warpgroup.h"

enum {
    SIDE = 128,
    DEPTH = 64,
    TERMS = 16,                                      /* of one instruction */
    LINE = DEPTH * (int)sizeof(ek_bf16),             /* bytes */
    BLOCK_CHUNKS = DEPTH * LINE / (int)sizeof(chunk) /* of 64 lines */
};
static_assert(EK_BLOCK == SIDE / EK_GROUP_ROWS * EK_WARPGROUP, "two warpgroups");

template <int WIDTH> constexpr int stage_chunks = (SIDE + WIDTH) * DEPTH / EK_CHUNK;

/* The chunk of a tile in shared memory that a thread copies first. */
template <bool K_MAJOR, int WIDTH> __device__ static int first_chunk(void)
{
    using shape = operand<K_MAJOR, WIDTH, DEPTH>;
    int c = shape::chunk_of_line();

    return c / 8 * BLOCK_CHUNKS + chunk_index<8>(shape::line(), c % 8);
}

template <bool K_MAJOR, int WIDTH>
__device__ static feed side_of(const ek_bf16 *x, int64_t ld, int64_t first, int64_t end, int terms)
{
    return feed_of<K_MAJOR, WIDTH, DEPTH>(x, ld, first, end, terms, first_chunk<K_MAJOR, WIDTH>());
}

template <bool K_MAJOR, int WIDTH> __device__ static void copy_tile(chunk *tile, feed *f)
{
    copy_next<K_MAJOR, WIDTH, DEPTH, operand<K_MAJOR, WIDTH, DEPTH>::APART * 8>(tile, f);
}

/* Both operands of a stage: the tile of a, then that of b. */
template <bool A_K_MAJOR, bool B_K_MAJOR, int WIDTH>
__device__ static void copy_stage(chunk *stage, feed *a, feed *b)
{
    copy_tile<A_K_MAJOR, SIDE>(stage, a);
    copy_tile<B_K_MAJOR, WIDTH>(stage + SIDE * DEPTH / EK_CHUNK, b);
    copy_group();
}

template <bool K_MAJOR>
constexpr int bytes_of_terms = TERMS *(K_MAJOR ? (int)sizeof(ek_bf16) : LINE);

template <bool A_K_MAJOR, bool B_K_MAJOR, int ACROSS>
__device__ static void multiply_stage(float (&sum)[ACROSS][4], const chunk *stage)
{
    const int apart = BLOCK_CHUNKS * (int)sizeof(chunk);
    int warpgroup = (int)threadIdx.x / EK_WARPGROUP;
    smem_descriptor a = descriptor_at(stage + warpgroup * BLOCK_CHUNKS, apart),
                    b = descriptor_at(stage + SIDE * DEPTH / EK_CHUNK, apart);

    wgmma_fence();
#pragma unroll
    for (int t = 0; t < DEPTH / TERMS; t++)
        wgmma_begin<A_K_MAJOR, B_K_MAJOR>(sum, descriptor_after(a, t * bytes_of_terms<A_K_MAJOR>),
                                          descriptor_after(b, t * bytes_of_terms<B_K_MAJOR>));
    wgmma_commit();
}

template <bool A_K_MAJOR, bool B_K_MAJOR, int WIDTH, int STAGES>
__global__ void __launch_bounds__(EK_BLOCK, WIDTH > 128 ? 1 : 2)
    multiply_wgmma(const __grid_constant__ products<ek_bf16> all, ek_out mode)
{
    chunk *stages = (chunk *)shared_of_launch();
    int64_t i0, j0;
    const product<ek_bf16> &p = product_of_tile(all, blockIdx.x, SIDE, WIDTH, &i0, &j0);
    feed a = side_of<A_K_MAJOR, SIDE>(p.a, A_K_MAJOR ? p.a_i : p.a_t, i0, p.m, (int)p.k);
    feed b = side_of<B_K_MAJOR, WIDTH>(p.b, B_K_MAJOR ? p.b_j : p.b_t, j0, p.n, (int)p.k);
    int steps = (int)((p.k + DEPTH - 1) / DEPTH), now = 0, next = STAGES - 2;
    float sum[1][WIDTH / 8][4] = {};

#pragma unroll
    for (int s = 0; s < STAGES - 2; s++)
        copy_stage<A_K_MAJOR, B_K_MAJOR, WIDTH>(stages + s * stage_chunks<WIDTH>, &a, &b);
#pragma unroll 1
    for (int step_no = 0; step_no < steps; step_no++) {
        copy_wait<STAGES - 3>();
        fence_async_proxy();
        __syncthreads(); /* stage `now` is loaded by all threads, stage `next` is free */
        multiply_stage<A_K_MAJOR, B_K_MAJOR>(sum[0], stages + now * stage_chunks<WIDTH>);
        copy_stage<A_K_MAJOR, B_K_MAJOR, WIDTH>(stages + next * stage_chunks<WIDTH>, &a, &b);
        wgmma_wait<1>();
        now = now + 1 < STAGES ? now + 1 : 0;
        next = next + 1 < STAGES ? next + 1 : 0;
    }
    wgmma_wait<0>();
    wgmma_results(sum[0]);
    copy_wait<0>();
    store_sums<1, WIDTH / 8>(p, i0 + warp_of() * 16, j0, sum, mode);
}

/* --- launch ----------------------------------------------------------------------------------- */

template <int WIDTH, int STAGES>
static void launch_wide(const char *name, products<ek_bf16> *all, ek_product_layout layout,
                        ek_out mode)
{
    const size_t bytes = STAGES * stage_chunks<WIDTH> * sizeof(chunk) + 1024;
    int64_t blocks = number_tiles(all, SIDE, WIDTH);

    if (layout == EK_BOTH_K_MAJOR)
        launch_with(bytes, name, multiply_wgmma<true, true, WIDTH, STAGES>, blocks, EK_BLOCK, *all,
                    mode);
    else if (layout == EK_A_K_MAJOR)
        launch_with(bytes, name, multiply_wgmma<true, false, WIDTH, STAGES>, blocks, EK_BLOCK, *all,
                    mode);
    else
        launch_with(bytes, name, multiply_wgmma<false, false, WIDTH, STAGES>, blocks, EK_BLOCK,
                    *all, mode);
}

/* Wide tiles read less from the cache, two narrow ones per multiprocessor overlap. */
void ek_cuda_multiply_wgmma(const char *name, products<ek_bf16> *all, ek_product_layout layout,
                            ek_out mode)
{
    if (number_tiles(all, SIDE, 256) >= ek_cuda_multiprocessors())
        launch_wide<256, 4>(name, all, layout, mode);
    else
        launch_wide<128, 3>(name, all, layout, mode);
}
