/* Collectives meet, and flows move bytes; lanes and events are those of sim/event_loop.h. */
#include "sim/flow.h"

#include "sim/event_loop.h"
#include "sim/flow_cores.h"
#include "sim/flow_links.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef enum { MESSAGE_ARRIVES, GROUP_BEGINS, GROUP_ENDS } event_kind;

/* Owners of flows that are no meetings. */
enum { OF_MESSAGE = -1, OF_CORES = -2 };

/* A collective of a group: from the first rank that starts it until it has ended. */
typedef struct {
    int32_t channel, leader, number; /* of those of this group */
    int32_t n_arrived, n_flowing;
    int32_t *entities, *ops; /* [members] that have arrived */
    double begun, end;
    double computed; /* by the one of them that has computed longest without a wait */
    int32_t next;    /* of this leader; -1 */
} meeting;

/* A message to a peer, or a receive of one from it. */
typedef struct {
    int32_t peer, op;
    int gradient;
} message;

typedef struct {
    message *list; /* [n] oldest first */
    int32_t n, cap;
} messages;

/* Of a channel. */
typedef struct {
    int32_t *members; /* [entities] of the group that each leads */
    int32_t *started; /* [entities] collectives */
    int32_t *oldest;  /* [entities] first meeting of those that it leads; -1 */
} groups;

typedef struct {
    sim_loop loop; /* first */
    ek_flow_links *links;
    ek_flow_cores cores;
    groups *groups;     /* [channels] */
    messages *receives; /* [entities] that wait */
    messages *sends;    /* [entities] that have not left */
    meeting *meetings;
    int32_t n_meetings, cap_meetings, free_meeting;
} engine;

static ek_status no_memory(void)
{
    return EK_FAIL(EK_ENOMEM, "no memory for a simulation");
}

/* --- flows ------------------------------------------------------------------------------------ */

/* of_meeting: or OF_MESSAGE. */
static ek_status begin_flow(engine *e, int32_t entity, int32_t op, int32_t of_meeting)
{
    const sim_class *c = ek_loop_class(&e->loop, entity);
    const ek_op *what = ek_sim_op(c, op);
    const ek_flow_use *uses = NULL;
    int32_t n = 0;
    double growth = 1;
    const ek_sim_price *price = ek_sim_price_of(c, op);
    double seconds = price->wire * ek_sim_load_of(&e->loop.s, c, op, entity - c->first);

    if (price->wire > 0)
        EK_TRY(ek_flow_links_uses(e->links, c, &what->work.net, price, entity, &uses, &n, &growth));
    return ek_loop_begin_flow(&e->loop, (sim_flow_owner){entity, op, of_meeting}, seconds, growth,
                              uses, seconds > 0 ? n : 0);
}

/* What a rank sends and what it gets are flows of their own. */
static ek_status begin_exchange(engine *e, int32_t entity, int32_t op, int32_t index)
{
    const sim_class *c = ek_loop_class(&e->loop, entity);
    const ek_net_work *w = &ek_sim_op(c, op)->work.net;
    const ek_level_rows *rows =
        ek_sim_priced(c, op)->exchange != NULL
            ? &ek_sim_priced(c, op)->exchange[e->loop.s.entity[entity].column]
            : NULL;

    for (int down = 0; down < 2; down++) {
        const ek_flow_use *uses = NULL;
        double growth = 1, seconds = 0;
        int32_t n = 0;

        if (ek_sim_price_of(c, op)->sent != NULL)
            EK_TRY(ek_flow_links_traffic(e->links, c, ek_sim_price_of(c, op), entity, down, &uses,
                                         &n, &growth, &seconds));
        else
            EK_TRY(ek_flow_links_exchange(e->links, c, w, ek_sim_price_of(c, op), rows, entity,
                                          down, &uses, &n, &growth, &seconds));
        EK_TRY(ek_loop_begin_flow(&e->loop, (sim_flow_owner){entity, op, index}, seconds, growth,
                                  uses, seconds > 0 ? n : 0));
    }
    return EK_OK;
}

/* 2DH passes rows for other nodes inside the node, too: as the op's work says. */
static ek_status begin_group_flow(engine *e, meeting *m, int32_t i, int32_t index)
{
    const sim_class *c = ek_loop_class(&e->loop, m->entities[i]);
    int32_t op = m->ops[i];

    if ((ek_sim_priced(c, op)->exchange == NULL && ek_sim_price_of(c, op)->sent == NULL) ||
        ek_sim_price_of(c, op)->wire <= 0 ||
        ek_sim_op(c, op)->work.net.collective == EK_COLLECTIVE_A2A_2DH)
        return begin_flow(e, m->entities[i], op, index);
    m->n_flowing++;
    return begin_exchange(e, m->entities[i], op, index);
}

static ek_status end_group_flow(engine *e, int32_t index, double latency);
static ek_status end_send(engine *e, int32_t entity, int32_t op);

static ek_status end_flow(sim_loop *l, const sim_flow_owner *o)
{
    const sim_class *c = ek_loop_class(l, o->entity);
    double latency = ek_sim_price_of(c, o->op)->latency;

    if (o->of >= 0)
        return end_group_flow((engine *)l, o->of, latency);
    if (o->of == OF_CORES)
        return ek_loop_end_compute(l, o->entity, o->op);
    EK_TRY(ek_loop_push(l, (sim_event){.time = l->now + latency,
                                       .kind = MESSAGE_ARRIVES,
                                       .entity = o->entity,
                                       .op = o->op,
                                       .begun = *ek_sim_begun_of(c, o->op, o->entity - c->first)}));
    EK_TRY(end_send((engine *)l, o->entity, o->op));
    return ek_loop_end_net(l, o->entity, o->op, *ek_sim_begun_of(c, o->op, o->entity - c->first));
}

static ek_status start_compute(sim_loop *l, sim_class *c, int32_t entity, int32_t op,
                               double seconds)
{
    const ek_flow_cores *f = &((engine *)l)->cores;
    ek_flow_use uses[EK_CORES_USES];

    ek_flow_cores_uses(f, c->of->ranks[entity - c->first], uses);
    return ek_loop_begin_flow(l, (sim_flow_owner){entity, op, OF_CORES}, seconds / f->rank_alone, 1,
                              uses, seconds > 0 ? EK_CORES_USES : 0);
}

/* --- messages --------------------------------------------------------------------------------- */

static ek_status add_message(messages *m, message x)
{
    int64_t cap = m->cap;
    void *list = m->list;
    ek_status st = ek_loop_grow(&list, m->n, &cap, sizeof(*m->list));

    m->list = list;
    m->cap = (int32_t)cap;
    EK_TRY(st);
    m->list[m->n++] = x;
    return EK_OK;
}

static void remove_message(messages *m, int32_t i)
{
    m->n--;
    memmove(m->list + i, m->list + i + 1, (size_t)(m->n - i) * sizeof(*m->list));
}

/* The oldest message to a peer, which is in flight, as others wait for it; -1: there is none. */
static int32_t oldest_to(const messages *m, int32_t peer)
{
    for (int32_t i = 0; i < m->n; i++)
        if (m->list[i].peer == peer)
            return i;
    return -1;
}

static ek_status start_send(engine *e, sim_class *c, int32_t entity, int32_t op)
{
    const ek_op *what = ek_sim_op(c, op);
    int32_t to = ek_sim_peer_of(&e->loop.s, c, what, entity - c->first);
    messages *m = &e->sends[entity];
    int waits = oldest_to(m, to) >= 0;

    *ek_sim_begun_of(c, op, entity - c->first) = e->loop.now;
    EK_TRY(add_message(m, (message){to, op, ek_sim_is_gradient(what)}));
    return waits ? EK_OK : begin_flow(e, entity, op, OF_MESSAGE);
}

/* The oldest message to its peer has left. */
static ek_status end_send(engine *e, int32_t entity, int32_t op)
{
    const sim_class *c = ek_loop_class(&e->loop, entity);
    int32_t to = ek_sim_peer_of(&e->loop.s, c, ek_sim_op(c, op), entity - c->first), next;
    messages *m = &e->sends[entity];

    remove_message(m, oldest_to(m, to));
    next = oldest_to(m, to);
    return next < 0 ? EK_OK : begin_flow(e, entity, m->list[next].op, OF_MESSAGE);
}

static ek_status start_receive(engine *e, sim_class *c, int32_t entity, int32_t op)
{
    const ek_op *what = ek_sim_op(c, op);
    int32_t from = ek_sim_peer_of(&e->loop.s, c, what, entity - c->first);
    int gradient = ek_sim_is_gradient(what);

    if (ek_sim_has_message(&e->loop.s, from, entity, gradient))
        return ek_loop_end_net(&e->loop, entity, op,
                               ek_sim_take(&e->loop.s, from, entity, gradient).begun);
    return add_message(&e->receives[entity], (message){from, op, gradient});
}

static ek_status arrive_message(engine *e, const sim_event *x)
{
    const sim_class *c = ek_loop_class(&e->loop, x->entity);
    const ek_op *op = ek_sim_op(c, x->op);
    int32_t to = ek_sim_peer_of(&e->loop.s, c, op, x->entity - c->first);
    int gradient = ek_sim_is_gradient(op);
    messages *r = &e->receives[to];

    for (int32_t i = 0; i < r->n; i++)
        if (r->list[i].peer == x->entity && r->list[i].gradient == gradient) {
            int32_t waits = r->list[i].op;

            remove_message(r, i);
            return ek_loop_end_net(&e->loop, to, waits, x->begun);
        }
    return ek_sim_post(&e->loop.s, x->entity, to, gradient, (sim_message){x->begun, e->loop.now});
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
        st = ek_loop_grow(&list, e->n_meetings, &cap, sizeof(*e->meetings));
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
    int32_t leader = e->loop.s.channels[channel].leader[entity], number = g->started[entity]++;
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

static ek_status begin_group(engine *e, int32_t index)
{
    meeting *m = &e->meetings[index];

    m->begun = m->end = e->loop.now;
    m->n_flowing = m->n_arrived;
    for (int32_t i = 0; i < m->n_arrived; i++)
        EK_TRY(begin_group_flow(e, m, i, index));
    return EK_OK;
}

/* How long a rank that comes to a meeting has computed without a wait until now. */
static double computed(const engine *e, int32_t entity)
{
    const sim_entity *x = &e->loop.s.entity[entity];
    double now = e->loop.now;

    return x->lane[EK_LANE_COMPUTE] >= now * (1 - 1e-12) ? now - x->busy_since : 0;
}

static ek_status start_collective(engine *e, sim_class *c, int32_t entity, int32_t op)
{
    double late;
    int32_t index, channel = ek_sim_priced(c, op)->channel;
    meeting *m;

    EK_TRY(find_meeting(e, channel, entity, &index));
    m = &e->meetings[index];
    m->entities[m->n_arrived] = entity;
    m->ops[m->n_arrived++] = op;
    m->computed = fmax(m->computed, computed(e, entity));
    if (m->n_arrived < e->groups[channel].members[m->leader])
        return EK_OK;
    late = fmin(ek_sim_price_of(c, op)->skew, m->computed);
    if (late <= 0)
        return begin_group(e, index);
    return ek_loop_push(
        &e->loop, (sim_event){.time = e->loop.now + late, .kind = GROUP_BEGINS, .entity = index});
}

static ek_status end_group_flow(engine *e, int32_t index, double latency)
{
    meeting *m = &e->meetings[index];

    m->end = m->end > e->loop.now + latency ? m->end : e->loop.now + latency;
    if (--m->n_flowing > 0)
        return EK_OK;
    return ek_loop_push(&e->loop, (sim_event){.time = m->end, .kind = GROUP_ENDS, .entity = index});
}

static ek_status end_group(engine *e, int32_t index)
{
    meeting *m = &e->meetings[index];
    int32_t *link = &e->groups[m->channel].oldest[m->leader];

    while (*link != index)
        link = &e->meetings[*link].next;
    *link = m->next;
    for (int32_t i = 0; i < m->n_arrived; i++)
        EK_TRY(ek_loop_end_net(&e->loop, m->entities[i], m->ops[i], m->begun));
    free(m->entities);
    m->entities = NULL;
    m->next = e->free_meeting;
    e->free_meeting = index;
    return EK_OK;
}

/* --- the loop --------------------------------------------------------------------------------- */

static ek_status start_net(sim_loop *l, sim_class *c, int32_t entity, int32_t op)
{
    engine *e = (engine *)l;

    switch (ek_sim_op(c, op)->work.net.collective) {
    case EK_COLLECTIVE_SEND: return start_send(e, c, entity, op);
    case EK_COLLECTIVE_RECEIVE: return start_receive(e, c, entity, op);
    default: return start_collective(e, c, entity, op);
    }
}

static ek_status handle_event(sim_loop *l, const sim_event *x)
{
    switch (x->kind) {
    case GROUP_BEGINS: return begin_group((engine *)l, x->entity);
    case GROUP_ENDS: return end_group((engine *)l, x->entity);
    default: return arrive_message((engine *)l, x);
    }
}

/* --- opening ---------------------------------------------------------------------------------- */

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
    const sim *s = &e->loop.s;
    ek_sim_config each = *cfg;
    int shared = ek_flow_cores_are_shared(c);

    each.each_rank |= shared;
    e->loop.start_compute = shared ? start_compute : NULL;
    EK_TRY(ek_loop_open(&each, &e->loop));
    e->free_meeting = -1;
    e->groups = calloc((size_t)s->n_channels + 1, sizeof(*e->groups));
    e->receives = calloc((size_t)s->n, sizeof(*e->receives));
    e->sends = calloc((size_t)s->n, sizeof(*e->sends));
    if (e->groups == NULL || e->receives == NULL || e->sends == NULL)
        return no_memory();
    for (int32_t i = 0; i < s->n_channels; i++)
        EK_TRY(open_groups(s, &s->channels[i], &e->groups[i]));
    EK_TRY(ek_flow_links_open(s, c, &e->links));
    if (shared)
        e->cores = ek_flow_cores_of(c, s->graphs->ranks, ek_flow_links_count(e->links));
    EK_TRY(ek_flows_open(ek_flow_links_count(e->links) + ek_flow_cores_count(&e->cores),
                         &e->loop.flows));
    ek_flow_links_set_bursts(e->links, e->loop.flows);
    return EK_OK;
}

static void close_engine(engine *e)
{
    for (int32_t i = 0; e->groups != NULL && i < e->loop.s.n_channels; i++)
        free(e->groups[i].members);
    for (int32_t x = 0; e->receives != NULL && x < e->loop.s.n; x++)
        free(e->receives[x].list);
    for (int32_t x = 0; e->sends != NULL && x < e->loop.s.n; x++)
        free(e->sends[x].list);
    for (int32_t i = 0; i < e->n_meetings; i++)
        free(e->meetings[i].entities);
    ek_flow_links_close(&e->links);
    free(e->groups);
    free(e->receives);
    free(e->sends);
    free(e->meetings);
    ek_loop_close(&e->loop);
}

ek_status ek_sim_flow(const ek_sim_config *cfg, const ek_cluster *c, ek_sim_result *out)
{
    engine e = {.loop = {.start_net = start_net, .end_flow = end_flow, .handle = handle_event}};
    ek_status st;

    *out = (ek_sim_result){0};
    EK_TRY_OUT(open_engine(cfg, c, &e));
    EK_TRY_OUT(ek_loop_run(&e.loop));
    EK_TRY_OUT(ek_sim_result_of(&e.loop.s, cfg, out));
out:
    close_engine(&e);
    return st;
}
