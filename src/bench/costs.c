/* `bench costs`: measures the cost tables of this machine that planners use, derives the cost
 * factors of the model's layers from them, and compares predicted with measured op times.  Rank 0
 * prints. */
#include "balance/costs.h"

#include "base/json.h"
#include "bench/bench_priv.h"
#include "sim/cluster_measured.h"
#include "train/calibrate/calibrate.h"
#include "train/timing/predict.h"

#include <stdlib.h>

enum { LINE = 320 };

/* Time for kernels, in budgets for what planners need. */
#define KERNELS 2.0

ek_status bench_measure_costs(const bench *b, int64_t experts, double kernels_s, ek_machine *m,
                              int *cached)
{
    ek_calibrate_config cfg = {
        .spec = &b->spec,
        .k = b->k,
        .world = b->job->ranks > 1 ? b->job->world : NULL,
        .experts = experts,
        .budget_s = b->cfg->budget,
        .kernels_s = kernels_s,
        .cache = b->job->cache,
        .anew = !b->cfg->cached,
    };

    return ek_calibrate(&cfg, m, cached);
}

/* --- printing --------------------------------------------------------------------------------- */

static void put_rates(const bench *b, const ek_machine *m)
{
    char rate[EK_COST_QUANTITY];

    bench_say(b, "products of %lld expert%s of %lld x %lld, by rows an expert\n%8s",
              (long long)m->experts, m->experts > 1 ? "s" : "", (long long)m->hidden,
              (long long)m->ff, "rows");
    for (int p = 0; p < EK_COST_PRODUCTS; p++)
        bench_say(b, " %16s", ek_cost_product_name((ek_cost_product)p));
    for (int32_t i = 0; i < m->rate[0].n; i++) {
        bench_say(b, "\n%8.0f", m->rate[0].x[i]);
        for (int p = 0; p < EK_COST_PRODUCTS; p++)
            bench_say(b, " %16s", ek_cost_quantity(rate, m->rate[p].y[i], "FLOP/s"));
    }
    bench_say(b, "\n\ncopies, read and written: %s\n", ek_cost_quantity(rate, m->copy, "B/s"));
}

static void put_times(const bench *b, const char *name, const ek_cost_table *t)
{
    char size[EK_COST_QUANTITY], time[EK_COST_QUANTITY], rate[EK_COST_QUANTITY];

    bench_say(b, "  %s\n", name);
    for (int32_t i = 0; i < t->n; i++)
        bench_say(b, "%12s %10s %12s\n", ek_cost_quantity(size, t->x[i], "B"),
                  ek_cost_quantity(time, t->y[i], "s"),
                  ek_cost_quantity(rate, t->x[i] / t->y[i], "B/s"));
}

static void put_links(const bench *b, const ek_machine *m)
{
    for (int l = 0; l < EK_LINKS; l++) {
        if (m->link[l].message.n == 0)
            continue;
        bench_say(b, "\nmessages %s, up to %lld ranks a node\n",
                  l == EK_LINK_NODE ? "inside a node" : "between nodes",
                  (long long)m->link[l].ranks_a_node);
        put_times(b, "all-to-all, a message", &m->link[l].message);
        put_times(b, "multicast, a hop", &m->link[l].hop);
    }
}

/* A kernel a line: its sizes, and its rates from the smallest point to the largest. */
static void put_kernels(const bench *b, const ek_kernel_costs *c)
{
    char rate[EK_COST_QUANTITY];

    if (c->n > 0)
        bench_say(b, "\nkernels of a step, from small to large calls\n");
    for (int32_t i = 0; i < c->n; i++) {
        const ek_kernel_cost *k = &c->cost[i];
        const ek_kernel_info *info = ek_kernel_info_of(k->kernel);
        const char *unit = k->kernel <= EK_KERNEL_ATTENTION_BACKWARD ? "FLOP/s" : "B/s";

        bench_say(b, "%-18s", info->name);
        for (int s = 0; s < EK_KERNEL_SIZES; s++)
            if (info->size_key[s] != NULL)
                bench_say(b, " %6d", (int)k->size[s]);
            else
                bench_say(b, "%7s", "");
        for (int32_t p = 0; p < k->rate.n; p++)
            bench_say(b, " %13s", ek_cost_quantity(rate, k->rate.y[p], unit));
        bench_say(b, "\n");
    }
}

json_t *bench_costs_json(const ek_plan_costs *c)
{
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f}", "compute_s_per_row", c->compute_s_per_row,
                     "comm_s_per_row", c->comm_s_per_row, "replica_s", c->replica_s,
                     "replica_bytes", c->replica_bytes, "migrate_s_per_expert",
                     c->migrate_s_per_expert, "state_bytes", c->state_bytes);
}

/* Cost factors for the layers of this model. */
static void put_plan(bench *b, const ek_plan_setting *s, const ek_plan_costs *c,
                     const ek_cost_reason *reason)
{
    char line[LINE];

    bench_say(b, "\na layer of %lld experts on %d rank%s and %d node%s, %.0f assignments a rank\n",
              (long long)s->spec->experts, (int)s->ranks, s->ranks > 1 ? "s" : "", (int)s->nodes,
              s->nodes > 1 ? "s" : "", s->rows);
    for (int i = 0; i < reason->n; i++)
        bench_say(b, "%s\n", ek_cost_line_text(&reason->line[i], line, sizeof(line)));
    bench_put(b, "costs", bench_costs_json(c));
}

static ek_status put_machine(bench *b, const ek_machine *m)
{
    char *text = NULL;
    size_t bytes = 0;
    json_t *o = NULL;
    ek_status st;

    EK_TRY_OUT(ek_machine_text(m, &text, &bytes));
    EK_TRY_OUT(ek_json_parse(text, bytes, "machine", &o));
    bench_put(b, "machine", o);
out:
    free(text);
    return st;
}

static ek_status put(bench *b, const ek_machine *m, int cached)
{
    double rows = (double)(b->cfg->micro_batch * b->cfg->seq * b->spec.top_k) / (double)m->ranks;
    ek_plan_setting s = {&b->spec, 0, (int32_t)m->ranks, (int32_t)m->nodes, rows, 0};
    ek_cost_reason reason = {0};
    ek_plan_costs c;
    char took[EK_COST_QUANTITY];

    EK_TRY(ek_plan_costs_of(m, &s, &c, &reason));
    bench_say(b, "%s\n%s in %s\n\n", m->name, cached ? "from the cache; measured" : "measured",
              ek_cost_quantity(took, m->took_s, "s"));
    put_rates(b, m);
    put_links(b, m);
    put_kernels(b, &m->kernels);
    put_plan(b, &s, &c, &reason);
    bench_put(b, "cached", json_boolean(cached));
    return put_machine(b, m);
}

static ek_status write_cluster(const bench *b, const ek_machine *m)
{
    ek_cluster *c = malloc(sizeof(*c));
    ek_status st;

    EK_REQUIRE(c != NULL, EK_ENOMEM, "no memory for a cluster");
    EK_TRY_OUT(ek_cluster_of_machine(m, c));
    EK_TRY_OUT(ek_cluster_write(c, b->cfg->cluster_out));
out:
    free(c);
    return st;
}

ek_status bench_costs(bench *b)
{
    ek_machine m;
    int cached = 0;

    EK_REQUIRE(b->cfg->cluster_out == NULL || b->job->ranks > 1, EK_EINVAL,
               "--cluster-out needs at least two ranks, between which messages are measured: run "
               "it with --ranks 2");
    bench_show_warnings(b);
    EK_TRY(bench_set_nodes(b));
    EK_TRY(bench_measure_costs(b, 0, KERNELS * b->cfg->budget, &m, &cached));
    if (b->job->rank > 0)
        return EK_OK;
    if (b->cfg->out != NULL)
        EK_TRY(ek_machine_write(&m, b->cfg->out));
    if (b->cfg->cluster_out != NULL)
        EK_TRY(write_cluster(b, &m));
    return put(b, &m, cached);
}

/* --- predicted against measured --------------------------------------------------------------- */

void bench_put_compared(bench *b, const ek_compare *c)
{
    json_t *all = json_array();
    char line[LINE];

    bench_say(b, "\npredicted and measured, a step of rank 0\n%s\n", ek_compare_head);
    for (int i = 0; i < c->n; i++) {
        const ek_compare_row *r = &c->row[i];

        bench_say(b, "%s\n", ek_compare_row_text(c, r, line, sizeof(line)));
        bench_append(
            b, all,
            json_pack("{s:s, s:I, s:o, s:f, s:b}", "op", r->name, "count", (json_int_t)r->count,
                      "predicted_ms", r->predicted ? json_real(r->predicted_s * 1e3) : json_null(),
                      "measured_ms", r->measured_s * 1e3, "parts", ek_compare_parts(c, r)));
    }
    bench_put(b, "predicted", all);
    if (ek_compare_warning(c, line, sizeof(line))[0] != '\0')
        fprintf(b->job->messages, "evenkeel bench: %s\n", line);
}

ek_status bench_predicted(bench *b, int nodes, const ek_event *events, int64_t n)
{
    ek_machine *m = calloc(1, sizeof(*m));
    ek_compare *c = calloc(1, sizeof(*c));
    ek_predict_config cfg = {.machine = m, .nodes = nodes};
    ek_status st = EK_OK;

    EK_REQUIRE_OUT(m != NULL && c != NULL, EK_ENOMEM, "no memory for predictions");
    EK_TRY_OUT(ek_machine_read(b->cfg->machine, m));
    ek_compare_begin(c);
    ek_predict_add(&cfg, events, n, c);
    ek_compare_sort(c);
    bench_put_compared(b, c);
out:
    free(m);
    free(c);
    return st;
}
