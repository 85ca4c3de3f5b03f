/* tensor/cpu/linear.c - matrix products with packed weights: forward and backward to the input.
 *
 * Work is divided into work items of some rows of one group times some panels of its weight, which
 * threads draw from a shared counter, so that groups of any sizes keep all threads busy.  A work
 * item packs its rows into strips (in L2) and multiplies every panel with all of them (a panel or a
 * strip stays in L1).  Strips are in the workspace: nothing is allocated. */
#include "tensor/cpu/linear.h"

#include "base/progress_hook.h"

#include <omp.h>
#include <stdatomic.h>
#include <string.h>

enum {
    STRIP_BYTES = 768 * 1024, /* strips of one work item: a fraction of L2 */
    STRIPS_MAX = 16,          /* strips of one work item */
    ITEMS_PER_THREAD = 16,    /* threads wait for the last item for at most 1/16 of the time */
    PACKED_ROWS = 8           /* rows of a weight packed at a time: even */
};

/* One call: c[rows, n] = a[rows, k] b[k, n], with each group's b in panels, or as values. */
typedef struct {
    const ek_linear_ops *ops;
    const ek_group *g;
    int64_t n_groups, n, k;
    const char *a;
    int64_t lda; /* in elements; a_bytes, c_bytes: row strides in bytes */
    int64_t a_bytes;
    char *c;
    int64_t ldc, c_bytes, c_elem;
    ek_out mode;
    char *ws;
    int64_t words, panel_bytes;
    int64_t value_bytes; /* b is values [n, k] of so many bytes; 0: in panels */
    int64_t strips;      /* of a work item */
    int64_t panels;      /* of a work item */
    int64_t panel_items; /* work items that divide the panels of a weight */
} product;

static const ek_linear_ops *ops_of(const ek_kernels *k)
{
    return k->state;
}

/* Strips of `words` words that a thread holds at once.  words is 0 for an empty slice. */
static int64_t strips_held(const ek_linear_ops *ops, int64_t words)
{
    int64_t n = words > 0 ? STRIP_BYTES / (words * ops->size.strip_width * 4) : STRIPS_MAX;

    return n < 1 ? 1 : n > STRIPS_MAX ? STRIPS_MAX : n;
}

/* Bytes of the strips of one thread. */
static size_t strips_bytes(const ek_linear_ops *ops, int64_t k)
{
    int64_t words = ek_strip_words(ops, k);

    return (size_t)(words * 4 * strips_held(ops, words) * ops->size.strip_width);
}

/* Bytes of a thread's workspace: strips, and panels that are made of values behind them. */
static size_t thread_bytes(const ek_linear_ops *ops, int64_t k, int values)
{
    int64_t panels = values ? ops->size.panels * ops->size.panel * ek_packed_words(ops, k) * 4 : 0;

    return strips_bytes(ops, k) + (size_t)panels;
}

static size_t packed_bytes(const ek_kernels *k, int64_t out, int64_t in, ek_form form)
{
    int64_t n = form == EK_PACKED_FORWARD ? out : in, kk = form == EK_PACKED_FORWARD ? in : out;
    int64_t panel = ops_of(k)->size.panel;

    return (size_t)(ek_ceil_div(n, panel) * panel * 4) * (size_t)ek_packed_words(ops_of(k), kk);
}

typedef void pack_function(int64_t rows, int64_t k, const void *src, int64_t ld, void *dst,
                           int64_t width);

/* Each row of w, of elements of `size` bytes, is a column of each panel. */
static void pack_rows(const ek_linear_ops *ops, pack_function *pack_panel, int64_t out, int64_t in,
                      const char *w, int64_t size, char *packed)
{
    int64_t panel = ops->size.panel, panels = ek_ceil_div(out, panel);
    int64_t bytes = ek_packed_words(ops, in) * panel * 4;

#pragma omp parallel for schedule(static)
    for (int64_t p = 0; p < panels; p++) {
        int64_t first = p * panel, width = ek_at_most(out - first, panel);

        pack_panel(width, in, w + first * in * size, in, packed + p * bytes, panel);
    }
}

/* Each row of w is a row of all panels: packs some rows at a time, so that they are read in full
 * and stay in cache from panel to panel. */
static void pack_cols(const ek_linear_ops *ops, int64_t out, int64_t in, const float *w,
                      char *packed)
{
    int64_t panel = ops->size.panel, panels = ek_ceil_div(in, panel);
    int64_t words = ek_ceil_div(out, ops->packed), all = ek_packed_words(ops, out);
    int64_t bytes = all * panel * 4;

#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < out; row += PACKED_ROWS) {
        int64_t rows = ek_at_most(out - row, PACKED_ROWS);
        char *dst = packed + row / ops->packed * panel * 4;

        for (int64_t p = 0; p < panels; p++) {
            int64_t first = p * panel, width = ek_at_most(in - first, panel);

            ops->pack_cols(rows, width, w + row * in + first, in, dst + p * bytes, panel);
        }
    }
    for (int64_t p = 0; p < panels && words < all; p++)
        memset(packed + p * bytes + words * panel * 4, 0, (size_t)((all - words) * panel * 4));
}

static ek_status pack(const ek_kernels *k, int64_t out, int64_t in, ek_form form,
                      const void *master, void *packed)
{
    if (form == EK_PACKED_FORWARD)
        pack_rows(ops_of(k), ops_of(k)->pack_rows, out, in, master, sizeof(float), packed);
    else
        pack_cols(ops_of(k), out, in, master, packed);
    return EK_OK;
}

static ek_status pack_comp(const ek_kernels *k, int64_t out, int64_t in, const void *values,
                           void *packed)
{
    const ek_linear_ops *ops = ops_of(k);

    pack_rows(ops, ops->pack_comp_rows, out, in, values, sizeof(ek_bf16), packed);
    return EK_OK;
}

/* A panel of the one form and one of the other have a square of the weight in common, which stays
 * in cache while it is transposed. */
static ek_status repack(const ek_kernels *k, int64_t out, int64_t in, const void *forward,
                        void *backward)
{
    const ek_linear_ops *ops = ops_of(k);
    int64_t panel = ops->size.panel, panels = ek_ceil_div(in, panel);
    int64_t words = ek_ceil_div(out, ops->packed), all = ek_packed_words(ops, out);
    int64_t from_bytes = ek_packed_words(ops, in) * panel * 4, bytes = all * panel * 4;

#pragma omp parallel for schedule(static)
    for (int64_t p = 0; p < panels; p++) {
        int64_t first = p * panel, rows = ek_at_most(in - first, panel);
        const char *from = (const char *)forward + first / ops->packed * panel * 4;
        char *to = (char *)backward + p * bytes;

        for (int64_t col = 0; col < out; col += panel, from += from_bytes)
            ops->turn(rows, ek_at_most(out - col, panel), from, panel,
                      to + col / ops->packed * panel * 4, panel);
        memset(to + words * panel * 4, 0, (size_t)((all - words) * panel * 4));
    }
    return EK_OK;
}

/* First row of strip s: rows are divided evenly over strips, as short strips are slow. */
static int64_t strip_start(int64_t rows, int64_t n_strips, int64_t s)
{
    return rows * s / n_strips;
}

static void pack_strips(const product *t, int64_t row, int64_t rows, char *strips)
{
    const ek_linear_sizes *z = &t->ops->size;
    int64_t n_strips = ek_ceil_div(rows, z->strip), bytes = t->words * z->strip_width * 4;

    for (int64_t s = 0; s < n_strips; s++) {
        int64_t r0 = strip_start(rows, n_strips, s), r1 = strip_start(rows, n_strips, s + 1);

        t->ops->comp_rows(r1 - r0, t->k, t->a + (row + r0) * t->a_bytes, t->lda, strips + s * bytes,
                          z->strip_width);
    }
}

/* The panels of `cols` columns from panel p on: those of w, or made of its values in `own`. */
static const char *find_panels(const product *t, const char *w, int64_t p, int64_t cols, char *own)
{
    int64_t panel = t->ops->size.panel, row_bytes = t->k * t->value_bytes;

    if (t->value_bytes == 0)
        return w + p * t->panel_bytes;
    for (int64_t j = 0; j < cols; j += panel)
        t->ops->value_rows(ek_at_most(cols - j, panel), t->k, w + (p * panel + j) * row_bytes, t->k,
                           own + j / panel * t->panel_bytes, panel);
    return own;
}

/* One tile: strip s of n with panels of `cols` columns.  Each strip fetches its share of the values
 * of the panels after these, if there are any at `next`. */
static void multiply_strip(const product *t, int64_t rows, int64_t n, int64_t s, int64_t cols,
                           const char *strip, const char *panels, const char *next, char *c)
{
    int64_t r0 = strip_start(rows, n, s), r1 = strip_start(rows, n, s + 1);
    int64_t share = cols * t->k * t->value_bytes / n;

    if (next == NULL)
        t->ops->tile_packed(r1 - r0, cols, t->words, strip, panels, t->mode, c + r0 * t->c_bytes,
                            t->ldc);
    else
        t->ops->tile_ahead(r1 - r0, cols, t->words, strip, panels, t->mode, c + r0 * t->c_bytes,
                           t->ldc, next + s * share, share);
}

/* Multiplies rows [row, row + rows) of the call with panels [p0, p1) of weight w. */
static void multiply_rows(const product *t, const char *w, int64_t row, int64_t rows, int64_t p0,
                          int64_t p1, char *strips)
{
    const ek_linear_sizes *z = &t->ops->size;
    int64_t n_strips = ek_ceil_div(rows, z->strip), bytes = t->words * z->strip_width * 4;
    int64_t panel_values = z->panel * t->k * t->value_bytes;
    char *own = strips + strips_bytes(t->ops, t->k);

    pack_strips(t, row, rows, strips);
    for (int64_t p = p0; p < p1; p += z->panels) {
        int64_t cols = ek_at_most(t->n - p * z->panel, ek_at_most(p1 - p, z->panels) * z->panel);
        char *c = t->c + row * t->c_bytes + p * z->panel * t->c_elem;
        const char *panels = find_panels(t, w, p, cols, own), *next = NULL;

        if (t->value_bytes > 0 && t->ops->tile_ahead != NULL && p + z->panels < p1)
            next = w + (p + z->panels) * panel_values;
        for (int64_t s = 0; s < n_strips; s++)
            multiply_strip(t, rows, n_strips, s, cols, strips + s * bytes, panels, next, c);
        ek_progress();
    }
}

/* The same of few rows with values that are not made panels. */
static void multiply_few_rows(const product *t, const char *w, int64_t row, int64_t rows,
                              int64_t p0, int64_t p1, char *strips)
{
    int64_t panel = t->ops->size.panel;

    pack_strips(t, row, rows, strips);
    for (int64_t p = p0; p < p1; p++) {
        t->ops->tile_values(rows, ek_at_most(t->n - p * panel, panel), t->k, strips,
                            w + p * panel * t->k * t->value_bytes, t->mode,
                            t->c + row * t->c_bytes + p * panel * t->c_elem, t->ldc);
        ek_progress();
    }
}

static int64_t items_of_group(const product *t, const ek_group *g)
{
    return ek_ceil_div(g->rows, t->strips * t->ops->size.strip) * t->panel_items;
}

/* Computes work item u of group g: row blocks of equal size are the outer loop. */
static void run_item(const product *t, const ek_group *g, int64_t u, char *strips)
{
    int64_t blocks = ek_ceil_div(g->rows, t->strips * t->ops->size.strip);
    int64_t b = u / t->panel_items, p0 = u % t->panel_items * t->panels;
    int64_t r0 = g->rows * b / blocks, r1 = g->rows * (b + 1) / blocks;
    int64_t all = ek_ceil_div(t->n, t->ops->size.panel);
    int64_t p1 = ek_at_most(p0 + t->panels, all);

    if (t->value_bytes > 0 && t->ops->tile_values != NULL && r1 - r0 <= EK_FEW_ROWS)
        multiply_few_rows(t, g->w, g->row + r0, r1 - r0, p0, p1, strips);
    else
        multiply_rows(t, g->w, g->row + r0, r1 - r0, p0, p1, strips);
}

/* Sets the size of work items and returns their number: divides rows first, then panels if there
 * are few rows. */
static int64_t divide_work(product *t, int threads)
{
    int64_t rows = 0, blocks = 0, all = ek_ceil_div(t->n, t->ops->size.panel);
    int64_t want = (int64_t)threads * ITEMS_PER_THREAD, held = strips_held(t->ops, t->words);

    for (int64_t i = 0; i < t->n_groups; i++)
        rows += t->g[i].rows;
    t->strips = rows / (want * t->ops->size.strip);
    t->strips = t->strips < 4 ? 4 : t->strips;
    t->strips = t->strips > held ? held : t->strips;
    for (int64_t i = 0; i < t->n_groups; i++)
        blocks += ek_ceil_div(t->g[i].rows, t->strips * t->ops->size.strip);
    if (blocks == 0 || all == 0)
        return 0;
    t->panel_items = threads == 1 ? 1 : ek_ceil_div(want, blocks);
    t->panel_items = t->panel_items > all ? all : t->panel_items;
    t->panels = ek_ceil_div(all, t->panel_items);
    t->panel_items = ek_ceil_div(all, t->panels);
    return blocks * t->panel_items;
}

static void run_product(product *t, int threads)
{
    int64_t items = divide_work(t, threads);
    size_t bytes = thread_bytes(t->ops, t->k, t->value_bytes > 0);
    atomic_llong next = 0;

    if (items == 0)
        return;
#pragma omp parallel num_threads(threads)
    {
        char *strips = t->ws + (size_t)omp_get_thread_num() * bytes;
        int64_t u, first = 0, group = 0;

        while ((u = atomic_fetch_add_explicit(&next, 1, memory_order_relaxed)) < items) {
            while (u - first >= items_of_group(t, &t->g[group]))
                first += items_of_group(t, &t->g[group++]);
            run_item(t, &t->g[group], u - first, strips);
        }
    }
}

static ek_status linear_product(const ek_kernels *k, const ek_group *g, int64_t n_groups, int64_t n,
                                int64_t kk, const void *a, int64_t lda, void *c, int64_t ldc,
                                ek_out mode, int values, void *ws)
{
    int64_t comp = (int64_t)ek_dtype_size(k->comp);
    int64_t elem = mode == EK_OUT_COMP ? comp : (int64_t)sizeof(float);
    product t = {
        .ops = ops_of(k),
        .g = g,
        .n_groups = n_groups,
        .n = n,
        .k = kk,
        .a = a,
        .lda = lda,
        .a_bytes = lda * comp,
        .c = c,
        .ldc = ldc,
        .c_bytes = ldc * elem,
        .c_elem = elem,
        .mode = mode,
        .ws = ws,
        .value_bytes = values ? comp : 0,
        .words = ek_strip_words(ops_of(k), kk),
        .panel_bytes = ek_packed_words(ops_of(k), kk) * ops_of(k)->size.panel * 4,
    };

    run_product(&t, k->threads);
    return EK_OK;
}

static ek_status linear_forward(const ek_kernels *k, const ek_group *g, int64_t n_groups,
                                int64_t out, int64_t in, const void *x, int64_t ldx, void *y,
                                int64_t ldy, ek_out mode, void *ws)
{
    return linear_product(k, g, n_groups, out, in, x, ldx, y, ldy, mode, 0, ws);
}

static ek_status linear_forward_values(const ek_kernels *k, const ek_group *g, int64_t n_groups,
                                       int64_t out, int64_t in, const void *x, int64_t ldx, void *y,
                                       int64_t ldy, ek_out mode, void *ws)
{
    return linear_product(k, g, n_groups, out, in, x, ldx, y, ldy, mode, 1, ws);
}

static size_t values_workspace(const ek_kernels *k, int64_t in)
{
    return thread_bytes(ops_of(k), in, 1) * (size_t)k->threads;
}

static ek_status linear_backward_input(const ek_kernels *k, const ek_group *g, int64_t n_groups,
                                       int64_t out, int64_t in, const void *dy, int64_t lddy,
                                       void *dx, int64_t lddx, ek_out mode, void *ws)
{
    return linear_product(k, g, n_groups, in, out, dy, lddy, dx, lddx, mode, 0, ws);
}

static size_t linear_workspace(const ek_kernels *k, int64_t rows, int64_t n_groups, int64_t out,
                               int64_t in)
{
    size_t forward = strips_bytes(ops_of(k), in), backward = strips_bytes(ops_of(k), out);
    size_t strips = (forward > backward ? forward : backward) * (size_t)k->threads;
    size_t weight = ek_linear_weight_workspace(ops_of(k), k->threads);

    (void)rows;
    (void)n_groups;
    return strips > weight ? strips : weight;
}

void ek_linear_fill(ek_kernels *k, const ek_linear_ops *ops)
{
    k->products = ops->name;
    k->state = (void *)(uintptr_t)ops;
    k->one_form = 0;
    k->packed_bytes = packed_bytes;
    k->panel_rows = ops->size.panel;
    k->pack = pack;
    k->pack_comp = ops->pack_comp_rows != NULL ? pack_comp : NULL;
    k->repack = repack;
    k->linear_forward = linear_forward;
    k->linear_forward_values = linear_forward_values;
    k->values_workspace = values_workspace;
    k->linear_backward_input = linear_backward_input;
    k->linear_backward_weight = ek_linear_weight;
    k->linear_workspace = linear_workspace;
}
