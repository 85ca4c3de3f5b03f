/* Everything before the first step of a run, in order. */
#include "base/log.h"
#include "comm/agree.h"
#include "model/hf/names.h"
#include "train/run/balance.h"
#include "train/run/layouts.h"
#include "train/run/partners.h"
#include "train/run/stages.h"

#include <stdlib.h>

static ek_status open_mesh(ek_run *r)
{
    return r->ranks > 1 ? ek_mesh_open(r->world, &r->options.sizes, &r->mesh) : EK_OK;
}

static ek_status complete_start(ek_run *r)
{
    return ek_trainer_create(r->model, &r->training, &r->trainer);
}

/* Completes the start, after weights are filled. */
static void continue_run(ek_run *r)
{
    ek_trainer_resume(r->trainer, r->first_step);
    if (r->cfg->elastic)
        ek_trainer_set_journal(r->trainer, &r->memory.state.journal, r->memory.state.extents_of);
}

static void fill_info(ek_run *r)
{
    ek_train_info *i = &r->out->info;

    i->kernels = r->kernels->name;
    i->products = r->kernels->products;
    i->threads = r->kernels->threads;
    i->params = ek_hf_elements(&r->model->spec);
    i->active_params = ek_hf_active_elements(&r->model->spec);
    i->tokens = ek_sources_tokens(&r->data.sources);
    i->first_step = r->first_step;
    i->from_memory = r->memory.step >= 0;
    i->memory_lacks = r->memory.step < 0 && r->memory.recovery.n_survivors > 0;
    i->steps = r->training.optimizer.steps;
    i->batch = r->training.batch;
    i->seq = r->training.seq;
    ek_run_stages_text(r, i->stage_layers, sizeof(i->stage_layers));
}

/* Warns of options that change the model. */
static void warn_of_gates(const ek_run *r)
{
    ek_reroute reroute = r->training.moe.reroute;

    if (r->rank == 0 && reroute != EK_REROUTE_OFF)
        ek_log("train", EK_LOG_WARN,
               "--reroute %s changes the model: tokens go to experts that "
               "the gate did not choose%s",
               r->cfg->reroute,
               reroute == EK_REROUTE_TOPOLOGY ? ", and losses depend on nodes, ranks and placement"
                                              : "");
}

static ek_status take_metrics(ek_run *r)
{
    if (r->mesh != NULL && r->mesh->ep > 1)
        r->records.routed = (int)ek_model_moe_layers(&r->source.spec);
    r->records.of_rank = calloc((size_t)r->ranks, sizeof(*r->records.of_rank));
    r->records.of_layer = calloc((size_t)r->records.routed + 1, sizeof(*r->records.of_layer));
    r->records.layer_waits =
        calloc(2 * (size_t)r->source.spec.layers, sizeof(*r->records.layer_waits));
    EK_REQUIRE(r->records.of_rank != NULL && r->records.of_layer != NULL &&
                   r->records.layer_waits != NULL,
               EK_ENOMEM, "no memory for %d ranks", r->ranks);
    return EK_OK;
}

static ek_status open_trace(ek_run *r)
{
    EK_TRY(take_metrics(r));
    if (r->rank == 0)
        EK_TRY(ek_metrics_open(r->cfg->out, r->first_step, &r->records.metrics));
    EK_TRY(ek_run_write_recovered_step(r));
    if (r->cfg->record_routing && r->rank == 0)
        EK_TRY(ek_routing_trace_open(&r->records.trace, &r->source.spec, r->cfg->out));
    if (r->cfg->record_plans && r->mesh->at == 0)
        EK_TRY(ek_plan_record_open(&r->records.plans, r->cfg->out, ek_trainer_pass(r->trainer)));
    return EK_OK;
}

/* "--zero 1 shards": what partners have copies of, and why. */
static const char *shards_text(const ek_run *r, char *text, size_t cap)
{
    if (ek_run_has_partners(&r->partners))
        return "one host alone has";
    if (r->cfg->zero == 0)
        return "--embed-columns shards";
    snprintf(text, cap, "--zero %d %s", r->cfg->zero,
             r->cfg->embed_columns ? "and --embed-columns shard" : "shards");
    return text;
}

static ek_status log_survivability(ek_run *r)
{
    const ek_train_balance *b = &r->out->balance;
    int by_experts = r->options.replicas_min > 1;
    char shards[64];

    EK_TRY(ek_run_evaluate_survivability(r));
    if (r->rank != 0 || !ek_run_has_copies(r))
        return EK_OK;
    if (by_experts)
        ek_log("balance", EK_LOG_INFO, "--replicas-min %d: the current placement %s",
               (int)r->options.replicas_min, b->survivability_text);
    else
        ek_log("elastic", EK_LOG_INFO,
               "partners on other hosts have copies of what %s: the current placement %s",
               shards_text(r, shards, sizeof(shards)), b->survivability_text);
    if (b->racks_text[0] != '\0')
        ek_log("balance", EK_LOG_INFO, "%s counts racks here: the current placement %s",
               by_experts ? "--replicas-min" : "the choice of partners", b->racks_text);
    return EK_OK;
}

/* Whether all steps, the last evaluation and the best model are in checkpoints. */
static int is_finished(const ek_run *r)
{
    int64_t saved = r->memory.step < 0 ? r->first_step : r->saves.checkpoint_step;

    if (r->eval.new_best)
        return 0;
    return (saved >= r->training.optimizer.steps && !ek_run_is_evaluation_due(r, r->first_step)) ||
           (ek_run_stops_early(r) && saved == r->first_step && saved > 0);
}

ek_status ek_run_open(ek_run *r)
{
    EK_TRY(ek_agree(r->world, "look at --out", ek_run_check_out(r)));
    EK_TRY(ek_agree(r->world, "read the settings", ek_run_read_options(r)));
    EK_TRY(ek_agree(r->world, "open the kernels", ek_run_open_kernels(r)));
    EK_TRY(ek_run_leaders_first(r, "open the data", ek_run_open_data));
    EK_TRY(ek_agree(r->world, "record the settings", ek_run_describe_settings(r)));
    EK_TRY(ek_run_check_same(r));
    EK_TRY(open_mesh(r));
    EK_TRY(ek_run_find_memory(r));
    EK_TRY(ek_run_find_start(r));
    EK_TRY(ek_run_check_host_loss(r));
    EK_TRY(ek_run_restore_eval_state(r));
    if (is_finished(r)) {
        ek_run_describe_evaluations(r);
        r->out->finished_before = 1;
        return ek_run_release_memory(r);
    }
    EK_TRY(ek_run_configure_exec(r));
    EK_TRY(ek_run_calibrate(r));
    EK_TRY(ek_run_measure_stages(r));
    ek_run_layouts_note_opening(r->layouts);
    EK_TRY(ek_agree(r->world, "lay out the model", ek_run_layout_model(r)));
    EK_TRY(ek_agree(r->world, "measure replicas", ek_run_fit_replicas(r)));
    EK_TRY(ek_run_set_costs(r));
    EK_TRY(ek_agree(r->world, "get its memory", ek_run_check_memory(r)));
    if (r->cfg->dry_run) {
        fill_info(r);
        return ek_run_dry(r);
    }
    EK_TRY(ek_agree(r->world, "start", complete_start(r)));
    if (r->cfg->elastic) /* before a host without access to --out gets state of the run; without
                            --elastic the folder is created last */
        EK_TRY(ek_run_check_shared(r));
    EK_TRY(ek_run_tell_copies(r));
    EK_TRY(ek_run_fill_model(r));
    continue_run(r);
    EK_TRY(ek_run_spread_experts(r));
    EK_TRY(ek_run_commit_state(r));
    if (ek_supervised_draining(r->cfg->supervised) > 0) { /* a start that only drains hosts */
        fill_info(r);
        if (r->hooks->started != NULL)
            r->hooks->started(r->hooks->context, &r->out->info);
        return EK_OK;
    }
    EK_TRY(ek_run_begin_saves(r));
    EK_TRY(ek_run_warn_of_loss(r));
    if (r->cfg->elastic) /* else replicas do not exist yet */
        EK_TRY(log_survivability(r));
    EK_TRY(ek_agree(r->world, "make --out", ek_run_open_out(r)));
    EK_TRY(ek_run_clear_memory(r));
    if (!r->cfg->elastic)
        EK_TRY(ek_run_check_shared(r));
    EK_TRY(ek_agree(r->world, "open the metrics", open_trace(r)));
    fill_info(r);
    ek_run_describe_memory(r);
    warn_of_gates(r);
    if (r->layouts->changes > 0)
        ek_supervised_changed(r->cfg->supervised);
    else if (r->hooks->started != NULL)
        r->hooks->started(r->hooks->context, &r->out->info);
    return EK_OK;
}
