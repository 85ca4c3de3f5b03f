/* A simulation with its what-ifs, reported. */
#include "train/output/simulation.h"

#include "base/clock.h"
#include "base/option_value.h"
#include "sim/report_html.h"
#include "sim/what_if.h"
#include "train/failures.h"
#include "train/output/sensitivity.h"

#include <stdlib.h>

enum { STRIPS = 4 };

/* The mean step on a changed cluster. */
static ek_status simulate_change(const ek_simulation_config *cfg, ek_cluster *cluster,
                                 ek_sim_what_if *x)
{
    ek_simulation_config changed = *cfg;
    ek_simulation *s = NULL;
    ek_status st;

    *cluster = *cfg->cluster;
    changed.cluster = cluster;
    changed.timeline = changed.n_strips = 0;
    EK_TRY(ek_cluster_change(cluster, x->change));
    st = ek_simulate(&changed, &s);
    if (st == EK_OK)
        x->step_s = ek_simulation_result(s)->step_s;
    ek_simulation_close(&s);
    return st;
}

static ek_status simulate_changes(const ek_simulation_config *cfg, const ek_simulation_output *o,
                                  ek_sim_what_if **changes)
{
    ek_cluster *cluster = calloc(1, sizeof(*cluster));
    ek_status st = EK_OK;

    *changes = calloc((size_t)o->n_changes + 1, sizeof(**changes));
    EK_REQUIRE_OUT(cluster != NULL && *changes != NULL, EK_ENOMEM, "no memory for %lld changes",
                   (long long)o->n_changes);
    for (int64_t i = 0; i < o->n_changes; i++) {
        (*changes)[i].change = o->changes[i];
        EK_TRY_OUT(simulate_change(cfg, cluster, &(*changes)[i]));
    }
out:
    free(cluster);
    return st;
}

static void put_page(const void *report, FILE *f)
{
    ek_sim_write_html(report, f);
}

static ek_status simulate_and_report(const ek_simulation_config *cfg, const ek_simulation_output *o,
                                     const ek_sim_failures *failures)
{
    static const char *const engines[] = {"replay", "flow", "messages"};
    ek_sim_report r = {.model = cfg->train->model != NULL ? cfg->train->model : "",
                       .engine = engines[cfg->engine],
                       .dialect = cfg->dialect,
                       .cluster = cfg->cluster,
                       .n_changes = (int)o->n_changes,
                       .failures = failures};
    ek_simulation_config with_strips = *cfg;
    ek_sim_what_if *changes = NULL;
    ek_sim_sensitivity sensitivity;
    ek_simulation *s = NULL;
    int64_t began;
    ek_status st;

    EK_TRY_OUT(simulate_changes(cfg, o, &changes));
    began = ek_clock_ns();
    with_strips.n_strips = o->page != NULL ? STRIPS : 0;
    EK_TRY_OUT(ek_simulate(&with_strips, &s));
    r.took_s = (double)(ek_clock_ns() - began) * 1e-9;
    r.changes = changes;
    r.graphs = ek_simulation_graphs(s);
    r.layout = ek_simulation_layout(s);
    r.result = ek_simulation_result(s);
    r.n_strips = r.result->n_records - (cfg->timeline != 0);
    r.traffic = ek_simulation_traffic(s);
    r.balance = ek_simulation_balance(s);
    r.steps = ek_simulation_steps(s, &r.n_steps);
    if (o->timeline != NULL)
        EK_TRY_OUT(ek_simulation_write_timeline(s, o->timeline));
    if (o->page != NULL) {
        EK_TRY_OUT(ek_simulate_sensitivity(cfg, s, &sensitivity));
        r.sensitivity = &sensitivity;
        EK_TRY_OUT(ek_html_file(o->page, put_page, &r));
    }
    (o->json ? ek_sim_write_json : ek_sim_write_text)(&r, o->out);
out:
    ek_simulation_close(&s);
    free(changes);
    return st;
}

ek_status ek_simulate_and_report(const ek_simulation_config *cfg, const ek_simulation_output *o)
{
    ek_simulation_config with = *cfg;
    ek_train_config train;
    ek_sim_failures failures;
    ek_on_failure what;

    if (o->failures == NULL)
        return simulate_and_report(cfg, o, NULL);
    what = (ek_on_failure)ek_option_choice_index(EK_ON_FAILURE_WORDS, o->on_failure);
    ek_failures_layout(cfg, what, &train, &with.ranks);
    with.train = &train;
    EK_TRY(ek_simulate_failures(cfg, o->failures, what, &failures));
    return simulate_and_report(&with, o, &failures);
}
