/* Rewrites copies of step graphs: work of ops, and their order. */
#include "sim/dialect.h"

#include "sim/dialect_ops.h"
#include "sim/dialect_zero.h"
#include "sim/unfused.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *word;
    unsigned bit;
} switches[] = {{"unfused-attention", EK_DIALECT_UNFUSED_ATTENTION},
                {"low-messages", EK_DIALECT_LOW_MESSAGES},
                {"low-gradients", EK_DIALECT_LOW_GRADIENTS},
                {"late-gradients", EK_DIALECT_LATE_GRADIENTS},
                {"ring-steps", EK_DIALECT_RING_STEPS},
                {"padded", EK_DIALECT_PADDED},
                {"weights-first", EK_DIALECT_WEIGHTS_FIRST},
                {"staged-2dh", EK_DIALECT_STAGED_2DH},
                {"gradient-passes", EK_DIALECT_GRADIENT_PASSES},
                {"unfused-rows", EK_DIALECT_UNFUSED_ROWS},
                {"etp-gather", EK_DIALECT_ETP_GATHER},
                {"low-weights", EK_DIALECT_LOW_WEIGHTS},
                {"expert-counts", EK_DIALECT_EXPERT_COUNTS},
                {"node-once", EK_DIALECT_NODE_ONCE},
                {"ddp-buckets", EK_DIALECT_DDP_BUCKETS},
                {"tree-sums", EK_DIALECT_TREE_SUMS},
                {"replicas-alone", EK_DIALECT_REPLICAS_ALONE},
                {"whole-sums", EK_DIALECT_WHOLE_SUMS},
                {"gather-copies", EK_DIALECT_GATHER_COPIES}};

enum { SWITCHES = sizeof(switches) / sizeof(switches[0]) };

static unsigned bit_of(const char *word)
{
    for (int i = 0; i < SWITCHES; i++)
        if (strcmp(switches[i].word, word) == 0)
            return switches[i].bit;
    return 0;
}

const char *ek_dialect_word(unsigned dialect, int i)
{
    if (i >= SWITCHES)
        return NULL;
    return (dialect & switches[i].bit) != 0 ? switches[i].word : "";
}

const char *ek_dialect_text(unsigned dialect, char *text, size_t cap)
{
    size_t n = 0;

    text[0] = '\0';
    for (int i = 0; i < SWITCHES && n < cap; i++)
        if ((dialect & switches[i].bit) != 0)
            n += (size_t)snprintf(text + n, cap - n, "%s%s", n > 0 ? ", " : "", switches[i].word);
    return text;
}

ek_status ek_dialect_parse(const char *const *words, int64_t n, unsigned *out)
{
    *out = 0;
    for (int64_t i = 0; i < n; i++) {
        EK_REQUIRE(bit_of(words[i]) != 0, EK_EINVAL,
                   "--dialect %s is unknown: unfused-attention, low-messages, low-gradients, "
                   "late-gradients, ring-steps, padded, weights-first, staged-2dh, "
                   "gradient-passes, unfused-rows, etp-gather, low-weights, expert-counts, "
                   "node-once, ddp-buckets, tree-sums, replicas-alone, whole-sums and "
                   "gather-copies are known",
                   words[i]);
        *out |= bit_of(words[i]);
    }
    return EK_OK;
}

/* --- work ------------------------------------------------------------------------------------- */

/* Passes over the scores: forward, that each product and softmax write and the next read, with
 * dropout between; backward, their gradients likewise. */
enum { PASSES_FORWARD = 6, PASSES_BACKWARD = 9 };

static void store_scores(ek_op *op)
{
    ek_attention_work *w = &op->work.attention;
    double all = w->pairs;

    if (w->queries > 0) /* of a causal sequence, of which queries see half of the pairs */
        all = fmax(2 * w->pairs - w->queries, w->pairs);
    w->pairs = all;
    w->score_passes = w->backward ? PASSES_BACKWARD : PASSES_FORWARD;
}

/* Of transient and persistent copies of experts, and those sums on their way back. */
static int is_copy_sum(const ek_op *op)
{
    return (op->kind == EK_OP_REPLICA_GRADIENTS || op->kind == EK_OP_SHARE_GRADIENTS) &&
           op->work.kind == EK_WORK_NET;
}

static int is_low_message(const ek_op *op)
{
    return op->work.kind == EK_WORK_NET &&
           (op->kind == EK_OP_REDUCE_SCATTER || op->kind == EK_OP_SEND ||
            op->kind == EK_OP_RECEIVE || op->kind == EK_OP_SEND_GRADIENT ||
            op->kind == EK_OP_RECEIVE_GRADIENT);
}

static int is_weights(const ek_op *op)
{
    return op->kind == EK_OP_GATHER_WEIGHTS && op->work.kind == EK_WORK_NET;
}

static void rewrite(unsigned dialect, const ek_machine *m, const ek_dialect_layout *l, ek_op *op)
{
    double low = (double)ek_machine_comp_bytes(m) / ek_machine_real_bytes(m);

    if ((dialect & EK_DIALECT_UNFUSED_ATTENTION) != 0 && op->work.kind == EK_WORK_ATTENTION)
        store_scores(op);
    if (((dialect & EK_DIALECT_LOW_MESSAGES) != 0 && is_low_message(op)) ||
        ((dialect & EK_DIALECT_LOW_GRADIENTS) != 0 &&
         (ek_op_is_gradient_sum(op) || is_copy_sum(op))) ||
        ((dialect & EK_DIALECT_LOW_WEIGHTS) != 0 && is_weights(op))) {
        op->work.net.bytes *= low;
        op->bytes *= low;
    }
    if ((dialect & EK_DIALECT_EXPERT_COUNTS) != 0)
        ek_dialect_gather_few_counts(l, op);
}

enum { GRADIENT_PASSES = 3 }; /* set to zero; scaled: read and written */

/* Numbers of this rank, before shards of them are its own. */
static double count_gradients(const ek_graph *g, const ek_op *norm)
{
    double n = norm->work.rows.rows;

    for (int32_t i = 0; i < g->n_ops; i++) {
        const ek_op *op = ek_graph_op(g, i);
        const ek_net_work *w = &op->work.net;

        if (ek_op_is_gradient_sum(op) && w->collective == EK_COLLECTIVE_REDUCE_SCATTER)
            n += w->bytes / fmax(w->element, 1) * (1 - 1.0 / w->group.n);
    }
    return n;
}

/* Adds the passes to the op that reads this rank's gradients, and the rest of them, if sums are
 * whole. from: with the sums as they are here. */
static void pass_over_gradients(unsigned dialect, const ek_machine *m, const ek_graph *from,
                                ek_graph *g)
{
    int passes = (dialect & EK_DIALECT_GRADIENT_PASSES) != 0 ? GRADIENT_PASSES : 0;

    for (int32_t i = 0; i < g->n_ops; i++) {
        ek_op *op = &g->ops[i];
        double all, read;

        if (op->kind != EK_OP_GRADIENT_NORM)
            continue;
        all = count_gradients(from, op);
        read = (dialect & EK_DIALECT_WHOLE_SUMS) != 0 ? all - op->work.rows.rows : 0;
        op->bytes += (passes * all + read) * ek_machine_real_bytes(m);
    }
}

/* --- order ------------------------------------------------------------------------------------ */

/* Ops that reduce gradients, and what depends on them, before the end of the last micro-batch:
 * late[i] is 1.  Returns the last other op that computes for a micro-batch; -1: none. */
static int32_t find_late(const ek_graph *g, char *late)
{
    int32_t last = -1;

    for (int32_t i = 0; i < g->n_ops; i++) {
        const ek_op *op = &g->ops[i];

        late[i] = (char)ek_op_is_gradient_sum(op);
        for (int32_t d = 0; d < op->n_deps && !late[i]; d++)
            late[i] = late[g->deps[op->dep + d]];
        if (!late[i] && op->micro >= 0 && op->lane == EK_LANE_COMPUTE)
            last = i;
    }
    return last;
}

/* Lists what op i of `from` depends on, which is there already; after: one more, or -1.  Returns
 * the number. */
static int32_t list_deps(const ek_graph *from, int32_t i, int32_t after, const int32_t *id,
                         int32_t *deps)
{
    const ek_op *op = &from->ops[i];
    int32_t n = 0;

    for (; n < op->n_deps; n++)
        deps[n] = id[from->deps[op->dep + n]];
    if (after >= 0)
        deps[n++] = after;
    return n;
}

/* Appends op i of `from`; after: as above. */
static void append(const ek_graph *from, int32_t i, int32_t after, int32_t *id, int32_t *deps,
                   ek_graph *to)
{
    int32_t n = list_deps(from, i, after, id, deps);

    id[i] = ek_graph_add(to, &from->ops[i], deps, n);
}

/* The same ops, with the late ones behind the last that computes for a micro-batch. */
static void reorder(const ek_graph *from, const char *late, int32_t last, int32_t *id,
                    int32_t *deps, ek_graph *to)
{
    for (int32_t i = 0; i < from->n_ops; i++) {
        if (i > last || !late[i])
            append(from, i, ek_op_is_gradient_sum(&from->ops[i]) ? id[last] : -1, id, deps, to);
        for (int32_t j = 0; i == last && j < last; j++)
            if (late[j])
                append(from, j, ek_op_is_gradient_sum(&from->ops[j]) ? id[last] : -1, id, deps, to);
    }
}

static int depends_on(const ek_graph *g, int32_t i, int32_t on)
{
    for (int32_t d = 0; d < g->ops[i].n_deps; d++)
        if (g->deps[g->ops[i].dep + d] == on)
            return 1;
    return 0;
}

/* The last product of expert weights' gradients behind an all-to-all of the same layer,
 * micro-batch and part, before any op that waits for it; -1: none. */
static int32_t weights_behind(const ek_graph *g, int32_t a2a)
{
    const ek_op *of = &g->ops[a2a];
    int32_t last = -1;

    for (int32_t i = a2a + 1; i < g->n_ops && !depends_on(g, i, a2a); i++) {
        const ek_op *op = &g->ops[i];

        if (op->layer != of->layer || op->micro != of->micro)
            break;
        if (op->part == of->part &&
            (op->kind == EK_OP_EXPERT_UP_WEIGHT || op->kind == EK_OP_EXPERT_DOWN_WEIGHT))
            last = i;
    }
    return last;
}

/* The same ops, with each all-to-all of rows' gradients behind the products of weights' gradients
 * that evenkeel computes meanwhile.  id, deps: as of a scratch. */
static void put_weights_first(const ek_graph *from, int32_t *id, int32_t *deps, ek_graph *to)
{
    int32_t held = -1, until = -1;

    for (int32_t i = 0; i < from->n_ops; i++) {
        if (held < 0 && from->ops[i].kind == EK_OP_DISPATCH_A2A_BACKWARD)
            until = weights_behind(from, i);
        if (held < 0 && until > i) {
            held = i;
            continue;
        }
        append(from, i, -1, id, deps, to);
        if (held >= 0 && i == until) {
            append(from, held, id[i], id, deps, to);
            held = -1;
        }
    }
}

/* Room for the functions that reorder: [ops] and [deps + 1] of the graph. */
typedef struct {
    char *late;
    int32_t *id, *deps;
} scratch;

static ek_status reduce_late(const ek_graph *from, scratch x, ek_graph *to)
{
    int32_t last = find_late(from, x.late);

    if (last < 0)
        return ek_graph_copy(to, from);
    reorder(from, x.late, last, x.id, x.deps, to);
    return ek_graph_check(to);
}

/* The same ops, with one behind each whose rows pass memory again, which those that depend on the
 * first wait for. */
static void pass_again(const ek_machine *m, const ek_graph *from, int32_t *id, int32_t *deps,
                       ek_graph *to)
{
    for (int32_t i = 0; i < from->n_ops; i++) {
        double bytes = ek_unfused_bytes(m, &from->ops[i]);
        ek_op again = from->ops[i];

        append(from, i, -1, id, deps, to);
        if (bytes <= 0)
            continue;
        again.work = ek_work_of_rows(bytes / ek_machine_comp_bytes(m), 1);
        again.bytes = bytes;
        again.flops = 0;
        id[i] = ek_graph_after(to, &again, id[i]);
    }
}

/* The exchange of rows that are sent once, to the rank at the sender's place among the etp of an
 * expert. */
static ek_op send_once(const ek_op *op, int32_t etp)
{
    ek_op once = *op;
    ek_net_work *w = &once.work.net;
    double n = w->span, rows = w->bytes * n / (n - 1) / etp; /* this rank's, with its own */

    w->group.stride *= etp;
    w->group.n /= etp;
    w->span /= etp;
    w->bytes = rows * (1 - etp / n);
    once.bytes *= w->bytes / op->work.net.bytes;
    return once;
}

/* The all-gather of such rows among an expert's ranks, or the reduce-scatter of what they made of
 * them. */
static ek_op share_rows(const ek_op *op, int32_t etp, int32_t element)
{
    int to_experts = op->kind == EK_OP_DISPATCH_A2A || op->kind == EK_OP_COMBINE_A2A_BACKWARD;
    ek_op all = *op;
    ek_net_work *w = &all.work.net;
    double n = w->span;

    w->collective = to_experts ? EK_COLLECTIVE_ALL_GATHER : EK_COLLECTIVE_REDUCE_SCATTER;
    w->group.n = etp;
    w->span = etp;
    w->element = element;
    w->bytes *= n / (n - 1);
    all.bytes = w->bytes;
    return all;
}

/* The same ops, with two for each exchange of rows with experts of several ranks. */
static void gather_rows(const ek_machine *m, int32_t etp, const ek_graph *from, int32_t *id,
                        int32_t *deps, ek_graph *to)
{
    for (int32_t i = 0; i < from->n_ops; i++) {
        const ek_op *op = &from->ops[i];
        ek_op pair[2];
        int reduced;

        if (!ek_op_is_token_exchange(op->kind) || op->work.net.span <= etp ||
            op->work.net.bytes <= 0) {
            append(from, i, -1, id, deps, to);
            continue;
        }
        pair[0] = send_once(op, etp);
        pair[1] = share_rows(op, etp, ek_machine_comp_bytes(m));
        reduced = pair[1].work.net.collective == EK_COLLECTIVE_REDUCE_SCATTER;
        for (int32_t d = 0; d < op->n_deps; d++)
            deps[d] = id[from->deps[op->dep + d]];
        id[i] = ek_graph_add(to, &pair[reduced], deps, op->n_deps);
        id[i] = ek_graph_after(to, &pair[!reduced], id[i]);
    }
}

static int is_of_replicas(const ek_op *op)
{
    return op->work.kind == EK_WORK_NET &&
           (op->kind == EK_OP_REPLICAS || op->kind == EK_OP_EARLY_REPLICAS ||
            op->kind == EK_OP_LATE_REPLICAS || op->kind == EK_OP_REPLICA_GRADIENTS);
}

/* The same ops, of which those that send replicas or sum their gradients wait for all before them,
 * and are waited for by all after them.  Messages between stages are not waited for, as the other
 * stage may need what comes later. */
static void leave_replicas_alone(const ek_graph *from, int32_t *id, int32_t *deps, ek_graph *to)
{
    int32_t next = 0, sent = -1; /* next: the first op that no replicas have waited for */

    for (int32_t i = 0; i < from->n_ops; i++) {
        int alone = is_of_replicas(&from->ops[i]);
        int32_t n = list_deps(from, i, sent, id, deps);

        for (; alone && next < i; next++)
            if (!ek_work_is_message(&from->ops[next].work))
                deps[n++] = id[next];
        id[i] = ek_graph_add(to, &from->ops[i], deps, n);
        if (alone) {
            sent = id[i];
            next = i + 1;
        }
    }
}

/* A reordered copy, by the only switch of the five that is set. */
static ek_status copy_reordered(unsigned change, const ek_machine *m, const ek_dialect_layout *l,
                                const ek_graph *from, ek_graph *to)
{
    scratch x = {calloc((size_t)from->n_ops + 1, sizeof(*x.late)),
                 calloc((size_t)from->n_ops + 1, sizeof(*x.id)),
                 calloc((size_t)from->n_deps + (size_t)from->n_ops + 1, sizeof(*x.deps))};
    ek_status st;

    EK_REQUIRE_OUT(x.late != NULL && x.id != NULL && x.deps != NULL, EK_ENOMEM,
                   "no memory for a step graph of %d ops", (int)from->n_ops);
    if (change == EK_DIALECT_LATE_GRADIENTS) {
        st = reduce_late(from, x, to);
    } else if (change == EK_DIALECT_WEIGHTS_FIRST) {
        put_weights_first(from, x.id, x.deps, to);
        st = ek_graph_check(to);
    } else if (change == EK_DIALECT_REPLICAS_ALONE) {
        leave_replicas_alone(from, x.id, x.deps, to);
        st = ek_graph_check(to);
    } else if (change == EK_DIALECT_UNFUSED_ROWS) {
        pass_again(m, from, x.id, x.deps, to);
        st = ek_graph_check(to);
    } else {
        gather_rows(m, l->etp, from, x.id, x.deps, to);
        st = ek_graph_check(to);
    }
out:
    free(x.late);
    free(x.id);
    free(x.deps);
    return st;
}

static ek_status copy_changed(unsigned change, const ek_machine *m, const ek_dialect_layout *l,
                              const ek_graph *from, ek_graph *to)
{
    if (change == EK_DIALECT_NODE_ONCE)
        return ek_dialect_send_once(l, from, to);
    if (change == EK_DIALECT_DDP_BUCKETS)
        return ek_dialect_sum_buckets(m, from, to);
    if (change == EK_DIALECT_WHOLE_SUMS)
        return ek_dialect_sum_at_once(from, to);
    if (change == EK_DIALECT_GATHER_COPIES)
        return ek_dialect_gather_at_once(m, from, to);
    return copy_reordered(change, m, l, from, to);
}

/* A copy with the ops, and in the order, of the switches that are set, of those that change them;
 * each is applied to what the one before left. */
static ek_status copy_ordered(unsigned dialect, const ek_machine *m, const ek_dialect_layout *l,
                              const ek_graph *from, ek_graph *to)
{
    static const unsigned changes[] = {
        EK_DIALECT_DDP_BUCKETS,    EK_DIALECT_WEIGHTS_FIRST, EK_DIALECT_LATE_GRADIENTS,
        EK_DIALECT_REPLICAS_ALONE, EK_DIALECT_UNFUSED_ROWS,  EK_DIALECT_ETP_GATHER,
        EK_DIALECT_NODE_ONCE,      EK_DIALECT_WHOLE_SUMS,    EK_DIALECT_GATHER_COPIES};
    ek_status st = ek_graph_copy(to, from);

    for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]) && st == EK_OK; i++) {
        ek_graph last;

        if ((dialect & changes[i]) == 0 || (changes[i] == EK_DIALECT_ETP_GATHER && l->etp < 2))
            continue;
        last = *to;
        ek_graph_init(to);
        st = copy_changed(changes[i], m, l, &last, to);
        ek_graph_fini(&last);
    }
    return st;
}

/* --- graphs ----------------------------------------------------------------------------------- */

static ek_status translate(unsigned dialect, const ek_machine *m, const ek_dialect_layout *l,
                           const ek_graph *from, ek_graph *to)
{
    EK_TRY(copy_ordered(dialect, m, l, from, to));
    pass_over_gradients(dialect, m, from, to);
    for (int32_t i = 0; i < to->n_ops; i++)
        rewrite(dialect, m, l, &to->ops[i]);
    return EK_OK;
}

static int32_t count_stages(const ek_sim_graphs *g)
{
    int32_t n = 0;

    for (int32_t k = 0; k < g->n_classes; k++)
        n = g->classes[k].stage >= n ? g->classes[k].stage + 1 : n;
    return n;
}

ek_status ek_dialect_open(unsigned dialect, const ek_machine *m, const ek_dialect_layout *l,
                          const ek_sim_graphs *from, ek_dialect_graphs *out)
{
    size_t n = (size_t)from->n_classes;

    *out = (ek_dialect_graphs){.classes = calloc(n + 1, sizeof(*out->classes)),
                               .copies = calloc(n + 1, sizeof(*out->copies))};
    EK_REQUIRE(out->classes != NULL && out->copies != NULL, EK_ENOMEM,
               "no memory for %d step graphs", (int)from->n_classes);
    for (size_t k = 0; k < n; k++) {
        ek_graph_init(&out->copies[k]);
        out->classes[k] = from->classes[k];
        out->classes[k].graph = &out->copies[k];
    }
    out->graphs = (ek_sim_graphs){from->ranks, from->n_classes, out->classes};
    for (size_t k = 0; k < n && (dialect & EK_DIALECT_UNFUSED_ROWS) != 0; k++)
        out->classes[k].memory += ek_unfused_memory(m, &from->classes[k], count_stages(from));
    for (size_t k = 0; k < n; k++)
        EK_TRY(translate(dialect, m, l, from->classes[k].graph, &out->copies[k]));
    return EK_OK;
}

void ek_dialect_close(ek_dialect_graphs *d)
{
    for (int32_t k = 0; k < d->graphs.n_classes; k++)
        ek_graph_fini(&d->copies[k]);
    free(d->classes);
    free(d->copies);
    *d = (ek_dialect_graphs){0};
}
