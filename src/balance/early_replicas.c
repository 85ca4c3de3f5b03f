/* Both ways of a layer's replicas, and the choice between them. */
#include "balance/early_replicas.h"

#include <string.h>

/* Micro-batches that the means of ek_early_times reach back. */
enum { JUDGED = 8 };

int ek_early_pays(const ek_early_times *t)
{
    return t->before_s <= t->after_s;
}

void ek_early_judge(ek_early_times *t)
{
    double part = 1.0 / (t->judged < JUDGED ? t->judged + 1 : JUDGED);

    if (t->now_after_s > 0) {
        t->before_s += part * (t->now_before_s - t->before_s);
        t->after_s += part * (t->now_after_s - t->after_s);
        t->judged++;
    }
    t->now_before_s = t->now_after_s = 0;
}

int ek_early_is_current(const int32_t *now, const int32_t *planned, int64_t n)
{
    for (int64_t s = 0; s < n; s++)
        if (now[s] >= 0 && now[s] != planned[s])
            return 0;
    return 1;
}

void ek_early_complete(const ek_early_choice *c, ek_plan *p)
{
    p->before_s = c->made->before_s;
    p->after_s = c->made->after_s;
    memcpy(p->reason, c->made->reason, sizeof(p->reason));
    ek_late_replicas_add(c->late, c->limits, c->counts, c->persistent, p);
    ek_late_replicas_keep_slots(p, &c->made->placement);
}

/* Replaces a plan by another one, of which what has been sent stays in its slots. */
static void take_plan(const ek_plan *other, const ek_placement *sent, ek_plan *p)
{
    size_t slots = (size_t)p->placement.ranks * (size_t)p->placement.slots;

    memcpy(p->placement.expert_of, other->placement.expert_of,
           slots * sizeof(*p->placement.expert_of));
    memcpy(p->quota, other->quota, slots * sizeof(*p->quota));
    memcpy(p->reason, other->reason, sizeof(p->reason));
    p->before_s = other->before_s;
    p->after_s = other->after_s;
    ek_late_replicas_keep_slots(p, sent);
}

ek_status ek_early_choose(const ek_early_choice *c, ek_early_times *t, ek_plan *p)
{
    const ek_placement *early = &c->made->placement;
    size_t slots = (size_t)early->ranks * (size_t)early->slots;
    const int32_t *from = c->sent ? c->persistent : early->expert_of;
    ek_plan other = {.placement = p->placement, .quota = c->quota, .explain = p->explain};
    ek_plan *forecast = c->sent ? p : &other, *fresh = c->sent ? &other : p;
    double forecast_s, fresh_s;

    other.placement.expert_of = c->expert_of;
    memcpy(c->expert_of, from, slots * sizeof(*from));
    ek_early_complete(c, forecast);
    EK_TRY(c->plan(c->context, fresh));
    forecast_s = ek_late_replicas_time(c->late, c->limits, c->counts, forecast, early);
    fresh_s = ek_late_replicas_time(c->late, c->limits, c->counts, fresh, early);
    t->now_before_s += fresh_s < forecast_s ? fresh_s : forecast_s;
    t->now_after_s += ek_late_replicas_time(c->late, c->limits, c->counts, fresh, NULL);
    if (c->sent && fresh_s < forecast_s)
        take_plan(fresh, early, p);
    return EK_OK;
}
