/* Messages in flight, and when the calls that sent them could move bytes.  An id is the calls': it
 * may be of another message once its rank has seen that it arrived. */
#include "sim/messages.h"

#include "sim/cluster.h"
#include "sim/event_loop.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef enum { MESSAGE_LEAVES, MESSAGE_ARRIVES } event_kind;

/* Of a group's collectives, in their order: when the last of its ranks so far has started each. */
typedef struct {
    double *begun; /* [n] */
    int64_t n, cap;
} group_calls;

typedef struct {
    ek_sim_sent sent;
    int32_t next; /* of its pair, which waits until this one has left; -1 */
} message;

typedef struct {
    sim_loop loop; /* first */
    const ek_cluster *c;
    const ek_sim_calls *calls;
    int32_t first_link[EK_CLUSTER_LEVELS]; /* of a level: up links are even, down links odd */
    message *messages;                     /* by id */
    int64_t cap_messages;
    int32_t *last;       /* [ranks x ranks] message of a pair that leaves, or will; -1 */
    double *processor;   /* [ranks] when it is done with the messages so far */
    group_calls *groups; /* [channels][entities] of the group that each leads */
    int32_t *n_started;  /* [channels][entities] collectives */
    int32_t **number;    /* [classes] [ops][entities]: of a collective, of those of its group */
} engine;

static ek_status no_memory(void)
{
    return EK_FAIL(EK_ENOMEM, "no memory for a simulation");
}

/* --- links ------------------------------------------------------------------------------------ */

static ek_status open_links(engine *e)
{
    int32_t n = 0;

    for (int l = 0; l < e->c->n_levels; l++) {
        int64_t links = (e->loop.s.graphs->ranks - 1) / ek_level_sharers(&e->c->level[l]) + 1;

        e->first_link[l] = n;
        n += 2 * (int32_t)links;
    }
    EK_TRY(ek_flows_open(n, &e->loop.flows));
    for (int l = 0; l < e->c->n_levels; l++) {
        int32_t end = l + 1 < e->c->n_levels ? e->first_link[l + 1] : n;

        for (int32_t i = e->first_link[l]; i < end; i++)
            ek_flows_set_burst(e->loop.flows, i, e->c->level[l].burst / e->c->level[l].bytes_s);
    }
    return EK_OK;
}

/* The links of a message, and the least bandwidth of them, which it has alone. */
static int32_t links_of(const engine *e, const ek_sim_sent *m, ek_flow_use *uses, double *alone)
{
    const ek_cluster *c = e->c;
    int top = ek_cluster_level_between(c, m->from, m->to), n = 0;

    *alone = HUGE_VAL;
    for (int l = 0; l <= top; l++)
        if (ek_level_is_inside_node(c, l) == ek_level_is_inside_node(c, top))
            *alone = fmin(*alone, ek_level_capacity(&c->level[l]));
    for (int l = 0; l <= top; l++) {
        double use = *alone / ek_level_capacity(&c->level[l]);

        if (ek_level_is_inside_node(c, l) != ek_level_is_inside_node(c, top))
            continue;
        uses[n++] = (ek_flow_use){
            e->first_link[l] + 2 * (int32_t)(m->from / ek_level_sharers(&c->level[l])), use};
        uses[n++] = (ek_flow_use){
            e->first_link[l] + 2 * (int32_t)(m->to / ek_level_sharers(&c->level[l])) + 1, use};
    }
    return n;
}

/* --- messages --------------------------------------------------------------------------------- */

static int32_t *last_of(engine *e, const ek_sim_sent *m)
{
    return &e->last[(int64_t)m->from * e->loop.s.graphs->ranks + m->to];
}

static ek_status begin_message(engine *e, int32_t id)
{
    const ek_sim_sent *m = &e->messages[id].sent;
    ek_flow_use uses[2 * EK_CLUSTER_LEVELS];
    double alone;
    int32_t n = links_of(e, m, uses, &alone);

    return ek_loop_begin_flow(&e->loop, (sim_flow_owner){.of = id}, m->bytes / alone, 1 / alone,
                              uses, m->bytes > 0 ? n : 0);
}

/* A message leaves behind others to the same rank. */
static ek_status queue_message(engine *e, int32_t id)
{
    int32_t *last = last_of(e, &e->messages[id].sent), before = *last;

    *last = id;
    if (before < 0)
        return begin_message(e, id);
    e->messages[before].next = id;
    return EK_OK;
}

/* Half of a message's bytes cost the time of its sender, the other half that of its receiver. */
static void charge_bytes(engine *e, const ek_sim_sent *m, int32_t rank)
{
    int32_t x = e->loop.s.entity_of[rank];
    sim_entity *entity = &e->loop.s.entity[x];
    int level = ek_cluster_level_between(e->c, m->from, m->to);
    double seconds = m->bytes / 2 * e->c->level[level].byte_s * entity->slow;

    entity->lane[EK_LANE_COMPUTE] += seconds;
    e->loop.s.parts[x].overhead += seconds;
}

/* Before that, its sender's processor has seen to it. */
static ek_status send_message(engine *e, const ek_sim_sent *m)
{
    sim *s = &e->loop.s;
    int32_t x = s->entity_of[m->from];
    int level = ek_cluster_level_between(e->c, m->from, m->to);
    double overhead = e->c->level[level].overhead_s * s->entity[x].slow;
    void *list = e->messages;
    ek_status st = EK_OK;

    while (m->id >= e->cap_messages && st == EK_OK)
        st = ek_loop_grow(&list, e->cap_messages, &e->cap_messages, sizeof(*e->messages));
    e->messages = list;
    EK_TRY(st);
    e->messages[m->id] = (message){*m, -1};
    charge_bytes(e, m, m->from);
    if (overhead <= 0)
        return queue_message(e, m->id);
    s->entity[x].lane[EK_LANE_COMPUTE] += overhead;
    s->parts[x].overhead += overhead;
    e->processor[m->from] = fmax(e->processor[m->from], e->loop.now) + overhead;
    return ek_loop_push(
        &e->loop,
        (sim_event){.time = e->processor[m->from], .kind = MESSAGE_LEAVES, .entity = m->id});
}

static ek_status end_call(engine *e, int32_t x, int32_t op);

/* Lets the calls of a rank go on: some end, and some send. */
static ek_status advance_rank(engine *e, int32_t rank)
{
    ek_sim_sent m;
    int32_t call;

    do {
        EK_TRY(e->calls->finished(e->calls->self, rank, &call));
        while (e->calls->sent(e->calls->self, &m))
            EK_TRY(send_message(e, &m));
        if (call >= 0)
            EK_TRY(end_call(e, e->loop.s.entity_of[rank], call));
    } while (call >= 0);
    return EK_OK;
}

static ek_status end_flow(sim_loop *l, const sim_flow_owner *o)
{
    engine *e = (engine *)l;
    const message *x = &e->messages[o->of];
    ek_sim_sent m = x->sent;
    int level = ek_cluster_level_between(e->c, m.from, m.to);

    if (x->next >= 0)
        EK_TRY(begin_message(e, x->next));
    else
        *last_of(e, &m) = -1;
    EK_TRY(ek_loop_push(l, (sim_event){.time = l->now + e->c->level[level].latency_s,
                                       .kind = MESSAGE_ARRIVES,
                                       .entity = o->of}));
    e->calls->left(e->calls->self, o->of);
    return advance_rank(e, m.from);
}

static ek_status handle_event(sim_loop *l, const sim_event *x)
{
    engine *e = (engine *)l;

    if (x->kind == MESSAGE_LEAVES)
        return queue_message(e, x->entity);
    charge_bytes(e, &e->messages[x->entity].sent, e->messages[x->entity].sent.to);
    e->calls->arrived(e->calls->self, x->entity);
    return advance_rank(e, e->messages[x->entity].sent.to);
}

/* --- calls ------------------------------------------------------------------------------------ */

static int32_t *number_of(engine *e, const sim_class *c, int32_t op, int32_t x)
{
    return &e->number[c->index][(int64_t)op * c->n + x - c->first];
}

static group_calls *group_of(engine *e, const sim_class *c, int32_t op, int32_t x)
{
    int32_t channel = ek_sim_priced(c, op)->channel;

    return &e->groups[(int64_t)channel * e->loop.s.n + e->loop.s.channels[channel].leader[x]];
}

/* The next collective of a rank in its group. */
static ek_status count_collective(engine *e, const sim_class *c, int32_t op, int32_t x)
{
    group_calls *g = group_of(e, c, op, x);
    int32_t at = e->n_started[(int64_t)ek_sim_priced(c, op)->channel * e->loop.s.n + x]++;
    void *list = g->begun;
    ek_status st = ek_loop_grow(&list, at, &g->cap, sizeof(*g->begun));

    g->begun = list;
    EK_TRY(st);
    *number_of(e, c, op, x) = at;
    g->begun[at] = e->loop.now; /* time does not go back */
    return EK_OK;
}

/* When the bytes of a call that ends could move: those of a message when it was sent. */
static double begun_of(engine *e, const sim_class *c, int32_t op, int32_t x)
{
    const ek_op *what = ek_sim_op(c, op);

    if (what->work.net.collective == EK_COLLECTIVE_SEND)
        return *ek_sim_begun_of(c, op, x - c->first);
    if (what->work.net.collective == EK_COLLECTIVE_RECEIVE)
        return ek_sim_take(&e->loop.s, ek_sim_peer_of(&e->loop.s, c, what, x - c->first), x,
                           ek_sim_is_gradient(what))
            .begun;
    return group_of(e, c, op, x)->begun[*number_of(e, c, op, x)];
}

static ek_status end_call(engine *e, int32_t x, int32_t op)
{
    const sim_class *c = ek_loop_class(&e->loop, x);

    return ek_loop_end_net(&e->loop, x, op, begun_of(e, c, op, x));
}

static ek_status start_net(sim_loop *l, sim_class *c, int32_t x, int32_t op)
{
    engine *e = (engine *)l;
    const ek_op *what = ek_sim_op(c, op);
    int32_t rank = c->of->ranks[x - c->first];
    int gradient = ek_sim_is_gradient(what);
    ek_net_work w = what->work.net;

    w.group = ek_ranks_around(rank, w.group.stride, w.group.n);
    if (w.collective == EK_COLLECTIVE_SEND) {
        *ek_sim_begun_of(c, op, x - c->first) = l->now;
        EK_TRY(ek_sim_post(&l->s, x, ek_sim_peer_of(&l->s, c, what, x - c->first), gradient,
                           (sim_message){.begun = l->now}));
    } else if (w.collective != EK_COLLECTIVE_RECEIVE) {
        EK_TRY(count_collective(e, c, op, x));
    }
    EK_TRY(e->calls->start(e->calls->self, rank, what, &w, gradient, op));
    return advance_rank(e, rank);
}

/* --- the simulation --------------------------------------------------------------------------- */

/* Prices of network ops are 0: what messages cost is charged as they are sent. */
static void price_without_net(const void *context, const ek_sim_class *c, const ek_op *op,
                              ek_sim_price *out)
{
    const ek_sim_config *cfg = context;

    cfg->price(cfg->context, c, op, out);
    if (op->work.kind == EK_WORK_NET)
        *out = (ek_sim_price){.silent = out->silent};
}

static ek_status open_engine(const ek_sim_config *cfg, engine *e)
{
    const sim *s = &e->loop.s;
    size_t pairs = (size_t)cfg->graphs->ranks * (size_t)cfg->graphs->ranks, n;

    for (int l = 0; l < e->c->n_levels; l++)
        e->loop.messages_cost |= e->c->level[l].overhead_s > 0 || e->c->level[l].byte_s > 0;
    EK_TRY(ek_loop_open(cfg, &e->loop));
    n = (size_t)s->n * (size_t)(s->n_channels + 1);
    e->processor = calloc((size_t)s->graphs->ranks, sizeof(*e->processor));
    e->groups = calloc(n, sizeof(*e->groups));
    e->n_started = calloc(n, sizeof(*e->n_started));
    e->number = calloc((size_t)s->n_classes, sizeof(int32_t *));
    e->last = malloc(pairs * sizeof(*e->last));
    if (e->processor == NULL || e->groups == NULL || e->n_started == NULL || e->number == NULL ||
        e->last == NULL)
        return no_memory();
    memset(e->last, 0xff, pairs * sizeof(*e->last));
    for (int32_t k = 0; k < s->n_classes; k++) {
        size_t ops = (size_t)s->classes[k].of->graph->n_ops;

        e->number[k] = calloc(ops * (size_t)s->classes[k].n + 1, sizeof(*e->number[k]));
        if (e->number[k] == NULL)
            return no_memory();
    }
    return open_links(e);
}

static void close_engine(engine *e)
{
    const sim *s = &e->loop.s;

    for (int32_t k = 0; e->number != NULL && k < s->n_classes; k++)
        free(e->number[k]);
    for (int64_t i = 0; e->groups != NULL && i < (int64_t)s->n * s->n_channels; i++)
        free(e->groups[i].begun);
    free(e->number);
    free(e->groups);
    free(e->n_started);
    free(e->processor);
    free(e->last);
    free(e->messages);
    ek_loop_close(&e->loop);
}

ek_status ek_sim_messages(const ek_sim_config *cfg, const ek_cluster *c, const ek_sim_calls *calls,
                          ek_sim_result *out)
{
    engine e = {.loop = {.start_net = start_net, .end_flow = end_flow, .handle = handle_event},
                .c = c,
                .calls = calls};
    ek_sim_config own = *cfg;
    ek_status st;

    *out = (ek_sim_result){0};
    own.each_rank = 1;
    own.price = price_without_net;
    own.absent = NULL;
    own.context = cfg;
    EK_TRY_OUT(open_engine(&own, &e));
    EK_TRY_OUT(ek_loop_run(&e.loop));
    EK_TRY_OUT(ek_sim_result_of(&e.loop.s, cfg, out));
out:
    close_engine(&e);
    return st;
}
