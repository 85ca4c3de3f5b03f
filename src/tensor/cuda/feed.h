/* tensor/cuda/feed.h - copies the tiles of a bf16 product's operands to shared memory, one after
 * another along the sum, by the EK_BLOCK threads of a block.
 *
 * A tile has WIDTH rows (of a) or columns (of b) by DEPTH terms of the sum.  In memory the summed
 * index may be contiguous (K_MAJOR), as in y = x W^T, or strided (across). */
#ifndef TENSOR_CUDA_FEED_H
#define TENSOR_CUDA_FEED_H

#include "tensor/cuda/tiles.h"

/* How a tile lies in memory: lines of chunks, of which a thread copies COPIES, APART lines apart.
 */
template <bool K_MAJOR, int WIDTH, int DEPTH> struct operand {
    static constexpr int LINES = K_MAJOR ? WIDTH : DEPTH;
    static constexpr int CHUNKS = (K_MAJOR ? DEPTH : WIDTH) / EK_CHUNK; /* of a line */
    static constexpr int APART = EK_BLOCK / CHUNKS;
    static constexpr int COPIES = LINES / APART;

    /* Of the thread's first chunk. */
    __device__ static int line()
    {
        return (int)threadIdx.x / CHUNKS;
    }

    __device__ static int chunk_of_line()
    {
        return (int)threadIdx.x % CHUNKS;
    }
};

/* The chunks of an operand that a thread copies. */
struct feed {
    const ek_bf16 *x;    /* its first chunk of the next tile */
    int64_t apart, step; /* elements between its chunks, and to the next tile */
    int lines, elements; /* left of the operand, from its first line and chunk on */
    int index;           /* of its first chunk in a tile */
};

/* For rows (of a) or columns (of b) first to end - 1; index: of the first chunk in a tile. */
template <bool K_MAJOR, int WIDTH, int DEPTH>
__device__ feed feed_of(const ek_bf16 *x, int64_t ld, int64_t first, int64_t end, int terms,
                        int index)
{
    using shape = operand<K_MAJOR, WIDTH, DEPTH>;
    int line = shape::line(), element = shape::chunk_of_line() * EK_CHUNK;
    int left = (int)(end - first);

    return {x + (K_MAJOR ? (first + line) * ld : line * ld + first) + element,
            shape::APART * ld,
            K_MAJOR ? (int64_t)DEPTH : DEPTH * ld,
            (K_MAJOR ? left : terms) - line,
            (K_MAJOR ? terms : left) - element,
            index};
}

/* Starts to copy the next tile, a thread's chunks STEP chunks apart in it; zeros past the ends and
 * past the last term. */
template <bool K_MAJOR, int WIDTH, int DEPTH, int STEP>
__device__ void copy_next(chunk *tile, feed *f)
{
    using shape = operand<K_MAJOR, WIDTH, DEPTH>;
    int n = f->elements < 0 ? 0 : f->elements < EK_CHUNK ? f->elements : (int)EK_CHUNK;

#pragma unroll
    for (int e = 0; e < shape::COPIES; e++)
        copy_begin(&tile[f->index + e * STEP], f->x + e * f->apart,
                   e * shape::APART < f->lines ? n * (int)sizeof(ek_bf16) : 0);
    f->x += f->step;
    (K_MAJOR ? f->elements : f->lines) -= DEPTH;
}

#endif
