/* A run's summary as JSON. */
#include "train/output/summary_json.h"

#include "base/json.h"
#include "moe/stats.h"

#include <math.h>

/* null for values that are not finite, which JSON cannot represent. */
static json_t *json_number(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

double ek_summary_rb(const ek_train_balance *b)
{
    return ek_moe_rb(b->deviation_before, b->deviation_after);
}

static json_t *balance_json(const ek_train_balance *b)
{
    json_t *o = json_pack(
        "{s:s, s:f, s:f, s:f, s:f, s:o, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "policy",
        b->policy, "rank_max_over_mean_before", b->before, "rank_max_over_mean", b->after,
        "rank_deviation_before", b->deviation_before, "rank_deviation", b->deviation_after, "rb",
        json_number(ek_summary_rb(b)), "replicas", b->replicas, "replicas_ahead", b->replicas_ahead,
        "replica_mb", b->replica_bytes / 1e6, "experts_moved", b->experts_moved, "plan_ms",
        b->plan_s * 1e3, "replica_wait_ms", b->waited_s * 1e3, "step_ms", b->step_s * 1e3,
        "saved_ms", b->saved_s * 1e3, "slowest_rank", b->slowest_rank);
    json_t *survivability, *copies = NULL;

    if (b->survivability_text[0] == '\0')
        return o;
    if (b->copies_lengthen > 0 || b->copies_kept)
        copies = json_pack("{s:b, s:b}", "kept", b->copies_kept, "left_out", b->copies_left_out);
    if (b->copies_lengthen > 0)
        json_object_update_new(copies, json_pack("{s:f, s:f}", "would_lengthen", b->copies_lengthen,
                                                 "losses_cost", b->losses_cost));
    if (copies != NULL)
        json_object_set_new(o, "copies", copies);
    json_object_set_new(o, "survives", json_integer(b->survives));
    json_object_set_new(o, "survival", survivability = json_array());
    for (int k = 0; k < EK_TRAIN_LOST && k + 1 < b->hosts; k++)
        json_array_append_new(survivability, json_real(b->survivability[k]));
    return o;
}

static void add_evaluations(json_t *o, const ek_train_evaluation *e)
{
    json_t *best = e->best_checkpoint[0] != '\0' ? ek_json_text_of(e->best_checkpoint) : NULL;

    if (e->step > 0)
        json_object_set_new(
            o, "evaluation",
            json_pack("{s:I, s:I, s:f, s:o, s:I, s:f, s:o, s:I, s:b, s:o*}", "count",
                      (json_int_t)e->count, "step", (json_int_t)e->step, "loss", e->loss,
                      "perplexity", json_number(exp(e->loss)), "best_step",
                      (json_int_t)e->best_step, "best_loss", e->best_loss, "best_perplexity",
                      json_number(exp(e->best_loss)), "since_best", (json_int_t)e->since_best,
                      "stopped_early", e->stopped_early, "best_checkpoint", best));
}

static json_t *checkpoints_json(const ek_train_checkpoints *c)
{
    return json_pack("{s:I, s:f, s:f, s:f, s:I, s:I, s:f, s:s}", "interval_steps",
                     (json_int_t)c->interval_steps, "interval_s", c->interval_s, "save_s",
                     c->save_s, "mtbf_s", c->mtbf_s, "hosts_lost", (json_int_t)c->hosts_lost,
                     "saved", (json_int_t)c->saved, "paid_s", c->paid_s, "reason", c->reason);
}

json_t *ek_summary_layer_json(const ek_train_layer *l)
{
    return json_pack("{s:I, s:o, s:f, s:f, s:f, s:f, s:b}", "layer", (json_int_t)l->layer, "r_cc",
                     json_number(l->r_cc), "achieved_gflops", l->achieved / 1e9,
                     "semi_ideal_gflops", l->semi_ideal / 1e9, "ideal_gflops", l->ideal / 1e9,
                     "peak_gflops", l->peak / 1e9, "measured", l->measured);
}

json_t *ek_summary_cost_json(const ek_train_cost *c)
{
    int predicted = c->predicted_s >= 0;

    return json_pack("{s:s, s:I, s:o, s:f, s:o}", "op", c->op, "count", (json_int_t)c->count,
                     "predicted_ms", predicted ? json_real(c->predicted_s * 1e3) : json_null(),
                     "measured_ms", c->measured_s * 1e3, "ratio",
                     c->predicted_s > 0 ? json_real(c->measured_s / c->predicted_s) : json_null());
}

json_t *ek_summary_json(const ek_train_summary *s, int ranks)
{
    json_t *o = json_pack(
        "{s:i, s:I, s:o, s:f, s:f, s:I, s:I, s:f, s:f, s:o}", "ranks", ranks, "steps",
        (json_int_t)s->end.step, "loss", json_number(s->end.loss), "tokens_per_s", s->tokens_per_s,
        "seconds", s->end.seconds, "params", (json_int_t)s->info.params, "active_params",
        (json_int_t)s->info.active_params, "peak_rss_mb", (double)s->peak_rss_bytes / 1e6,
        "predicted_rss_mb", (double)s->info.predicted_bytes / 1e6, "checkpoint",
        ek_json_text_of(s->checkpoint));

    json_object_set_new(o, "spikes", json_integer(s->spikes));
    json_object_set_new(o, "pp_layers", json_string(s->info.stage_layers));
    add_evaluations(o, &s->evaluation);
    if (s->checkpoints.automatic)
        json_object_set_new(o, "checkpoints", checkpoints_json(&s->checkpoints));
    if (s->layouts.n > 0)
        json_object_set_new(o, "layout",
                            json_pack("{s:s, s:I}", "options", s->layouts.options, "changes",
                                      (json_int_t)s->layouts.changes));
    if (s->balance.policy != NULL)
        json_object_set_new(o, "balance", balance_json(&s->balance));
    return o;
}
