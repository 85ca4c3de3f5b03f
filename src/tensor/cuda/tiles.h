/* tensor/cuda/tiles.h - tiles of bf16 in shared memory, for products on tensor cores.
 *
 * A tile consists of lines (rows in memory order), and these of chunks of 16 bytes.  Chunks are
 * swizzled (XOR with the line), so that a chunk of each of eight lines, read by eight lanes at
 * once, is in different banks.  A 16 x 16 operand of a product is a square of 16 lines by two
 * chunks; it is transposed on loading, depending on whether the sum runs along lines or across
 * them. */
#ifndef TENSOR_CUDA_TILES_H
#define TENSOR_CUDA_TILES_H

#include "tensor/cuda/device.h"
#include "tensor/cuda/tensor_core.h"

enum { EK_CHUNK = 8 /* elements */ };

struct alignas(16) chunk {
    ek_bf16 x[EK_CHUNK];
};

/* Of words of two elements. */
struct alignas(16) chunk_words {
    unsigned w[EK_CHUNK / 2];
};

/* Swizzled index of chunk c of a line with CHUNKS chunks, a power of two from 4 to 16. */
template <int CHUNKS> __device__ inline int chunk_index(int line, int c)
{
    static_assert(CHUNKS == 4 || CHUNKS == 8 || CHUNKS == 16, "eight lines are in different banks");
    return line * CHUNKS + (c ^ (CHUNKS == 4 ? line / 2 % 4 : line % 8));
}

/* Loads the square at (line, element) as operand a of matrices_multiply with its rows along lines,
 * or as two adjacent operands b with the summed index across lines (TRANSPOSED). */
template <int CHUNKS, bool TRANSPOSED>
__device__ inline void load_by_lines(unsigned r[4], const chunk *tile, int line, int element)
{
    int l = lane_of();

    matrices_load<TRANSPOSED>(
        r, &tile[chunk_index<CHUNKS>(line + l % 16, element / EK_CHUNK + l / 16)]);
}

/* The same as two adjacent b with the summed index along lines, or as a with it across
 * (TRANSPOSED). */
template <int CHUNKS, bool TRANSPOSED>
__device__ inline void load_by_halves(unsigned r[4], const chunk *tile, int line, int element)
{
    int l = lane_of();

    matrices_load<TRANSPOSED>(
        r, &tile[chunk_index<CHUNKS>(line + l % 8 + l / 16 * 8, element / EK_CHUNK + l / 8 % 2)]);
}

/* Packs two elements for matrices_multiply. */
__device__ inline unsigned two_bf16(float first, float second)
{
    ek_bf16 a, b;

    store_value(&a, first);
    store_value(&b, second);
    return (unsigned)a | (unsigned)b << 16;
}

/* Whether rows at stride ld are aligned to chunks. */
__host__ __device__ inline int has_chunks(const void *x, int64_t ld)
{
    return (uintptr_t)x % sizeof(chunk) == 0 && ld % EK_CHUNK == 0;
}

#endif
