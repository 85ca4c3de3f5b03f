/* tensor/cpu/linear_choose.c - chooses the register tile of a CPU's matrix products.
 *
 * The bf16 dot product is not always fast: some processors finish two a cycle (twice the FLOP rate
 * of float FMAs), others one in two cycles (half of it), with the same CPUID feature bits.  So both
 * register tiles are timed.  The rates differ by a factor of two or more either way, so the choice
 * is nearly always the same on a machine; within a process it is made once.  On CPUs with matrix
 * units, which oneDNN uses, so are its tiles. */
#include "base/clock.h"
#include "tensor/cpu/cpu.h"
#include "tensor/cpu/dnnl_shim.h"
#include "tensor/cpu/linear.h"

#include <stdatomic.h>
#include <string.h>

enum { WORDS = 128, TILES = 16, SAMPLES = 9, ROWS_MAX = 64, COLS_MAX = 256 };

typedef struct {
    _Alignas(64) float strip[2 * WORDS * ROWS_MAX];
    _Alignas(64) float panel[WORDS * COLS_MAX]; /* 2 WORDS of narrow ones */
    _Alignas(64) float c[ROWS_MAX * COLS_MAX];
} tile_buffers;

/* Nanoseconds of processor time, which others on the core do not lengthen, an element of c of some
 * tiles over the same elements of K. */
static double tiles_time(const ek_linear_ops *ops, tile_buffers *p)
{
    int64_t start = ek_clock_thread_ns(), words = 2 * WORDS / ops->per_word;
    int64_t rows = ops->size.strip, cols = (int64_t)ops->size.panel * ops->size.panels;

    for (int i = 0; i < TILES; i++)
        ops->tile(rows, cols, words, p->strip, p->panel, EK_OUT_REAL, p->c, cols);
    return (double)(ek_clock_thread_ns() - start) / (double)(rows * cols);
}

static const ek_linear_ops *faster_ops(const ek_linear_ops *a, const ek_linear_ops *b)
{
    double best_a = 1e300, best_b = 1e300;
    tile_buffers p;

    memset(&p, 0, sizeof(p));
    for (int i = 0; i < SAMPLES; i++) {
        double time_a = tiles_time(a, &p), time_b = tiles_time(b, &p);

        best_a = time_a < best_a ? time_a : best_a;
        best_b = time_b < best_b ? time_b : best_b;
    }
    return best_a < best_b ? a : b;
}

/* Whether a is faster than b: timed once, known by then. *known 0: not timed yet; 1: slower; 2:
 * faster. */
static int is_faster(const ek_linear_ops *a, const ek_linear_ops *b, _Atomic int *known)
{
    int none = 0;

    if (atomic_load(known) == 0) /* of concurrent callers, the first to finish decides */
        atomic_compare_exchange_strong(known, &none, faster_ops(a, b) == a ? 2 : 1);
    return atomic_load(known) == 2;
}

int ek_cpu_dots_pay(void)
{
    static _Atomic int known;

    return is_faster(ek_linear_avx512_bf16(), ek_linear_avx512(EK_MODE_BF16), &known);
}

int ek_cpu_matrix_units_pay(void)
{
    static _Atomic int known;

    return ek_dnnl_has_matrix_units() &&
           is_faster(ek_linear_dnnl(), ek_linear_avx512_bf16(), &known);
}

const ek_linear_ops *ek_linear_choose(ek_mode mode, ek_isa isa)
{
    if (mode == EK_MODE_FP64 || isa < EK_ISA_AVX2)
        return NULL;
    if (isa < EK_ISA_AVX512)
        return ek_linear_avx2(mode);
    if (isa < EK_ISA_AVX512_BF16 || mode != EK_MODE_BF16)
        return ek_linear_avx512(mode);
    return isa == EK_ISA_AMX_BF16 ? ek_linear_dnnl() : ek_linear_avx512_bf16();
}
