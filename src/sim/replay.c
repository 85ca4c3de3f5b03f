/* The replay: classes advance in turn until they wait for each other; groups (channels) and
 * messages couple them.
 *
 * An entity is a rank, or, where nothing distinguishes the ranks of a class, the class.
 *
 * Complexity   O(ops * entities), with as many doubles. */
#include "sim/replay.h"

#include "sim/replay_priv.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- time of ops ------------------------------------------------------------------------------ */

static double larger(double a, double b)
{
    return a > b ? a : b;
}

/* When the dependencies of an op are done. */
static double deps_done(const sim_class *c, int32_t at, int32_t column)
{
    int32_t n;
    const int32_t *deps = ek_graph_deps_of(c->of->graph, at, &n);
    double t = 0;

    for (int32_t k = 0; k < n; k++)
        t = larger(t, *ek_sim_end_of(c, deps[k], column));
    return t;
}

/* The dependency that is done last; through ops that take no time and send nothing, to what they
 * wait for. */
static int32_t last_dep(const sim_class *c, int32_t at, int32_t column)
{
    const ek_graph *g = c->of->graph;
    int32_t last = -1, n;
    const int32_t *deps = ek_graph_deps_of(g, at, &n);

    for (; n > 0; deps = ek_graph_deps_of(g, last, &n)) {
        int32_t next = -1;
        const ek_op *op;

        for (int32_t k = 0; k < n; k++)
            if (next < 0 || *ek_sim_end_of(c, deps[k], column) > *ek_sim_end_of(c, next, column))
                next = deps[k];
        last = next;
        op = ek_graph_op(g, last);
        if (op->lane == EK_LANE_COMPUTE ||
            (op->work.kind != EK_WORK_NONE && !ek_sim_price_of(c, last)->silent))
            break;
    }
    return last;
}

/* Accounts for idle time of the compute lane, [from, to], before an op. */
static void add_idle(sim *s, sim_class *c, int32_t at, int32_t column, double from, double to)
{
    ek_sim_parts *p = &s->parts[c->first + column];
    int32_t cause = last_dep(c, at, column);
    const ek_op *of = cause >= 0 ? ek_sim_op(c, cause) : NULL;
    double begun;

    if (of == NULL || of->work.kind != EK_WORK_NET) {
        p->other += to - from;
        return;
    }
    begun = *ek_sim_begun_of(c, cause, column);
    begun = begun < from ? from : begun > to ? to : begun;
    if (of->work.net.collective == EK_COLLECTIVE_RECEIVE)
        p->bubble += begun - from;
    else
        p->skew += begun - from;
    p->transfer[of->work.net.collective] += to - begun;
}

static double factor_of(const sim *s, const double *f, const sim_class *c, int32_t column)
{
    return f != NULL ? f[s->entity[c->first + column].column] : 1;
}

double ek_sim_load_of(const sim *s, const sim_class *c, int32_t at, int32_t column)
{
    return factor_of(s, ek_sim_priced(c, at)->factors, c, column);
}

/* --- ops in flight ---------------------------------------------------------------------------- */

static void begin_flight(sim_entity *e, int32_t op, double start)
{
    int32_t left = 0;

    for (int32_t i = 0; i < e->n_flights; i++)
        if (e->flights[i].end > e->lane[EK_LANE_COMPUTE])
            e->flights[left++] = e->flights[i];
    e->n_flights = left;
    if (left < SIM_FLOWS)
        e->flights[e->n_flights++] = (sim_flight){op, start, INFINITY};
}

static void end_flight(sim_entity *e, int32_t op, double end)
{
    for (int32_t i = 0; i < e->n_flights; i++)
        if (e->flights[i].op == op)
            e->flights[i].end = end;
}

static int32_t flights_at(const sim_entity *e, double t)
{
    int32_t n = 0;

    for (int32_t i = 0; i < e->n_flights; i++)
        n += e->flights[i].start <= t && t < e->flights[i].end;
    return n;
}

/* Of an op that begins at time t. */
static double seconds_of(const sim *s, const sim_class *c, int32_t at, int32_t column, double t)
{
    const sim_entity *e = &s->entity[c->first + column];
    const ek_sim_price *p = ek_sim_price_of(c, at);
    double seconds = p->seconds;

    if (p->polled > 0)
        seconds += p->polled * flights_at(e, t);
    return seconds * e->slow * factor_of(s, ek_sim_priced(c, at)->replayed, c, column);
}

void ek_sim_run_serial(sim *s, sim_class *c, int32_t at, int32_t column)
{
    const ek_op *op = ek_sim_op(c, at);
    sim_entity *e = &s->entity[c->first + column];
    double *lane = &e->lane[op->lane], ready = deps_done(c, at, column);
    double took = seconds_of(s, c, at, column, larger(*lane, ready));

    if (op->lane == EK_LANE_COMPUTE && ready > *lane) {
        add_idle(s, c, at, column, *lane, ready);
        e->busy_since = ready;
    }
    *lane = larger(*lane, ready) + took;
    *ek_sim_end_of(c, at, column) = *lane;
    if (op->lane == EK_LANE_COMPUTE)
        s->parts[c->first + column].compute[ek_op_info_of(op->kind)->group] += took;
    e->last = larger(e->last, *lane);
}

void ek_sim_move_end(sim *s, sim_class *c, int32_t at, int32_t column, double end)
{
    const ek_op *op = ek_sim_op(c, at);
    sim_entity *e = &s->entity[c->first + column];
    double moved = end - *ek_sim_end_of(c, at, column);

    *ek_sim_end_of(c, at, column) = end;
    e->lane[op->lane] += moved; /* messages may have been charged since */
    s->parts[c->first + column].compute[ek_op_info_of(op->kind)->group] += moved;
    e->last = larger(e->last, end);
}

double ek_sim_start_net(sim *s, sim_class *c, int32_t at, int32_t column)
{
    const ek_op *op = ek_sim_op(c, at);
    sim_entity *e = &s->entity[c->first + column];
    double overhead = ek_sim_price_of(c, at)->overhead * e->slow * ek_sim_load_of(s, c, at, column);

    e->lane[op->lane] = larger(e->lane[op->lane], deps_done(c, at, column));
    if (s->polls)
        begin_flight(e, at, e->lane[op->lane]);
    e->lane[EK_LANE_COMPUTE] += overhead;
    s->parts[c->first + column].overhead += overhead;
    return e->lane[op->lane];
}

void ek_sim_finish_net(sim *s, sim_class *c, int32_t at, int32_t column, double begun, double end)
{
    sim_entity *e = &s->entity[c->first + column];

    *ek_sim_begun_of(c, at, column) = begun;
    *ek_sim_end_of(c, at, column) = end;
    if (s->polls)
        end_flight(e, at, end);
    e->last = larger(e->last, end);
}

/* --- links ------------------------------------------------------------------------------------ */

/* Lets time pass: flows in flight share the link evenly. */
static void advance_flows(sim_link *l, double to)
{
    while (l->n_flows > 0 && l->flows_at < to) {
        double least = l->flows[0].left, each;
        int32_t n = 0, left = 0;

        for (int32_t i = 0; i < l->n_flows; i++) {
            least = l->flows[i].left < least ? l->flows[i].left : least;
            n += l->flows[i].n;
        }
        each = (to - l->flows_at) / n;
        each = least < each ? least : each;
        l->flows_at += each * n;
        for (int32_t i = 0; i < l->n_flows; i++)
            if (l->flows[i].left > each)
                l->flows[left++] = (sim_flows){l->flows[i].left - each, l->flows[i].n};
        l->n_flows = left;
    }
    l->flows_at = larger(l->flows_at, to);
}

/* Adds a flow to those of its size, or, if there are too many sizes, to those of the nearest, as
 * many of the mean size. */
static void join_flows(sim_link *l, double wire)
{
    int32_t nearest = 0;
    sim_flows *f;

    for (int32_t i = 1; i < l->n_flows; i++)
        if (fabs(l->flows[i].left - wire) < fabs(l->flows[nearest].left - wire))
            nearest = i;
    f = &l->flows[nearest];
    if (l->n_flows < SIM_FLOWS && (l->n_flows == 0 || fabs(f->left - wire) > 0)) {
        l->flows[l->n_flows++] = (sim_flows){wire, 1};
        return;
    }
    if (fabs(f->left - wire) > 0)
        f->left += (wire - f->left) / (f->n + 1);
    f->n++;
}

/* Adds a flow that needs `wire` seconds of a link from `begun` on; returns when it is
 * through, if no other follows. */
static double add_flow(sim_link *l, double begun, double wire)
{
    double end = larger(begun, l->flows_at) + wire;

    advance_flows(l, begun);
    for (int32_t i = 0; i < l->n_flows; i++)
        end += l->flows[i].n * (l->flows[i].left < wire ? l->flows[i].left : wire);
    join_flows(l, wire);
    return end;
}

/* --- messages --------------------------------------------------------------------------------- */

int ek_sim_is_gradient(const ek_op *op)
{
    return op->kind == EK_OP_SEND_GRADIENT || op->kind == EK_OP_RECEIVE_GRADIENT;
}

int32_t ek_sim_peer_of(const sim *s, const sim_class *c, const ek_op *op, int32_t column)
{
    const ek_net_work *w = &op->work.net;
    int32_t rank = c->of->ranks[column];
    ek_ranks group = ek_ranks_around(rank, w->group.stride, w->group.n);

    return s->entity_of[ek_ranks_at(group, w->peer)];
}

static ek_status run_send(sim *s, sim_class *c, int32_t at)
{
    const ek_op *op = ek_sim_op(c, at);
    const ek_sim_price *p = ek_sim_price_of(c, at);

    for (int32_t i = 0; i < c->n; i++) {
        double begun = ek_sim_start_net(s, c, at, i);
        double end = add_flow(&s->entity[c->first + i].link[p->outside], begun, p->wire);

        ek_sim_finish_net(s, c, at, i, begun, end);
        EK_TRY(ek_sim_post(s, c->first + i, ek_sim_peer_of(s, c, op, i), ek_sim_is_gradient(op),
                           (sim_message){begun, end + p->latency}));
    }
    return EK_OK;
}

/* *done 0: a sender has not sent yet. */
static void run_receive(sim *s, sim_class *c, int32_t at, int *done)
{
    const ek_op *op = ek_sim_op(c, at);

    *done = 1;
    for (int32_t i = 0; i < c->n && *done; i++)
        *done = ek_sim_has_message(s, ek_sim_peer_of(s, c, op, i), c->first + i,
                                   ek_sim_is_gradient(op));
    for (int32_t i = 0; i < c->n && *done; i++) {
        sim_message m =
            ek_sim_take(s, ek_sim_peer_of(s, c, op, i), c->first + i, ek_sim_is_gradient(op));
        double ready = ek_sim_start_net(s, c, at, i);

        ek_sim_finish_net(s, c, at, i, m.begun, larger(ready, m.arrived));
    }
}

/* --- collectives ------------------------------------------------------------------------------ */

static void arrive(sim *s, sim_class *c, int32_t at, sim_channel *ch)
{
    const sim_priced *priced = ek_sim_priced(c, at);
    int32_t set = ch->set_of[c->index];

    for (int32_t i = 0; i < c->n; i++) {
        int32_t x = c->first + i;

        ch->ready[x] = ek_sim_start_net(s, c, at, i);
        ch->wire[x] = priced->price.wire * factor_of(s, priced->replayed, c, i);
        ch->latency[x] = priced->price.latency;
        ch->outside[x] = priced->price.outside;
    }
    ch->state[c->index] = SIM_ARRIVED;
    ch->n_arrived[set]++;
}

/* All ranks of these groups have started: when they begin and end. */
static void meet(sim *s, sim_channel *ch, int32_t set)
{
    for (int32_t k = 0; k < s->n_classes; k++) {
        const sim_class *c = &s->classes[k];

        for (int32_t x = c->first; ch->set_of[k] == set && x < c->first + c->n; x++)
            ch->begun[ch->leader[x]] = ch->end[ch->leader[x]] = 0;
    }
    for (int32_t k = 0; k < s->n_classes; k++) {
        const sim_class *c = &s->classes[k];

        for (int32_t x = c->first; ch->set_of[k] == set && x < c->first + c->n; x++)
            ch->begun[ch->leader[x]] = larger(ch->begun[ch->leader[x]], ch->ready[x]);
    }
    for (int32_t k = 0; k < s->n_classes; k++) {
        const sim_class *c = &s->classes[k];

        for (int32_t x = c->first; ch->set_of[k] == set && x < c->first + c->n; x++) {
            int32_t first = ch->leader[x];
            double end =
                add_flow(&s->entity[x].link[ch->outside[x]], ch->begun[first], ch->wire[x]);

            ch->end[first] = larger(ch->end[first], end + ch->latency[x]);
        }
        if (ch->set_of[k] == set)
            ch->state[k] = SIM_MET;
    }
    ch->n_arrived[set] = 0;
}

/* *done 0: ranks of other classes have not started it. */
static void run_collective(sim *s, sim_class *c, int32_t at, int *done)
{
    sim_channel *ch = &s->channels[ek_sim_priced(c, at)->channel];
    int32_t set = ch->set_of[c->index];

    if (ch->state[c->index] == SIM_AWAY)
        arrive(s, c, at, ch);
    if (ch->n_arrived[set] == ch->n_members[set])
        meet(s, ch, set);
    *done = ch->state[c->index] == SIM_MET;
    for (int32_t i = 0; i < c->n && *done; i++) {
        int32_t first = ch->leader[c->first + i];

        ek_sim_finish_net(s, c, at, i, ch->begun[first], ch->end[first]);
    }
    if (*done)
        ch->state[c->index] = SIM_AWAY;
}

/* --- the replay ------------------------------------------------------------------------------- */

static void run_silent(sim *s, sim_class *c, int32_t at)
{
    for (int32_t i = 0; i < c->n; i++) {
        double ready = ek_sim_start_net(s, c, at, i);

        ek_sim_finish_net(s, c, at, i, ready, ready);
    }
}

static ek_status run_op(sim *s, sim_class *c, int32_t at, int *done)
{
    const ek_op *op = ek_sim_op(c, at);

    *done = 1;
    if (op->work.kind != EK_WORK_NET)
        for (int32_t i = 0; i < c->n; i++)
            ek_sim_run_serial(s, c, at, i);
    else if (ek_sim_price_of(c, at)->silent)
        run_silent(s, c, at);
    else if (op->work.net.collective == EK_COLLECTIVE_SEND)
        return run_send(s, c, at);
    else if (op->work.net.collective == EK_COLLECTIVE_RECEIVE)
        run_receive(s, c, at, done);
    else
        run_collective(s, c, at, done);
    return EK_OK;
}

/* Runs the ops of a class until one waits for other classes; returns how many in *ran. */
static ek_status advance(sim *s, sim_class *c, int32_t *ran)
{
    int done = 1;

    *ran = 0;
    while (c->next < c->of->graph->n_ops) {
        EK_TRY(run_op(s, c, c->next, &done));
        if (!done)
            break;
        c->next++;
        ++*ran;
    }
    return EK_OK;
}

static ek_status replay_all(sim *s)
{
    for (;;) {
        int32_t progress = 0, left = 0, waits = -1;

        for (int32_t k = 0; k < s->n_classes; k++) {
            sim_class *c = &s->classes[k];
            int32_t ran;

            EK_TRY(advance(s, c, &ran));
            progress += ran;
            if (c->next < c->of->graph->n_ops) {
                left++;
                waits = k;
            }
        }
        if (left == 0)
            return EK_OK;
        EK_REQUIRE(progress > 0, EK_EINTERNAL,
                   "the simulated ranks wait for one another, rank %d in %s (op %d)",
                   (int)s->classes[waits].of->ranks[0],
                   ek_op_name(ek_sim_op(&s->classes[waits], s->classes[waits].next)->kind),
                   (int)s->classes[waits].next);
    }
}

/* --- results ---------------------------------------------------------------------------------- */

double ek_sim_parts_sum(const ek_sim_parts *p)
{
    double sum = p->skew + p->bubble + p->overhead + p->other + p->end;

    for (int i = 0; i < EK_OP_GROUPS; i++)
        sum += p->compute[i];
    for (int i = 0; i < EK_COLLECTIVES; i++)
        sum += p->transfer[i];
    return sum;
}

static void add_parts(ek_sim_parts *to, const ek_sim_parts *p, double share)
{
    for (int i = 0; i < EK_OP_GROUPS; i++)
        to->compute[i] += share * p->compute[i];
    for (int i = 0; i < EK_COLLECTIVES; i++)
        to->transfer[i] += share * p->transfer[i];
    to->skew += share * p->skew;
    to->bubble += share * p->bubble;
    to->overhead += share * p->overhead;
    to->other += share * p->other;
    to->end += share * p->end;
}

static ek_status sum_up(const sim *s, ek_sim_result *out)
{
    out->n_classes = s->n_classes;
    out->of_class = calloc((size_t)s->n_classes, sizeof(*out->of_class));
    EK_REQUIRE(out->of_class != NULL, EK_ENOMEM, "no memory for a simulation");
    for (int32_t x = 0; x < s->n; x++)
        out->step_s =
            larger(out->step_s, larger(s->entity[x].last, s->entity[x].lane[EK_LANE_COMPUTE]));
    for (int32_t k = 0; k < s->n_classes; k++) {
        const sim_class *c = &s->classes[k];
        double ranks = (double)c->of->n_ranks;

        for (int32_t i = 0; i < c->n; i++) {
            ek_sim_parts *p = &s->parts[c->first + i];

            p->end = out->step_s - s->entity[c->first + i].lane[EK_LANE_COMPUTE];
            add_parts(&out->of_class[k], p, 1.0 / c->n);
        }
        add_parts(&out->parts, &out->of_class[k], ranks / s->graphs->ranks);
        for (int32_t i = 0; i < c->of->graph->n_ops; i++)
            if (!ek_sim_op(c, i)->recompute)
                out->flops += ek_sim_op(c, i)->flops * ranks;
    }
    return EK_OK;
}

/* The times of a rank's ops. */
static ek_status record_rank(const sim *s, int32_t rank, ek_sim_record *out)
{
    int32_t x = s->entity_of[rank], k = 0;
    const sim_class *c;
    double started[EK_LANE_COUNT] = {0}, free_at[EK_LANE_COUNT] = {0};

    while (s->classes[k].first + s->classes[k].n <= x)
        k++;
    c = &s->classes[k];
    *out = (ek_sim_record){.rank = rank, .n = c->of->graph->n_ops, .graph = c->of->graph};
    out->spans = calloc((size_t)out->n + 1, sizeof(*out->spans));
    EK_REQUIRE(out->spans != NULL, EK_ENOMEM, "no memory for the times of %d ops", (int)out->n);
    for (int32_t i = 0; i < out->n; i++) {
        const ek_op *op = ek_graph_op(out->graph, i);
        double end = *ek_sim_end_of(c, i, x - c->first);
        double start = larger(free_at[op->lane], deps_done(c, i, x - c->first)), begun = start;

        if (op->work.kind == EK_WORK_NET) { /* those of a lane start in order */
            start = larger(started[op->lane], deps_done(c, i, x - c->first));
            started[op->lane] = start;
            begun = *ek_sim_begun_of(c, i, x - c->first);
        }
        free_at[op->lane] = end;
        out->spans[i] = (ek_sim_span){start, begun, end};
    }
    return EK_OK;
}

static ek_status record_ranks(const sim *s, const ek_sim_config *cfg, ek_sim_result *out)
{
    out->records = calloc((size_t)cfg->n_recorded + 1, sizeof(*out->records));
    EK_REQUIRE(out->records != NULL, EK_ENOMEM, "no memory for a simulation");
    out->n_records = cfg->n_recorded;
    for (int32_t i = 0; i < cfg->n_recorded; i++)
        EK_TRY(record_rank(s, cfg->recorded[i], &out->records[i]));
    return EK_OK;
}

static void free_records(ek_sim_result *r)
{
    for (int32_t i = 0; i < r->n_records; i++)
        free(r->records[i].spans);
    free(r->records);
}

ek_status ek_sim_result_of(const sim *s, const ek_sim_config *cfg, ek_sim_result *out)
{
    EK_TRY(sum_up(s, out));
    return cfg->n_recorded > 0 ? record_ranks(s, cfg, out) : EK_OK;
}

ek_status ek_sim_replay(const ek_sim_config *cfg, ek_sim_result *out)
{
    sim s;
    ek_status st;

    *out = (ek_sim_result){0};
    EK_TRY_OUT(ek_sim_open(cfg, &s));
    EK_TRY_OUT(replay_all(&s));
    EK_TRY_OUT(ek_sim_result_of(&s, cfg, out));
out:
    ek_sim_close(&s);
    return st;
}

ek_status ek_sim_add(ek_sim_result *sum, ek_sim_result *r, double share)
{
    if (sum->of_class == NULL) {
        sum->n_classes = r->n_classes;
        sum->of_class = calloc((size_t)r->n_classes, sizeof(*sum->of_class));
        EK_REQUIRE(sum->of_class != NULL, EK_ENOMEM, "no memory for a simulation");
    }
    sum->step_s += share * r->step_s;
    sum->flops += share * r->flops;
    add_parts(&sum->parts, &r->parts, share);
    for (int32_t k = 0; k < r->n_classes; k++)
        add_parts(&sum->of_class[k], &r->of_class[k], share);
    if (r->records != NULL) {
        free_records(sum);
        sum->records = r->records;
        sum->n_records = r->n_records;
        r->records = NULL;
        r->n_records = 0;
    }
    return EK_OK;
}

void ek_sim_free(ek_sim_result *r)
{
    free(r->of_class);
    free_records(r);
    *r = (ek_sim_result){0};
}
