/* Predicts what copies of experts cost from the machine that planners use. */
#include "train/run/copies.h"

#include "balance/copy_costs.h"
#include "comm/agree.h"
#include "model/hf/names.h"
#include "train/timing/layer_costs.h"

#include <math.h>

/* Rows of a rank in a layer and micro-batch. */
static double rows_of_rank(const ek_run *r)
{
    const ek_trainer_config *t = &r->training;
    int64_t top_k = t->top_k > 0 ? t->top_k : r->source.spec.top_k;

    return (double)(t->micro_batch * t->seq * top_k) / r->mesh->stage_size;
}

int64_t ek_run_expert_rows(const ek_run *r)
{
    double rows = rows_of_rank(r) * r->mesh->ep * r->mesh->etp / (double)r->source.spec.experts;

    return rows > 1 ? (int64_t)rows : 1;
}

/* Seconds of a rank's dense products and attention in a step: products at the rate of experts'
 * ones, 6 FLOPs for each token and weight that it multiplies. */
static double dense_seconds(const ek_run *r, const ek_machine *m, const ek_plan_costs *of_layer)
{
    const ek_model_spec *s = &r->source.spec;
    const ek_trainer_config *t = &r->training;
    int64_t top_k = t->top_k > 0 ? t->top_k : s->top_k;
    double of_expert = 3.0 * (double)s->hidden * (double)s->ff;
    double experts = (double)(ek_model_moe_layers(s) * top_k) * of_expert;
    double embedding = s->tie_embeddings ? 0 : (double)s->vocab * (double)s->hidden;
    double dense = (double)ek_hf_active_elements(s) - experts - embedding;
    double of_weight = of_layer->compute_s_per_row / of_expert;
    double of_token = of_weight * dense + m->training.attention_s * (double)s->layers;

    return of_token * (double)(t->batch * t->seq) / r->ranks;
}

/* Of further copies, those that serve rows beside another one: with `auto`, few (few_copies.h). */
static double serving_part(const ek_planner *p)
{
    return p == &ek_planner_replicate ? 1 : 0.25;
}

/* The part on this rank's stage, of a machine in training. */
static ek_status predict_stage(const ek_run *r, const ek_machine *m, int32_t copies, double *part,
                               double *step_s)
{
    const ek_mesh *mesh = r->mesh;
    const ek_trainer_config *t = &r->training;
    ek_model_spec cut = r->source.spec;
    int64_t layers = (ek_model_moe_layers(&cut) + mesh->pp - 1) / mesh->pp;
    ek_copy_setting s = {.layer = {.spec = &cut,
                                   .ranks = mesh->ep * mesh->etp,
                                   .nodes = ek_layer_nodes(mesh),
                                   .rows = rows_of_rank(r)},
                         .layers = (int32_t)(layers > 0 ? layers : 1),
                         .batches = (int32_t)ek_batch_micros(t->batch, t->micro_batch),
                         .copies = copies,
                         .split = serving_part(r->training.moe.planner),
                         .overlap = 0.5 /* the processors that compute move the messages, too */};
    ek_plan_costs of_layer;
    ek_copy_costs c;

    cut.ff = (cut.ff + mesh->etp - 1) / mesh->etp;
    EK_TRY(ek_plan_costs_of(m, &s.layer, &of_layer, NULL));
    EK_TRY(ek_copy_costs_of(m, &s, &c, NULL));
    *step_s = c.step_s + dense_seconds(r, m, &of_layer);
    *part = c.added_s / *step_s;
    return EK_OK;
}

ek_status ek_run_predict_copies(const ek_run *r, int32_t copies, double *part, double *step_s)
{
    ek_machine m;

    *part = *step_s = -1;
    if (r->costs.machine == NULL)
        return EK_OK;
    ek_machine_in_training(r->costs.machine, &m);
    EK_TRY(ek_agree(r->world, "predict the cost of copies",
                    predict_stage(r, &m, copies, part, step_s)));
    EK_TRY(ek_maximum(r->world, part)); /* processors may round differently */
    return ek_maximum(r->world, step_s);
}

/* Seconds between checkpoints; 0: as the run chooses; the rest of the run if nothing is saved. */
static double seconds_between_saves(const ek_run *r, double step_s)
{
    const ek_train_config *c = r->cfg;
    int64_t left = r->training.optimizer.steps - r->first_step;

    if (c->save_seconds > 0)
        return (double)c->save_seconds;
    if (c->save_every == 0)
        return (double)(left > 0 ? left : 1) * step_s;
    return c->save_every > 0 ? (double)c->save_every * step_s : 0;
}

/* Which part of its time the run is expected to lose more without copies than with them, by saves
 * and by steps that losses of hosts make it repeat. */
static ek_status expected_losses(const ek_run *r, double step_s, double *part)
{
    const ek_train_config *c = r->cfg;
    ek_save_history seen = {0};
    ek_loss_risk alone = {.hosts = ek_run_count_hosts(r), .p1 = 1, .p2 = 1}, copied = alone;
    double prior_s = c->host_mtbf * 3600, every_s = seconds_between_saves(r, step_s);
    int never = c->save_every == 0 && c->save_seconds == 0;
    double bytes = 3 * (double)ek_dtype_size(r->kernels->real) *
                   (double)ek_hf_elements(&r->source.spec) / r->ranks; /* weights and moments */

    if (c->supervised != NULL) {
        seen.lost = (double)c->supervised->lost_hosts;
        seen.host_s = c->supervised->host_s;
    }
    copied.p1 = 0;
    *part = ek_save_waste(&seen, &alone, prior_s, bytes, every_s, never) -
            ek_save_waste(&seen, &copied, prior_s, bytes, every_s, never);
    return ek_minimum(r->world, part); /* processors may round differently */
}

ek_status ek_run_weigh_copies(const ek_run *r, double lengthen, double step_s, ek_copies_costs *out)
{
    static const double accepted = 0.05;

    *out = (ek_copies_costs){.lengthen = lengthen};
    if (lengthen < 0)
        return EK_OK;
    EK_TRY(expected_losses(r, step_s, &out->losses));
    out->left_out =
        r->cfg->elastic == EK_ELASTIC_BY_DEFAULT && lengthen > fmax(accepted, out->losses);
    return EK_OK;
}
