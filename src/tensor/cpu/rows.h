/* tensor/cpu/rows.h - row-wise kernels: gather, combine, norms, activations,
 * softmax, loss and optimizer, for CPUs with AVX2 or AVX-512.
 *
 * All of them are memory-bound, so each reads and writes every byte once.  Sums over rows are
 * summed in blocks that depend only on the shape, so the bits do not depend on the number of
 * threads. */
#ifndef TENSOR_CPU_ROWS_H
#define TENSOR_CPU_ROWS_H

#include "tensor/kernels.h"

/* Blocks of rows in sums over all rows; rmsnorm_workspace has one row of R for each. */
enum { EK_CPU_NORM_BLOCKS = 64 };

/* Overwrites the row kernels of a table by those for `isa`: gather, combine, to_comp, embed,
 * bias, rmsnorm, softmax_topk, swiglu, cross_entropy, sum_squares, adamw, adamw_resumable.  Leaves
 * the table unchanged where there is nothing faster (fp64, EK_ISA_REF, other processors). */
void ek_cpu_rows_fill(ek_kernels *k, ek_mode mode, ek_isa isa);

/* The same for one instruction set; defined on x86-64 only. */
void ek_cpu_rows_fill_avx2(ek_kernels *k, ek_mode mode, ek_isa isa);
void ek_cpu_rows_fill_avx512(ek_kernels *k, ek_mode mode, ek_isa isa);

#endif
