/* tensor/cpu/linear_weight.c - gradient of weights: dw[out, in] += dy^T x, group by group.
 *
 * K is tokens, so both factors are packed in pairs along rows, block by block, in cache: a step has
 * up to WORDS words of tokens of one group and up to COLUMNS columns of x.  The panels of x are
 * shared: while the threads work on one step, they also pack the panels of the next, so there is
 * one barrier per step.  Columns of dy are packed into strips by the thread that uses them. Threads
 * draw all work of a step from one counter; the steps of a group add to dw in order, so the bits do
 * not depend on the number of threads. */
#include "base/progress_hook.h"
#include "tensor/cpu/linear.h"

#include <omp.h>
#include <stdatomic.h>

enum {
    WORDS = 256,    /* words of tokens per step */
    COLUMNS = 512,  /* columns of x per step, a multiple of any panel; panels of 512 KiB, in L2 */
    ITEM_STRIPS = 2 /* strips of dy packed at a time: their columns share the cache lines read */
};

typedef struct {
    const ek_linear_ops *ops;
    const ek_group *g;
    int64_t n_groups, out, in;
    const char *dy, *x;
    int64_t lddy, ldx, elem;
    char *panels[2], *strips;
    atomic_llong next[2]; /* next work item of this step and of the following one */
} weight;

/* A step: its group, first token in it and first column of x; and its sizes. */
typedef struct {
    int64_t group, token, column;
    int64_t tokens, columns, words;
} step;

/* Sets the sizes of a step, after skipping empty groups.  0: no more steps. */
static int next_valid_step(const weight *t, step *s)
{
    while (s->group < t->n_groups && t->g[s->group].rows == 0)
        s->group++;
    if (s->group >= t->n_groups)
        return 0;
    s->tokens = ek_at_most(WORDS * t->ops->per_word, t->g[s->group].rows - s->token);
    s->columns = ek_at_most(COLUMNS, t->in - s->column);
    s->words = ek_strip_words(t->ops, s->tokens);
    return 1;
}

static int step_next(const weight *t, step *s)
{
    s->column += s->columns;
    if (s->column >= t->in) {
        s->column = 0;
        s->token += s->tokens;
    }
    if (s->token >= t->g[s->group].rows) {
        s->token = 0;
        s->group++;
    }
    return next_valid_step(t, s);
}

static int64_t step_panels(const step *s, int64_t panel)
{
    return ek_ceil_div(s->columns, panel);
}

/* Packs panel p of a step. */
static void panel_fill(const weight *t, const step *s, int64_t p, char *panels)
{
    int64_t panel = t->ops->size.panel;
    int64_t row = t->g[s->group].row + s->token, column = s->column + p * panel;

    t->ops->comp_cols(s->tokens, ek_at_most(panel, s->columns - p * panel),
                      t->x + (row * t->ldx + column) * t->elem, t->ldx,
                      panels + p * s->words * panel * 4, panel);
}

/* Multiplies columns [c0, c1) of dy (rows of dw) with all panels of the step. */
static void multiply_columns(const weight *t, const step *s, int64_t c0, int64_t c1,
                             const char *panels, char *strips)
{
    const ek_linear_sizes *z = &t->ops->size;
    int64_t strip_bytes = s->words * z->strip_width * 4, row = t->g[s->group].row + s->token;
    float *dw = t->g[s->group].dw;

    for (int64_t c = c0, i = 0; c < c1; c += z->strip, i++)
        t->ops->strip_cols(s->tokens, ek_at_most(z->strip, c1 - c),
                           t->dy + (row * t->lddy + c) * t->elem, t->lddy, strips + i * strip_bytes,
                           z->strip_width);
    for (int64_t p = 0; p < step_panels(s, z->panel); p += z->panels) {
        int64_t column = p * z->panel, cols = ek_at_most(z->panels * z->panel, s->columns - column);

        for (int64_t c = c0, i = 0; c < c1; c += z->strip, i++)
            t->ops->tile(ek_at_most(z->strip, c1 - c), cols, s->words, strips + i * strip_bytes,
                         panels + p * s->words * z->panel * 4, EK_OUT_ADD,
                         dw + c * t->in + s->column + column, t->in);
        ek_progress();
    }
}

static int64_t next_item(weight *t, int slot)
{
    return atomic_fetch_add_explicit(&t->next[slot], 1, memory_order_relaxed);
}

/* One thread's work on a step: first packs panels of the next step, then multiplies. */
static void step_run(weight *t, const step *s, const step *after, int slot, char *strips)
{
    int64_t fill = after != NULL ? step_panels(after, t->ops->size.panel) : 0;
    int64_t item = ITEM_STRIPS * t->ops->size.strip, items = ek_ceil_div(t->out, item), u;

    while ((u = next_item(t, slot)) < fill + items) {
        if (u < fill)
            panel_fill(t, after, u, t->panels[!slot]);
        else
            multiply_columns(t, s, (u - fill) * item, ek_at_most((u - fill + 1) * item, t->out),
                             t->panels[slot], strips);
    }
}

/* The steps of a call, by one thread of the team. */
static void weight_steps(weight *t, char *strips)
{
    step s = {0}, after;
    int more = next_valid_step(t, &s), slot = 0;

    if (!more)
        return;
#pragma omp for schedule(static)
    for (int64_t p = 0; p < step_panels(&s, t->ops->size.panel); p++)
        panel_fill(t, &s, p, t->panels[0]);
    while (more) {
        after = s;
        more = step_next(t, &after);
        step_run(t, &s, more ? &after : NULL, slot, strips);
#pragma omp barrier
        /* No thread uses this counter before the next barrier. */
        if (omp_get_thread_num() == 0)
            atomic_store_explicit(&t->next[slot], 0, memory_order_relaxed);
        slot = !slot;
        s = after;
    }
}

static size_t panel_bytes(void)
{
    return (size_t)WORDS * COLUMNS * 4;
}

static size_t strip_bytes(const ek_linear_ops *ops)
{
    return (size_t)ITEM_STRIPS * WORDS * (size_t)ops->size.strip_width * 4;
}

size_t ek_linear_weight_workspace(const ek_linear_ops *ops, int threads)
{
    return 2 * panel_bytes() + (size_t)threads * strip_bytes(ops);
}

ek_status ek_linear_weight(const ek_kernels *k, const ek_group *g, int64_t n_groups, int64_t out,
                           int64_t in, const void *dy, int64_t lddy, const void *x, int64_t ldx,
                           void *ws)
{
    char *panels = ws;
    weight t = {
        .ops = k->state,
        .g = g,
        .n_groups = n_groups,
        .out = out,
        .in = in,
        .dy = dy,
        .x = x,
        .lddy = lddy,
        .ldx = ldx,
        .elem = (int64_t)ek_dtype_size(k->comp),
        .panels = {panels, panels + panel_bytes()},
        .strips = panels + 2 * panel_bytes(),
    };

    atomic_init(&t.next[0], 0);
    atomic_init(&t.next[1], 0);
#pragma omp parallel num_threads(k->threads)
    weight_steps(&t, t.strips + (size_t)omp_get_thread_num() * strip_bytes(t.ops));
    return EK_OK;
}
