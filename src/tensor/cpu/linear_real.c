/* tensor/cpu/linear_real.c - c = op(a) op(b) in float, for the router: one of the sides is small.
 *
 * Neither factor is kept packed.  One gives rows of a register tile (strips), the other columns
 * (panels); whichever way round fills the tiles better.  Where strips come from b a tile is the
 * transpose of its part of c, and is turned as it is stored.  A unit of work is some strips times
 * some panels; K runs block by block in one fixed order, so the bits do not depend on the number
 * of threads. */
#include "base/progress_hook.h"
#include "tensor/cpu/linear.h"

#include <omp.h>
#include <string.h>

enum { WORDS = 128, STRIPS = 4, PANELS = 8, UNITS_PER_THREAD = 4 };

/* One factor: vectors along K, as rows or as columns of what is stored. */
typedef struct {
    const float *x;
    int64_t ld, n; /* vectors */
    int by_row;
} side;

typedef struct {
    const ek_linear_ops *ops;
    side strips, panels;
    int64_t k;
    int turned; /* strips are columns of c */
    int add;
    float *c;
    int64_t ldc;
} product;

/* Pieces of a unit. */
typedef struct {
    _Alignas(64) float strip[STRIPS][WORDS * EK_STRIP_WIDTH];
    _Alignas(64) float panel[PANELS][WORDS * EK_PANEL];
} pieces;

/* Vectors [first, first + n) of a side, elements [k, k + words), as a piece so wide. */
static void lay(const ek_linear_ops *ops, const side *s, int64_t first, int64_t n, int64_t k,
                int64_t words, float *piece, int64_t width)
{
    if (s->by_row)
        ops->comp_rows(n, words, s->x + first * s->ld + k, s->ld, piece, width);
    else
        ops->comp_cols(words, n, s->x + k * s->ld + first, s->ld, piece, width);
}

/* One tile: strip rows [i, i + rows), panel columns [j, j + cols). */
static void tile(const product *t, int64_t i, int64_t rows, int64_t j, int64_t cols, int64_t words,
                 const float *strip, const float *panel, int add)
{
    float part[EK_STRIP * EK_PANEL];

    if (!t->turned) {
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

/* Strips [s0, s1) times panels [p0, p1). */
static void bucket_range(const product *t, int64_t s0, int64_t s1, int64_t p0, int64_t p1)
{
    pieces at;

    for (int64_t k = 0; k < t->k; k += WORDS) {
        int64_t words = ek_at_most(WORDS, t->k - k);

        for (int64_t s = s0; s < s1; s++)
            lay(t->ops, &t->strips, s * EK_STRIP, ek_at_most(EK_STRIP, t->strips.n - s * EK_STRIP),
                k, words, at.strip[s - s0], EK_STRIP_WIDTH);
        for (int64_t p = p0; p < p1; p++)
            lay(t->ops, &t->panels, p * EK_PANEL, ek_at_most(EK_PANEL, t->panels.n - p * EK_PANEL),
                k, words, at.panel[p - p0], EK_PANEL);
        for (int64_t p = p0; p < p1; p++) {
            for (int64_t s = s0; s < s1; s++)
                tile(t, s * EK_STRIP, ek_at_most(EK_STRIP, t->strips.n - s * EK_STRIP),
                     p * EK_PANEL, ek_at_most(EK_PANEL, t->panels.n - p * EK_PANEL), words,
                     at.strip[s - s0], at.panel[p - p0], t->add || k > 0);
            ek_progress();
        }
    }
}

static void product_run(const product *t)
{
    int64_t strips = ek_ceil_div(t->strips.n, EK_STRIP);
    int64_t panels = ek_ceil_div(t->panels.n, EK_PANEL);
    int64_t rows = ek_ceil_div(strips, STRIPS);
    int64_t threads = omp_get_max_threads(), units = threads > 1 ? threads * UNITS_PER_THREAD : 1;
    int64_t some = ek_at_most(PANELS, ek_ceil_div(panels * rows, units));
    int64_t columns = ek_ceil_div(panels, some);

#pragma omp parallel for schedule(dynamic)
    for (int64_t u = 0; u < rows * columns; u++) {
        int64_t s = u / columns * STRIPS, p = u % columns * some;

        bucket_range(t, s, ek_at_most(s + STRIPS, strips), p, ek_at_most(p + some, panels));
    }
}

/* Elements that the tiles of so many strip vectors and panel vectors compute. */
static int64_t computed(int64_t strips, int64_t panels)
{
    return ek_ceil_div(strips, EK_STRIP) * EK_STRIP * ek_ceil_div(panels, EK_PANEL) * EK_PANEL;
}

static void matmul(const ek_linear_ops *ops, int ta, int tb, int64_t m, int64_t n, int64_t kk,
                   const float *a, int64_t lda, const float *b, int64_t ldb, int add, float *c,
                   int64_t ldc)
{
    side of_a = {a, lda, m, !ta}, of_b = {b, ldb, n, tb};
    int turned = computed(n, m) < computed(m, n);
    product t = {.ops = ops,
                 .strips = turned ? of_b : of_a,
                 .panels = turned ? of_a : of_b,
                 .k = kk,
                 .turned = turned,
                 .add = add,
                 .c = c,
                 .ldc = ldc};

    if (kk == 0 && !add) /* an empty sum */
        for (int64_t i = 0; i < m; i++)
            memset(c + i * ldc, 0, (size_t)n * sizeof(*c));
    if (m > 0 && n > 0 && kk > 0)
        product_run(&t);
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
