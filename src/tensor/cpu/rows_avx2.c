/* rows_avx2.c - the row kernels with AVX2; entered only where the CPU has it. */
#if defined(__AVX2__)
#include "tensor/cpu/rows_body.h"

void ek_cpu_rows_fill_avx2(ek_kernels *k, ek_mode mode, ek_isa isa)
{
    fill_rows(k, mode, isa);
}
#else
typedef int ek_rows_avx2_is_for_other_processors;
#endif
