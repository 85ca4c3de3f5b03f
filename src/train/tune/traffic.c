/* The dispatch settings of steps: given ones, or the tuner's. */
#include "train/tune/traffic.h"

#include "base/log.h"
#include "cost/cost.h"

#include <stdio.h>
#include <stdlib.h>

int ek_traffic_is_dispatched(const ek_model *m)
{
    return ek_model_moe_layers(&m->spec) > 0 && ek_mesh_distributes_experts(m->cfg.mesh);
}

int ek_traffic_settings(const ek_model *m, const ek_traffic_config *cfg, ek_moe_traffic *out)
{
    const ek_moe_config *c = cfg->moe;
    ek_tune_fixed given;

    out[0] =
        (ek_moe_traffic){c->degree > 1 && c->smart_group == 0 ? c->degree : 1, c->a2a, c->gather};
    if ((!cfg->tune_degree && !cfg->tune_a2a && !cfg->tune_gather) || c->smart_group > 0 ||
        !ek_traffic_is_dispatched(m))
        return 1;
    given = (ek_tune_fixed){.degree = cfg->tune_degree ? 0 : out[0].degree,
                            .a2a = cfg->tune_a2a ? -1 : (int)c->a2a,
                            .gather = c->gather != 0 ? c->gather : 1,
                            .gather_all = c->gather_most == EK_GATHER_ALL,
                            .first = c->a2a};
    if (cfg->tune_gather)
        given.gather = 0;
    return ek_tune_settings(m->cfg.mesh, &given, out);
}

ek_status ek_traffic_init(ek_traffic *t, const ek_model *m, const ek_traffic_config *cfg)
{
    ek_moe_traffic settings[EK_TUNE_SETTINGS];
    int n = ek_traffic_settings(m, cfg, settings);

    *t = (ek_traffic){.mesh = m->cfg.mesh, .tunes_gather = cfg->tune_gather, .given = settings[0]};
    if (n == 1)
        return EK_OK;
    t->tune = malloc(sizeof(*t->tune));
    EK_REQUIRE(t->tune != NULL, EK_ENOMEM, "no memory for tuning");
    ek_tune_init(t->tune, settings, n);
    return EK_OK;
}

void ek_traffic_fini(ek_traffic *t)
{
    free(t->tune);
    t->tune = NULL;
}

void ek_traffic_set(ek_traffic *t, const ek_moe_traffic *given)
{
    ek_traffic_fini(t);
    t->given = *given;
}

ek_moe_traffic ek_traffic_begin_step(ek_traffic *t, int64_t bucket)
{
    if (t->tune == NULL)
        return t->given;
    t->choice = ek_tune_next(t->tune, bucket);
    return t->choice.traffic;
}

static const char *a2a_name(ek_a2a a2a)
{
    static const char *const names[] = {"linear", "pairwise", "2dh"};

    return names[a2a];
}

static int is_same(const ek_moe_traffic *a, const ek_moe_traffic *b)
{
    return a->degree == b->degree && a->a2a == b->a2a && a->gather == b->gather;
}

static void log_found(const ek_traffic *t, const ek_tune_result *r)
{
    char than[96] = "", how[32] = "", step[EK_COST_QUANTITY];

    if (t->mesh->rank != 0)
        return;
    if (t->tunes_gather)
        snprintf(how, sizeof(how), "r %d, ", ek_moe_traffic_r(&r->best, t->mesh->etp));
    if (!is_same(&r->best, &r->first))
        snprintf(than, sizeof(than), "; degree %d and %s take %.2f times that", r->first.degree,
                 a2a_name(r->first.a2a), r->gain);
    ek_log("tune", EK_LOG_INFO,
           "%spipeline degree %d, all-to-all %s: %s a step, found in %lld steps for a "
           "capacity of experts from %lld on%s",
           how, r->best.degree, a2a_name(r->best.a2a), ek_cost_quantity(step, r->best_s, "s"),
           (long long)r->steps, (long long)r->bucket * EK_TUNE_CAPACITY, than);
}

void ek_traffic_end_step(ek_traffic *t, double previous_s)
{
    ek_tune_result found;

    if (t->tune == NULL)
        return;
    if (t->has_previous && ek_tune_add(t->tune, &t->previous, previous_s, &found))
        log_found(t, &found);
    t->previous = t->choice;
    t->has_previous = 1;
}
