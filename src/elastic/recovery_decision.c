/* Chooses the newest READY generation, its highest step, and the role of each survivor. */
#include "elastic/recovery_decision.h"

static int is_candidate(const ek_survivor *s, int32_t generation)
{
    return s->generation == generation && s->phase != EK_SEGMENT_BUILDING;
}

static int32_t newest_ready_generation(const ek_survivor *survivors, int32_t n)
{
    int32_t generation = -1;

    for (int32_t i = 0; i < n; i++)
        if (survivors[i].phase == EK_SEGMENT_READY && survivors[i].generation > generation)
            generation = survivors[i].generation;
    return generation;
}

static ek_survivor_role survivor_role(const ek_survivor *s, const ek_recovery_decision *v)
{
    if (!is_candidate(s, v->generation))
        return EK_SURVIVOR_STALE;
    if (s->state.steps_done == v->steps_done)
        return EK_SURVIVOR_CURRENT;
    return v->record >= 0 && s->state.steps_done == v->steps_done - 1 &&
                   s->state.reduced == v->steps_done - 1
               ? EK_SURVIVOR_FINISH
               : EK_SURVIVOR_UNUSABLE;
}

ek_recovery_decision ek_recovery_decide(const ek_survivor *survivors, int32_t n,
                                        ek_survivor_role *roles)
{
    ek_recovery_decision v = {newest_ready_generation(survivors, n), 0, -1};

    for (int32_t i = 0; i < n; i++)
        if (is_candidate(&survivors[i], v.generation) &&
            survivors[i].state.steps_done + survivors[i].state.begun > v.steps_done)
            v.steps_done = survivors[i].state.steps_done + survivors[i].state.begun;
    for (int32_t i = 0; i < n && v.record < 0; i++)
        if (is_candidate(&survivors[i], v.generation) && v.steps_done > 0 &&
            survivors[i].state.recorded == v.steps_done - 1)
            v.record = i;
    for (int32_t i = 0; i < n; i++)
        roles[i] = survivor_role(&survivors[i], &v);
    return v;
}
