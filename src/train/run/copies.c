/* Predicts what copies of experts cost from the machine that planners use. */
#include "train/run/copies.h"

#include "balance/copy_costs.h"
#include "comm/agree.h"
#include "model/hf/names.h"
#include "train/timing/layer_costs.h"

#include <math.h>

/* Seconds of a rank's dense products in a step, at the rate of experts' ones: 6 FLOPs for each
 * token and weight that it multiplies. */
static double dense_seconds(const ek_run *r, const ek_plan_costs *of_layer)
{
    const ek_model_spec *s = &r->source.spec;
    const ek_trainer_config *t = &r->training;
    int64_t top_k = t->top_k > 0 ? t->top_k : s->top_k;
    double of_expert = 3.0 * (double)s->hidden * (double)s->ff;
    double experts = (double)(ek_model_moe_layers(s) * top_k) * of_expert;
    double embedding = s->tie_embeddings ? 0 : (double)s->vocab * (double)s->hidden;
    double dense = (double)ek_hf_active_elements(s) - experts - embedding;
    double of_weight = of_layer->compute_s_per_row / of_expert;

    return of_weight * dense * (double)(t->batch * t->seq) / r->ranks;
}

/* Of further copies, those that serve rows beside another one: with `auto`, few (few_copies.h). */
static double serving_part(const ek_planner *p)
{
    return p == &ek_planner_replicate ? 1 : 0.25;
}

/* The part on this rank's stage. */
static ek_status predict_stage(const ek_run *r, int32_t copies, double *part)
{
    const ek_mesh *mesh = r->mesh;
    const ek_trainer_config *t = &r->training;
    ek_model_spec cut = r->source.spec;
    int64_t top_k = t->top_k > 0 ? t->top_k : cut.top_k;
    int64_t layers = (ek_model_moe_layers(&cut) + mesh->pp - 1) / mesh->pp;
    ek_copy_setting s = {
        .layer = {.spec = &cut,
                  .ranks = mesh->ep * mesh->etp,
                  .nodes = ek_layer_nodes(mesh),
                  .rows = (double)(t->micro_batch * t->seq * top_k) / mesh->stage_size},
        .layers = (int32_t)(layers > 0 ? layers : 1),
        .batches = (int32_t)ek_batch_micros(t->batch, t->micro_batch),
        .copies = copies,
        .split = serving_part(r->training.moe.planner),
        .shares_processor = 1 /* that computes: no overlap is promised where it cannot be known */};
    ek_plan_costs of_layer;
    ek_copy_costs c;

    cut.ff = (cut.ff + mesh->etp - 1) / mesh->etp;
    EK_TRY(ek_plan_costs_of(r->costs.machine, &s.layer, &of_layer, NULL));
    EK_TRY(ek_copy_costs_of(r->costs.machine, &s, &c, NULL));
    *part = c.added_s / (c.step_s + dense_seconds(r, &of_layer));
    return EK_OK;
}

ek_status ek_run_predict_copies(const ek_run *r, int32_t copies, double *part)
{
    *part = -1;
    if (r->costs.machine == NULL)
        return EK_OK;
    EK_TRY(ek_agree(r->world, "predict the cost of copies", predict_stage(r, copies, part)));
    *part = -*part;
    EK_TRY(ek_minimum(r->world, part)); /* processors may round differently */
    *part = -*part;
    return EK_OK;
}
