/* tensor/cuda/tiles.h - tiles of bf16 in shared memory, for products by tensor cores.
 *
 * A tile is made of lines as they lie in memory, and these of chunks of 16 bytes, which change
 * places so that what eight lanes read at once, a chunk of each of eight lines, lies in different
 * banks.  What a product of 16 x 16 by 16 x 16 wants of a tile is a square of 16 lines by two
 * chunks; whether terms of the sums go along lines or across them decides how it is turned. */
#ifndef TENSOR_CUDA_TILES_H
#define TENSOR_CUDA_TILES_H

#include "tensor/cuda/device.h"
#include "tensor/cuda/tensor_core.h"

enum { EK_CHUNK = 8 /* numbers */ };

struct alignas(16) chunk {
    ek_bf16 x[EK_CHUNK];
};

/* Where a chunk of a line of CHUNKS of them lies: a power of two from 4 to 16. */
template <int CHUNKS> __device__ inline int chunk_place(int line, int c)
{
    static_assert(CHUNKS == 4 || CHUNKS == 8 || CHUNKS == 16, "eight lines in different banks");
    return line * CHUNKS + (c ^ (CHUNKS == 4 ? line / 2 % 4 : line % 8));
}

/* The square from `line` and `number` on, in the order of matrices_multiply's a where its rows are
 * lines, or of two b, side by side, where its terms go across lines (TURNED). */
template <int CHUNKS, bool TURNED>
__device__ inline void load_by_lines(unsigned r[4], const chunk *tile, int line, int number)
{
    int l = lane_of();

    matrices_load<TURNED>(r, &tile[chunk_place<CHUNKS>(line + l % 16, number / EK_CHUNK + l / 16)]);
}

/* Likewise of two b whose terms go along lines, or of an a whose terms go across them (TURNED). */
template <int CHUNKS, bool TURNED>
__device__ inline void load_by_halves(unsigned r[4], const chunk *tile, int line, int number)
{
    int l = lane_of();

    matrices_load<TURNED>(
        r, &tile[chunk_place<CHUNKS>(line + l % 8 + l / 16 * 8, number / EK_CHUNK + l / 8 % 2)]);
}

/* Two numbers as matrices_multiply takes them. */
__device__ inline unsigned two_bf16(float first, float second)
{
    ek_bf16 a, b;

    put(&a, first);
    put(&b, second);
    return (unsigned)a | (unsigned)b << 16;
}

/* Whether rows at stride ld are made of whole chunks. */
static inline int has_chunks(const void *x, int64_t ld)
{
    return (uintptr_t)x % sizeof(chunk) == 0 && ld % EK_CHUNK == 0;
}

#endif
