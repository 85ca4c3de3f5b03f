/* Roofline of layers, and measured against predicted times of ops, at the end of a run. */
#include "train/run/explain.h"

#include "base/log.h"
#include "comm/agree.h"
#include "cost/cost.h"
#include "train/timing/layer_times.h"
#include "train/timing/predict.h"

#include <stdlib.h>

enum { LINE = 320 };

/* FLOPs of an assignment: three products, once forward and twice backward. */
static double row_flops(const ek_model_spec *s)
{
    return 3 * ek_cost_row_flops(s->hidden, s->ff);
}

void ek_run_add_layers(ek_run *r)
{
    const ek_model_spec *s = &r->source.spec;

    if (ek_run_is_timed(r) && !ek_run_is_recorded(r, r->progress.step))
        return; /* its time is not measured */
    for (int64_t l = 0; l < s->layers && r->costs.layers != NULL; l++) {
        ek_roofline_counts n = ek_pass_work(ek_trainer_pass(r->trainer), l);
        ek_roofline_work step;

        n.busiest /= r->mesh->etp; /* etp shards split the expert's width */
        n.replicas /= r->mesh->etp;
        n.batches = (double)r->training.moe.batches;
        step = ek_roofline_work_of_counts(r->mesh->stage_size, &r->training.moe.costs, row_flops(s),
                                          &n);
        ek_roofline_add(&r->costs.layers[l], &step);
    }
}

/* With a timeline: the time of a layer is that of its slowest rank. */
static ek_status time_layers(ek_run *r)
{
    int64_t layers = r->source.spec.layers, n;
    const ek_event *events = ek_exec_events(ek_trainer_exec(r->trainer), &n);
    double *seconds = calloc((size_t)layers, sizeof(*seconds));
    ek_coll *op = NULL;
    ek_status st = EK_OK;

    EK_TRY_OUT(ek_agree(r->world, "time the layers",
                        seconds != NULL ? ek_layer_times(events, n, r->progress.counted_ns, seconds)
                                        : EK_FAIL(EK_ENOMEM, "no memory for times of layers")));
    EK_TRY_OUT(ek_comm_all_reduce(r->world, seconds, layers, EK_MAX_F64, &op));
    EK_TRY_OUT(ek_coll_wait(&op));
    for (int64_t l = 0; l < layers; l++)
        r->costs.layers[l].time_s = seconds[l];
out:
    free(seconds);
    return st;
}

static void report_layers(const ek_run *r)
{
    const ek_train_hooks *h = r->hooks;
    char line[LINE];

    for (int64_t l = 0; l < r->source.spec.layers; l++) {
        const ek_roofline_work *w = &r->costs.layers[l];
        ek_roofline at = ek_roofline_of(w);
        ek_train_layer layer = {.layer = l,
                                .r_cc = at.r_cc,
                                .achieved = at.achieved,
                                .semi_ideal = at.semi_ideal,
                                .ideal = at.ideal,
                                .peak = w->rank_flops_s,
                                .measured = at.measured,
                                .line = line};

        if (r->source.spec.dense[l])
            continue;
        ek_roofline_line(w, l, line, sizeof(line));
        if (h->layer != NULL)
            h->layer(h->context, &layer);
    }
}

/* --- predicted against measured --------------------------------------------------------------- */

/* Number of nodes of the ranks with which this one exchanges rows. */
static int64_t count_nodes(const ek_mesh *mesh)
{
    int n = mesh->ep * mesh->etp, first = mesh->edp_rank * n;
    int64_t nodes = 0;

    for (int i = 0; i < n; i++) {
        int same = 0;

        while (ek_comm_node(mesh->stage, first + same) != ek_comm_node(mesh->stage, first + i))
            same++;
        nodes += same == i;
    }
    return nodes;
}

static void compare_ops(const ek_run *r, ek_compare *c)
{
    ek_predict_config cfg = {.machine = r->costs.machine, .nodes = count_nodes(r->mesh)};
    int64_t n;
    const ek_event *events = ek_exec_events(ek_trainer_exec(r->trainer), &n);

    ek_compare_begin(c);
    for (int64_t i = 0; i < n; i++)
        if (events[i].start_ns >= r->progress.counted_ns)
            ek_predict_add(&cfg, &events[i], 1, c);
    ek_compare_sort(c);
}

static void report_costs(const ek_run *r)
{
    const ek_train_hooks *h = r->hooks;
    char line[LINE];
    ek_compare c;

    compare_ops(r, &c);
    ek_log("costs", EK_LOG_INFO, "%s", ek_compare_head);
    for (int i = 0; i < c.n; i++) {
        const ek_compare_row *row = &c.row[i];
        ek_train_cost cost = {row->name, row->count, row->predicted ? row->predicted_s : -1,
                              row->measured_s};

        ek_log("costs", EK_LOG_INFO, "%s", ek_compare_row_text(&c, row, line, sizeof(line)));
        if (h->cost != NULL)
            h->cost(h->context, &cost);
    }
    if (ek_compare_warning(&c, line, sizeof(line))[0] != '\0')
        ek_log("costs", EK_LOG_WARN, "%s", line);
}

ek_status ek_run_explain(ek_run *r)
{
    if (r->costs.layers == NULL || r->progress.counted_ns == 0 || r->out->balance.policy == NULL)
        return EK_OK;
    if (ek_run_is_timed(r))
        EK_TRY(time_layers(r));
    if (r->rank != 0)
        return EK_OK;
    report_layers(r);
    if (ek_run_is_timed(r))
        report_costs(r);
    return EK_OK;
}
