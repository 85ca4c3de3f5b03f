/* Registered planners: their table, and the calls of their functions with checks of what they
 * return. */
#include "balance/custom_planner.h"

#include "evenkeel/planner.h"

#include "base/entry.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

_Static_assert((int)EK_PLANNER_REASON == (int)EK_PLAN_REASON, "a reason is written in place");

/* --- registration ----------------------------------------------------------------------------- */

struct ek_custom_planner {
    ek_planner planner;
    ek_planner_functions functions;
    char name[EK_PLANNER_NAME];
};

static struct ek_custom_planner registered[EK_PLANNER_COUNT];
static atomic_int n_registered; /* entries below it are complete */
static pthread_mutex_t registering = PTHREAD_MUTEX_INITIALIZER;

const ek_planner *ek_custom_planner_at(int i)
{
    return i >= 0 && i < atomic_load(&n_registered) ? &registered[i].planner : NULL;
}

static ek_status check_name(const char *name)
{
    static const char allowed[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.";
    size_t n = strlen(name);

    EK_REQUIRE(
        n > 0 && n < EK_PLANNER_NAME && strspn(name, allowed) == n, EK_EINVAL,
        "ek_planner_register: \"%s\" is not a name of 1 to %d letters, digits, '-', '_', '.'", name,
        EK_PLANNER_NAME - 1);
    return EK_OK;
}

static ek_status check_functions(const char *name, const ek_planner_functions *f)
{
    EK_REQUIRE(f->size == sizeof(*f), EK_EINVAL,
               "ek_planner_functions of %zu bytes, this library's has %zu", f->size, sizeof(*f));
    EK_REQUIRE(f->plan_persistent != NULL || f->plan_transient != NULL, EK_EINVAL,
               "planner %s has neither plan_persistent nor plan_transient", name);
    EK_REQUIRE(f->init == NULL || f->memory_bytes != NULL, EK_EINVAL,
               "planner %s has init without memory_bytes", name);
    EK_REQUIRE(!f->uses_previous_counts || f->plan_persistent == NULL, EK_EINVAL,
               "planner %s: uses_previous_counts needs plan_transient alone: primary copies must "
               "not move in between",
               name);
    EK_REQUIRE(!f->enforces_replicas_min || f->plan_transient == NULL, EK_EINVAL,
               "planner %s: enforces_replicas_min needs plan_persistent alone: transient replicas "
               "do not survive a failure",
               name);
    return EK_OK;
}

static ek_status plan_persistent(void *memory, const ek_plan_limits *l, const int64_t *counts,
                                 ek_plan *p);
static ek_status plan_transient(void *memory, const ek_plan_limits *l, const int64_t *counts,
                                ek_plan *p);

static ek_status add_planner(const char *name, const ek_planner_functions *f)
{
    int n = atomic_load(&n_registered);
    struct ek_custom_planner *c;

    EK_REQUIRE(ek_planner_find(name) == NULL, EK_EINVAL,
               "ek_planner_register: there is a planner %s already", name);
    EK_REQUIRE(n < EK_PLANNER_COUNT, EK_EOVERFLOW,
               "ek_planner_register: no more than %d planners can be registered", EK_PLANNER_COUNT);
    c = &registered[n];
    c->functions = *f;
    memcpy(c->name, name, strlen(name) + 1);
    c->planner =
        (ek_planner){.name = c->name,
                     .what = f->summary != NULL ? f->summary : "",
                     .plan_persistent = f->plan_persistent != NULL ? plan_persistent : NULL,
                     .plan_transient = f->plan_transient != NULL ? plan_transient : NULL,
                     .uses_previous_counts = f->uses_previous_counts,
                     .enforces_replicas_min = f->enforces_replicas_min,
                     .custom = c};
    atomic_store(&n_registered, n + 1);
    return EK_OK;
}

ek_status ek_planner_register(const char *name, const ek_planner_functions *functions)
{
    EK_C_LOCALE;
    ek_status st;

    EK_NOT_NULL(name);
    EK_NOT_NULL(functions);
    EK_TRY(check_name(name));
    EK_TRY(check_functions(name, functions));
    pthread_mutex_lock(&registering);
    st = add_planner(name, functions);
    pthread_mutex_unlock(&registering);
    return st;
}

/* --- memory ----------------------------------------------------------------------------------- */

typedef struct {
    const struct ek_custom_planner *custom;
    void *memory; /* the planner's; NULL: it has none */
    ek_planner_setup setup;
    int32_t *rank_numbers; /* [ranks] 0, 1, ...: nodes where none are known */
    ek_placement before;   /* the placement that the current plan started from */
    int64_t *total;        /* [experts] */
} custom_state;

/* Node and domain are those of the current group. */
static ek_planner_setup setup_of(const ek_plan_limits *l, const int32_t *rank_numbers)
{
    const int32_t *node_of = l->node_of != NULL ? l->node_of : rank_numbers;

    return (ek_planner_setup){.experts = l->experts,
                              .ranks = l->ranks,
                              .slots = l->slots,
                              .layers = l->layers > 0 ? l->layers : 1,
                              .ep_groups = l->ep_groups > 0 ? l->ep_groups : 1,
                              .node_of = node_of,
                              .domain_of = l->domain_of != NULL ? l->domain_of : node_of,
                              .row_cost = l->row_cost,
                              .replicas_min = l->replicas_min,
                              .horizon = l->horizon,
                              .micro_batches = l->batches > 0 ? l->batches : 1,
                              .costs = {.compute_s_per_row = l->costs.compute_s_per_row,
                                        .comm_s_per_row = l->costs.comm_s_per_row,
                                        .replica_s = l->costs.replica_s,
                                        .exposed_s = l->costs.exposed_s,
                                        .replica_bytes = l->costs.replica_bytes,
                                        .migrate_s_per_expert = l->costs.migrate_s_per_expert,
                                        .state_bytes = l->costs.state_bytes}};
}

/* Bytes that the planner requests, from sizes alone: the same whether the arena measures or not. */
static int64_t requested_bytes(const ek_planner_functions *f, const ek_plan_limits *l)
{
    ek_planner_setup sizes = setup_of(l, NULL);
    size_t bytes;

    sizes.node_of = sizes.domain_of = sizes.row_cost = NULL;
    sizes.costs = (ek_planner_costs){0};
    bytes = f->memory_bytes != NULL ? f->memory_bytes(f->context, &sizes) : 0;
    return bytes < INT64_MAX ? (int64_t)bytes : INT64_MAX;
}

void *ek_custom_planner_reserve(const ek_planner *p, ek_arena *a, const ek_plan_limits *l)
{
    const ek_planner_functions *f = &p->custom->functions;
    int64_t bytes = requested_bytes(f, l);
    custom_state *s = ek_arena_alloc(a, 1, sizeof(*s)), measured;
    custom_state *to = s != NULL ? s : &measured;

    *to = (custom_state){.custom = p->custom};
    to->rank_numbers = ek_arena_alloc(a, l->ranks, sizeof(*to->rank_numbers));
    ek_placement_reserve(&to->before, a, l->experts, l->ranks, l->slots);
    to->total = ek_arena_alloc(a, l->experts, sizeof(*to->total));
    to->memory = bytes > 0 ? ek_arena_alloc(a, bytes, 1) : NULL;
    if (to->total == NULL || (bytes > 0 && to->memory == NULL))
        return NULL;
    for (int32_t r = 0; r < l->ranks; r++)
        to->rank_numbers[r] = r;
    to->setup = setup_of(l, to->rank_numbers);
    if (f->init != NULL)
        f->init(f->context, to->memory, &to->setup);
    return s;
}

/* --- plans ------------------------------------------------------------------------------------ */

static ek_status check_times(const ek_plan *p)
{
    EK_REQUIRE(isfinite(p->before_s) && p->before_s >= 0 && isfinite(p->after_s) && p->after_s >= 0,
               EK_EINVAL, "it predicts layer times of %g s before and %g s after", p->before_s,
               p->after_s);
    return EK_OK;
}

static ek_status check_transient(const ek_placement *before, const ek_plan *p)
{
    for (int32_t e = 0; e < before->experts; e++)
        EK_REQUIRE(p->placement.primary[e] == before->primary[e], EK_EINVAL,
                   "plan_transient moved the primary copy of expert %d from slot %d to %d", (int)e,
                   (int)before->primary[e], (int)p->placement.primary[e]);
    for (int32_t s = 0; s < before->ranks * before->slots; s++)
        EK_REQUIRE(before->expert_of[s] < 0 || p->placement.expert_of[s] == before->expert_of[s],
                   EK_EINVAL, "plan_transient put expert %d into slot %d, which holds expert %d",
                   (int)p->placement.expert_of[s], (int)s, (int)before->expert_of[s]);
    return EK_OK;
}

/* Of a planner that also makes transient plans, which need the spare slots. */
static ek_status check_share(const ek_placement *at)
{
    for (int32_t r = 0; r < at->ranks; r++) {
        int32_t n = 0, share = at->experts / at->ranks + (r < at->experts % at->ranks);

        for (int32_t s = r * at->slots; s < (r + 1) * at->slots; s++)
            n += at->expert_of[s] >= 0;
        EK_REQUIRE(n == share, EK_EINVAL,
                   "plan_persistent put %d experts on rank %d, which must have %d: plan_transient "
                   "needs the other slots",
                   (int)n, (int)r, (int)share);
    }
    return EK_OK;
}

/* Calls one of the planner's functions with a valid plan to change. */
static ek_status call_planner(custom_state *s, const ek_plan_limits *l, const int64_t *counts,
                              ek_plan *p, ek_planner_fn plan, int64_t micro_batches)
{
    ek_planner_input in = {.setup = &s->setup,
                           .layer = l->layer,
                           .ep_group = l->ep_group,
                           .counts = counts,
                           .micro_batches = micro_batches > 0 ? micro_batches : 1,
                           .explain = p->explain};
    ek_planner_output out = {.expert_of = p->placement.expert_of,
                             .primary = p->placement.primary,
                             .quota = p->quota,
                             .reason = p->reason};
    ek_status st;

    s->setup = setup_of(l, s->rank_numbers);
    ek_placement_copy(&s->before, &p->placement);
    ek_plan_totals(l, counts, s->total);
    ek_plan_primaries_only(l, s->total, p);
    memset(p->reason, 0, sizeof(p->reason));
    (void)EK_FAIL(EK_OK, "it returned a failure without a message"); /* unless it writes one */
    st = plan(s->custom->functions.context, s->memory, &in, &out);
    p->reason[sizeof(p->reason) - 1] = '\0';
    p->before_s = out.before_s;
    p->after_s = out.after_s;
    EK_REQUIRE(st <= 0, EK_EINVAL, "it returned %d, which is no status of a planner", (int)st);
    EK_TRY(st);
    return check_times(p);
}

static ek_status plan_persistent(void *memory, const ek_plan_limits *l, const int64_t *counts,
                                 ek_plan *p)
{
    custom_state *s = memory;
    const ek_planner_functions *f = &s->custom->functions;

    EK_TRY(call_planner(s, l, counts, p, f->plan_persistent, p->of));
    EK_TRY(ek_plan_check(l, counts, p));
    return f->plan_transient != NULL ? check_share(&p->placement) : EK_OK;
}

static ek_status plan_transient(void *memory, const ek_plan_limits *l, const int64_t *counts,
                                ek_plan *p)
{
    custom_state *s = memory;

    EK_TRY(call_planner(s, l, counts, p, s->custom->functions.plan_transient, 1));
    EK_TRY(check_transient(&s->before, p));
    return ek_plan_check(l, counts, p);
}
