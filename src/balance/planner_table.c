/* The table of planners: those built in, and those that a program has registered. */
#include "balance/custom_planner.h"
#include "balance/planner.h"
#include "base/log.h"

#include <string.h>

const ek_planner *const ek_planners[] = {&ek_planner_off,       &ek_planner_shadow,
                                         &ek_planner_fastermoe, &ek_planner_place,
                                         &ek_planner_prophet,   &ek_planner_replicate,
                                         &ek_planner_eplb,      &ek_planner_exact,
                                         &ek_planner_auto,      NULL};

const ek_planner *ek_planner_find(const char *name)
{
    for (int i = 0; ek_planners[i] != NULL; i++)
        if (strcmp(ek_planners[i]->name, name) == 0)
            return ek_planners[i];
    for (int i = 0; ek_custom_planner_at(i) != NULL; i++)
        if (strcmp(ek_custom_planner_at(i)->name, name) == 0)
            return ek_custom_planner_at(i);
    return NULL;
}

void *ek_planner_reserve(const ek_planner *p, ek_arena *a, const ek_plan_limits *l)
{
    return p->custom != NULL ? ek_custom_planner_reserve(p, a, l) : p->reserve(a, l);
}

const ek_planner *ek_planner_for(const ek_planner *policy, int32_t replicas_min)
{
    return policy == &ek_planner_auto && replicas_min > 1 ? &ek_planner_auto_replicas : policy;
}

int ek_planner_fills_slots(const ek_planner *p)
{
    return p->plan_persistent != NULL && (p->plan_transient == NULL || p->enforces_replicas_min);
}

int32_t ek_planner_transient_slots(const ek_planner *p, const ek_plan_limits *l)
{
    int64_t others = (int64_t)l->ranks * (l->slots - 1);
    int64_t copies = l->replicas_min < l->ranks ? l->replicas_min : l->ranks;

    return ek_planner_fills_slots(p) && p->plan_transient != NULL && !l->keep_all_slots &&
           others >= copies * l->experts;
}

int32_t ek_planner_copies(const ek_plan_limits *l, int32_t domains)
{
    int64_t each = (int64_t)l->ranks * l->slots / l->experts;

    each = each < domains ? each : domains;
    return each < l->replicas_min ? (int32_t)each : l->replicas_min;
}

void ek_planner_warn_of_copies(const ek_planner *p, const ek_plan_limits *l, int32_t domains,
                               const char *option, const char *domain)
{
    int32_t each = ek_planner_copies(l, domains);

    if (l->replicas_min > 1 && !p->enforces_replicas_min)
        ek_log("balance", EK_LOG_WARN, "--replicas-min %d has no effect with %s %s",
               (int)l->replicas_min, option, p->name);
    else if (each < l->replicas_min)
        ek_log("balance", EK_LOG_WARN,
               "--replicas-min %d: some experts will be on %d %s%s only: their ranks are on %d, "
               "and have %lld slots for %d experts",
               (int)l->replicas_min, (int)each, domain, each > 1 ? "s" : "", (int)domains,
               (long long)l->ranks * l->slots, (int)l->experts);
}
