/* tensor/cpu/linear_real.c - c = op(a) op(b) in float, for the router: one of m and n is small.
 *
 * Both factors are packed on the fly.  One provides the rows of register tiles (strips), the other
 * the columns (panels), whichever way fills the tiles better.  If b provides the strips, tiles are
 * transposed when they are stored to c.  A work item is some strips times some panels; K is summed
 * block by block in one fixed order, so the bits do not depend on the number of threads. */
#include "base/progress_hook.h"
#include "tensor/cpu/linear.h"

#include <omp.h>
#include <string.h>

enum { WORDS = 128, STRIPS = 4, PANELS = 8, ITEMS_PER_THREAD = 4 };

/* One factor: n vectors along K, stored as rows or as columns. */
typedef struct {
    const float *x;
    int64_t ld, n;
    int by_row;
} side;

typedef struct {
    const ek_linear_ops *ops;
    side strips, panels;
    int64_t k;
    int transposed; /* strips are columns of c */
    int add;
    float *c;
    int64_t ldc;
} product;

/* Packed factors of a work item. */
typedef struct {
    _Alignas(64) float strip[STRIPS][WORDS * EK_STRIP_WIDTH];
    _Alignas(64) float panel[PANELS][WORDS * EK_PANEL];
} packed_item;

/* Packs vectors [first, first + n) of a side, elements [k, k + words), to packed [words][width]. */
static void pack_side(const ek_linear_ops *ops, const side *s, int64_t first, int64_t n, int64_t k,
                      int64_t words, float *packed, int64_t width)
{
    if (s->by_row)
        ops->comp_rows(n, words, s->x + first * s->ld + k, s->ld, packed, width);
    else
        ops->comp_cols(words, n, s->x + k * s->ld + first, s->ld, packed, width);
}

/* One tile: strip rows [i, i + rows), panel columns [j, j + cols). */
static void multiply_tile(const product *t, int64_t i, int64_t rows, int64_t j, int64_t cols,
                          int64_t words, const float *strip, const float *panel, int add)
{
    float part[EK_STRIP * EK_PANEL];

    if (!t->transposed) {
        t->ops->tile(rows, cols, words, strip, panel, add ? EK_OUT_ADD : EK_OUT_REAL,
                     t->c + i * t->ldc + j, t->ldc);
        return;
    }
    t->ops->tile(rows, cols, words, strip, panel, EK_OUT_REAL, part, EK_PANEL);
    for (int64_t v = 0; v < cols; v++) {
        float *c = t->c + (j + v) * t->ldc + i;

        for (int64_t u = 0; u < rows; u++)
            c[u] = part[u * EK_PANEL + v] + (add ? c[u] : 0);
    }
}

/* Multiplies strips [s0, s1) with panels [p0, p1). */
static void run_item(const product *t, int64_t s0, int64_t s1, int64_t p0, int64_t p1)
{
    packed_item at;

    for (int64_t k = 0; k < t->k; k += WORDS) {
        int64_t words = ek_at_most(WORDS, t->k - k);

        for (int64_t s = s0; s < s1; s++)
            pack_side(t->ops, &t->strips, s * EK_STRIP,
                      ek_at_most(EK_STRIP, t->strips.n - s * EK_STRIP), k, words, at.strip[s - s0],
                      EK_STRIP_WIDTH);
        for (int64_t p = p0; p < p1; p++)
            pack_side(t->ops, &t->panels, p * EK_PANEL,
                      ek_at_most(EK_PANEL, t->panels.n - p * EK_PANEL), k, words, at.panel[p - p0],
                      EK_PANEL);
        for (int64_t p = p0; p < p1; p++) {
            for (int64_t s = s0; s < s1; s++)
                multiply_tile(t, s * EK_STRIP, ek_at_most(EK_STRIP, t->strips.n - s * EK_STRIP),
                              p * EK_PANEL, ek_at_most(EK_PANEL, t->panels.n - p * EK_PANEL), words,
                              at.strip[s - s0], at.panel[p - p0], t->add || k > 0);
            ek_progress();
        }
    }
}

static void run_product(const product *t)
{
    int64_t strips = ek_ceil_div(t->strips.n, EK_STRIP);
    int64_t panels = ek_ceil_div(t->panels.n, EK_PANEL);
    int64_t rows = ek_ceil_div(strips, STRIPS);
    int64_t threads = omp_get_max_threads(), items = threads > 1 ? threads * ITEMS_PER_THREAD : 1;
    int64_t some = ek_at_most(PANELS, ek_ceil_div(panels * rows, items));
    int64_t columns = ek_ceil_div(panels, some);

#pragma omp parallel for schedule(dynamic)
    for (int64_t u = 0; u < rows * columns; u++) {
        int64_t s = u / columns * STRIPS, p = u % columns * some;

        run_item(t, s, ek_at_most(s + STRIPS, strips), p, ek_at_most(p + some, panels));
    }
}

/* Elements computed by the tiles for so many strip and panel vectors, padding included. */
static int64_t tile_elements(int64_t strips, int64_t panels)
{
    return ek_ceil_div(strips, EK_STRIP) * EK_STRIP * ek_ceil_div(panels, EK_PANEL) * EK_PANEL;
}

static void matmul(const ek_linear_ops *ops, int ta, int tb, int64_t m, int64_t n, int64_t kk,
                   const float *a, int64_t lda, const float *b, int64_t ldb, int add, float *c,
                   int64_t ldc)
{
    side of_a = {a, lda, m, !ta}, of_b = {b, ldb, n, tb};
    int transposed = tile_elements(n, m) < tile_elements(m, n);
    product t = {.ops = ops,
                 .strips = transposed ? of_b : of_a,
                 .panels = transposed ? of_a : of_b,
                 .k = kk,
                 .transposed = transposed,
                 .add = add,
                 .c = c,
                 .ldc = ldc};

    if (kk == 0 && !add) /* an empty sum */
        for (int64_t i = 0; i < m; i++)
            memset(c + i * ldc, 0, (size_t)n * sizeof(*c));
    if (m > 0 && n > 0 && kk > 0)
        run_product(&t);
}

void ek_matmul_real_avx512(int ta, int tb, int64_t m, int64_t n, int64_t kk, const void *a,
                           int64_t lda, const void *b, int64_t ldb, int add, void *c, int64_t ldc)
{
    matmul(ek_linear_avx512(EK_MODE_FP32), ta, tb, m, n, kk, a, lda, b, ldb, add, c, ldc);
}

void ek_matmul_real_avx2(int ta, int tb, int64_t m, int64_t n, int64_t kk, const void *a,
                         int64_t lda, const void *b, int64_t ldb, int add, void *c, int64_t ldc)
{
    matmul(ek_linear_avx2(EK_MODE_FP32), ta, tb, m, n, kk, a, lda, b, ldb, add, c, ldc);
}
