/* tensor/cpu/linear_pack.h - packs matrices into strips and panels.
 *
 * All of these write dst[words][width], zero beyond what src has:
 *   _rows  src [rows, k], row i gives word i of each word of K (a transposition)
 *   _cols  src [k, cols], column j gives word j
 * and differ by element of src and word of dst:
 *   f32    float -> float
 *   wide   bf16 -> float, an even number of words of K
 *   pair   bf16 -> pairs of bf16
 *   round  float -> pairs of bf16
 * ld is in elements of src; dst is aligned to 64 bytes, width a multiple of 16. */
#ifndef TENSOR_CPU_LINEAR_PACK_H
#define TENSOR_CPU_LINEAR_PACK_H

#include <stdint.h>

typedef void ek_pack_rows(int64_t rows, int64_t k, const void *src, int64_t ld, void *dst,
                          int64_t width);
typedef void ek_pack_cols(int64_t k, int64_t cols, const void *src, int64_t ld, void *dst,
                          int64_t width);

/* linear_pack.c: for any CPU. */
ek_pack_rows ek_f32_rows, ek_wide_rows, ek_round_rows;
ek_pack_cols ek_f32_cols, ek_wide_cols, ek_round_cols;

/* linear_pack.c: a square of pairs, transposed (ek_linear_ops.turn). */
ek_pack_rows ek_turn_pairs;

/* linear_pack_avx2.c */
ek_pack_rows ek_pair_rows_avx2;

/* linear_pack_avx512.c; once: for a weight, from memory to memory; ahead: from memory, and the rows
 * after these are next. */
ek_pack_rows ek_pair_rows_once_avx512, ek_pair_rows_ahead_avx512;
ek_pack_rows ek_f32_rows_avx512, ek_wide_rows_avx512, ek_pair_rows_avx512, ek_round_rows_avx512;
ek_pack_cols ek_f32_cols_avx512, ek_wide_cols_avx512, ek_pair_cols_avx512, ek_round_cols_avx512;

#endif
