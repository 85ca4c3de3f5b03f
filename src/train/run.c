/* A run: open what it needs, step, write metrics and checkpoints, end. */
#include "evenkeel/train.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/threads.h"
#include "data/tokens.h"
#include "data/windows.h"
#include "model/source.h"
#include "store/checkpoint.h"
#include "train/checkpoint.h"
#include "train/metrics.h"
#include "train/routing_trace.h"
#include "train/trainer.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* What training of a preset looks like unless the user says otherwise. */
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

/* All that a run holds open. */
typedef struct {
    const ek_train_config *cfg;
    const ek_train_hooks *hooks;
    ek_train_summary *out;
    ek_model_source source;
    ek_kernels *kernels;
    ek_tokenizer *tokenizer;
    ek_tokens *tokens;
    ek_windows windows;
    ek_model *model;
    ek_trainer *trainer;
    ek_trainer_config training;
    ek_mode mode;
    int shuffled;
    ek_metrics metrics;
    ek_routing_trace trace;
    json_t *settings;
    ek_checkpoint_found found;
    ek_step_result last;
    int64_t first_step, base_rss;
    int lock; /* of --out, so that two runs do not write to it; -1: not taken */
} run;

static int64_t first_of(int64_t a, int64_t b)
{
    return a > 0 ? a : b;
}

static void fill_training(run *r)
{
    const ek_train_config *c = r->cfg;
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

/* The place of a word among those allowed; -1 if it is none of them. */
static int word_of(const char *word, const char *const *allowed)
{
    for (int i = 0; allowed[i] != NULL; i++)
        if (strcmp(word, allowed[i]) == 0)
            return i;
    return -1;
}

static ek_status read_words(run *r)
{
    static const char *const orders[] = {"sequential", "shuffled", NULL};
    static const char *const schedules[] = {"constant", "cosine", NULL};
    static const char *const recomputes[] = {"off", "attention", "full", NULL};
    const ek_train_config *c = r->cfg;
    int recompute = word_of(c->recompute, recomputes);

    EK_REQUIRE(c->size == sizeof(*c), EK_EINVAL,
               "ek_train_config is %zu bytes, this library expects %zu", c->size, sizeof(*c));
    EK_REQUIRE(c->n_data > 0, EK_EINVAL, "no data to train on");
    EK_REQUIRE(word_of(c->data_order, orders) >= 0, EK_EINVAL, "no data order %s", c->data_order);
    EK_REQUIRE(word_of(c->lr_schedule, schedules) >= 0, EK_EINVAL, "no learning rate schedule %s",
               c->lr_schedule);
    EK_REQUIRE(recompute >= 0, EK_EINVAL, "no recomputation %s", c->recompute);
    r->shuffled = strcmp(c->data_order, "shuffled") == 0;
    r->training.recompute = (ek_recompute)recompute;
    return ek_mode_parse(c->dtype, &r->mode);
}

/* What a resumed run must share with the one that it goes on with. */
static ek_status make_settings(run *r)
{
    const ek_trainer_config *t = &r->training;
    char data[40];

    snprintf(data, sizeof(data), "%lld tokens", (long long)ek_tokens_get_info(r->tokens).n_tokens);
    r->settings =
        json_pack("{s:s, s:I, s:I, s:I, s:s, s:I, s:s}", "data", data, "batch",
                  (json_int_t)t->batch, "seq", (json_int_t)t->seq, "seed", (json_int_t)t->seed,
                  "data-order", r->shuffled ? "shuffled" : "sequential", "micro-batch",
                  (json_int_t)t->micro_batch, "dtype", ek_mode_name(r->mode));
    EK_REQUIRE(r->settings != NULL, EK_ENOMEM, "no memory for the settings");
    return EK_OK;
}

static ek_status open_data(run *r)
{
    const ek_train_config *c = r->cfg;
    ek_path parent, cache;
    ek_tokens_config tc = {.paths = c->data,
                           .n_paths = c->n_data,
                           .token_bytes = c->token_bytes,
                           .vocab = r->source.spec.vocab,
                           .progress = r->hooks->tokenising,
                           .stop = r->hooks->stop,
                           .context = r->hooks->context};

    if (c->tokenizer != NULL)
        EK_TRY(ek_tokenizer_open(c->tokenizer, &r->tokenizer));
    else if (r->source.tokenizer.s[0] != '\0')
        EK_TRY(ek_tokenizer_open(r->source.tokenizer.s, &r->tokenizer));
    else if (!ek_tokens_is_file(c->data[0]))
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
    return ek_windows_init(&r->windows, r->tokens, r->training.batch, r->training.seq,
                           r->shuffled ? EK_ORDER_SHUFFLED : EK_ORDER_SEQUENTIAL, c->seed);
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

/* Finds where to go on. */
static ek_status find_start(run *r)
{
    const ek_train_config *c = r->cfg;
    ek_status st;

    if (!c->resume)
        return EK_OK;
    if (ek_file_kind_of(c->out) == EK_FILE_FOLDER)
        EK_TRY(ek_folder_lock(c->out, &r->lock));
    st = ek_checkpoint_latest(c->out, EK_CHECK_SUMS, &r->found);
    EK_REQUIRE(st != EK_ENOENT, EK_ENOENT,
               "--resume: there is no complete checkpoint in %s; leave --resume out to start",
               c->out);
    EK_TRY(st);
    if (r->found.warning[0] != '\0')
        ek_log("train", EK_LOG_WARN, "%s", r->found.warning);
    return ek_train_state(r->found.path.s, r->settings, r->kernels, &r->source.spec,
                          &r->first_step);
}

/* Makes --out, or clears what an earlier run left.  Called when all inputs have been read: a
 * mistake in them costs nothing, and the earlier run may itself be the model. */
static ek_status open_out(run *r)
{
    const ek_train_config *c = r->cfg;
    static const char *const leftovers[] = {"metrics.jsonl", "timeline.json", "routing.npy"};

    if (c->resume)
        return EK_OK;
    EK_TRY(ek_folder_make(NULL, c->out));
    EK_TRY(ek_folder_lock(c->out, &r->lock));
    EK_TRY(ek_checkpoint_clear(NULL, c->out));
    for (size_t i = 0; i < sizeof(leftovers) / sizeof(leftovers[0]); i++) {
        ek_path path;

        EK_TRY(ek_path_set(&path, "%s/%s", c->out, leftovers[i]));
        EK_TRY(ek_file_remove(NULL, path.s));
    }
    return EK_OK;
}

/* Memory is granted before it is there, and a process that then asks too much of it is killed
 * without a word; so it is asked for here. */
static ek_status check_memory(const run *r)
{
    double want = (double)r->out->info.predicted_bytes - (double)r->base_rss;
    double have = (double)ek_memory_available();

    EK_REQUIRE(have == 0 || want <= have, EK_ENOMEM,
               "the run needs about %.1f GB of memory, and %.1f GB are available; lower "
               "--micro-batch, --batch or --seq, or take a smaller model",
               want / 1e9, have / 1e9);
    return EK_OK;
}

static ek_status open_model(run *r)
{
    const ek_train_config *c = r->cfg;
    size_t activations;

    r->base_rss = ek_rss_bytes();
    EK_TRY(
        ek_model_create(&r->source.spec, r->kernels, &(ek_model_config){.trained = 1}, &r->model));
    EK_TRY(ek_trainer_measure(r->model, &r->training, &activations));
    r->out->info.predicted_bytes = (size_t)r->base_rss + r->model->arena.bytes + activations;
    EK_TRY(check_memory(r));
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
    ek_train_info *i = &r->out->info;

    i->kernels = r->kernels->name;
    i->products = r->kernels->products;
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
    const ek_train_config *c = r->cfg;

    EK_TRY(read_words(r));
    EK_TRY(ek_model_source_open(c->model, &r->source));
    fill_training(r);
    EK_TRY(check_length(r));
    EK_TRY(ek_kernels_create(r->mode, ek_cpu_isa(), c->threads > 0 ? c->threads : ek_cores_usable(),
                             &r->kernels));
    EK_TRY(open_data(r));
    EK_TRY(make_settings(r));
    EK_TRY(find_start(r));
    if (r->first_step >= r->training.optimizer.steps) {
        r->out->finished_before = 1;
        return EK_OK;
    }
    EK_TRY(open_model(r));
    EK_TRY(open_out(r));
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

    EK_TRY(ek_metrics_sync(&r->metrics));
    EK_TRY(ek_train_save(r->model, r->tokenizer, r->settings, done, r->cfg->keep, r->cfg->out));
    EK_TRY(ek_checkpoint_latest(r->cfg->out, EK_CHECK_SIZES, &found));
    memcpy(r->out->checkpoint, found.path.s, sizeof(r->out->checkpoint));
    return EK_OK;
}

static ek_status one_step(run *r, ek_step_result *result)
{
    int64_t step = ek_trainer_steps_done(r->trainer), seq = r->training.seq;

    for (int64_t row = 0; row < r->training.batch; row++)
        ek_windows_row(&r->windows, step, row, ek_trainer_inputs(r->trainer) + row * seq,
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
    ek_train_progress *p = &r->out->end;
    int64_t begin = ek_clock_ns(), last = begin, second = begin;
    const ek_train_hooks *h = r->hooks;
    int stop = 0;

    p->steps = r->training.optimizer.steps;
    while (!stop && ek_trainer_steps_done(r->trainer) < p->steps) {
        int64_t now;

        EK_TRY(one_step(r, &r->last));
        p->step = ek_trainer_steps_done(r->trainer);
        stop = h->stop != NULL && h->stop(h->context);
        now = ek_clock_ns();
        p->step_ms = (double)(now - last) / 1e6;
        EK_TRY(ek_metrics_write(&r->metrics, &r->last, p->step_ms, r->model->n_elements));
        last = now; /* saving counts into the step that follows */
        if (wants_save(r, p->step, stop))
            EK_TRY(save(r));
        p->loss = r->last.losses.loss;
        p->expert_max_over_mean = r->last.losses.expert_max_over_mean;
        p->tokens_per_s = (double)r->last.tokens / p->step_ms * 1e3;
        p->seconds = (double)(now - begin) / 1e9;
        if (p->step == r->first_step + 1)
            second = now;
        else
            r->out->tokens_per_s = (double)((p->step - r->first_step - 1) * r->last.tokens) /
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

static ek_status write_timeline(run *r, const char *path)
{
    int64_t n;
    const ek_event *events = ek_exec_events(ek_trainer_exec(r->trainer), &n);

    return ek_timeline_write(events, n, path);
}

static ek_status write_routing(run *r, const char *path)
{
    return ek_routing_trace_write(&r->trace, path);
}

/* Writes <out>/name under a temporary name, which then takes its own. */
static ek_status write_extra(run *r, const char *name, ek_status (*writer)(run *, const char *))
{
    ek_path path, temporary;
    ek_status st;

    EK_TRY(ek_path_set(&path, "%s/%s", r->cfg->out, name));
    EK_TRY(ek_path_set(&temporary, "%s.tmp", path.s));
    EK_TRY_OUT(writer(r, temporary.s));
    EK_TRY_OUT(ek_file_rename(NULL, temporary.s, path.s));
    return EK_OK;
out:
    ek_folder_discard(NULL, temporary.s);
    return st;
}

static ek_status write_extras(run *r)
{
    if (r->cfg->timeline)
        EK_TRY(write_extra(r, "timeline.json", write_timeline));
    if (r->cfg->record_routing)
        EK_TRY(write_extra(r, "routing.npy", write_routing));
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
    if (r->lock >= 0)
        close(r->lock);
}

ek_status ek_train(const ek_train_config *cfg, const ek_train_hooks *hooks, ek_train_summary *out)
{
    static const ek_train_hooks no_hooks = {0};
    run r = {.cfg = cfg,
             .hooks = hooks != NULL ? hooks : &no_hooks,
             .out = out,
             .metrics = {.fd = -1},
             .lock = -1};
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
