/* A run: open what it needs, step, write metrics and checkpoints, end. */
#include "train/run.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/threads.h"
#include "data/sampler.h"
#include "data/tokens.h"
#include "model/source.h"
#include "store/checkpoint.h"
#include "train/checkpoint.h"
#include "train/metrics.h"
#include "train/routing_trace.h"

#include <string.h>

/* What training of a preset looks like unless the user says otherwise. */
typedef struct {
    const char *name;
    int64_t batch, micro_batch, seq, steps;
} training_preset;

static const training_preset presets[] = {
    {"tiny", 16, 16, 256, 400},
    {"small", 32, 32, 256, 1000},
    {"base", 32, 4, 1024, 10000},
    {"", 8, 0, 256, 100},
};

/* All that a run holds open. */
typedef struct {
    const ek_run_config *cfg;
    const ek_run_hooks *hooks;
    ek_run_summary *out;
    ek_model_source source;
    ek_kernels *kernels;
    ek_tokenizer *tokenizer;
    ek_tokens *tokens;
    ek_sampler sampler;
    ek_model *model;
    ek_trainer *trainer;
    ek_trainer_config training;
    ek_metrics metrics;
    ek_routing_trace trace;
    json_t *settings;
    ek_checkpoint_found found;
    int64_t first_step, base_rss, params;
} run;

static int64_t first_of(int64_t a, int64_t b)
{
    return a > 0 ? a : b;
}

static void fill_training(run *r)
{
    const ek_run_config *c = r->cfg;
    const training_preset *p = presets;
    ek_trainer_config *t = &r->training;

    while (p->name[0] != '\0' && strcmp(p->name, r->source.preset) != 0)
        p++;
    t->batch = first_of(c->batch, p->batch);
    t->seq = first_of(c->seq, p->seq);
    t->micro_batch = first_of(c->micro_batch, first_of(p->micro_batch, t->batch));
    if (t->micro_batch > t->batch)
        t->micro_batch = t->batch;
    t->aux_coef = c->aux_coef;
    t->z_coef = c->z_coef;
    t->capacity_factor = c->capacity_factor;
    t->top_k = c->top_k;
    t->seed = c->seed;
    t->recompute = c->recompute;
    t->optimizer = (ek_optimizer_config){.lr = c->lr,
                                         .min_lr = c->min_lr >= 0 ? c->min_lr : c->lr / 10,
                                         .cosine = c->cosine,
                                         .steps = first_of(c->steps, p->steps),
                                         .decay = c->decay,
                                         .beta1 = c->beta1,
                                         .beta2 = c->beta2,
                                         .eps = c->eps,
                                         .clip = c->clip};
    t->optimizer.warmup = c->warmup >= 0 ? c->warmup : t->optimizer.steps / 100;
}

static const char *mode_name(ek_mode mode)
{
    return mode == EK_MODE_FP64 ? "fp64" : mode == EK_MODE_FP32 ? "fp32" : "bf16";
}

/* What a resumed run must share with the one that it goes on with. */
static ek_status make_settings(run *r)
{
    const ek_trainer_config *t = &r->training;

    r->settings = json_pack("{s:I, s:I, s:I, s:s, s:I, s:s}", "batch", (json_int_t)t->batch, "seq",
                            (json_int_t)t->seq, "seed", (json_int_t)t->seed, "data-order",
                            r->cfg->shuffled ? "shuffled" : "sequential", "micro-batch",
                            (json_int_t)t->micro_batch, "dtype", mode_name(r->cfg->mode));
    EK_REQUIRE(r->settings != NULL, EK_ENOMEM, "no memory for the settings");
    return EK_OK;
}

static int is_token_file(const char *path)
{
    size_t n = strlen(path);

    return n > 4 && strcmp(path + n - 4, ".bin") == 0;
}

static ek_status open_data(run *r)
{
    const ek_run_config *c = r->cfg;
    ek_path parent, cache;
    ek_tokens_config tc = {.paths = c->data,
                           .n_paths = c->n_data,
                           .token_bytes = c->token_bytes,
                           .vocab = r->source.spec.vocab,
                           .progress = r->hooks->tokenising,
                           .context = r->hooks->context};

    if (c->tokenizer != NULL)
        EK_TRY(ek_tokenizer_open(c->tokenizer, &r->tokenizer));
    else if (r->source.tokenizer.s[0] != '\0')
        EK_TRY(ek_tokenizer_open(r->source.tokenizer.s, &r->tokenizer));
    else if (!is_token_file(c->data[0]))
        EK_TRY(ek_tokenizer_open("bytes", &r->tokenizer));
    if (r->tokenizer != NULL) {
        EK_REQUIRE(ek_tokenizer_vocab(r->tokenizer) <= r->source.spec.vocab, EK_EFORMAT,
                   "the tokenizer has %lld tokens, the model's vocabulary %lld: choose a model "
                   "with a larger one, or another --tokenizer",
                   (long long)ek_tokenizer_vocab(r->tokenizer), (long long)r->source.spec.vocab);
        if (ek_tokenizer_end(r->tokenizer) < 0 && r->source.spec.eos_id >= 0)
            EK_TRY(ek_tokenizer_set_end(r->tokenizer, r->source.spec.eos_id));
    }
    EK_TRY(ek_path_parent(c->out, &parent));
    EK_TRY(ek_path_set(&cache, "%s/.evenkeel-tokens", parent.s));
    tc.tokenizer = r->tokenizer;
    tc.cache_dir = cache.s;
    EK_TRY(ek_tokens_open(&tc, &r->tokens));
    return ek_sampler_init(&r->sampler, r->tokens, r->training.batch, r->training.seq,
                           c->shuffled ? EK_ORDER_SHUFFLED : EK_ORDER_SEQUENTIAL, c->seed);
}

static ek_status check_length(const run *r)
{
    int64_t limit = r->source.spec.max_positions, window = r->source.spec.sliding_window;

    EK_REQUIRE(r->training.seq <= limit, EK_EINVAL,
               "--seq %lld is over the model's %lld positions (max_position_embeddings)",
               (long long)r->training.seq, (long long)limit);
    EK_REQUIRE(window == 0 || r->training.seq <= window, EK_EUNSUPPORTED,
               "--seq %lld is over the config's sliding_window %lld, which is not implemented",
               (long long)r->training.seq, (long long)window);
    return EK_OK;
}

/* Makes --out; finds where to go on, or clears what an earlier run left. */
static ek_status open_out(run *r)
{
    const ek_run_config *c = r->cfg;
    static const char *const leftovers[] = {"metrics.jsonl", "timeline.json", "routing.npy"};

    if (c->resume) {
        ek_status st = ek_checkpoint_latest(c->out, EK_CHECK_SUMS, &r->found);

        EK_REQUIRE(st != EK_ENOENT, EK_ENOENT,
                   "--resume: there is no complete checkpoint in %s; leave --resume out to start",
                   c->out);
        EK_TRY(st);
        if (r->found.warning[0] != '\0')
            ek_log("train", EK_LOG_WARN, "%s", r->found.warning);
        return ek_train_state(r->found.path.s, r->settings, &r->first_step);
    }
    EK_TRY(ek_folder_make(NULL, c->out));
    EK_TRY(ek_checkpoint_clear(NULL, c->out));
    for (size_t i = 0; i < sizeof(leftovers) / sizeof(leftovers[0]); i++) {
        ek_path path;

        EK_TRY(ek_path_set(&path, "%s/%s", c->out, leftovers[i]));
        EK_TRY(ek_file_remove(NULL, path.s));
    }
    return EK_OK;
}

static ek_status open_model(run *r)
{
    const ek_run_config *c = r->cfg;
    size_t activations;

    r->base_rss = ek_rss_bytes();
    EK_TRY(ek_model_create(&r->source.spec, r->kernels, 1, &r->model));
    EK_TRY(ek_trainer_measure(r->model, &r->training, &activations));
    r->out->info.predicted_bytes = (size_t)r->base_rss + r->model->arena.bytes + activations;
    if (c->resume)
        EK_TRY(ek_train_load(r->model, r->found.path.s));
    else if (c->init != NULL)
        EK_TRY(ek_model_load_path(r->model, c->init));
    else if (r->source.weights.s[0] != '\0')
        EK_TRY(ek_model_load_path(r->model, r->source.weights.s));
    else
        ek_model_init(r->model, c->seed);
    EK_TRY(ek_model_pack(r->model));
    EK_TRY(ek_trainer_create(r->model, &r->training, &r->trainer));
    ek_trainer_resume(r->trainer, r->first_step);
    ek_exec_record(ek_trainer_exec(r->trainer), c->timeline);
    return EK_OK;
}

/* Parameters that a token meets: all but the experts that it is not sent to. */
static int64_t active_params(const ek_model *m)
{
    const ek_model_spec *s = &m->spec;
    int64_t idle = 0;

    for (int64_t l = 0; l < s->layers; l++)
        if (!s->dense[l])
            idle += (s->experts - s->top_k) * 3 * s->hidden * s->ff;
    return m->n_elements - idle;
}

static void fill_info(run *r)
{
    ek_run_info *i = &r->out->info;

    i->kernels = r->kernels->name;
    i->threads = r->kernels->threads;
    i->params = r->model->n_elements;
    i->active_params = active_params(r->model);
    i->tokens = ek_tokens_get_info(r->tokens).n_tokens;
    i->first_step = r->first_step;
    i->steps = r->training.optimizer.steps;
    i->batch = r->training.batch;
    i->seq = r->training.seq;
}

static ek_status open_all(run *r)
{
    const ek_run_config *c = r->cfg;

    EK_TRY(ek_model_source_open(c->model, &r->source));
    fill_training(r);
    EK_TRY(check_length(r));
    EK_TRY(make_settings(r));
    EK_TRY(ek_kernels_create(c->mode, c->isa, c->threads, &r->kernels));
    EK_TRY(open_out(r));
    if (r->first_step >= r->training.optimizer.steps) {
        r->out->finished_before = 1;
        return EK_OK;
    }
    EK_TRY(open_data(r));
    EK_TRY(open_model(r));
    EK_TRY(ek_metrics_open(c->out, r->first_step, &r->metrics));
    if (c->record_routing)
        EK_TRY(ek_routing_trace_init(&r->trace, &r->source.spec));
    fill_info(r);
    if (r->hooks->started != NULL)
        r->hooks->started(r->hooks->context, &r->out->info);
    return EK_OK;
}

static ek_status save(run *r)
{
    int64_t done = ek_trainer_steps_done(r->trainer);
    ek_checkpoint_found found;

    EK_TRY(ek_train_save(r->model, r->tokenizer, r->settings, done, r->cfg->keep, r->cfg->out));
    EK_TRY(ek_checkpoint_latest(r->cfg->out, EK_CHECK_SIZES, &found));
    memcpy(r->out->checkpoint, found.path.s, sizeof(r->out->checkpoint));
    return EK_OK;
}

static ek_status one_step(run *r, ek_step_result *result)
{
    int64_t step = ek_trainer_steps_done(r->trainer), seq = r->training.seq;

    for (int64_t row = 0; row < r->training.batch; row++)
        ek_sampler_row(&r->sampler, step, row, ek_trainer_inputs(r->trainer) + row * seq,
                       ek_trainer_targets(r->trainer) + row * seq);
    EK_TRY(ek_trainer_step(r->trainer, result));
    if (r->cfg->record_routing)
        EK_TRY(ek_routing_trace_add(&r->trace, ek_trainer_pass(r->trainer)));
    return EK_OK;
}

static int wants_save(const run *r, int64_t done, int stop)
{
    int64_t every = r->cfg->save_every;

    return stop || done == r->training.optimizer.steps || (every > 0 && done % every == 0);
}

static ek_status step_loop(run *r)
{
    ek_run_progress *p = &r->out->end;
    int64_t begin = ek_clock_ns(), last = begin, second = begin;
    const ek_run_hooks *h = r->hooks;
    int stop = 0;

    p->steps = r->training.optimizer.steps;
    while (!stop && ek_trainer_steps_done(r->trainer) < p->steps) {
        int64_t now;

        EK_TRY(one_step(r, &p->last));
        p->step = ek_trainer_steps_done(r->trainer);
        stop = h->stop != NULL && h->stop(h->context);
        now = ek_clock_ns();
        p->step_ms = (double)(now - last) / 1e6;
        EK_TRY(ek_metrics_write(&r->metrics, &p->last, p->step_ms, r->model->n_elements));
        last = now; /* saving counts into the step that follows */
        if (wants_save(r, p->step, stop))
            EK_TRY(save(r));
        p->tokens_per_s = (double)p->last.tokens / p->step_ms * 1e3;
        p->seconds = (double)(now - begin) / 1e9;
        if (p->step == r->first_step + 1)
            second = now;
        else
            r->out->tokens_per_s = (double)((p->step - r->first_step - 1) * p->last.tokens) /
                                   ((double)(now - second) / 1e9);
        if (h->step != NULL)
            h->step(h->context, p);
    }
    EK_REQUIRE(!stop || p->step == p->steps, EK_ECANCELED,
               "interrupted after step %lld of %lld; the checkpoint is written, go on with "
               "--resume",
               (long long)p->step, (long long)p->steps);
    return EK_OK;
}

static ek_status write_extras(run *r)
{
    ek_path path;

    if (r->cfg->timeline) {
        int64_t n;
        const ek_event *events = ek_exec_events(ek_trainer_exec(r->trainer), &n);

        EK_TRY(ek_path_set(&path, "%s/timeline.json", r->cfg->out));
        EK_TRY(ek_timeline_write(events, n, path.s));
    }
    if (r->cfg->record_routing) {
        EK_TRY(ek_path_set(&path, "%s/routing.npy", r->cfg->out));
        EK_TRY(ek_routing_trace_write(&r->trace, path.s));
    }
    return EK_OK;
}

static void close_all(run *r)
{
    ek_metrics_close(&r->metrics);
    ek_routing_trace_fini(&r->trace);
    ek_trainer_destroy(&r->trainer);
    ek_model_destroy(&r->model);
    ek_tokens_close(&r->tokens);
    ek_tokenizer_destroy(&r->tokenizer);
    ek_kernels_destroy(&r->kernels);
    json_decref(r->settings);
}

ek_status ek_run(const ek_run_config *cfg, const ek_run_hooks *hooks, ek_run_summary *out)
{
    run r = {.cfg = cfg, .hooks = hooks, .out = out, .metrics = {.fd = -1}};
    ek_status st = EK_OK;

    memset(out, 0, sizeof(*out));
    EK_TRY_OUT(open_all(&r));
    if (!out->finished_before) {
        st = step_loop(&r);
        if (st == EK_OK || st == EK_ECANCELED) {
            ek_status extra = write_extras(&r);

            st = extra < 0 ? extra : st;
        }
    }
    out->peak_rss_bytes = ek_rss_peak_bytes();
out:
    close_all(&r);
    return st;
}
