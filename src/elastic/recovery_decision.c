/* The newest generation, the farthest step, and who can get there. */
#include "elastic/recovery_decision.h"

static int counts(const ek_survivor *s, int32_t generation)
{
    return s->generation == generation && s->phase != EK_SEGMENT_BUILDING;
}

static int32_t newest(const ek_survivor *of, int32_t n)
{
    int32_t generation = -1;

    for (int32_t i = 0; i < n; i++)
        if (of[i].phase == EK_SEGMENT_READY && of[i].generation > generation)
            generation = of[i].generation;
    return generation;
}

static ek_survivor_role role_of(const ek_survivor *s, const ek_recovery_decision *v)
{
    if (!counts(s, v->generation))
        return EK_SURVIVOR_STALE;
    if (s->state.steps_done == v->steps_done)
        return EK_SURVIVOR_CURRENT;
    return v->record >= 0 && s->state.steps_done == v->steps_done - 1 &&
                   s->state.reduced == v->steps_done - 1
               ? EK_SURVIVOR_FINISH
               : EK_SURVIVOR_UNUSABLE;
}

ek_recovery_decision ek_recovery_decide(const ek_survivor *of, int32_t n, ek_survivor_role *roles)
{
    ek_recovery_decision v = {newest(of, n), 0, -1};

    for (int32_t i = 0; i < n; i++)
        if (counts(&of[i], v.generation) &&
            of[i].state.steps_done + of[i].state.begun > v.steps_done)
            v.steps_done = of[i].state.steps_done + of[i].state.begun;
    for (int32_t i = 0; i < n && v.record < 0; i++)
        if (counts(&of[i], v.generation) && v.steps_done > 0 &&
            of[i].state.recorded == v.steps_done - 1)
            v.record = i;
    for (int32_t i = 0; i < n; i++)
        roles[i] = role_of(&of[i], &v);
    return v;
}
