/* Reads the options of a run into its configuration, checks them, and describes them for
 * checkpoints and run.json. */
#include "base/json.h"
#include "base/option_value.h"
#include "tensor/select/select.h"
#include "train/batch.h"
#include "train/output/run_file.h"
#include "train/run/balance.h"
#include "train/run/layouts.h"
#include "train/run/shares.h"
#include "train/run/stages.h"
#include "train/settings/settings.h"

#include <string.h>

/* Training defaults of a preset. */
typedef struct {
    const char *name;
    int64_t batch, micro_batch, seq, steps;
} training_preset;

static const training_preset presets[] = {
    {"tiny", 8, 8, 256, 1500},
    {"small", 32, 32, 256, 1000},
    {"base", 32, 4, 1024, 10000},
    {"", 8, 0, 256, 100},
};

static int64_t first_of(int64_t a, int64_t b)
{
    return a > 0 ? a : b;
}

static void fill_training(ek_run *r)
{
    const ek_train_config *c = r->cfg;
    const training_preset *p = presets;
    ek_trainer_config *t = &r->training;

    while (p->name[0] != '\0' && strcmp(p->name, r->source.preset) != 0)
        p++;
    t->batch = first_of(c->batch, p->batch);
    t->seq = first_of(c->seq, p->seq);
    t->micro_batch = first_of(c->micro_batch, first_of(p->micro_batch, t->batch));
    if (c->micro_batch == 0 && t->micro_batch > t->batch) /* the preset's */
        t->micro_batch = t->batch;
    t->aux_coef = c->aux_coef;
    t->z_coef = c->z_coef;
    t->capacity_factor = c->capacity_factor;
    t->top_k = c->top_k;
    t->seed = c->seed;
    t->optimizer = (ek_optimizer_config){.lr = c->lr,
                                         .min_lr = c->min_lr >= 0 ? c->min_lr : c->lr / 10,
                                         .cosine = strcmp(c->lr_schedule, "cosine") == 0,
                                         .steps = first_of(c->steps, p->steps),
                                         .decay = c->wd,
                                         .beta1 = c->beta1,
                                         .beta2 = c->beta2,
                                         .eps = c->eps,
                                         .clip = c->clip};
    t->optimizer.warmup = c->warmup >= 0 ? c->warmup : t->optimizer.steps / 100;
}

static ek_status read_words(ek_run *r)
{
    const ek_train_config *c = r->cfg;
    int recompute = ek_option_choice_index("off|attention|full", c->recompute);
    int a2a = ek_option_choice_index("linear|pairwise|2dh|auto", c->a2a);
    int reroute = ek_option_choice_index("off|topology|swipe", c->reroute);

    EK_REQUIRE(c->timeline_steps > 0, EK_EINVAL, "--timeline-steps %lld is not at least 1",
               (long long)c->timeline_steps);
    EK_REQUIRE(c->n_eval_data > 0 || (c->eval_every == 0 && c->patience == 0), EK_EINVAL,
               "%s without --eval-data: give --eval-data, or leave it out",
               c->patience > 0 ? "--patience" : "--eval-every");
    EK_REQUIRE(ek_option_choice_index("sequential|shuffled", c->data_order) >= 0, EK_EINVAL,
               "no data order %s", c->data_order);
    EK_REQUIRE(ek_option_choice_index("constant|cosine", c->lr_schedule) >= 0, EK_EINVAL,
               "no learning rate schedule %s", c->lr_schedule);
    EK_REQUIRE(recompute >= 0, EK_EINVAL, "no recomputation %s", c->recompute);
    r->options.shuffled = strcmp(c->data_order, "shuffled") == 0;
    EK_REQUIRE(a2a >= 0, EK_EINVAL, "no all-to-all %s", c->a2a);
    EK_REQUIRE(reroute >= 0, EK_EINVAL, "no re-routing %s", c->reroute);
    EK_REQUIRE(c->zero >= 0 && c->zero <= 3, EK_EINVAL, "--zero %d is not from 0 to 3", c->zero);
    EK_REQUIRE(
        !c->force_balance || c->replay_routing == NULL, EK_EINVAL,
        "--force-balance and --replay-routing each replace the gate's choice: leave one out");
    r->training.recompute = (ek_recompute)recompute;
    r->training.moe = (ek_moe_config){.degree = c->pipeline_degree > 0 ? c->pipeline_degree : 1,
                                      .a2a = a2a < 3 ? (ek_a2a)a2a : EK_A2A_LINEAR,
                                      .smart_group = c->smart_group,
                                      .force_balance = c->force_balance,
                                      .reroute = (ek_reroute)reroute,
                                      .reroute_limit = c->reroute_limit};
    r->training.tune_degree = c->pipeline_degree <= 0;
    r->training.tune_a2a = a2a == 3;
    EK_TRY(ek_run_read_balance(r));
    return ek_mode_parse(c->dtype, c->device, &r->options.mode);
}

/* Limits micro-batches: each has its own ops in the graph, some kilobytes per layer. */
enum { MICRO_BATCHES_MAX = 16384 };

static ek_status check_sizes(const ek_run *r)
{
    const ek_trainer_config *t = &r->training;
    int64_t limit = ek_model_longest(&r->source.spec), window = r->source.spec.sliding_window;
    int64_t micros = ek_batch_micros(t->batch, t->micro_batch);

    EK_TRY(ek_batch_check(t->batch, t->micro_batch));
    EK_REQUIRE(micros <= MICRO_BATCHES_MAX, EK_EINVAL,
               "--batch %lld in micro-batches of %lld makes %lld of them a step, and %d are the "
               "most: give a larger --micro-batch, or a smaller --batch",
               (long long)t->batch, (long long)t->micro_batch, (long long)micros,
               MICRO_BATCHES_MAX);
    EK_REQUIRE(r->training.seq <= limit, EK_EINVAL,
               "--seq %lld is over the model's %lld positions (max_position_embeddings)",
               (long long)r->training.seq, (long long)limit);
    EK_REQUIRE(window == 0 || r->training.seq <= window, EK_EUNSUPPORTED,
               "--seq %lld is over the config's sliding_window %lld, which is not implemented",
               (long long)r->training.seq, (long long)window);
    return EK_OK;
}

/* After the model is known. */
static ek_status read_schedules(ek_run *r)
{
    EK_TRY(ek_value_schedule_parse("top-k-schedule", r->cfg->top_k_schedule, 1,
                                   (double)r->source.spec.top_k, 1, &r->options.top_k_schedule));
    return ek_value_schedule_parse("capacity-schedule", r->cfg->capacity_schedule, -1000, 1000, 0,
                                   &r->options.capacity_schedule);
}

/* Reads the whole trace for --replay-routing, so that later changes of the file have no effect. */
static ek_status open_replay(ek_run *r)
{
    const char *path = r->cfg->replay_routing;
    const ek_model_spec *spec = &r->source.spec;

    if (path == NULL)
        return EK_OK;
    EK_REQUIRE(ek_model_moe_layers(spec) > 0, EK_EINVAL,
               "--replay-routing: the model has no routed layer");
    EK_TRY(ek_trace_read(path, &r->options.replay));
    EK_REQUIRE(r->options.replay.experts == spec->experts, EK_EFORMAT,
               "--replay-routing %s is of %lld experts, and the model has %lld", path,
               (long long)r->options.replay.experts, (long long)spec->experts);
    r->training.moe.replay = &r->options.replay;
    return EK_OK;
}

static ek_status check_layout(ek_run *r)
{
    EK_TRY(ek_mesh_check(&r->options.sizes, r->ranks));
    EK_REQUIRE(!r->cfg->embed_columns || !r->source.spec.tie_embeddings, EK_EINVAL,
               "--embed-columns: this model's embedding is its head as well (tie_word_embeddings)");
    EK_TRY(ek_run_read_shares(r));
    return ek_run_read_stages(r);
}

/* Checks without communication. */
ek_status ek_run_read_options(ek_run *r)
{
    const ek_train_config *c = r->cfg;

    r->options.sizes = (ek_mesh_sizes){c->pp, c->tp, c->ep, c->etp};
    if (c->elastic)
        ek_mesh_fit(&r->options.sizes, r->ranks);
    EK_TRY(read_words(r));
    EK_TRY(ek_model_source_open(r->cfg->model, &r->source));
    if (r->layers > 0)
        r->source.spec.layers = r->layers;
    fill_training(r);
    EK_TRY(check_sizes(r));
    EK_TRY(read_schedules(r));
    EK_TRY(open_replay(r));
    EK_TRY(ek_run_layouts_check(r));
    return check_layout(r);
}

/* Adds the caller's settings. */
static ek_status add_caller_settings(ek_run *r, const char *text)
{
    const char *name;
    json_t *escaped = NULL, *more, *value;
    ek_status st = EK_OK;

    if (text == NULL)
        return EK_OK;
    EK_TRY(ek_json_parse(text, strlen(text), "the caller's settings", &escaped));
    more = ek_json_unescaped(escaped);
    json_decref(escaped);
    EK_REQUIRE(more != NULL, EK_ENOMEM, "no memory for the settings");
    json_object_foreach(more, name, value)
    {
        if (json_object_get(r->options.all_settings, name) == NULL &&
            json_object_set(r->options.all_settings, name, value) != 0)
            st = EK_FAIL(EK_ENOMEM, "no memory for the settings");
    }
    json_decref(more);
    return st;
}

/* All settings, with the values of defaults, for run.json. */
static ek_status describe_run(ek_run *r)
{
    const ek_trainer_config *t = &r->training;
    ek_train_config c = *r->cfg;

    c.batch = t->batch;
    c.seq = t->seq;
    c.micro_batch = t->micro_batch;
    c.steps = t->optimizer.steps;
    c.warmup = t->optimizer.warmup;
    c.dtype = ek_mode_name(r->options.mode);
    c.eval_every = ek_run_eval_every(r);
    if (c.layout_pool != NULL && c.layout_pool[0] == '{')
        c.layout_pool = NULL; /* the caller makes it again */
    EK_TRY(ek_train_settings_write(&c, &r->options.all_settings));
    EK_TRY(add_caller_settings(r, c.caller_settings));
    return ek_run_file_text(&c, r->options.all_settings, &r->options.run_file);
}

/* The settings that a resumed run must share. */
ek_status ek_run_describe_settings(ek_run *r)
{
    const ek_trainer_config *t = &r->training;
    char data[64 * EK_SOURCES_MAX];

    EK_TRY(ek_sources_describe(&r->data.sources, data, sizeof(data)));
    r->options.settings =
        json_pack("{s:s, s:I, s:I, s:o, s:s, s:I, s:s}", "data", data, "batch",
                  (json_int_t)t->batch, "seq", (json_int_t)t->seq, "seed", ek_json_uint(t->seed),
                  "data-order", r->options.shuffled ? "shuffled" : "sequential", "micro-batch",
                  (json_int_t)t->micro_batch, "dtype", ek_mode_name(r->options.mode));
    EK_REQUIRE(r->options.settings != NULL, EK_ENOMEM, "no memory for the settings");
    if (t->document_mask)
        EK_REQUIRE(json_object_set_new(r->options.settings, "document-mask",
                                       json_integer(t->document_end)) == 0,
                   EK_ENOMEM, "no memory for the settings");
    EK_TRY(ek_run_add_fingerprints(r));
    return describe_run(r);
}
