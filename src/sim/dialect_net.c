/* Splits network ops of a graph; each becomes one or more ops, which those behind it wait for. */
#include "sim/dialect_net.h"

#include "sim/dialect_ops.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- copies with other ops -------------------------------------------------------------------- */

/* The ops of the copy that stand for each op of the original: the last, and one more, or -1. */
typedef struct {
    const ek_graph *from;
    ek_graph *to;
    int32_t *last, *also; /* [n_ops] */
    int32_t *deps;        /* [2 n_deps + 1] of an op of the copy */
} splitting;

static void close_splitting(splitting *s)
{
    free(s->last);
    free(s->also);
    free(s->deps);
}

static ek_status open_splitting(const ek_graph *from, ek_graph *to, splitting *s)
{
    size_t n = (size_t)from->n_ops + 1;

    *s = (splitting){.from = from,
                     .to = to,
                     .last = calloc(n, sizeof(*s->last)),
                     .also = malloc(n * sizeof(*s->also)),
                     .deps = calloc(2 * (size_t)from->n_deps + 1, sizeof(*s->deps))};
    EK_REQUIRE(s->last != NULL && s->also != NULL && s->deps != NULL, EK_ENOMEM,
               "no memory for a step graph of %d ops", (int)from->n_ops);
    memset(s->also, 0xff, n * sizeof(*s->also));
    return EK_OK;
}

/* What stands for the dependencies of op i is in deps afterwards, and `after` (-1: none); returns
 * how many they are. */
static int32_t deps_of(splitting *s, int32_t i, int32_t after)
{
    const ek_op *op = &s->from->ops[i];
    int32_t n = 0;

    for (int32_t d = 0; d < op->n_deps; d++) {
        int32_t on = s->from->deps[op->dep + d];

        s->deps[n++] = s->last[on];
        if (s->also[on] >= 0)
            s->deps[n++] = s->also[on];
    }
    if (after >= 0)
        s->deps[n++] = after;
    return n;
}

static void copy_op(splitting *s, int32_t i)
{
    int32_t n = deps_of(s, i, -1);

    s->last[i] = ek_graph_add(s->to, &s->from->ops[i], s->deps, n);
}

/* Of the op's group the ranks at a stride of `every` of them, with so many of its bytes. */
static ek_op with_group(const ek_op *op, int32_t every, int32_t n, int32_t span, double bytes)
{
    ek_op part = *op;
    ek_net_work *w = &part.work.net;

    part.bytes *= bytes / op->work.net.bytes;
    w->group.stride *= every;
    w->group.n = n;
    w->span = span;
    w->bytes = bytes;
    return part;
}

/* --- counts ----------------------------------------------------------------------------------- */

void ek_dialect_gather_few_counts(const ek_dialect_layout *l, ek_op *op)
{
    int32_t n = l->ep * l->etp;

    if (op->kind == EK_OP_GATHER_COUNTS && op->work.kind == EK_WORK_NET &&
        n < op->work.net.group.n && op->work.net.bytes > 0)
        *op = with_group(op, 1, n, n, op->work.net.bytes * n / op->work.net.group.n);
}

/* --- rows ------------------------------------------------------------------------------------- */

/* The probability that a token whose experts, all different, are drawn evenly from `allowed` ones
 * has none of `own` of them. */
static double has_none_of(const ek_dialect_layout *l, double allowed, double own)
{
    double p = 1;

    for (int64_t i = 0; i < l->top_k; i++)
        p *= fmax(allowed - own - (double)i, 0) / (allowed - (double)i);
    return p;
}

static double choose(double n, double k)
{
    return k < 0 || k > n ? 0 : exp(lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1));
}

/* The same of a part of so many that have equally many experts, where those of a token are from
 * `group_top` groups, drawn evenly: parts have whole groups, or lie in one. */
static double has_none_in_groups(const ek_dialect_layout *l, double parts)
{
    double groups = l->groups, top = l->group_top, each = (double)l->experts / groups, p = 0;
    double of_part = groups / parts;

    if (parts >= groups)
        return 1 - top / groups * (1 - has_none_of(l, top * each, (double)l->experts / parts));
    for (double j = 0; j <= top; j++) /* groups of the part */
        p += choose(of_part, j) * choose(groups - of_part, top - j) / choose(groups, top) *
             has_none_of(l, top * each, j * each);
    return p;
}

/* Of so many equal parts of an expert-parallel group those that have experts of a token, in the
 * mean. */
static double parts_with_experts(const ek_dialect_layout *l, int32_t parts)
{
    int32_t of = parts < l->ep ? parts : l->ep; /* an expert is on several ranks */
    double experts = (double)l->experts;
    int limited = l->group_top > 0 && (l->groups % of == 0 || of % l->groups == 0);

    return parts *
           (1 - (limited ? has_none_in_groups(l, of) : has_none_of(l, experts, experts / of)));
}

/* Ranks of a node, of those that exchange rows. */
static int32_t ranks_of_node(const ek_dialect_layout *l, const ek_net_work *w)
{
    int32_t stride = w->group.stride > 0 ? w->group.stride : 1;
    int32_t n = l->node_ranks > stride ? l->node_ranks / stride : 1;

    return l->node_ranks % stride == 0 && w->span % n == 0 ? n : n > w->span ? w->span : 1;
}

/* The gather and the sum that etp-gather makes of an exchange keep its kind: not these. */
static int is_exchange(const ek_op *op)
{
    ek_collective c = op->work.net.collective;

    return ek_op_is_token_exchange(op->kind) &&
           (c == EK_COLLECTIVE_A2A_LINEAR || c == EK_COLLECTIVE_A2A_PAIRWISE ||
            c == EK_COLLECTIVE_A2A_2DH) &&
           op->work.net.span > 1 && op->work.net.bytes > 0;
}

static void send_once(splitting *s, const ek_dialect_layout *l, int32_t i)
{
    const ek_op *op = &s->from->ops[i];
    const ek_net_work *w = &op->work.net;
    double ranks = w->span, each = ranks / l->ep > 1 ? ranks / l->ep : 1;
    double tokens = w->bytes * ranks / (ranks - 1) / (double)l->top_k / each; /* a row of each */
    int32_t near = ranks_of_node(l, w), nodes = w->span / near, n;
    double got = tokens * parts_with_experts(l, w->span);
    ek_op inside = with_group(op, 1, near < 2 || nodes < 2 ? w->group.n : near, w->span,
                              got * (1 - 1 / ranks));
    ek_op between;

    if (near >= 2 && nodes >= 2) {
        inside = with_group(op, 1, near, near, got * (1 - 1.0 / near));
        between = with_group(op, near, w->group.n / near, nodes,
                             tokens * parts_with_experts(l, nodes) * (1 - 1.0 / nodes));
        n = deps_of(s, i, -1);
        s->also[i] = ek_graph_add(s->to, &between, s->deps, n);
    }
    n = deps_of(s, i, -1);
    s->last[i] = ek_graph_add(s->to, &inside, s->deps, n);
}

ek_status ek_dialect_send_once(const ek_dialect_layout *l, const ek_graph *from, ek_graph *to)
{
    splitting s;
    ek_status st;

    EK_TRY_OUT(open_splitting(from, to, &s));
    for (int32_t i = 0; i < from->n_ops; i++)
        if (is_exchange(&from->ops[i]))
            send_once(&s, l, i);
        else
            copy_op(&s, i);
    EK_TRY_OUT(ek_graph_check(to));
out:
    close_splitting(&s);
    return st;
}

/* --- sums of gradients ------------------------------------------------------------------------ */

/* Matrices of a layer, in the order of their gradients. */
enum { MATRICES = 64, BUCKET_BYTES = 25 << 20 };

typedef struct {
    double numbers[MATRICES]; /* [n] */
    int n;
} matrices;

static void add_matrices(const ek_op *op, matrices *m)
{
    for (int32_t i = 0; op->work.kind == EK_WORK_PRODUCTS && i < op->work.products.n; i++) {
        const ek_product *p = &op->work.products.product[i];

        if ((p->passes & EK_PRODUCT_WEIGHT) != 0 && m->n < MATRICES)
            m->numbers[m->n++] = p->groups * p->out * p->in;
    }
}

/* Of the layer of sum i: what a micro-batch computes gradients of, before it. */
static matrices matrices_before(const ek_graph *g, int32_t i)
{
    int32_t layer = g->ops[i].layer, micro = -1;
    matrices m = {0};

    for (int32_t j = i - 1; j >= 0 && micro < 0 && layer >= 0; j--) /* the last one */
        if (g->ops[j].layer == layer && g->ops[j].micro >= 0)
            micro = g->ops[j].micro;
    for (int32_t j = 0; j < i && micro >= 0; j++)
        if (g->ops[j].layer == layer && g->ops[j].micro == micro)
            add_matrices(&g->ops[j], &m);
    return m;
}

/* Matrices as buckets of a sum of so many numbers, of which each has its part: a bucket is closed
 * by the matrix with which it is full. */
static matrices buckets_of(const matrices *m, double numbers, double full_numbers)
{
    matrices b = {0};
    double sum = 0, left = 0, full;

    for (int i = 0; i < m->n; i++)
        left += m->numbers[i];
    full = left * full_numbers / numbers;
    for (int i = 0; i < m->n; i++) {
        sum += m->numbers[i];
        left -= m->numbers[i];
        if (sum >= full && left >= full) {
            b.numbers[b.n++] = sum;
            sum = 0;
        }
    }
    b.numbers[b.n++] = sum;
    return b;
}

/* Returns the last one. */
static int32_t sum_buckets(splitting *s, const matrices *b, int32_t i, int32_t before)
{
    const ek_op *op = &s->from->ops[i];
    double all = 0;

    for (int k = 0; k < b->n; k++)
        all += b->numbers[k];
    for (int k = 0; k < b->n; k++) {
        double part = all > 0 ? b->numbers[k] / all : 1;
        ek_op sum =
            with_group(op, 1, op->work.net.group.n, op->work.net.span, op->work.net.bytes * part);
        int32_t n = 1;

        sum.lane = EK_LANE_SUMS;
        if (k == 0)
            n = deps_of(s, i, before);
        else
            s->deps[0] = s->last[i];
        s->last[i] = ek_graph_add(s->to, &sum, s->deps, n);
    }
    return s->last[i];
}

ek_status ek_dialect_sum_buckets(const ek_machine *m, const ek_graph *from, ek_graph *to)
{
    int32_t before = -1;
    splitting s;
    ek_status st;

    EK_TRY_OUT(open_splitting(from, to, &s));
    for (int32_t i = 0; i < from->n_ops; i++) {
        const ek_net_work *w = &from->ops[i].work.net;

        if (ek_op_is_gradient_sum(&from->ops[i]) && w->bytes > 0) {
            matrices of = matrices_before(from, i);
            matrices b = buckets_of(&of, w->bytes / fmax(w->element, 1),
                                    (double)BUCKET_BYTES / ek_machine_comp_bytes(m));

            before = sum_buckets(&s, &b, i, before);
        } else {
            copy_op(&s, i);
        }
    }
    EK_TRY_OUT(ek_graph_check(to));
out:
    close_splitting(&s);
    return st;
}
