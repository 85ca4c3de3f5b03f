/* Progressive filling, of the links that are touched alone. */
#include "sim/flow_rates.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef enum { GROWS, HELD, STANDS } growth_state;

typedef struct {
    double left, at;     /* seconds at full speed that are left at a time */
    double rate, growth; /* rate < 0: it has none yet */
    ek_flow_use *uses;   /* [n_uses] */
    int32_t n_uses, cap_uses;
    int active;
    growth_state state; /* in an update */
    int64_t seen;       /* by an update */
} flow;

typedef struct {
    int32_t *flows; /* [n] that use it */
    int32_t n, cap;
    double burst;    /* seconds of its capacity, */
    double saved;    /* of these saved */
    double saved_at; /* at this time */
    double taken;    /* by flows whose rate is found */
    double growth;   /* of what the others use, */
    int32_t growing; /* and how many they are */
    int dirty;
    int64_t seen;
} flow_link;

typedef struct {
    int32_t *list;
    int32_t n, cap;
} ids;

struct ek_flows {
    flow *flow;
    flow_link *link;
    int32_t n_flows, cap_flows, n_links;
    ids idle;                   /* flows that are not used; room for all */
    ids lone;                   /* that began without links */
    ids dirty;                  /* links whose flows began or ended; room for all */
    ids near_flows, near_links; /* of an update */
    ids changed;
    int64_t update;
};

static ek_status reserve_ids(ids *l, int32_t cap)
{
    int32_t *more = realloc(l->list, (size_t)cap * sizeof(*more));

    EK_REQUIRE(more != NULL, EK_ENOMEM, "no memory for flows");
    l->list = more;
    l->cap = cap;
    return EK_OK;
}

static ek_status push_id(ids *l, int32_t id)
{
    if (l->n == l->cap)
        EK_TRY(reserve_ids(l, l->cap > 0 ? 2 * l->cap : 16));
    l->list[l->n++] = id;
    return EK_OK;
}

ek_status ek_flows_open(int32_t n_links, ek_flows **out)
{
    ek_flows *f = calloc(1, sizeof(*f));

    *out = f;
    EK_REQUIRE(f != NULL, EK_ENOMEM, "no memory for flows");
    f->n_links = n_links;
    f->link = calloc((size_t)n_links + 1, sizeof(*f->link));
    EK_REQUIRE(f->link != NULL, EK_ENOMEM, "no memory for %d links", (int)n_links);
    return reserve_ids(&f->dirty, n_links + 1);
}

void ek_flows_close(ek_flows **pf)
{
    ek_flows *f = *pf;

    *pf = NULL;
    if (f == NULL)
        return;
    for (int32_t i = 0; i < f->n_flows; i++)
        free(f->flow[i].uses);
    for (int32_t i = 0; f->link != NULL && i < f->n_links; i++)
        free(f->link[i].flows);
    free(f->flow);
    free(f->link);
    free(f->idle.list);
    free(f->lone.list);
    free(f->dirty.list);
    free(f->near_flows.list);
    free(f->near_links.list);
    free(f->changed.list);
    free(f);
}

void ek_flows_set_burst(ek_flows *f, int32_t link, double seconds)
{
    f->link[link].burst = f->link[link].saved = seconds;
}

/* --- flows ------------------------------------------------------------------------------------ */

static ek_status take_flow(ek_flows *f, int32_t *id)
{
    if (f->idle.n > 0) {
        *id = f->idle.list[--f->idle.n];
        return EK_OK;
    }
    if (f->n_flows == f->cap_flows) {
        int32_t cap = f->cap_flows > 0 ? 2 * f->cap_flows : 64;
        flow *more = realloc(f->flow, (size_t)cap * sizeof(*more));

        EK_REQUIRE(more != NULL, EK_ENOMEM, "no memory for flows");
        f->flow = more;
        f->cap_flows = cap;
        EK_TRY(reserve_ids(&f->idle, cap));
    }
    *id = f->n_flows++;
    f->flow[*id] = (flow){0};
    return EK_OK;
}

static void mark_dirty(ek_flows *f, int32_t link)
{
    if (!f->link[link].dirty)
        f->dirty.list[f->dirty.n++] = link;
    f->link[link].dirty = 1;
}

static ek_status add_to_link(ek_flows *f, int32_t link, int32_t id)
{
    flow_link *l = &f->link[link];
    ids list = {l->flows, l->n, l->cap};

    EK_TRY(push_id(&list, id));
    l->flows = list.list;
    l->n = list.n;
    l->cap = list.cap;
    mark_dirty(f, link);
    return EK_OK;
}

ek_status ek_flows_begin(ek_flows *f, double seconds, double growth, const ek_flow_use *uses,
                         int32_t n_uses, int32_t *id)
{
    flow *x;

    EK_TRY(take_flow(f, id));
    x = &f->flow[*id];
    if (n_uses > x->cap_uses) {
        free(x->uses);
        x->uses = calloc((size_t)n_uses, sizeof(*x->uses));
        x->cap_uses = x->uses != NULL ? n_uses : 0;
        EK_REQUIRE(x->uses != NULL, EK_ENOMEM, "no memory for flows");
    }
    if (n_uses > 0)
        memcpy(x->uses, uses, (size_t)n_uses * sizeof(*uses));
    x->n_uses = n_uses;
    x->left = seconds;
    x->growth = growth;
    x->rate = -1;
    x->active = 1;
    x->seen = 0;
    for (int32_t i = 0; i < n_uses; i++)
        EK_TRY(add_to_link(f, uses[i].link, *id));
    return n_uses > 0 ? EK_OK : push_id(&f->lone, *id);
}

void ek_flows_end(ek_flows *f, int32_t id)
{
    flow *x = &f->flow[id];

    for (int32_t i = 0; i < x->n_uses; i++) {
        flow_link *l = &f->link[x->uses[i].link];
        int32_t at = 0;

        while (l->flows[at] != id)
            at++;
        l->flows[at] = l->flows[--l->n];
        mark_dirty(f, x->uses[i].link);
    }
    x->active = 0;
    f->idle.list[f->idle.n++] = id;
}

double ek_flows_rate(const ek_flows *f, int32_t id)
{
    return f->flow[id].rate;
}

double ek_flows_due(const ek_flows *f, int32_t id)
{
    const flow *x = &f->flow[id];

    return x->left > 0 ? x->at + x->left / x->rate : x->at;
}

/* --- bursts ----------------------------------------------------------------------------------- */

/* What a link has saved until now, with the rates so far. */
static void save(flow_link *l, double now)
{
    l->saved = fmin(l->saved + fmax(1 - l->taken, 0) * (now - l->saved_at), l->burst);
    l->saved_at = now;
}

/* Part of a new flow's work that passes at once: as much as each link with a burst has saved, and
 * of one without what leaves it the time for all the flow's bytes. */
static double part_at_once(const ek_flows *f, const flow *x)
{
    double saved = INFINITY, part = 1;

    for (int32_t u = 0; u < x->n_uses && x->left > 0; u++) {
        const flow_link *l = &f->link[x->uses[u].link];
        double use = x->uses[u].use;

        if (use > 0 && l->burst > 0)
            saved = fmin(saved, l->saved / (use * x->left));
        else
            part = fmin(part, fmax(1 - use, 0));
    }
    return isfinite(saved) ? fmin(part, saved) : 0;
}

/* A new flow uses what its links have saved. */
static void pass_at_once(ek_flows *f, flow *x)
{
    double work = part_at_once(f, x) * x->left;

    for (int32_t u = 0; u < x->n_uses && work > 0; u++) {
        flow_link *l = &f->link[x->uses[u].link];

        l->saved = fmax(l->saved - x->uses[u].use * work, 0);
    }
    x->left -= work;
}

/* --- updates ---------------------------------------------------------------------------------- */

/* The flows and links that are connected with a link. */
static ek_status collect_near(ek_flows *f, int32_t link, double now)
{
    f->near_flows.n = f->near_links.n = 0;
    f->link[link].seen = f->update;
    EK_TRY(push_id(&f->near_links, link));
    for (int32_t i = 0; i < f->near_links.n; i++) {
        flow_link *l = &f->link[f->near_links.list[i]];

        save(l, now);
        l->taken = l->growth = 0;
        l->growing = 0;
        for (int32_t k = 0; k < l->n; k++) {
            flow *x = &f->flow[l->flows[k]];

            if (x->seen == f->update)
                continue;
            x->seen = f->update;
            EK_TRY(push_id(&f->near_flows, l->flows[k]));
            for (int32_t u = 0; u < x->n_uses; u++) {
                if (f->link[x->uses[u].link].seen == f->update)
                    continue;
                f->link[x->uses[u].link].seen = f->update;
                EK_TRY(push_id(&f->near_links, x->uses[u].link));
            }
        }
    }
    return EK_OK;
}

/* How far flows have grown when the first of the rest has full speed, or fills a link. */
static double next_level(const ek_flows *f)
{
    double level = HUGE_VAL;

    for (int32_t i = 0; i < f->near_flows.n; i++) {
        const flow *x = &f->flow[f->near_flows.list[i]];

        if (x->state == GROWS)
            level = fmin(level, 1 / x->growth);
    }
    for (int32_t i = 0; i < f->near_links.n; i++) {
        const flow_link *l = &f->link[f->near_links.list[i]];

        if (l->growing > 0)
            level = fmin(level, fmax(1 - l->taken, 0) / l->growth);
    }
    return level;
}

/* Whether a flow grows no more above a level. */
static int is_held(const ek_flows *f, const flow *x, double level)
{
    if (x->growth * level >= 1 - 1e-12)
        return 1;
    for (int32_t u = 0; u < x->n_uses; u++) {
        const flow_link *l = &f->link[x->uses[u].link];

        if (x->uses[u].use > 0 && l->taken + l->growth * level >= 1 - 1e-12)
            return 1;
    }
    return 0;
}

/* Work that is done until now; a new rate. */
static ek_status set_rate(ek_flows *f, int32_t id, double now, double rate)
{
    flow *x = &f->flow[id];

    if (x->rate >= 0)
        x->left = fmax(x->left - x->rate * (now - x->at), 0);
    x->at = now;
    if (rate == x->rate)
        return EK_OK;
    x->rate = rate;
    return push_id(&f->changed, id);
}

/* A flow that grows no more: what it uses of its links is taken. */
static ek_status hold_flow(ek_flows *f, int32_t id, double now, double rate)
{
    flow *x = &f->flow[id];

    x->state = STANDS;
    for (int32_t u = 0; u < x->n_uses; u++) {
        flow_link *l = &f->link[x->uses[u].link];

        l->taken += x->uses[u].use * rate;
        l->growing--;
        l->growth = l->growing > 0 ? l->growth - x->uses[u].use * x->growth : 0;
    }
    return set_rate(f, id, now, rate);
}

static ek_status fill_near(ek_flows *f, double now)
{
    int32_t growing = f->near_flows.n;
    double level = 0;

    for (int32_t i = 0; i < f->near_flows.n; i++) {
        flow *x = &f->flow[f->near_flows.list[i]];

        if (x->rate < 0)
            pass_at_once(f, x);
        x->state = GROWS;
        for (int32_t u = 0; u < x->n_uses; u++) {
            f->link[x->uses[u].link].growth += x->uses[u].use * x->growth;
            f->link[x->uses[u].link].growing++;
        }
    }
    while (growing > 0) {
        int32_t before = growing;

        level = fmax(level, next_level(f));
        for (int32_t i = 0; i < f->near_flows.n; i++) {
            flow *x = &f->flow[f->near_flows.list[i]];

            if (x->state == GROWS && is_held(f, x, level))
                x->state = HELD;
            growing -= x->state == HELD;
        }
        for (int32_t i = 0; i < f->near_flows.n; i++) {
            flow *x = &f->flow[f->near_flows.list[i]];

            if (x->state == HELD || (growing == before && x->state == GROWS)) /* rounding */
                EK_TRY(hold_flow(f, f->near_flows.list[i], now, fmin(1, x->growth * level)));
        }
        growing = growing == before ? 0 : growing;
    }
    return EK_OK;
}

ek_status ek_flows_update(ek_flows *f, double now, const int32_t **changed, int32_t *n)
{
    f->update++;
    f->changed.n = 0;
    for (int32_t i = 0; i < f->lone.n; i++)
        if (f->flow[f->lone.list[i]].active)
            EK_TRY(set_rate(f, f->lone.list[i], now, 1));
    f->lone.n = 0;
    for (int32_t i = 0; i < f->dirty.n; i++) {
        int32_t link = f->dirty.list[i];

        f->link[link].dirty = 0;
        if (f->link[link].seen == f->update)
            continue;
        EK_TRY(collect_near(f, link, now));
        EK_TRY(fill_near(f, now));
    }
    f->dirty.n = 0;
    *changed = f->changed.list;
    *n = f->changed.n;
    return EK_OK;
}
