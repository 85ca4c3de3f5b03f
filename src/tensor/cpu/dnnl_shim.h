/* tensor/cpu/dnnl_shim.h - wraps all calls of oneDNN.
 *
 * Hides the differences of its C API between 2.x (Debian 12) and 3.x (Debian 13, Ubuntu 24.04).
 * oneDNN runs on the OpenMP team of the calling thread. */
#ifndef TENSOR_CPU_DNNL_SHIM_H
#define TENSOR_CPU_DNNL_SHIM_H

#include "tensor/kernels.h"

/* A matrix product of fixed size with its own buffers (small nonzero values) and weights in
 * oneDNN's preferred layout, to measure the library's best rate. */
typedef struct ek_dnnl_matmul ek_dnnl_matmul;

/* dst[m, n] = src[m, k] weights[k, n] in bf16 (EK_MODE_BF16) or float, dst of the same type.
 * EK_ENOMEM; EK_EUNSUPPORTED: not on this processor.  ek_dnnl_matmul_destroy frees *out. */
EK_CHECKED ek_status ek_dnnl_matmul_create(ek_mode mode, int64_t m, int64_t n, int64_t k,
                                           ek_dnnl_matmul **out);
/* Computes it once; returns when it is done. */
EK_CHECKED ek_status ek_dnnl_matmul_run(ek_dnnl_matmul *p);
void ek_dnnl_matmul_destroy(ek_dnnl_matmul **p);

/* out [m, n] = a [m, k] b in one thread: a dense bf16, out dense float, b bf16 as oneDNN's
 * OI16i64o2i: [n / 64][k / 2][64][2].  m a multiple of 16 up to EK_DNNL_ROWS, n one of 64 up to
 * EK_DNNL_COLS, k one of 32.  Each thread keeps what it needs for a shape, of the last 64 different
 * k: oneDNN allocates in the first call of a shape.  False: it cannot do it here, or has no
 * memory. */
enum { EK_DNNL_ROWS = 64, EK_DNNL_COLS = 256 };
int ek_dnnl_product(int64_t m, int64_t n, int64_t k, const void *a, const void *b, float *out);

/* Whether oneDNN uses matrix units for bf16 on this processor. */
int ek_dnnl_has_matrix_units(void);

/* "oneDNN 2.6.3". */
void ek_dnnl_version(char *text, size_t size);

#endif
