/* The event loop: lanes start ops, collectives meet, flows move bytes. */
#include "sim/flow.h"

#include "sim/flow_links.h"
#include "sim/replay_priv.h"

#include <stdlib.h>
#include <string.h>

/* The next op of each lane of an entity, and whether one runs there. */
typedef struct {
    int32_t next[EK_LANE_COUNT];
    int running[EK_LANE_COUNT];
} progress;

/* Ops of a class by lane, and what depends on each. */
typedef struct {
    int32_t *lane[EK_LANE_COUNT]; /* [n_lane] ops in graph order */
    int32_t n_lane[EK_LANE_COUNT];
    int32_t *first, *dependents; /* of op i: [first[i], first[i + 1]) */
    int32_t *left;               /* [ops][entities] dependencies that are not done */
    unsigned char *quiet;        /* [ops] 1: its end concerns its lane alone, so that the next op
                                    may be run before that time has come */
} order;

typedef enum { OP_ENDS, FLOW_ENDS, MESSAGE_ARRIVES, GROUP_ENDS } event_kind;

typedef struct {
    double time;
    int64_t number; /* equal times: in the order in which they were made */
    event_kind kind;
    int32_t entity, op; /* flows: the flow and its stamp; groups: the collective */
    double begun;       /* of a message */
} event;

/* Whose flow it is. */
typedef struct {
    int32_t entity, op;
    int32_t meeting; /* -1: a message */
    int32_t stamp;   /* events with another are void */
} owner;

/* A collective of a group: from the first rank that starts it until it has ended. */
typedef struct {
    int32_t channel, leader, number; /* of those of this group */
    int32_t n_arrived, n_flowing;
    int32_t *entities, *ops; /* [members] that have arrived */
    double begun, end;
    int32_t next; /* of this leader; -1 */
} meeting;

typedef struct {
    int32_t from, op;
    int gradient;
} receive;

typedef struct {
    receive *list;
    int32_t n, cap;
} receives;

/* Of a channel. */
typedef struct {
    int32_t *members; /* [entities] of the group that each leads */
    int32_t *started; /* [entities] collectives */
    int32_t *oldest;  /* [entities] first meeting of those that it leads; -1 */
} groups;

typedef struct {
    int32_t entity, lane;
} check;

typedef struct {
    sim s;
    ek_flow_links *links;
    ek_flows *flows;
    order *order;       /* [classes] */
    progress *progress; /* [entities] */
    int32_t *class_of;  /* [entities] */
    groups *groups;     /* [channels] */
    receives *receives; /* [entities] that wait */
    owner *owners;
    int32_t cap_owners;
    meeting *meetings;
    int32_t n_meetings, cap_meetings, free_meeting;
    event *heap;
    int64_t n_heap, cap_heap, made;
    check *checks;
    int64_t n_checks, cap_checks;
    int64_t n_left; /* ops */
    double now;
} engine;

static ek_status no_memory(void)
{
    return EK_FAIL(EK_ENOMEM, "no memory for a simulation");
}

/* Makes room for another element. */
static ek_status grow(void **list, int64_t n, int64_t *cap, size_t size)
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

static int is_before(const event *a, const event *b)
{
    return a->time != b->time ? a->time < b->time : a->number < b->number;
}

static ek_status push_event(engine *e, event x)
{
    void *heap = e->heap;
    ek_status st = grow(&heap, e->n_heap, &e->cap_heap, sizeof(*e->heap));
    int64_t i = e->n_heap;

    e->heap = heap;
    EK_TRY(st);
    x.number = e->made++;
    for (e->n_heap++; i > 0 && is_before(&x, &e->heap[(i - 1) / 2]); i = (i - 1) / 2)
        e->heap[i] = e->heap[(i - 1) / 2];
    e->heap[i] = x;
    return EK_OK;
}

static event pop_event(engine *e)
{
    event first = e->heap[0], last = e->heap[--e->n_heap];
    int64_t i = 0, child;

    for (; (child = 2 * i + 1) < e->n_heap; i = child) {
        child += child + 1 < e->n_heap && is_before(&e->heap[child + 1], &e->heap[child]);
        if (!is_before(&e->heap[child], &last))
            break;
        e->heap[i] = e->heap[child];
    }
    e->heap[i] = last;
    return first;
}

/* --- lanes ------------------------------------------------------------------------------------ */

static sim_class *class_of(engine *e, int32_t entity)
{
    return &e->s.classes[e->class_of[entity]];
}

/* Lets a lane start what it can, later. */
static ek_status check_later(engine *e, int32_t entity, int32_t lane)
{
    void *list = e->checks;
    ek_status st = grow(&list, e->n_checks, &e->cap_checks, sizeof(*e->checks));

    e->checks = list;
    EK_TRY(st);
    e->checks[e->n_checks++] = (check){entity, lane};
    return EK_OK;
}

static ek_status finish_op(engine *e, int32_t entity, int32_t op)
{
    const sim_class *c = class_of(e, entity);
    order *o = &e->order[c->index];

    e->n_left--;
    for (int32_t i = o->first[op]; i < o->first[op + 1]; i++) {
        int32_t to = o->dependents[i];

        if (--o->left[(int64_t)to * c->n + entity - c->first] == 0)
            EK_TRY(check_later(e, entity, (int32_t)c->of->graph->ops[to].lane));
    }
    return EK_OK;
}

static ek_status start_serial(engine *e, sim_class *c, int32_t entity, int32_t op)
{
    int32_t column = entity - c->first;

    ek_sim_run_serial(&e->s, c, op, column);
    if (e->order[c->index].quiet[op])
        return finish_op(e, entity, op);
    e->progress[entity].running[c->of->graph->ops[op].lane] = 1;
    return push_event(
        e, (event){
               .time = *ek_sim_end_of(c, op, column), .kind = OP_ENDS, .entity = entity, .op = op});
}

static ek_status end_serial(engine *e, int32_t entity, int32_t op)
{
    int32_t lane = (int32_t)class_of(e, entity)->of->graph->ops[op].lane;

    e->progress[entity].running[lane] = 0;
    EK_TRY(check_later(e, entity, lane)); /* after what depends on the op: the last is first */
    return finish_op(e, entity, op);
}

/* A network op has ended now. */
static ek_status end_net(engine *e, int32_t entity, int32_t op, double begun)
{
    sim_class *c = class_of(e, entity);

    ek_sim_finish_net(&e->s, c, op, entity - c->first, begun, e->now);
    return finish_op(e, entity, op);
}

/* --- flows ------------------------------------------------------------------------------------ */

static ek_status begin_flow(engine *e, int32_t entity, int32_t op, int32_t of_meeting)
{
    const sim_class *c = class_of(e, entity);
    const ek_op *what = &c->of->graph->ops[op];
    const ek_flow_use *uses = NULL;
    int32_t n = 0, id, stamp;
    double growth = 1, wire = c->price[op].wire;
    double seconds = wire * ek_sim_load_of(&e->s, c, op, entity - c->first);

    if (wire > 0)
        EK_TRY(ek_flow_links_uses(e->links, c, &what->work.net, entity, wire, &uses, &n, &growth));
    EK_TRY(ek_flows_begin(e->flows, seconds, growth, uses, seconds > 0 ? n : 0, &id));
    if (id >= e->cap_owners) {
        int32_t cap = 2 * id + 64;
        owner *more = realloc(e->owners, (size_t)cap * sizeof(*more));

        if (more == NULL)
            return no_memory();
        memset(more + e->cap_owners, 0, (size_t)(cap - e->cap_owners) * sizeof(*more));
        e->owners = more;
        e->cap_owners = cap;
    }
    stamp = e->owners[id].stamp;
    e->owners[id] = (owner){entity, op, of_meeting, stamp};
    return EK_OK;
}

static ek_status update_flows(engine *e)
{
    const int32_t *changed;
    int32_t n;

    EK_TRY(ek_flows_update(e->flows, e->now, &changed, &n));
    for (int32_t i = 0; i < n; i++) {
        double due = ek_flows_due(e->flows, changed[i]);

        EK_TRY(push_event(e, (event){.time = due > e->now ? due : e->now,
                                     .kind = FLOW_ENDS,
                                     .entity = changed[i],
                                     .op = ++e->owners[changed[i]].stamp}));
    }
    return EK_OK;
}

static ek_status end_group_flow(engine *e, int32_t index, double latency);

static ek_status end_flow(engine *e, int32_t id, int32_t stamp)
{
    owner o = e->owners[id];
    const sim_class *c;
    double latency;

    if (o.stamp != stamp)
        return EK_OK;
    e->owners[id].stamp++;
    ek_flows_end(e->flows, id);
    c = class_of(e, o.entity);
    latency = c->price[o.op].latency;
    if (o.meeting >= 0)
        return end_group_flow(e, o.meeting, latency);
    EK_TRY(push_event(e, (event){.time = e->now + latency,
                                 .kind = MESSAGE_ARRIVES,
                                 .entity = o.entity,
                                 .op = o.op,
                                 .begun = *ek_sim_begun_of(c, o.op, o.entity - c->first)}));
    return end_net(e, o.entity, o.op, *ek_sim_begun_of(c, o.op, o.entity - c->first));
}

/* --- messages --------------------------------------------------------------------------------- */

static ek_status start_send(engine *e, sim_class *c, int32_t entity, int32_t op)
{
    *ek_sim_begun_of(c, op, entity - c->first) = e->now;
    return begin_flow(e, entity, op, -1);
}

static ek_status start_receive(engine *e, sim_class *c, int32_t entity, int32_t op)
{
    const ek_op *what = &c->of->graph->ops[op];
    int32_t from = ek_sim_peer_of(&e->s, c, what, entity - c->first);
    int gradient = ek_sim_is_gradient(what);
    receives *r = &e->receives[entity];
    int64_t cap = r->cap;
    void *list = r->list;
    ek_status st;

    if (ek_sim_has_message(&e->s, from, entity, gradient))
        return end_net(e, entity, op, ek_sim_take(&e->s, from, entity, gradient).begun);
    st = grow(&list, r->n, &cap, sizeof(*r->list));
    r->list = list;
    r->cap = (int32_t)cap;
    EK_TRY(st);
    r->list[r->n++] = (receive){from, op, gradient};
    return EK_OK;
}

static ek_status arrive_message(engine *e, const event *x)
{
    const sim_class *c = class_of(e, x->entity);
    const ek_op *op = &c->of->graph->ops[x->op];
    int32_t to = ek_sim_peer_of(&e->s, c, op, x->entity - c->first);
    int gradient = ek_sim_is_gradient(op);
    receives *r = &e->receives[to];

    for (int32_t i = 0; i < r->n; i++)
        if (r->list[i].from == x->entity && r->list[i].gradient == gradient) {
            int32_t waits = r->list[i].op;

            memmove(r->list + i, r->list + i + 1, (size_t)(r->n - i - 1) * sizeof(*r->list));
            r->n--;
            return end_net(e, to, waits, x->begun);
        }
    return ek_sim_post(&e->s, x->entity, to, gradient, (sim_message){x->begun, e->now});
}

/* --- collectives ------------------------------------------------------------------------------ */

static ek_status new_meeting(engine *e, int32_t channel, int32_t leader, int32_t number,
                             int32_t *index)
{
    int64_t cap = e->cap_meetings;
    void *list = e->meetings;
    size_t members = (size_t)e->groups[channel].members[leader];
    meeting *m;
    ek_status st;

    if (e->free_meeting >= 0) {
        *index = e->free_meeting;
        e->free_meeting = e->meetings[*index].next;
    } else {
        st = grow(&list, e->n_meetings, &cap, sizeof(*e->meetings));
        e->meetings = list;
        e->cap_meetings = (int32_t)cap;
        EK_TRY(st);
        *index = e->n_meetings++;
    }
    m = &e->meetings[*index];
    *m = (meeting){.channel = channel, .leader = leader, .number = number, .next = -1};
    m->entities = calloc(2 * members, sizeof(*m->entities));
    if (m->entities == NULL)
        return no_memory();
    m->ops = m->entities + members;
    return EK_OK;
}

/* The collective that an entity's next one on this channel is. */
static ek_status find_meeting(engine *e, int32_t channel, int32_t entity, int32_t *index)
{
    groups *g = &e->groups[channel];
    int32_t leader = e->s.channels[channel].leader[entity], number = g->started[entity]++;
    int32_t last = -1;

    for (*index = g->oldest[leader]; *index >= 0; *index = e->meetings[*index].next) {
        if (e->meetings[*index].number == number)
            return EK_OK;
        last = *index;
    }
    EK_TRY(new_meeting(e, channel, leader, number, index));
    if (last >= 0)
        e->meetings[last].next = *index;
    else
        g->oldest[leader] = *index;
    return EK_OK;
}

static ek_status start_collective(engine *e, sim_class *c, int32_t entity, int32_t op)
{
    int32_t index, channel = c->channel_of[op];
    meeting *m;

    EK_TRY(find_meeting(e, channel, entity, &index));
    m = &e->meetings[index];
    m->entities[m->n_arrived] = entity;
    m->ops[m->n_arrived++] = op;
    if (m->n_arrived < e->groups[channel].members[m->leader])
        return EK_OK;
    m->begun = m->end = e->now;
    m->n_flowing = m->n_arrived;
    for (int32_t i = 0; i < m->n_arrived; i++)
        EK_TRY(begin_flow(e, m->entities[i], m->ops[i], index));
    return EK_OK;
}

static ek_status end_group_flow(engine *e, int32_t index, double latency)
{
    meeting *m = &e->meetings[index];

    m->end = m->end > e->now + latency ? m->end : e->now + latency;
    if (--m->n_flowing > 0)
        return EK_OK;
    return push_event(e, (event){.time = m->end, .kind = GROUP_ENDS, .entity = index});
}

static ek_status end_group(engine *e, int32_t index)
{
    meeting *m = &e->meetings[index];
    int32_t *link = &e->groups[m->channel].oldest[m->leader];

    while (*link != index)
        link = &e->meetings[*link].next;
    *link = m->next;
    for (int32_t i = 0; i < m->n_arrived; i++)
        EK_TRY(end_net(e, m->entities[i], m->ops[i], m->begun));
    free(m->entities);
    m->entities = NULL;
    m->next = e->free_meeting;
    e->free_meeting = index;
    return EK_OK;
}

/* --- the loop --------------------------------------------------------------------------------- */

static ek_status start_net(engine *e, sim_class *c, int32_t entity, int32_t op)
{
    (void)ek_sim_start_net(&e->s, c, op, entity - c->first);
    if (c->price[op].silent)
        return end_net(e, entity, op, e->now);
    switch (c->of->graph->ops[op].work.net.collective) {
    case EK_COLLECTIVE_SEND: return start_send(e, c, entity, op);
    case EK_COLLECTIVE_RECEIVE: return start_receive(e, c, entity, op);
    default: return start_collective(e, c, entity, op);
    }
}

static ek_status start_ready(engine *e, int32_t entity, int32_t lane)
{
    sim_class *c = class_of(e, entity);
    order *o = &e->order[c->index];
    progress *p = &e->progress[entity];

    while (!p->running[lane] && p->next[lane] < o->n_lane[lane]) {
        int32_t op = o->lane[lane][p->next[lane]];

        if (o->left[(int64_t)op * c->n + entity - c->first] > 0)
            break;
        p->next[lane]++;
        if (c->of->graph->ops[op].work.kind == EK_WORK_NET)
            EK_TRY(start_net(e, c, entity, op));
        else
            EK_TRY(start_serial(e, c, entity, op));
    }
    return EK_OK;
}

static ek_status start_all_ready(engine *e)
{
    while (e->n_checks > 0) {
        check x = e->checks[--e->n_checks];

        EK_TRY(start_ready(e, x.entity, x.lane));
    }
    return EK_OK;
}

static ek_status handle_event(engine *e, const event *x)
{
    switch (x->kind) {
    case OP_ENDS: return end_serial(e, x->entity, x->op);
    case FLOW_ENDS: return end_flow(e, x->entity, x->op);
    case MESSAGE_ARRIVES: return arrive_message(e, x);
    default: return end_group(e, x->entity);
    }
}

/* An op that is not done; there is one. */
static ek_status explain_stop(const engine *e)
{
    for (int32_t x = 0; x < e->s.n; x++) {
        const sim_class *c = &e->s.classes[e->class_of[x]];
        const order *o = &e->order[c->index];

        for (int lane = 0; lane < EK_LANE_COUNT; lane++)
            if (e->progress[x].next[lane] < o->n_lane[lane]) {
                int32_t op = o->lane[lane][e->progress[x].next[lane]];

                return EK_FAIL(
                    EK_EINTERNAL,
                    "the simulated ranks wait for one another, rank %d before %s (op %d)",
                    (int)c->of->ranks[x - c->first], ek_op_name(c->of->graph->ops[op].kind),
                    (int)op);
            }
    }
    return EK_FAIL(EK_EINTERNAL, "the simulated ranks wait for one another in their last ops");
}

static ek_status run_events(engine *e)
{
    for (int32_t x = 0; x < e->s.n; x++)
        for (int32_t lane = 0; lane < EK_LANE_COUNT; lane++)
            EK_TRY(start_ready(e, x, lane));
    EK_TRY(start_all_ready(e));
    EK_TRY(update_flows(e));
    while (e->n_heap > 0) {
        e->now = e->heap[0].time;
        while (e->n_heap > 0 && e->heap[0].time == e->now) {
            event x = pop_event(e);

            EK_TRY(handle_event(e, &x));
            EK_TRY(start_all_ready(e));
        }
        EK_TRY(update_flows(e));
    }
    return e->n_left == 0 ? EK_OK : explain_stop(e);
}

/* --- opening ---------------------------------------------------------------------------------- */

/* Ops of which only later ops of the lane depend, unless messages take some of the processor's time
 * between them. */
static void mark_quiet(const sim_class *c, unsigned char *quiet)
{
    const ek_graph *g = c->of->graph;
    int free_messages = 1;

    for (int32_t i = 0; i < g->n_ops; i++)
        free_messages &= c->price[i].overhead <= 0;
    for (int32_t i = 0; i < g->n_ops; i++)
        quiet[i] = free_messages && g->ops[i].work.kind != EK_WORK_NET;
    for (int32_t i = 0; i < g->n_ops; i++)
        for (int32_t k = 0; k < g->ops[i].n_deps; k++) {
            int32_t dep = g->deps[g->ops[i].dep + k];

            quiet[dep] &= g->ops[i].lane == g->ops[dep].lane && g->ops[i].work.kind != EK_WORK_NET;
        }
}

static ek_status open_order(const sim_class *c, order *o)
{
    const ek_graph *g = c->of->graph;
    size_t n = (size_t)g->n_ops;

    o->first = calloc(n + 2, sizeof(*o->first));
    o->dependents = calloc((size_t)g->n_deps + 1, sizeof(*o->dependents));
    o->left = calloc(n * (size_t)c->n + 1, sizeof(*o->left));
    o->quiet = calloc(n + 1, sizeof(*o->quiet));
    for (int lane = 0; lane < EK_LANE_COUNT; lane++)
        o->lane[lane] = calloc(n + 1, sizeof(*o->lane[lane]));
    for (int lane = 0; lane < EK_LANE_COUNT; lane++)
        if (o->lane[lane] == NULL)
            return no_memory();
    if (o->first == NULL || o->dependents == NULL || o->left == NULL || o->quiet == NULL)
        return no_memory();
    for (int32_t i = 0; i < g->n_ops; i++) {
        const ek_op *op = &g->ops[i];

        o->lane[op->lane][o->n_lane[op->lane]++] = i;
        for (int32_t k = 0; k < op->n_deps; k++)
            o->first[g->deps[op->dep + k] + 2]++;
        for (int32_t column = 0; column < c->n; column++)
            o->left[(int64_t)i * c->n + column] = op->n_deps;
    }
    for (int32_t i = 0; i < g->n_ops; i++)
        o->first[i + 2] += o->first[i + 1];
    mark_quiet(c, o->quiet);
    for (int32_t i = 0; i < g->n_ops; i++) /* first[d + 1]: where the next of d goes */
        for (int32_t k = 0; k < g->ops[i].n_deps; k++)
            o->dependents[o->first[g->deps[g->ops[i].dep + k] + 1]++] = i;
    return EK_OK;
}

static ek_status open_groups(const sim *s, const sim_channel *ch, groups *g)
{
    size_t n = (size_t)s->n;

    g->members = calloc(3 * n, sizeof(*g->members));
    if (g->members == NULL)
        return no_memory();
    g->started = g->members + n;
    g->oldest = g->started + n;
    for (int32_t x = 0; x < s->n; x++) {
        g->members[ch->leader[x]]++;
        g->oldest[x] = -1;
    }
    return EK_OK;
}

static ek_status open_engine(const ek_sim_config *cfg, const ek_cluster *c, engine *e)
{
    sim *s = &e->s;

    EK_TRY(ek_sim_open(cfg, s));
    e->free_meeting = -1;
    e->order = calloc((size_t)s->n_classes, sizeof(*e->order));
    e->progress = calloc((size_t)s->n, sizeof(*e->progress));
    e->class_of = calloc((size_t)s->n, sizeof(*e->class_of));
    e->groups = calloc((size_t)s->n_channels + 1, sizeof(*e->groups));
    e->receives = calloc((size_t)s->n, sizeof(*e->receives));
    if (e->order == NULL || e->progress == NULL || e->class_of == NULL || e->groups == NULL ||
        e->receives == NULL)
        return no_memory();
    for (int32_t k = 0; k < s->n_classes; k++) {
        EK_TRY(open_order(&s->classes[k], &e->order[k]));
        e->n_left += (int64_t)s->classes[k].n * s->classes[k].of->graph->n_ops;
        for (int32_t i = 0; i < s->classes[k].n; i++)
            e->class_of[s->classes[k].first + i] = k;
    }
    for (int32_t i = 0; i < s->n_channels; i++)
        EK_TRY(open_groups(s, &s->channels[i], &e->groups[i]));
    EK_TRY(ek_flow_links_open(s, c, &e->links));
    return ek_flows_open(ek_flow_links_count(e->links), &e->flows);
}

static void close_engine(engine *e)
{
    for (int32_t k = 0; e->order != NULL && k < e->s.n_classes; k++) {
        for (int lane = 0; lane < EK_LANE_COUNT; lane++)
            free(e->order[k].lane[lane]);
        free(e->order[k].first);
        free(e->order[k].dependents);
        free(e->order[k].left);
        free(e->order[k].quiet);
    }
    for (int32_t i = 0; e->groups != NULL && i < e->s.n_channels; i++)
        free(e->groups[i].members);
    for (int32_t x = 0; e->receives != NULL && x < e->s.n; x++)
        free(e->receives[x].list);
    for (int32_t i = 0; i < e->n_meetings; i++)
        free(e->meetings[i].entities);
    ek_flows_close(&e->flows);
    ek_flow_links_close(&e->links);
    free(e->order);
    free(e->progress);
    free(e->class_of);
    free(e->groups);
    free(e->receives);
    free(e->owners);
    free(e->meetings);
    free(e->heap);
    free(e->checks);
    ek_sim_close(&e->s);
}

ek_cluster ek_cluster_alone(const ek_cluster *c)
{
    ek_cluster alone = *c;

    for (int32_t l = 0; l < alone.n_levels; l++)
        if (alone.level[l].shared_by > 1) {
            alone.level[l].bytes_s *= (double)alone.level[l].shared_by;
            alone.level[l].shared_by = 1;
        }
    return alone;
}

ek_status ek_sim_flow(const ek_sim_config *cfg, const ek_cluster *c, ek_sim_result *out)
{
    engine e = {0};
    ek_status st;

    *out = (ek_sim_result){0};
    EK_TRY_OUT(open_engine(cfg, c, &e));
    EK_TRY_OUT(run_events(&e));
    EK_TRY_OUT(ek_sim_result_of(&e.s, cfg, out));
out:
    close_engine(&e);
    return st;
}
