/* tensor/cpu/rows.h - the kernels that walk over rows: gather, combine, norms, activations,
 * softmax, loss and optimizer, for CPUs with AVX2 or AVX-512.
 *
 * All of them are bound by memory, so each reads and writes every byte once.  Sums over rows run
 * over blocks that only the shape fixes, so their bits do not depend on the number of threads. */
#ifndef TENSOR_CPU_ROWS_H
#define TENSOR_CPU_ROWS_H

#include "tensor/kernels.h"

/* Blocks of rows that sums over all rows are made of; rmsnorm_workspace is as many rows of R. */
enum { EK_CPU_NORM_BLOCKS = 64 };

/* Overwrites the row kernels of a table by those for `isa`: gather, combine, to_comp, embed,
 * bias, rmsnorm, softmax_topk, swiglu, cross_entropy, sum_squares, adamw, adamw_resumable.  Leaves
 * the table as it is where there is nothing faster (fp64, EK_ISA_REF, other processors). */
void ek_cpu_rows_fill(ek_kernels *k, ek_mode mode, ek_isa isa);

/* The same for one instruction set; defined on x86-64 only. */
void ek_cpu_rows_fill_avx2(ek_kernels *k, ek_mode mode, ek_isa isa);
void ek_cpu_rows_fill_avx512(ek_kernels *k, ek_mode mode, ek_isa isa);

#endif
