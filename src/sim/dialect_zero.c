/* Sums gradients at once; gathers updated weights at once, and copies them. */
#include "sim/dialect_zero.h"

#include "sim/dialect_ops.h"

#include <math.h>
#include <stdlib.h>

/* --- copies of graphs ------------------------------------------------------------------------- */

typedef struct {
    const ek_graph *from;
    ek_graph *to;
    int32_t *id;   /* [n_ops]: what stands for an op in the copy; -1: nothing yet */
    char *held;    /* [n_ops]: is appended later */
    int32_t *deps; /* [n_deps + n_ops + 1]: scratch, in the copy */
} rebuilding;

static void close_rebuilding(rebuilding *r)
{
    free(r->id);
    free(r->held);
    free(r->deps);
}

static ek_status open_rebuilding(const ek_graph *from, ek_graph *to, rebuilding *r)
{
    size_t n = (size_t)from->n_ops + 1;

    *r = (rebuilding){.from = from,
                      .to = to,
                      .id = malloc(n * sizeof(*r->id)),
                      .held = calloc(n, sizeof(*r->held)),
                      .deps = calloc((size_t)from->n_deps + n, sizeof(*r->deps))};
    EK_REQUIRE(r->id != NULL && r->held != NULL && r->deps != NULL, EK_ENOMEM,
               "no memory for a step graph of %d ops", (int)from->n_ops);
    for (size_t i = 0; i < n; i++)
        r->id[i] = -1;
    return EK_OK;
}

/* Adds what op i waits for to the n in deps, without what is not in the copy; returns n. */
static int32_t add_deps(rebuilding *r, int32_t i, int32_t n)
{
    const ek_op *op = &r->from->ops[i];

    for (int32_t d = 0; d < op->n_deps; d++)
        if (r->id[r->from->deps[op->dep + d]] >= 0)
            r->deps[n++] = r->id[r->from->deps[op->dep + d]];
    return n;
}

static void copy_op(rebuilding *r, int32_t i)
{
    int32_t n = add_deps(r, i, 0);

    r->id[i] = ek_graph_add(r->to, &r->from->ops[i], r->deps, n);
}

/* Network ops of one kind; b is one. */
static int same_group(const ek_op *a, const ek_op *b)
{
    const ek_net_work *v = &a->work.net, *w = &b->work.net;

    return a->kind == b->kind && a->work.kind == EK_WORK_NET && v->group.first == w->group.first &&
           v->group.stride == w->group.stride && v->group.n == w->group.n && v->span == w->span;
}

/* Appends the held network ops of the group of op `of`, as one, after `after`, too (-1: none). */
static int32_t append_held(rebuilding *r, int32_t of, ek_collective collective, int32_t after)
{
    ek_op all = r->from->ops[of];
    int32_t n = 0, id;

    all.work.net.collective = collective;
    all.work.net.bytes = 0;
    if (after >= 0)
        r->deps[n++] = after;
    for (int32_t i = 0; i < r->from->n_ops; i++)
        if (r->held[i] && same_group(&r->from->ops[i], &all)) {
            all.work.net.bytes += r->from->ops[i].work.net.bytes;
            n = add_deps(r, i, n);
        }
    all.bytes = ek_work_net_bytes(&all.work);
    id = ek_graph_add(r->to, &all, r->deps, n);
    for (int32_t i = 0; i < r->from->n_ops; i++)
        if (r->held[i] && same_group(&r->from->ops[i], &all)) {
            r->held[i] = 0;
            r->id[i] = id;
        }
    return id;
}

/* --- sums ------------------------------------------------------------------------------------- */

static void append_sums_before(rebuilding *r, int32_t i)
{
    const ek_op *op = &r->from->ops[i];

    for (int32_t d = 0; d < op->n_deps; d++)
        if (r->held[r->from->deps[op->dep + d]])
            append_held(r, r->from->deps[op->dep + d], EK_COLLECTIVE_ALL_REDUCE, -1);
}

ek_status ek_dialect_sum_at_once(const ek_graph *from, ek_graph *to)
{
    rebuilding r;
    ek_status st;

    EK_TRY_OUT(open_rebuilding(from, to, &r));
    for (int32_t i = 0; i < from->n_ops; i++) {
        if (ek_op_is_gradient_sum(&from->ops[i])) {
            r.held[i] = 1; /* also one that waits for another */
            continue;
        }
        append_sums_before(&r, i);
        copy_op(&r, i);
    }
    for (int32_t i = 0; i < from->n_ops; i++) /* that nothing waits for */
        if (r.held[i])
            append_held(&r, i, EK_COLLECTIVE_ALL_REDUCE, -1);
    EK_TRY_OUT(ek_graph_check(to));
out:
    close_rebuilding(&r);
    return st;
}

/* --- gathers ---------------------------------------------------------------------------------- */

static int waits_for_update(const ek_graph *g, const ek_op *op)
{
    for (int32_t d = 0; d < op->n_deps; d++)
        if (g->ops[g->deps[op->dep + d]].kind == EK_OP_ADAMW)
            return 1;
    return 0;
}

static int is_gather(const ek_graph *g, int32_t i)
{
    const ek_op *op = &g->ops[i];

    return op->kind == EK_OP_GATHER_WEIGHTS && op->work.kind == EK_WORK_NET &&
           waits_for_update(g, op);
}

/* Weights of which a micro-batch computes gradients. */
static double count_weights(const ek_graph *g)
{
    double n = 0;

    for (int32_t i = 0; i < g->n_ops; i++) {
        const ek_op *op = &g->ops[i];

        if (op->micro != 0 || op->part > 0)
            continue;
        n += op->kind == EK_OP_NORM_BACKWARD || op->kind == EK_OP_FINAL_NORM_BACKWARD ||
             op->kind == EK_OP_EMBED_BACKWARD;
        for (int32_t k = 0; op->work.kind == EK_WORK_PRODUCTS && k < op->work.products.n; k++)
            if ((op->work.products.product[k].passes & EK_PRODUCT_WEIGHT) != 0)
                n += op->work.products.product[k].groups;
    }
    return n;
}

/* Appends so many copies, which copy so many numbers together. */
static int32_t append_copies(const ek_machine *m, ek_graph *to, double numbers, double kernels,
                             int32_t after)
{
    ek_op op = {.kind = EK_OP_PACK, .lane = EK_LANE_COMPUTE, .layer = -1, .micro = -1, .part = -1};

    op.work = ek_work_of_rows(numbers, 1);
    op.work.rows.kernels = kernels;
    op.bytes = 2 * numbers * ek_machine_comp_bytes(m);
    return ek_graph_after(to, &op, after);
}

/* Appends all ops but held ones, updates after one another alone: held[i] is 1 for gathers and what
 * waits for them.  Returns the last update; -1: none. */
static int32_t append_updates(rebuilding *r)
{
    int32_t update = -1;

    for (int32_t i = 0; i < r->from->n_ops; i++) {
        const ek_op *op = &r->from->ops[i];
        int adamw = op->kind == EK_OP_ADAMW;
        int32_t n;

        r->held[i] = (char)is_gather(r->from, i);
        for (int32_t d = 0; d < op->n_deps && !adamw; d++)
            r->held[i] |= r->held[r->from->deps[op->dep + d]];
        if (r->held[i])
            continue;
        n = add_deps(r, i, 0);
        if (adamw && update >= 0)
            r->deps[n++] = update;
        r->id[i] = ek_graph_add(r->to, op, r->deps, n);
        update = adamw ? r->id[i] : update;
    }
    return update;
}

/* Of those held; -1: none. */
static int32_t largest_gather(const rebuilding *r)
{
    int32_t largest = -1;

    for (int32_t i = 0; i < r->from->n_ops; i++)
        if (r->held[i] && is_gather(r->from, i) &&
            (largest < 0 || r->from->ops[i].work.net.bytes > r->from->ops[largest].work.net.bytes))
            largest = i;
    return largest;
}

static double numbers_of_group(const rebuilding *r, const ek_op *of)
{
    double n = 0;

    for (int32_t i = 0; i < r->from->n_ops; i++)
        if (r->held[i] && is_gather(r->from, i) && same_group(&r->from->ops[i], of))
            n += r->from->ops[i].work.net.bytes / fmax(of->work.net.element, 1);
    return n;
}

static void append_gathers(rebuilding *r, const ek_machine *m, int32_t update)
{
    int32_t largest = largest_gather(r);
    const ek_op *op = &r->from->ops[largest];
    double ranks = op->work.net.group.n, numbers = numbers_of_group(r, op);
    int32_t after = append_copies(m, r->to, numbers, ranks, update);

    after = append_held(r, largest, EK_COLLECTIVE_ALL_GATHER, after);
    after = append_copies(m, r->to, numbers, ranks, after);
    after = append_copies(m, r->to, numbers, ranks * count_weights(r->from), after);
    for (int32_t i = 0; i < r->from->n_ops; i++)
        if (r->held[i] && is_gather(r->from, i))
            append_held(r, i, EK_COLLECTIVE_ALL_GATHER, update);
    for (int32_t i = 0; i < r->from->n_ops; i++)
        if (r->id[i] >= 0 && is_gather(r->from, i) && same_group(&r->from->ops[i], op))
            r->id[i] = after;
}

ek_status ek_dialect_gather_at_once(const ek_machine *m, const ek_graph *from, ek_graph *to)
{
    rebuilding r;
    ek_status st;
    int32_t update;

    EK_TRY_OUT(open_rebuilding(from, to, &r));
    update = append_updates(&r);
    if (largest_gather(&r) >= 0)
        append_gathers(&r, m, update);
    for (int32_t i = 0; i < from->n_ops; i++)
        if (r.held[i])
            copy_op(&r, i);
    EK_TRY_OUT(ek_graph_check(to));
out:
    close_rebuilding(&r);
    return st;
}
