/* A list of plans; who asks for one that another thread makes waits for it. */
#include "train/even_plans.h"

#include "train/even_loads.h"

#include <pthread.h>
#include <stdlib.h>

typedef struct even_plan {
    struct even_plan *next;
    ek_sim_loads_config of; /* but what it borrows */
    pthread_mutex_t making; /* while it is looked at or made */
    int made;
    ek_trace even;
    ek_sim_loads *loads;
    const ek_sim_loads *copies; /* these, or NULL: there are none */
} even_plan;

struct ek_even_plans {
    pthread_mutex_t adding;
    even_plan *first;
};

ek_sim_loads_config ek_loads_config_of(const ek_sim_layout *l, const ek_cluster *c, int ranks)
{
    return (ek_sim_loads_config){.planner = l->planner != NULL ? l->planner : &ek_planner_off,
                                 .spec = &l->spec,
                                 .cluster = c,
                                 .dtype = l->dtype,
                                 .ranks = ranks,
                                 .ep = l->ep,
                                 .etp = l->etp,
                                 .spare_slots = l->planner != NULL ? l->spare_slots : 0,
                                 .replicas_min = l->replicas_min,
                                 .keep_all_slots = l->keep_all_slots,
                                 .all_serve = l->all_serve,
                                 .sends_twice = l->sends_twice,
                                 .rows = l->rows,
                                 .horizon = l->plan_every * l->micros,
                                 .batches = l->micros};
}

ek_sim_loads_config ek_even_loads_config_of(const ek_sim_layout *l, const ek_cluster *c, int ranks)
{
    ek_sim_loads_config cfg = ek_loads_config_of(l, c, ranks);

    cfg.skip = 1;
    cfg.steps = 1;
    return cfg;
}

ek_status ek_even_plans_open(ek_even_plans **out)
{
    *out = calloc(1, sizeof(**out));
    EK_REQUIRE(*out != NULL, EK_ENOMEM, "no memory for plans of even loads");
    pthread_mutex_init(&(*out)->adding, NULL);
    return EK_OK;
}

void ek_even_plans_close(ek_even_plans **p)
{
    even_plan *next, *x = *p != NULL ? (*p)->first : NULL;

    for (; x != NULL; x = next) {
        next = x->next;
        ek_sim_loads_close(&x->loads);
        ek_trace_close(&x->even);
        pthread_mutex_destroy(&x->making);
        free(x);
    }
    if (*p != NULL)
        pthread_mutex_destroy(&(*p)->adding);
    free(*p);
    *p = NULL;
}

/* Whether plans of two layouts of a model on a cluster are the same. */
static int are_alike(const even_plan *x, const ek_sim_loads_config *b)
{
    const ek_sim_loads_config *a = &x->of;

    return a->planner == b->planner && a->ranks == b->ranks && a->ep == b->ep && a->etp == b->etp &&
           a->spare_slots == b->spare_slots && a->replicas_min == b->replicas_min &&
           a->keep_all_slots == b->keep_all_slots && a->all_serve == b->all_serve &&
           a->sends_twice == b->sends_twice && !(a->rows < b->rows || a->rows > b->rows) &&
           a->horizon == b->horizon && a->batches == b->batches && a->by_level == b->by_level &&
           a->by_rank == b->by_rank;
}

/* The plan for these settings, which may be still to be made; NULL: there is no memory for it. */
static even_plan *find_or_add(ek_even_plans *p, const ek_sim_loads_config *cfg)
{
    even_plan *x;

    pthread_mutex_lock(&p->adding);
    for (x = p->first; x != NULL && !are_alike(x, cfg);)
        x = x->next;
    if (x == NULL && (x = calloc(1, sizeof(*x))) != NULL) {
        x->of = *cfg;
        pthread_mutex_init(&x->making, NULL);
        x->next = p->first;
        p->first = x;
    }
    pthread_mutex_unlock(&p->adding);
    return x;
}

/* cfg: with what it borrows. */
static ek_status make_plan(even_plan *x, const ek_sim_layout *l, const ek_sim_loads_config *cfg)
{
    ek_sim_loads_config c = *cfg;
    ek_model_spec spec = *cfg->spec;

    spec.layers = EK_LAYERS_MAX; /* a search lays out models with few layers, too */
    c.spec = &spec;
    if (x->even.own == NULL)
        EK_TRY(ek_even_loads_open(l, &x->even));
    c.trace = &x->even;
    ek_sim_loads_close(&x->loads); /* of a failure before */
    EK_TRY(ek_sim_loads_open(&c, &x->loads));
    if (ek_sim_loads_balance(x->loads)->replicas > 0)
        x->copies = x->loads;
    x->made = 1;
    return EK_OK;
}

ek_status ek_even_plans_of(ek_even_plans *p, const ek_sim_layout *l, const ek_cluster *c, int ranks,
                           int by_level, int by_rank, const ek_sim_loads **out)
{
    ek_sim_loads_config cfg = ek_even_loads_config_of(l, c, ranks);
    even_plan *x;
    ek_status st;

    *out = NULL;
    if (l->planner == NULL || !ek_planner_fills_slots(l->planner))
        return EK_OK;
    cfg.by_level = by_level;
    cfg.by_rank = by_rank;
    x = find_or_add(p, &cfg);
    EK_REQUIRE(x != NULL, EK_ENOMEM, "no memory for plans of even loads");
    pthread_mutex_lock(&x->making);
    st = x->made ? EK_OK : make_plan(x, l, &cfg);
    if (st == EK_OK)
        *out = x->copies;
    pthread_mutex_unlock(&x->making);
    return st;
}
