/* Events in a heap; lanes that start what is ready. */
#include "sim/event_loop.h"

#include <stdlib.h>
#include <string.h>

enum { OP_ENDS = -2, FLOW_ENDS = -1 };

static ek_status no_memory(void)
{
    return EK_FAIL(EK_ENOMEM, "no memory for a simulation");
}

ek_status ek_loop_grow(void **list, int64_t n, int64_t *cap, size_t size)
{
    int64_t more = *cap > 0 ? 2 * *cap : 64;
    void *bigger;

    if (n < *cap)
        return EK_OK;
    bigger = realloc(*list, (size_t)more * size);
    if (bigger == NULL)
        return no_memory();
    *list = bigger;
    *cap = more;
    return EK_OK;
}

/* --- events ----------------------------------------------------------------------------------- */

static int is_before(const sim_event *a, const sim_event *b)
{
    return a->time != b->time ? a->time < b->time : a->number < b->number;
}

ek_status ek_loop_push(sim_loop *l, sim_event x)
{
    void *heap = l->heap;
    ek_status st = ek_loop_grow(&heap, l->n_heap, &l->cap_heap, sizeof(*l->heap));
    int64_t i = l->n_heap;

    l->heap = heap;
    EK_TRY(st);
    x.number = l->made++;
    for (l->n_heap++; i > 0 && is_before(&x, &l->heap[(i - 1) / 2]); i = (i - 1) / 2)
        l->heap[i] = l->heap[(i - 1) / 2];
    l->heap[i] = x;
    return EK_OK;
}

static sim_event pop_event(sim_loop *l)
{
    sim_event first = l->heap[0], last = l->heap[--l->n_heap];
    int64_t i = 0, child;

    for (; (child = 2 * i + 1) < l->n_heap; i = child) {
        child += child + 1 < l->n_heap && is_before(&l->heap[child + 1], &l->heap[child]);
        if (!is_before(&l->heap[child], &last))
            break;
        l->heap[i] = l->heap[child];
    }
    l->heap[i] = last;
    return first;
}

/* --- lanes ------------------------------------------------------------------------------------ */

/* Lets a lane start what it can, later. */
static ek_status check_later(sim_loop *l, int32_t entity, int32_t lane)
{
    void *list = l->checks;
    ek_status st = ek_loop_grow(&list, l->n_checks, &l->cap_checks, sizeof(*l->checks));

    l->checks = list;
    EK_TRY(st);
    l->checks[l->n_checks++] = (sim_check){entity, lane};
    return EK_OK;
}

static ek_status finish_op(sim_loop *l, int32_t entity, int32_t op)
{
    const sim_class *c = ek_loop_class(l, entity);
    sim_order *o = &l->order[c->index];

    l->n_left--;
    for (int32_t i = o->first[op]; i < o->first[op + 1]; i++)
        o->left[(int64_t)o->dependents[i] * c->n + entity - c->first]--;
    for (int computes = 1; computes >= 0; computes--) /* the last is first: what is sent */
        for (int32_t i = o->first[op]; i < o->first[op + 1]; i++) {
            int32_t to = o->dependents[i], lane = (int32_t)ek_sim_op(c, to)->lane;

            if ((lane == EK_LANE_COMPUTE) == computes &&
                o->left[(int64_t)to * c->n + entity - c->first] == 0)
                EK_TRY(check_later(l, entity, lane));
        }
    return EK_OK;
}

/* Where ranks share cores the end of an op is open. */
static ek_status start_shared(sim_loop *l, sim_class *c, int32_t entity, int32_t op)
{
    double last = l->s.entity[entity].last;

    ek_sim_run_serial(&l->s, c, op, entity - c->first);
    l->s.entity[entity].last = last;
    l->progress[entity].running[EK_LANE_COMPUTE] = 1;
    return l->start_compute(l, c, entity, op, *ek_sim_end_of(c, op, entity - c->first) - l->now);
}

static ek_status start_serial(sim_loop *l, sim_class *c, int32_t entity, int32_t op)
{
    int32_t column = entity - c->first;

    if (l->start_compute != NULL && ek_sim_op(c, op)->lane == EK_LANE_COMPUTE)
        return start_shared(l, c, entity, op);
    ek_sim_run_serial(&l->s, c, op, column);
    if (l->order[c->index].quiet[op])
        return finish_op(l, entity, op);
    l->progress[entity].running[ek_sim_op(c, op)->lane] = 1;
    return ek_loop_push(
        l, (sim_event){
               .time = *ek_sim_end_of(c, op, column), .kind = OP_ENDS, .entity = entity, .op = op});
}

static ek_status end_serial(sim_loop *l, int32_t entity, int32_t op)
{
    int32_t lane = (int32_t)ek_sim_op(ek_loop_class(l, entity), op)->lane;

    l->progress[entity].running[lane] = 0;
    EK_TRY(check_later(l, entity, lane)); /* after what depends on the op: the last is first */
    return finish_op(l, entity, op);
}

ek_status ek_loop_end_compute(sim_loop *l, int32_t entity, int32_t op)
{
    sim_class *c = ek_loop_class(l, entity);

    ek_sim_move_end(&l->s, c, op, entity - c->first, l->now);
    return end_serial(l, entity, op);
}

ek_status ek_loop_end_net(sim_loop *l, int32_t entity, int32_t op, double begun)
{
    sim_class *c = ek_loop_class(l, entity);

    ek_sim_finish_net(&l->s, c, op, entity - c->first, begun, l->now);
    return finish_op(l, entity, op);
}

/* --- flows ------------------------------------------------------------------------------------ */

ek_status ek_loop_begin_flow(sim_loop *l, sim_flow_owner o, double seconds, double growth,
                             const ek_flow_use *uses, int32_t n)
{
    int32_t id;

    EK_TRY(ek_flows_begin(l->flows, seconds, growth, uses, n, &id));
    if (id >= l->cap_owners) {
        int32_t cap = 2 * id + 64;
        sim_owned_flow *more = realloc(l->owners, (size_t)cap * sizeof(*more));

        if (more == NULL)
            return no_memory();
        memset(more + l->cap_owners, 0, (size_t)(cap - l->cap_owners) * sizeof(*more));
        l->owners = more;
        l->cap_owners = cap;
    }
    l->owners[id].owner = o;
    return EK_OK;
}

static ek_status update_flows(sim_loop *l)
{
    const int32_t *changed;
    int32_t n;

    EK_TRY(ek_flows_update(l->flows, l->now, &changed, &n));
    for (int32_t i = 0; i < n; i++) {
        double due = ek_flows_due(l->flows, changed[i]);

        EK_TRY(ek_loop_push(l, (sim_event){.time = due > l->now ? due : l->now,
                                           .kind = FLOW_ENDS,
                                           .entity = changed[i],
                                           .op = ++l->owners[changed[i]].stamp}));
    }
    return EK_OK;
}

static ek_status end_flow(sim_loop *l, int32_t id, int32_t stamp)
{
    sim_flow_owner o = l->owners[id].owner;

    if (l->owners[id].stamp != stamp)
        return EK_OK;
    l->owners[id].stamp++;
    ek_flows_end(l->flows, id);
    return l->end_flow(l, &o);
}

/* --- the loop --------------------------------------------------------------------------------- */

static ek_status start_net(sim_loop *l, sim_class *c, int32_t entity, int32_t op)
{
    (void)ek_sim_start_net(&l->s, c, op, entity - c->first);
    if (ek_sim_price_of(c, op)->silent)
        return ek_loop_end_net(l, entity, op, l->now);
    return l->start_net(l, c, entity, op);
}

static ek_status start_ready(sim_loop *l, int32_t entity, int32_t lane)
{
    sim_class *c = ek_loop_class(l, entity);
    sim_order *o = &l->order[c->index];
    sim_progress *p = &l->progress[entity];

    while (!p->running[lane] && p->next[lane] < o->n_lane[lane]) {
        int32_t op = o->lane[lane][p->next[lane]];

        if (o->left[(int64_t)op * c->n + entity - c->first] > 0)
            break;
        p->next[lane]++;
        if (ek_sim_op(c, op)->work.kind == EK_WORK_NET)
            EK_TRY(start_net(l, c, entity, op));
        else
            EK_TRY(start_serial(l, c, entity, op));
    }
    return EK_OK;
}

static ek_status start_all_ready(sim_loop *l)
{
    while (l->n_checks > 0) {
        sim_check x = l->checks[--l->n_checks];

        EK_TRY(start_ready(l, x.entity, x.lane));
    }
    return EK_OK;
}

static ek_status handle_event(sim_loop *l, const sim_event *x)
{
    switch (x->kind) {
    case OP_ENDS: return end_serial(l, x->entity, x->op);
    case FLOW_ENDS: return end_flow(l, x->entity, x->op);
    default: return l->handle(l, x);
    }
}

/* An op that is not done; there is one. */
static ek_status explain_stop(const sim_loop *l)
{
    for (int32_t x = 0; x < l->s.n; x++) {
        const sim_class *c = &l->s.classes[l->class_of[x]];
        const sim_order *o = &l->order[c->index];

        for (int lane = 0; lane < EK_LANE_COUNT; lane++)
            if (l->progress[x].next[lane] < o->n_lane[lane]) {
                int32_t op = o->lane[lane][l->progress[x].next[lane]];

                return EK_FAIL(
                    EK_EINTERNAL,
                    "the simulated ranks wait for one another, rank %d before %s (op %d)",
                    (int)c->of->ranks[x - c->first], ek_op_name(ek_sim_op(c, op)->kind), (int)op);
            }
    }
    return EK_FAIL(EK_EINTERNAL, "the simulated ranks wait for one another in their last ops");
}

ek_status ek_loop_run(sim_loop *l)
{
    for (int32_t x = 0; x < l->s.n; x++)
        for (int32_t lane = 0; lane < EK_LANE_COUNT; lane++)
            EK_TRY(start_ready(l, x, lane));
    EK_TRY(start_all_ready(l));
    EK_TRY(update_flows(l));
    while (l->n_heap > 0) {
        l->now = l->heap[0].time;
        while (l->n_heap > 0 && l->heap[0].time == l->now) {
            sim_event x = pop_event(l);

            EK_TRY(handle_event(l, &x));
            EK_TRY(start_all_ready(l));
        }
        EK_TRY(update_flows(l));
    }
    return l->n_left == 0 ? EK_OK : explain_stop(l);
}

/* --- opening ---------------------------------------------------------------------------------- */

/* Ops of which only later ops of the lane depend, unless messages take some of the processor's time
 * between them. */
static void mark_quiet(const sim_class *c, int open_ends, unsigned char *quiet)
{
    const ek_graph *g = c->of->graph;
    int free_messages = !open_ends;

    for (int32_t i = 0; i < g->n_ops; i++)
        free_messages &= ek_sim_price_of(c, i)->overhead <= 0 && ek_sim_price_of(c, i)->polled <= 0;
    for (int32_t i = 0; i < g->n_ops; i++)
        quiet[i] = free_messages && ek_graph_op(g, i)->work.kind != EK_WORK_NET;
    for (int32_t i = 0; i < g->n_ops; i++) {
        const ek_op *op = ek_graph_op(g, i);
        int32_t n;
        const int32_t *deps = ek_graph_deps_of(g, i, &n);

        for (int32_t k = 0; k < n; k++)
            quiet[deps[k]] &=
                op->lane == ek_graph_op(g, deps[k])->lane && op->work.kind != EK_WORK_NET;
    }
}

/* The ops of each lane, one lane after the other. */
static ek_status list_lanes(const ek_graph *g, sim_order *o)
{
    int32_t *next = malloc(((size_t)g->n_ops + 1) * sizeof(*next));

    o->all = next;
    if (next == NULL)
        return no_memory();
    for (int32_t i = 0; i < g->n_ops; i++)
        o->n_lane[ek_graph_op(g, i)->lane]++;
    for (int lane = 0; lane < EK_LANE_COUNT; lane++) {
        o->lane[lane] = next;
        next += o->n_lane[lane];
        o->n_lane[lane] = 0;
    }
    for (int32_t i = 0; i < g->n_ops; i++) {
        int lane = (int)ek_graph_op(g, i)->lane;

        o->lane[lane][o->n_lane[lane]++] = i;
    }
    return EK_OK;
}

static ek_status open_order(const sim_class *c, int open_ends, sim_order *o)
{
    const ek_graph *g = c->of->graph;
    size_t n = (size_t)g->n_ops;

    o->first = calloc(n + 2, sizeof(*o->first));
    o->dependents = calloc((size_t)g->n_deps + 1, sizeof(*o->dependents));
    o->left = calloc(n * (size_t)c->n + 1, sizeof(*o->left));
    o->quiet = calloc(n + 1, sizeof(*o->quiet));
    if (o->first == NULL || o->dependents == NULL || o->left == NULL || o->quiet == NULL)
        return no_memory();
    EK_TRY(list_lanes(g, o));
    for (int32_t i = 0; i < g->n_ops; i++) {
        int32_t n_deps;
        const int32_t *deps = ek_graph_deps_of(g, i, &n_deps);

        for (int32_t k = 0; k < n_deps; k++)
            o->first[deps[k] + 2]++;
        for (int32_t column = 0; column < c->n; column++)
            o->left[(int64_t)i * c->n + column] = n_deps;
    }
    for (int32_t i = 0; i < g->n_ops; i++)
        o->first[i + 2] += o->first[i + 1];
    mark_quiet(c, open_ends, o->quiet);
    for (int32_t i = 0; i < g->n_ops; i++) { /* first[d + 1]: where the next of d goes */
        int32_t n_deps;
        const int32_t *deps = ek_graph_deps_of(g, i, &n_deps);

        for (int32_t k = 0; k < n_deps; k++)
            o->dependents[o->first[deps[k] + 1]++] = i;
    }
    return EK_OK;
}

ek_status ek_loop_open(const ek_sim_config *cfg, sim_loop *l)
{
    sim *s = &l->s;

    EK_TRY(ek_sim_open(cfg, s));
    l->order = calloc((size_t)s->n_classes, sizeof(*l->order));
    l->progress = calloc((size_t)s->n, sizeof(*l->progress));
    l->class_of = calloc((size_t)s->n, sizeof(*l->class_of));
    if (l->order == NULL || l->progress == NULL || l->class_of == NULL)
        return no_memory();
    for (int32_t k = 0; k < s->n_classes; k++) {
        EK_TRY(
            open_order(&s->classes[k], l->messages_cost || l->start_compute != NULL, &l->order[k]));
        l->n_left += (int64_t)s->classes[k].n * s->classes[k].of->graph->n_ops;
        for (int32_t i = 0; i < s->classes[k].n; i++)
            l->class_of[s->classes[k].first + i] = k;
    }
    return EK_OK;
}

void ek_loop_close(sim_loop *l)
{
    for (int32_t k = 0; l->order != NULL && k < l->s.n_classes; k++) {
        free(l->order[k].all);
        free(l->order[k].first);
        free(l->order[k].dependents);
        free(l->order[k].left);
        free(l->order[k].quiet);
    }
    ek_flows_close(&l->flows);
    free(l->order);
    free(l->progress);
    free(l->class_of);
    free(l->owners);
    free(l->heap);
    free(l->checks);
    ek_sim_close(&l->s);
}
