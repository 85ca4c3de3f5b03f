/* tensor/cpu/linear_choose.c - chooses the register tile of a CPU's matrix products.
 *
 * The bf16 dot product is not always fast: some processors finish two a cycle (twice the FLOP rate
 * of float FMAs), others one in two cycles (half of it), with the same CPUID feature bits.  So both
 * register tiles are timed.  The rates differ by a factor of two or more either way, so the choice
 * is nearly always the same on a machine; within a process it is made once. */
#include "base/clock.h"
#include "tensor/cpu/cpu.h"
#include "tensor/cpu/linear.h"

#include <stdatomic.h>
#include <string.h>

enum { WORDS = 128, TILES = 16, SAMPLES = 9 };

typedef struct {
    _Alignas(64) float strip[2 * WORDS * EK_STRIP_WIDTH];
    _Alignas(64) float panel[2 * WORDS * EK_PANEL];
    _Alignas(64) float c[EK_STRIP * EK_PANEL];
} tile_buffers;

/* Nanoseconds of some tiles over the same elements of K. */
static int64_t tiles_time(const ek_linear_ops *ops, tile_buffers *p)
{
    int64_t start = ek_clock_ns(), words = 2 * WORDS / ops->per_word;

    for (int i = 0; i < TILES; i++)
        ops->tile(EK_STRIP, EK_PANEL, words, p->strip, p->panel, EK_OUT_REAL, p->c, EK_PANEL);
    return ek_clock_ns() - start;
}

static const ek_linear_ops *faster_ops(const ek_linear_ops *a, const ek_linear_ops *b)
{
    int64_t best_a = INT64_MAX, best_b = INT64_MAX;
    tile_buffers p;

    memset(&p, 0, sizeof(p));
    for (int i = 0; i < SAMPLES; i++) {
        int64_t time_a = tiles_time(a, &p), time_b = tiles_time(b, &p);

        best_a = time_a < best_a ? time_a : best_a;
        best_b = time_b < best_b ? time_b : best_b;
    }
    return best_a < best_b ? a : b;
}

int ek_cpu_dots_pay(void)
{
    static _Atomic int known; /* 0: not timed yet; 1: slower; 2: faster */
    const ek_linear_ops *dots = ek_linear_avx512_bf16();
    int none = 0;

    if (atomic_load(&known) == 0) /* of concurrent callers, the first to finish decides */
        atomic_compare_exchange_strong(
            &known, &none, faster_ops(dots, ek_linear_avx512(EK_MODE_BF16)) == dots ? 2 : 1);
    return atomic_load(&known) == 2;
}

const ek_linear_ops *ek_linear_choose(ek_mode mode, ek_isa isa)
{
    if (mode == EK_MODE_FP64 || isa < EK_ISA_AVX2)
        return NULL;
    if (isa < EK_ISA_AVX512)
        return ek_linear_avx2(mode);
    return isa == EK_ISA_AVX512_BF16 && mode == EK_MODE_BF16 ? ek_linear_avx512_bf16()
                                                             : ek_linear_avx512(mode);
}
