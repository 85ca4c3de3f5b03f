/* Tables and JSON of a simulation. */
#include "sim/report.h"

#include "base/count_text.h"
#include "cost/cost.h"
#include "sim/dialect.h"

#include <inttypes.h>
#include <string.h>

const double ek_sim_factors[EK_SIM_FACTORS] = {0.25, 0.5, 1, 2, 4};

/* --- figures ---------------------------------------------------------------------------------- */

double ek_sim_peak(const ek_cluster *c, const char **what)
{
    *what = c->peak > 0 ? "peak" : "best measured product";
    return c->peak > 0 ? c->peak : ek_cost_best_product(&c->machine);
}

/* Of constant rates: the share of the peak that products are taken to reach. */
static double assumed_efficiency(const ek_cluster *c)
{
    return c->machine.rate[EK_COST_FORWARD].y[0] / c->peak;
}

const char *ek_sim_machine_text(const ek_cluster *c, char *text)
{
    char peak[EK_COST_QUANTITY], copy[EK_COST_QUANTITY];
    char name[EK_PRINTABLE_GROWTH * EK_COST_NAME];

    if (c->peak > 0)
        (void)snprintf(text, EK_SIM_MACHINE,
                       "by data sheet: %g of %s assumed, %s of memory; no kernels measured",
                       assumed_efficiency(c), ek_cost_quantity(peak, c->peak, "FLOP/s"),
                       ek_cost_quantity(copy, c->machine.copy, "B/s"));
    else if (c->machine.kernels.n > 0)
        (void)snprintf(text, EK_SIM_MACHINE, "measured: %d tables of kernels, of %s",
                       (int)c->machine.kernels.n,
                       ek_printable(name, sizeof(name), c->machine.name));
    else
        (void)snprintf(text, EK_SIM_MACHINE,
                       "measured: products of experts and copies, of %s; no other kernels",
                       ek_printable(name, sizeof(name), c->machine.name));
    return text;
}

json_t *ek_sim_machine_json(const ek_cluster *c)
{
    if (c->peak > 0)
        return json_pack("{s:b, s:f, s:f, s:i}", "measured", 0, "peak_tflops", c->peak / 1e12,
                         "efficiency", assumed_efficiency(c), "kernels", 0);
    return json_pack("{s:b, s:i}", "measured", 1, "kernels", (int)c->machine.kernels.n);
}

double ek_sim_mfu(const ek_sim_report *r)
{
    const char *what;
    double peak = ek_sim_peak(r->cluster, &what) * r->graphs->ranks * r->result->step_s;

    return peak > 0 ? r->result->flops / peak : 0;
}

double ek_sim_tokens_per_s(const ek_sim_report *r)
{
    return r->result->step_s > 0 ? (double)r->layout->step_tokens / r->result->step_s : 0;
}

const ek_sim_class *ek_sim_fullest(const ek_sim_report *r)
{
    return ek_sim_graphs_fullest(r->graphs);
}

int64_t ek_sim_node_count(const ek_sim_report *r)
{
    int64_t each = ek_cluster_node_ranks(r->cluster);

    return (r->graphs->ranks + each - 1) / each;
}

double ek_sim_quantile(const ek_sim_report *r, double q)
{
    int64_t at = (int64_t)(q * (double)(r->n_steps - 1) + 0.5);

    for (int64_t i = 0; i < r->n_steps; i++) {
        int64_t less = 0, equal = 0;

        for (int64_t k = 0; k < r->n_steps; k++) {
            less += r->steps[k] < r->steps[i];
            equal += r->steps[k] == r->steps[i];
        }
        if (less <= at && at < less + equal)
            return r->steps[i];
    }
    return 0;
}

/* --- JSON ------------------------------------------------------------------------------------- */

static json_t *parts_json(const ek_sim_parts *p)
{
    json_t *compute = json_object(), *transfer = json_object();

    for (int i = 0; i < EK_OP_GROUPS; i++)
        if (p->compute[i] > 0)
            json_object_set_new(compute, ek_op_group_name((ek_op_group)i),
                                json_real(p->compute[i] * 1e3));
    for (int i = 0; i < EK_COLLECTIVES; i++)
        if (p->transfer[i] > 0)
            json_object_set_new(transfer, ek_collective_name((ek_collective)i),
                                json_real(p->transfer[i] * 1e3));
    return json_pack("{s:o, s:o, s:f, s:f, s:f, s:f, s:f}", "compute", compute, "transfer",
                     transfer, "skew", p->skew * 1e3, "bubble", p->bubble * 1e3, "overhead",
                     p->overhead * 1e3, "other", p->other * 1e3, "end", p->end * 1e3);
}

static json_t *classes_json(const ek_sim_report *r)
{
    json_t *all = json_array();

    for (int32_t k = 0; k < r->graphs->n_classes; k++) {
        const ek_sim_class *c = &r->graphs->classes[k];

        json_array_append_new(all, json_pack("{s:i, s:i, s:i, s:i, s:f, s:f, s:o}", "stage",
                                             c->stage, "first_rank", c->ranks[0], "ranks",
                                             c->n_ranks, "ops", c->graph->n_ops, "state_mb",
                                             c->weights / 1e6, "memory_mb", c->memory / 1e6,
                                             "where_ms", parts_json(&r->result->of_class[k])));
    }
    return all;
}

static json_t *changes_json(const ek_sim_report *r)
{
    json_t *all = json_array();

    for (int i = 0; i < r->n_changes; i++)
        json_array_append_new(all, json_pack("{s:s, s:f}", "change", r->changes[i].change,
                                             "step_ms", r->changes[i].step_s * 1e3));
    return all;
}

static json_t *dialect_json(unsigned dialect)
{
    json_t *all = json_array();
    const char *word;

    for (int i = 0; (word = ek_dialect_word(dialect, i)) != NULL; i++)
        if (word[0] != '\0')
            json_array_append_new(all, json_string(word));
    return all;
}

/* Of a rank, by level. */
static json_t *traffic_json(const ek_sim_report *r)
{
    json_t *levels = json_object();

    for (int32_t l = 0; l < r->cluster->n_levels; l++)
        json_object_set_new(levels, r->cluster->level[l].name,
                            json_real(r->traffic.bytes[l] / 1e6));
    return levels;
}

static json_t *sweep_json(const ek_sim_sweep *sweep)
{
    json_t *steps = json_array();

    for (int i = 0; i < EK_SIM_FACTORS; i++)
        json_array_append_new(steps, json_real(sweep->step_s[i] * 1e3));
    return json_pack("{s:s, s:o}", "change", sweep->change, "step_ms", steps);
}

static json_t *skew_json(const ek_sim_skew *k)
{
    return json_pack("{s:f, s:f, s:f, s:f, s:f}", "share", k->share, "max_over_mean_before",
                     k->before, "max_over_mean", k->after, "off_ms", k->off_s * 1e3, "planned_ms",
                     k->planned_s * 1e3);
}

static json_t *sensitivity_json(const ek_sim_sensitivity *s)
{
    json_t *factors = json_array(), *sweeps = json_array(), *skews = json_array();

    for (int i = 0; i < EK_SIM_FACTORS; i++)
        json_array_append_new(factors, json_real(ek_sim_factors[i]));
    for (int i = 0; i < s->n_sweeps; i++)
        json_array_append_new(sweeps, sweep_json(&s->sweep[i]));
    for (int i = 0; i < s->n_skews; i++)
        json_array_append_new(skews, skew_json(&s->skew[i]));
    return json_pack("{s:o, s:o, s:s, s:o}", "factors", factors, "sweeps", sweeps, "policy",
                     s->policy, "imbalance", skews);
}

double ek_sim_price_of_run(const ek_sim_report *r)
{
    return r->cluster->node_s_price * r->failures->result.node_s;
}

double ek_sim_step_price(const ek_sim_report *r)
{
    double steps = r->failures->result.steps;

    return steps > 0 ? ek_sim_price_of_run(r) / steps : 0;
}

static json_t *failures_json(const ek_sim_report *r)
{
    const ek_sim_failures *f = r->failures;
    const ek_failures_config *c = &f->config;
    const ek_failures_result *x = &f->result;
    json_t *o = json_pack("{s:i, s:f, s:I, s:f, s:f, s:f, s:f, s:I, s:b, s:s}", "nodes", c->nodes,
                          "seconds", c->seconds, "runs", (json_int_t)c->runs, "node_mtbf_s",
                          c->mtbf_s, "recover_s", c->recover_s, "restart_s", c->restart_s, "save_s",
                          c->save_s, "save_every", (json_int_t)f->save_every, "recovers",
                          f->recovers, "survival", f->survival);
    json_t *counts =
        json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "steps", x->steps, "lost_steps",
                  x->lost_steps, "losses", x->losses, "recoveries", x->recoveries, "restarts",
                  x->restarts, "joins", x->joins, "saves", x->saves);

    json_object_update_missing(o, counts);
    json_decref(counts);
    json_object_set_new(o, "recover_assumed", json_boolean(f->recover_assumed));
    json_object_set_new(o, "restart_assumed", json_boolean(f->restart_assumed));
    json_object_set_new(o, "save_assumed", json_boolean(f->save_assumed));
    json_object_set_new(o, "goodput", json_real(x->goodput));
    json_object_set_new(o, "goodput_error", json_real(x->error));
    json_object_set_new(o, "ettr", json_real(x->ettr));
    json_object_set_new(o, "wait_s", json_real(x->wait_s));
    json_object_set_new(o, "node_s", json_real(x->node_s));
    if (r->cluster->node_s_price > 0) {
        json_object_set_new(o, "step_price", json_real(ek_sim_step_price(r)));
        json_object_set_new(o, "price", json_real(ek_sim_price_of_run(r)));
    }
    return o;
}

void ek_sim_write_json(const ek_sim_report *r, FILE *out)
{
    const ek_sim_layout *l = r->layout;
    const ek_sim_class *most = ek_sim_fullest(r);
    json_t *layout = json_pack("{s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i}", "ranks",
                               r->graphs->ranks, "pp", l->pp, "dp", l->dp, "tp", l->tp, "edp",
                               l->edp, "ep", l->ep, "etp", l->etp, "zero", l->zero);
    json_t *memory =
        json_pack("{s:f, s:f, s:f, s:i, s:f}", "state", most->weights / 1e6, "activations",
                  (most->memory - most->weights) / 1e6, "all", most->memory / 1e6, "rank",
                  most->ranks[0], "of", r->cluster->memory / 1e6);
    json_t *o = json_pack(
        "{s:s, s:I, s:I, s:s, s:o, s:f, s:f, s:f, s:I, s:o, s:o, s:o, s:f}", "cluster",
        r->cluster->name, "params", (json_int_t)l->params, "active_params",
        (json_int_t)l->active_params, "dtype", l->dtype, "layout", layout, "step_ms",
        r->result->step_s * 1e3, "tokens_per_s", ek_sim_tokens_per_s(r), "mfu", ek_sim_mfu(r),
        "step_tokens", (json_int_t)l->step_tokens, "memory_mb", memory, "where_ms",
        parts_json(&r->result->parts), "classes", classes_json(r), "took_s", r->took_s);

    if (r->balance != NULL) {
        const ek_sim_balance *b = r->balance;

        json_object_set_new(
            o, "balance",
            json_pack("{s:s, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "policy",
                      l->planner != NULL ? l->planner->name : "off", "steps",
                      (json_int_t)r->n_steps, "step_ms_p10", ek_sim_quantile(r, 0.1) * 1e3,
                      "step_ms_p90", ek_sim_quantile(r, 0.9) * 1e3, "max_over_mean_before",
                      b->before, "max_over_mean", b->after, "replicas_a_layer", b->replicas,
                      "plan_us", b->plan_s * 1e6, "replicas", b->step_replicas, "replicas_ahead",
                      b->step_ahead, "replica_mb", b->step_bytes / 1e6));
    }
    if (l->planner != NULL && l->planner->enforces_replicas_min && l->replicas_min > 1)
        json_object_set_new(o, "copies",
                            json_pack("{s:i, s:i, s:i}", "nodes", l->copies, "replicas_min",
                                      l->replicas_min, "spare_slots", l->spare_slots));
    else if (l->copies_lengthen > 0)
        json_object_set_new(o, "copies", json_pack("{s:f}", "would_lengthen", l->copies_lengthen));
    json_object_set_new(o, "engine", json_string(r->engine));
    json_object_set_new(o, "machine", ek_sim_machine_json(r->cluster));
    if (r->dialect != 0)
        json_object_set_new(o, "dialect", dialect_json(r->dialect));
    json_object_set_new(o, "sent_mb", traffic_json(r));
    if (r->n_changes > 0)
        json_object_set_new(o, "what_if", changes_json(r));
    if (r->sensitivity != NULL)
        json_object_set_new(o, "sensitivity", sensitivity_json(r->sensitivity));
    if (r->failures != NULL)
        json_object_set_new(o, "failures", failures_json(r));
    json_dumpf(o, out, 0);
    fputc('\n', out);
    json_decref(o);
}

/* --- text ------------------------------------------------------------------------------------- */

double ek_sim_part(const ek_sim_parts *p, int i, char *name, size_t cap)
{
    static const char *const waits[] = {"waits for ranks of a group", "waits for stages (bubble)",
                                        "waits for disk and copies", "waits at the end"};
    const double seconds[] = {p->skew, p->bubble, p->other, p->end};
    int n = i;

    if (n < EK_OP_GROUPS) {
        (void)snprintf(name, cap, "%s",
                       n == EK_OP_GROUP_OTHER ? "other computation"
                                              : ek_op_group_name((ek_op_group)n));
        return p->compute[n];
    }
    n -= EK_OP_GROUPS;
    if (n == 0) {
        (void)snprintf(name, cap, "processor, for messages");
        return p->overhead;
    }
    n--;
    if (n < EK_COLLECTIVES) {
        (void)snprintf(name, cap, "exposed: %s", ek_collective_name((ek_collective)n));
        return p->transfer[n];
    }
    n -= EK_COLLECTIVES;
    (void)snprintf(name, cap, "%s", waits[n]);
    return seconds[n];
}

static void put_parts(const ek_sim_report *r, FILE *out)
{
    double step = r->result->step_s;
    char text[EK_COST_QUANTITY], name[EK_SIM_PART_NAME];

    fprintf(out, "\nwhere the time goes, mean of the ranks\n");
    for (int i = 0; i < EK_SIM_PARTS; i++) {
        double s = ek_sim_part(&r->result->parts, i, name, sizeof(name));

        if (s > 0.0005 * step)
            fprintf(out, "  %-32s %10s %5.1f %%\n", name, ek_cost_quantity(text, s, "s"),
                    100 * s / step);
    }
}

static double computation(const ek_sim_parts *p)
{
    double s = 0;

    for (int i = 0; i < EK_OP_GROUPS; i++)
        s += p->compute[i];
    return s;
}

static void put_stages(const ek_sim_report *r, FILE *out)
{
    double step = r->result->step_s;
    char memory[16];

    if (r->graphs->n_classes == 1)
        return;
    fprintf(out, "\n  stage   ranks  computation  transfers   waits      memory\n");
    for (int32_t k = 0; k < r->graphs->n_classes; k++) {
        const ek_sim_class *c = &r->graphs->classes[k];
        const ek_sim_parts *p = &r->result->of_class[k];
        double waits = p->skew + p->bubble + p->other + p->end;
        double busy = computation(p) + p->overhead;

        fprintf(out, "  %5d %7d %10.1f %% %8.1f %% %6.1f %% %10sB\n", (int)c->stage,
                (int)c->n_ranks, 100 * busy / step, 100 * (step - waits - busy) / step,
                100 * waits / step, ek_count_text(memory, sizeof(memory), c->memory));
    }
}

static void put_memory(const ek_sim_report *r, FILE *out)
{
    const ek_sim_class *most = ek_sim_fullest(r);
    char a[16], b[16], c[16], d[32];

    fprintf(out, "memory    %sB on rank %d: %sB of weights and optimizer state, %sB of activations",
            ek_count_text(a, sizeof(a), most->memory), (int)most->ranks[0],
            ek_count_text(b, sizeof(b), most->weights),
            ek_count_text(c, sizeof(c), most->memory - most->weights));
    if (r->cluster->memory > 0)
        fprintf(out, "; a rank has %s%s", ek_memory_text(d, sizeof(d), r->cluster->memory),
                most->memory > r->cluster->memory ? ", which is too little" : "");
    fprintf(out, "\n");
}

static void put_traffic(const ek_sim_report *r, FILE *out)
{
    double all = 0;
    char text[16], name[EK_PRINTABLE_GROWTH * EK_CLUSTER_NAME];

    for (int32_t l = 0; l < r->cluster->n_levels; l++)
        all += r->traffic.bytes[l];
    if (all == 0)
        return;
    fprintf(out, "sends     %s a rank:", ek_bytes_text(text, sizeof(text), all));
    for (int32_t l = 0; l < r->cluster->n_levels; l++)
        fprintf(out, "%s %s %s", l > 0 ? "," : "",
                ek_printable(name, sizeof(name), r->cluster->level[l].name),
                ek_bytes_text(text, sizeof(text), r->traffic.bytes[l]));
    fprintf(out, "%s\n", r->balance != NULL ? " (with even loads)" : "");
}

/* Copies of experts that a policy keeps, or that were left out. */
static void put_copies(const ek_sim_report *r, FILE *out)
{
    const ek_sim_layout *l = r->layout;

    if (l->planner != NULL && l->planner->enforces_replicas_min && l->replicas_min > 1)
        fprintf(out, "copies    %s on %d node%s: --replicas-min %d --spare-slots %d%s\n",
                l->copies < l->replicas_min ? "some experts are only" : "every expert is",
                (int)l->copies, l->copies > 1 ? "s" : "", (int)l->replicas_min, (int)l->spare_slots,
                l->copies < l->replicas_min ? ", for which nodes or slots do not suffice" : "");
    else if (l->copies_lengthen > 0)
        fprintf(out,
                "copies    every expert is on one node: two would lengthen a step by %.*f %%, and "
                "--elastic or --replicas-min 2 would keep them\n",
                ek_decimals(100 * l->copies_lengthen), 100 * l->copies_lengthen);
}

static void put_balance(const ek_sim_report *r, FILE *out)
{
    const ek_sim_balance *b = r->balance;
    char low[EK_COST_QUANTITY], high[EK_COST_QUANTITY], plan[EK_COST_QUANTITY], replicas[16],
        step[16], ahead[16], bytes[16];

    if (b == NULL)
        return;
    fprintf(out, "steps     %" PRId64 " of the trace: 80 %% within %s and %s\n", r->n_steps,
            ek_cost_quantity(low, ek_sim_quantile(r, 0.1), "s"),
            ek_cost_quantity(high, ek_sim_quantile(r, 0.9), "s"));
    fprintf(out,
            "balance   %s: max/mean %.3f with primary copies only, %.3f as planned; "
            "%s replicas a layer; per step %s (%s sent before the gate, %s); %s a plan\n",
            r->layout->planner != NULL ? r->layout->planner->name : "off", b->before, b->after,
            ek_number_text(replicas, sizeof(replicas), b->replicas),
            ek_number_text(step, sizeof(step), b->step_replicas),
            ek_number_text(ahead, sizeof(ahead), b->step_ahead),
            ek_bytes_text(bytes, sizeof(bytes), b->step_bytes),
            ek_cost_quantity(plan, b->plan_s, "s"));
}

static void put_changes(const ek_sim_report *r, FILE *out)
{
    char text[EK_COST_QUANTITY], name[EK_PRINTABLE_GROWTH * EK_CLUSTER_NAME];

    for (int i = 0; i < r->n_changes; i++)
        fprintf(out, "%s  %-32s %10s, %.3f times as fast\n", i == 0 ? "\nwhat if\n" : "",
                ek_printable(name, sizeof(name), r->changes[i].change),
                ek_cost_quantity(text, r->changes[i].step_s, "s"),
                r->result->step_s / r->changes[i].step_s);
}

static const char *assumed(int is)
{
    return is ? " (assumed)" : "";
}

static void put_losses(const ek_sim_failures *f, FILE *out)
{
    const ek_failures_config *c = &f->config;
    const ek_failures_result *x = &f->result;
    char a[32], b[32], restarts[16];

    if (f->recorded > 0)
        fprintf(out, "\nfailures  recorded, %d of %d instances, %s", (int)c->nodes,
                (int)f->recorded, ek_time_text(a, sizeof(a), c->seconds));
    else
        fprintf(out, "\nfailures  of a node every %s; mean of %" PRId64 " run%s of %s",
                ek_time_text(a, sizeof(a), c->mtbf_s), c->runs, c->runs > 1 ? "s" : "",
                ek_time_text(b, sizeof(b), c->seconds));
    fprintf(out, ": %s node%s lost, %s recover%s, %s restart%s from a checkpoint\n",
            ek_number_text(a, sizeof(a), x->losses), x->losses == 1 ? "" : "s",
            ek_number_text(b, sizeof(b), x->recoveries), x->recoveries == 1 ? "y" : "ies",
            ek_number_text(restarts, sizeof(restarts), x->restarts), x->restarts == 1 ? "" : "s");
    fprintf(out, "experts   %s\n", f->recovers ? f->survival : "every loss restarts");
    fprintf(out, "costs     recovery %s%s, restart %s%s, ", ek_cost_quantity(a, c->recover_s, "s"),
            assumed(f->recover_assumed), ek_cost_quantity(b, c->restart_s, "s"),
            assumed(f->restart_assumed));
}

static void put_failures(const ek_sim_report *r, FILE *out)
{
    const ek_sim_failures *f = r->failures;
    const ek_failures_result *x;
    char a[32], b[16], lost[16];

    if (f == NULL)
        return;
    x = &f->result;
    put_losses(f, out);
    fprintf(out, "save %s%s, ", ek_cost_quantity(a, f->config.save_s, "s"),
            assumed(f->save_assumed));
    if (f->save_every > 0)
        fprintf(out, "one every %" PRId64 " step%s\n", f->save_every,
                f->save_every == 1 ? "" : "s");
    else
        fprintf(out, "none is made\n");
    fprintf(out, "goodput   %.4f of an undisturbed run", x->goodput);
    if (x->error > 0)
        fprintf(out, " +- %.2g", x->error);
    fprintf(out, "; ETTR %.4f; %s step%s, %s more %s lost; waits for nodes %s\n", x->ettr,
            ek_number_text(b, sizeof(b), x->steps), x->steps == 1 ? "" : "s",
            ek_number_text(lost, sizeof(lost), x->lost_steps), x->lost_steps == 1 ? "was" : "were",
            ek_time_text(a, sizeof(a), x->wait_s));
    if (r->cluster->node_s_price > 0)
        fprintf(out, "price     %s a step, %s in all\n",
                ek_number_text(a, sizeof(a), ek_sim_step_price(r)),
                ek_number_text(b, sizeof(b), ek_sim_price_of_run(r)));
}

const char *ek_sim_engine_note(const char *engine)
{
    if (strcmp(engine, "messages") == 0)
        return ", message by message";
    return strcmp(engine, "flow") == 0 ? ", with links that ranks share" : "";
}

static void put_end(const ek_sim_report *r, FILE *out)
{
    char text[EK_COST_QUANTITY];

    fprintf(out, "\n%sSimulated in %s%s.\n",
            r->balance == NULL ? "Loads of experts are even, as with --force-balance. " : "",
            ek_cost_quantity(text, r->took_s, "s"), ek_sim_engine_note(r->engine));
}

void ek_sim_write_text(const ek_sim_report *r, FILE *out)
{
    const ek_sim_layout *l = r->layout;
    char a[EK_COST_QUANTITY], b[EK_COST_QUANTITY], c[EK_COST_QUANTITY], mfu[16];
    char name[EK_PRINTABLE_GROWTH * EK_CLUSTER_NAME];
    char words[EK_DIALECT_TEXT], machine[EK_SIM_MACHINE];
    const char *what;
    double peak = ek_sim_peak(r->cluster, &what);

    fprintf(out, "cluster   %s: %d rank%s on %" PRId64 " node%s\n",
            ek_printable(name, sizeof(name), r->cluster->name), (int)r->graphs->ranks,
            r->graphs->ranks > 1 ? "s" : "", ek_sim_node_count(r),
            ek_sim_node_count(r) > 1 ? "s" : "");
    fprintf(out, "machine   %s\n", ek_sim_machine_text(r->cluster, machine));
    fprintf(out, "model     %s parameters, %s active for a token; %s\n",
            ek_count_text(a, sizeof(a), (double)l->params),
            ek_count_text(b, sizeof(b), (double)l->active_params), l->dtype);
    fprintf(out, "layout    pp %d, dp %d, tp %d; experts edp %d, ep %d, etp %d; zero %d\n", l->pp,
            l->dp, l->tp, l->edp, l->ep, l->etp, l->zero);
    fprintf(out, "step      %s for %s tokens: %s tokens/s\n",
            ek_cost_quantity(a, r->result->step_s, "s"),
            ek_count_text(b, sizeof(b), (double)l->step_tokens),
            ek_number_text(c, sizeof(c), ek_sim_tokens_per_s(r)));
    fprintf(out, "MFU       %s of %s (%s)\n", ek_number_text(mfu, sizeof(mfu), ek_sim_mfu(r)),
            ek_cost_quantity(a, peak, "FLOP/s"), what);
    if (r->dialect != 0)
        fprintf(out, "as other programs: %s\n", ek_dialect_text(r->dialect, words, sizeof(words)));
    put_balance(r, out);
    put_copies(r, out);
    put_memory(r, out);
    put_traffic(r, out);
    put_parts(r, out);
    put_stages(r, out);
    put_changes(r, out);
    put_failures(r, out);
    put_end(r, out);
}
