/* rows_avx512.c - the row kernels with AVX-512; entered only where the CPU has it. */
#if defined(__AVX512F__)
#include "tensor/cpu/rows_body.h"

void ek_cpu_rows_fill_avx512(ek_kernels *k, ek_mode mode, ek_isa isa)
{
    fill_rows(k, mode, isa);
}
#else
typedef int ek_rows_avx512_is_for_other_processors;
#endif
