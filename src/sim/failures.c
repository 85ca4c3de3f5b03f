/* One run after the other: events are applied in the order of their times, and between them steps
 * and saves are counted. */
#include "sim/failures.h"

#include "base/random.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A run under way.  It takes steps, or, while now < begin, it recovers, restarts or waits. */
typedef struct {
    const ek_failures_config *cfg;
    uint64_t stream, draws;
    int64_t next; /* recorded event */
    int32_t n_up;
    double *back_at;   /* [nodes] infinite: the node is up; -infinite: unknown */
    double fail_at;    /* next drawn failure */
    int32_t *used;     /* [nodes] those of the generation, by position */
    int32_t *place_of; /* [nodes] position in the generation; -1: not in use */
    uint64_t *lost;    /* mask over positions */
    ek_failures_world world;
    double now;
    double unit;          /* when the step or save under way began; infinite: it waits */
    double join;          /* when the run goes on with more nodes; infinite: does not */
    int stopped;          /* it takes no steps: it begins at `unit` */
    int restarting;       /* from the newest checkpoint */
    int64_t steps, saved; /* completed ones; in the newest checkpoint */
    double late;          /* seconds of `steps` after `saved` */
    ek_failures_result r;
} walk;

/* Rounding must not take a step that ends with an event. */
static const double rounding = 1e-9;

/* --- nodes ------------------------------------------------------------------------------------ */

static int is_up(const walk *w, int32_t node)
{
    return w->back_at[node] >= HUGE_VAL;
}

static double draw(walk *w)
{
    return ek_random_uniform(w->cfg->seed, w->stream, w->draws++);
}

/* Exponential times have no memory, so the next one may be drawn anew whenever nodes change. */
static void draw_failure(walk *w)
{
    w->fail_at = HUGE_VAL;
    if (w->cfg->events == NULL && w->cfg->mtbf_s > 0 && w->n_up > 0)
        w->fail_at = w->now - log1p(-draw(w)) * w->cfg->mtbf_s / w->n_up;
}

static int32_t draw_node(walk *w)
{
    int32_t i = (int32_t)(draw(w) * w->n_up), node = -1;

    while (i >= 0)
        i -= is_up(w, ++node);
    return node;
}

/* --- generations ------------------------------------------------------------------------------ */

static int64_t words_of(int32_t nodes)
{
    return (nodes + 63) / 64;
}

/* Takes the nodes of the generation before that are up, and then others. */
static void choose_nodes(walk *w)
{
    int32_t n = 0, before = w->world.nodes;

    for (int32_t i = 0; i < before; i++)
        if (is_up(w, w->used[i]))
            w->used[n++] = w->used[i];
    for (int32_t node = 0; node < w->cfg->nodes; node++)
        if (is_up(w, node) && w->place_of[node] < 0)
            w->used[n++] = node;
}

/* Begins a generation with the nodes that are up, or waits for more. */
static ek_status begin_generation(walk *w)
{
    ek_failures_world next = {0};

    EK_TRY(w->cfg->world(w->cfg->context, w->n_up, &next));
    if (next.nodes == 0) {
        w->unit = HUGE_VAL;
        return EK_OK;
    }
    choose_nodes(w);
    for (int32_t node = 0; node < w->cfg->nodes; node++)
        w->place_of[node] = -1;
    for (int32_t i = 0; i < next.nodes; i++)
        w->place_of[w->used[i]] = i;
    memset(w->lost, 0, (size_t)words_of(w->cfg->nodes) * sizeof(*w->lost));
    w->world = next;
    w->stopped = w->restarting = 0;
    w->join = HUGE_VAL;
    return EK_OK;
}

/* Counts the steps and saves that are completed until `at`. */
static void advance(walk *w, double at)
{
    const ek_failures_world *x = &w->world;

    while (!w->stopped) {
        double left = at - w->unit, n = floor(left / x->step_s + rounding);
        double until_save =
            x->save_every > 0 ? (double)(x->save_every - (w->steps - w->saved)) : HUGE_VAL;

        if (until_save <= 0) {
            if (left < w->cfg->save_s * (1 - rounding))
                return;
            w->unit += w->cfg->save_s;
            w->saved = w->steps;
            w->late = 0;
            w->r.saves++;
            continue;
        }
        n = fmin(n, until_save);
        if (n < 1)
            return;
        w->unit += n * x->step_s;
        w->steps += (int64_t)n;
        w->r.useful_s += n * x->step_s;
        w->late += n * x->step_s;
    }
}

/* Stops until the run can go on, from memory or from the newest checkpoint. */
static void stop(walk *w, double seconds)
{
    w->stopped = 1;
    w->unit = w->now + seconds;
    w->join = HUGE_VAL;
}

/* When nodes that are back take part. */
static double join_time(const walk *w)
{
    const ek_failures_world *x = &w->world;
    int64_t left = x->save_every - (w->steps - w->saved);

    if (x->parts != NULL)
        return w->unit + (x->save_every > 0 && left <= 0 ? w->cfg->save_s : x->step_s);
    if (x->save_every == 0)
        return HUGE_VAL;
    return w->unit + (double)(left > 0 ? left : 0) * x->step_s + w->cfg->save_s;
}

/* --- events ----------------------------------------------------------------------------------- */

static void mark_lost(walk *w, int32_t node, double back_at)
{
    int32_t place = w->place_of[node];

    if (!is_up(w, node))
        return;
    w->back_at[node] = back_at;
    w->n_up--;
    w->r.losses++;
    if (place >= 0)
        w->lost[place / 64] |= UINT64_C(1) << (place % 64);
}

/* After nodes were lost at `now`; in_use: some of the generation. */
static void apply_loss(walk *w, int in_use)
{
    double seconds;

    if (!in_use && !w->stopped)
        return;
    if (!w->restarting &&
        (w->world.parts == NULL || ek_replica_sets_cover(w->world.parts, w->lost))) {
        w->restarting = 1;
        w->r.lost_steps += (double)(w->steps - w->saved);
        w->r.useful_s -= w->late;
        w->steps = w->saved;
        w->late = 0;
        w->r.restarts++;
    } else if (!w->stopped) {
        w->r.recoveries++;
    }
    seconds = w->restarting ? w->cfg->restart_s : w->cfg->recover_s;
    stop(w, seconds);
}

static void lose_nodes(walk *w, int32_t first, int32_t end, double back_at)
{
    int in_use = 0;

    advance(w, w->now);
    for (int32_t node = first; node < end; node++) {
        in_use |= is_up(w, node) && w->place_of[node] >= 0;
        mark_lost(w, node, back_at);
    }
    apply_loss(w, in_use);
    draw_failure(w);
}

static void draw_loss(walk *w)
{
    const ek_failures_config *c = w->cfg;
    int32_t node = draw_node(w), rack = c->rack_nodes > 1 ? c->rack_nodes : 1, first;

    if (rack == 1 || draw(w) >= c->rack_share) {
        lose_nodes(w, node, node + 1, w->now + c->back_s);
        return;
    }
    first = node / rack * rack;
    lose_nodes(w, first, first + rack < c->nodes ? first + rack : c->nodes, w->now + c->back_s);
}

/* Whether a generation of the nodes that are up is larger than this one. */
static ek_status may_grow(const walk *w, int *larger)
{
    ek_failures_world next = {0};

    EK_TRY(w->cfg->world(w->cfg->context, w->n_up, &next));
    *larger = next.nodes > w->world.nodes;
    return EK_OK;
}

/* A run that waits goes on once its nodes suffice. */
static ek_status try_again(walk *w)
{
    ek_failures_world next = {0};

    EK_TRY(w->cfg->world(w->cfg->context, w->n_up, &next));
    if (next.nodes > 0)
        stop(w, w->restarting ? w->cfg->restart_s : w->cfg->recover_s);
    return EK_OK;
}

/* After nodes came back at `now`: a run that waits tries again, and others may grow. */
static ek_status apply_returns(walk *w)
{
    int larger = 0;

    if (w->stopped && isinf(w->unit))
        return try_again(w);
    if (w->stopped || !isinf(w->join))
        return EK_OK;
    EK_TRY(may_grow(w, &larger));
    advance(w, w->now);
    if (larger)
        w->join = join_time(w);
    return EK_OK;
}

static void mark_back(walk *w, int32_t node)
{
    w->n_up += !is_up(w, node);
    w->back_at[node] = HUGE_VAL;
}

/* Drawn nodes that are back at `now`. */
static ek_status return_nodes(walk *w)
{
    for (int32_t node = 0; node < w->cfg->nodes; node++)
        if (w->back_at[node] <= w->now)
            mark_back(w, node);
    EK_TRY(apply_returns(w));
    draw_failure(w);
    return EK_OK;
}

/* Recorded nodes that are lost, or back, at `now`. */
static ek_status apply_recorded(walk *w)
{
    const ek_failures_config *c = w->cfg;
    int32_t lost = 0, in_use = 0, back = 0;

    advance(w, w->now);
    for (; w->next < c->n_events && c->events[w->next].at_s <= w->now; w->next++) {
        const ek_failure_event *e = &c->events[w->next];

        if (e->back) {
            mark_back(w, e->node);
            back++;
            continue;
        }
        lost++;
        in_use |= is_up(w, e->node) && w->place_of[e->node] >= 0;
        mark_lost(w, e->node, -HUGE_VAL); /* until the record says so */
    }
    if (lost > 0)
        apply_loss(w, in_use);
    return back > 0 ? apply_returns(w) : EK_OK;
}

/* --- a run ------------------------------------------------------------------------------------ */

static double next_return(const walk *w)
{
    double at = HUGE_VAL;

    for (int32_t node = 0; w->cfg->events == NULL && node < w->cfg->nodes; node++)
        at = fmin(at, w->back_at[node]);
    return at;
}

/* Passes the time until `at`. */
static void pass_time(walk *w, double at)
{
    w->r.node_s += (at - w->now) * w->n_up;
    if (w->stopped && isinf(w->unit))
        w->r.wait_s += at - w->now;
    w->now = at;
}

/* Nodes join, if they are still there: the state is in memory, or in the checkpoint that was just
 * made. */
static ek_status join_nodes(walk *w)
{
    int larger = 0;

    advance(w, w->now);
    w->join = HUGE_VAL;
    EK_TRY(may_grow(w, &larger));
    if (!larger)
        return EK_OK;
    w->r.joins++;
    w->restarting = w->world.parts == NULL;
    stop(w, w->restarting ? w->cfg->restart_s : w->cfg->recover_s);
    return EK_OK;
}

/* Applies the next thing that happens; *more: there was one before the run's end. */
static ek_status take_event(walk *w, int *more)
{
    const ek_failures_config *c = w->cfg;
    double recorded = w->next < c->n_events ? c->events[w->next].at_s : HUGE_VAL;
    double back = next_return(w), begin = w->stopped ? w->unit : HUGE_VAL;
    double at = fmin(fmin(recorded, w->fail_at), fmin(back, fmin(begin, w->join)));

    *more = at < c->seconds;
    pass_time(w, *more ? at : c->seconds);
    if (!*more)
        return EK_OK;
    if (recorded <= at)
        return apply_recorded(w);
    if (w->fail_at <= at)
        draw_loss(w);
    else if (back <= at)
        return return_nodes(w);
    else if (w->join <= at)
        return join_nodes(w);
    else
        return begin_generation(w);
    return EK_OK;
}

static ek_status take_run(walk *w, uint64_t stream)
{
    int more = 1;

    *w = (walk){.cfg = w->cfg,
                .stream = stream,
                .n_up = w->cfg->nodes,
                .back_at = w->back_at,
                .used = w->used,
                .place_of = w->place_of,
                .lost = w->lost,
                .stopped = 1,
                .join = HUGE_VAL};
    for (int32_t node = 0; node < w->cfg->nodes; node++) {
        w->back_at[node] = HUGE_VAL;
        w->place_of[node] = -1;
    }
    draw_failure(w);
    EK_TRY(begin_generation(w));
    while (more)
        EK_TRY(take_event(w, &more));
    advance(w, w->now);
    w->r.steps = (double)w->steps;
    return EK_OK;
}

static void add_result(ek_failures_result *sum, const ek_failures_result *r, double share)
{
    sum->steps += share * r->steps;
    sum->lost_steps += share * r->lost_steps;
    sum->losses += share * r->losses;
    sum->recoveries += share * r->recoveries;
    sum->restarts += share * r->restarts;
    sum->joins += share * r->joins;
    sum->saves += share * r->saves;
    sum->useful_s += share * r->useful_s;
    sum->wait_s += share * r->wait_s;
    sum->node_s += share * r->node_s;
}

/* The mean of all runs. */
static ek_status take_runs(walk *w, double step_s, ek_failures_result *out)
{
    const ek_failures_config *c = w->cfg;
    double squares = 0, runs = (double)c->runs;

    for (int64_t i = 0; i < c->runs; i++) {
        double goodput;

        EK_TRY(take_run(w, (uint64_t)i));
        add_result(out, &w->r, 1 / runs);
        goodput = w->r.steps * step_s / c->seconds;
        squares += goodput * goodput;
    }
    out->goodput = out->steps * step_s / c->seconds;
    out->ettr = out->useful_s / c->seconds;
    if (c->runs > 1)
        out->error = sqrt(fmax(squares / runs - out->goodput * out->goodput, 0) / (runs - 1));
    return EK_OK;
}

ek_status ek_failures_simulate(const ek_failures_config *cfg, ek_failures_result *out)
{
    size_t n = (size_t)cfg->nodes;
    walk w = {.cfg = cfg,
              .back_at = calloc(n, sizeof(*w.back_at)),
              .used = calloc(n, sizeof(*w.used)),
              .place_of = calloc(n, sizeof(*w.place_of)),
              .lost = calloc((size_t)words_of(cfg->nodes), sizeof(*w.lost))};
    ek_failures_world whole = {0};
    ek_status st;

    *out = (ek_failures_result){0};
    EK_REQUIRE_OUT(w.back_at != NULL && w.used != NULL && w.place_of != NULL && w.lost != NULL,
                   EK_ENOMEM, "no memory for %d nodes", (int)cfg->nodes);
    EK_TRY_OUT(cfg->world(cfg->context, cfg->nodes, &whole));
    EK_TRY_OUT(take_runs(&w, whole.step_s, out));
out:
    free(w.back_at);
    free(w.used);
    free(w.place_of);
    free(w.lost);
    return st;
}
