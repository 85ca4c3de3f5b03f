/* Simulations with factors on the cluster and with skewed loads. */
#include "train/output/sensitivity.h"

#include "balance/skew.h"
#include "base/c_locale.h"
#include "base/team.h"
#include "base/threads.h"
#include "sim/what_if.h"

#include <stdlib.h>
#include <string.h>

enum { UNCHANGED = EK_SIM_FACTORS / 2, ITERATIONS = 4, STEPS = 2, LAYERS = 16, TOKENS = 4096 };

/* A simulation to be made, and where its step goes. */
typedef struct {
    const ek_simulation_config *cfg;
    const char *change; /* of the cluster, */
    double factor;      /* with this; NULL: none */
    const ek_trace *trace;
    const char *balance;
    double *step_s;
    ek_sim_balance *planned; /* NULL: not wanted */
} job;

static ek_status run_job(const job *j)
{
    ek_simulation_config cfg = *j->cfg;
    ek_train_config train = *cfg.train;
    ek_cluster *cluster = malloc(sizeof(*cluster));
    ek_simulation *s = NULL;
    char change[EK_CLUSTER_NAME + 64];
    ek_status st;

    EK_REQUIRE_OUT(cluster != NULL, EK_ENOMEM, "no memory for a cluster");
    *cluster = *cfg.cluster;
    cfg.cluster = cluster;
    cfg.train = &train;
    cfg.timeline = cfg.n_strips = 0;
    if (j->trace != NULL) {
        cfg.trace = j->trace;
        cfg.steps = STEPS;
        train.balance = j->balance;
    }
    if (j->change != NULL) {
        (void)snprintf(change, sizeof(change), "%s x%g", j->change, j->factor);
        EK_TRY_OUT(ek_cluster_change(cluster, change));
    }
    EK_TRY_OUT(ek_simulate(&cfg, &s));
    *j->step_s = ek_simulation_result(s)->step_s;
    if (j->planned != NULL)
        *j->planned = *ek_simulation_balance(s);
out:
    ek_simulation_close(&s);
    free(cluster);
    return st;
}

static ek_status run_jobs(const job *jobs, int n)
{
    ek_team_failure failure = {.index = -1};

#pragma omp parallel for schedule(dynamic, 1) num_threads(ek_cores_usable())
    for (int i = 0; i < n; i++) {
        ek_status st;

        EK_C_LOCALE;
        if (ek_team_has_failed(&failure))
            continue;
        st = run_job(&jobs[i]);
        if (st < 0)
            ek_team_record(&failure, i, st);
    }
    return ek_team_result(&failure);
}

/* --- the cluster ------------------------------------------------------------------------------ */

/* The levels up to the highest that bytes pass. */
static int used_levels(const ek_simulation_config *cfg, const ek_simulation *base)
{
    ek_net_traffic t = ek_simulation_traffic(base);
    int n = 0;

    for (int l = 0; l < cfg->cluster->n_levels; l++)
        n = t.bytes[l] > 0 ? l + 1 : n;
    return n;
}

static void name_sweeps(const ek_simulation_config *cfg, const ek_simulation *base,
                        ek_sim_sensitivity *out)
{
    int levels = used_levels(cfg, base);

    for (int l = 0; l < levels; l++)
        (void)snprintf(out->sweep[out->n_sweeps++].change, sizeof(out->sweep[0].change),
                       "bandwidth[%s]", cfg->cluster->level[l].name);
    if (levels > 0)
        (void)snprintf(out->sweep[out->n_sweeps++].change, sizeof(out->sweep[0].change),
                       "latency[*]");
    (void)snprintf(out->sweep[out->n_sweeps++].change, sizeof(out->sweep[0].change), "compute");
}

static ek_status sweep_cluster(const ek_simulation_config *cfg, const ek_simulation *base,
                               ek_sim_sensitivity *out)
{
    job jobs[EK_SIM_SWEEPS * EK_SIM_FACTORS];
    int n = 0;

    name_sweeps(cfg, base, out);
    for (int k = 0; k < out->n_sweeps; k++)
        for (int i = 0; i < EK_SIM_FACTORS; i++)
            if (i == UNCHANGED)
                out->sweep[k].step_s[i] = ek_simulation_result(base)->step_s;
            else
                jobs[n++] = (job){.cfg = cfg,
                                  .change = out->sweep[k].change,
                                  .factor = ek_sim_factors[i],
                                  .step_s = &out->sweep[k].step_s[i]};
    return run_jobs(jobs, n);
}

/* --- loads ------------------------------------------------------------------------------------ */

static ek_status open_skewed(const ek_simulation_config *cfg, const ek_sim_layout *l,
                             ek_trace *skewed)
{
    const ek_trace_shape shape = {.workload = "W7",
                                  .iterations = ITERATIONS,
                                  .layers = LAYERS,
                                  .experts = l->spec.experts,
                                  .tokens = TOKENS,
                                  .top_k = l->spec.top_k};
    ek_trace own = {0};
    const ek_trace *from = cfg->trace;
    ek_status st = EK_OK;

    if (from == NULL) {
        EK_TRY_OUT(ek_trace_synthetic(&shape, &own));
        from = &own;
    }
    for (int i = 0; i < EK_SIM_SKEWS; i++)
        EK_TRY_OUT(ek_trace_skewed(from, i / (EK_SIM_SKEWS - 1.0), ITERATIONS, &skewed[i]));
out:
    ek_trace_close(&own);
    return st;
}

static ek_status sweep_skews(const ek_simulation_config *cfg, const ek_trace *skewed,
                             ek_sim_sensitivity *out)
{
    job jobs[2 * EK_SIM_SKEWS];
    ek_sim_balance planned[EK_SIM_SKEWS];
    int n = 0;

    for (int i = 0; i < EK_SIM_SKEWS; i++) {
        jobs[n++] =
            (job){.cfg = cfg, .trace = &skewed[i], .balance = "off", .step_s = &out->skew[i].off_s};
        jobs[n++] = (job){.cfg = cfg,
                          .trace = &skewed[i],
                          .balance = out->policy,
                          .step_s = &out->skew[i].planned_s,
                          .planned = &planned[i]};
    }
    EK_TRY(run_jobs(jobs, n));
    out->n_skews = EK_SIM_SKEWS;
    for (int i = 0; i < EK_SIM_SKEWS; i++) {
        out->skew[i].share = i / (EK_SIM_SKEWS - 1.0);
        out->skew[i].before = planned[i].before;
        out->skew[i].after = planned[i].after;
    }
    return EK_OK;
}

ek_status ek_simulate_sensitivity(const ek_simulation_config *cfg, const ek_simulation *base,
                                  ek_sim_sensitivity *out)
{
    const ek_sim_layout *l = ek_simulation_layout(base);
    ek_trace skewed[EK_SIM_SKEWS] = {0};
    ek_status st;

    *out = (ek_sim_sensitivity){.policy = "exact",
                                .loads = cfg->trace != NULL ? "the trace" : "a Zipf distribution"};
    if (l->planner != NULL && strcmp(l->planner->name, "off") != 0)
        out->policy = l->planner->name;
    EK_TRY_OUT(sweep_cluster(cfg, base, out));
    if (l->ep > 1 && l->spec.experts > 1 && cfg->engine != EK_ENGINE_MESSAGES &&
        !ek_simulates_even_loads_only(cfg)) {
        EK_TRY_OUT(open_skewed(cfg, l, skewed));
        EK_TRY_OUT(sweep_skews(cfg, skewed, out));
    }
out:
    for (int i = 0; i < EK_SIM_SKEWS; i++)
        ek_trace_close(&skewed[i]);
    return st;
}
