/* Everything before the first step of a run: settings, data, first step, model, --out. */
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/threads.h"
#include "comm/agree.h"
#include "data/documents.h"
#include "model/hf/weights.h"
#include "tensor/select/select.h"
#include "train/output/folder.h"
#include "train/run/balance.h"
#include "train/run/run_priv.h"
#include "train/settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

/* The index of a word among those allowed; -1: not allowed. */
static int word_of(const char *word, const char *const *allowed)
{
    for (int i = 0; allowed[i] != NULL; i++)
        if (strcmp(word, allowed[i]) == 0)
            return i;
    return -1;
}

static ek_status read_words(ek_run *r)
{
    static const char *const orders[] = {"sequential", "shuffled", NULL};
    static const char *const schedules[] = {"constant", "cosine", NULL};
    static const char *const recomputes[] = {"off", "attention", "full", NULL};
    static const char *const exchanges[] = {"linear", "pairwise", "2dh", "auto", NULL};
    static const char *const reroutes[] = {"off", "topology", "swipe", NULL};
    const ek_train_config *c = r->cfg;
    int recompute = word_of(c->recompute, recomputes), a2a = word_of(c->a2a, exchanges);
    int reroute = word_of(c->reroute, reroutes);

    EK_REQUIRE(c->n_data > 0, EK_EINVAL, "no data to train on");
    EK_REQUIRE(c->timeline_steps > 0, EK_EINVAL, "--timeline-steps %lld is not at least 1",
               (long long)c->timeline_steps);
    EK_REQUIRE(c->n_eval_data > 0 || (c->eval_every == 0 && c->patience == 0), EK_EINVAL,
               "%s without --eval-data: give --eval-data, or leave it out",
               c->patience > 0 ? "--patience" : "--eval-every");
    EK_REQUIRE(word_of(c->data_order, orders) >= 0, EK_EINVAL, "no data order %s", c->data_order);
    EK_REQUIRE(word_of(c->lr_schedule, schedules) >= 0, EK_EINVAL, "no learning rate schedule %s",
               c->lr_schedule);
    EK_REQUIRE(recompute >= 0, EK_EINVAL, "no recomputation %s", c->recompute);
    r->shuffled = strcmp(c->data_order, "shuffled") == 0;
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
    return ek_mode_parse(c->dtype, c->device, &r->mode);
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
        if (json_object_get(r->all_settings, name) == NULL &&
            json_object_set(r->all_settings, name, value) != 0)
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
    c.dtype = ek_mode_name(r->mode);
    c.eval_every = ek_run_eval_every(r);
    EK_TRY(ek_train_settings_write(&c, &r->all_settings));
    EK_TRY(add_caller_settings(r, c.caller_settings));
    return ek_run_file_text(&c, r->all_settings, &r->run_file);
}

/* The settings that a resumed run must share. */
static ek_status make_settings(ek_run *r)
{
    const ek_trainer_config *t = &r->training;
    char data[64 * EK_SOURCES_MAX];

    EK_TRY(ek_sources_describe(&r->sources, data, sizeof(data)));
    r->settings =
        json_pack("{s:s, s:I, s:I, s:o, s:s, s:I, s:s}", "data", data, "batch",
                  (json_int_t)t->batch, "seq", (json_int_t)t->seq, "seed", ek_json_uint(t->seed),
                  "data-order", r->shuffled ? "shuffled" : "sequential", "micro-batch",
                  (json_int_t)t->micro_batch, "dtype", ek_mode_name(r->mode));
    EK_REQUIRE(r->settings != NULL, EK_ENOMEM, "no memory for the settings");
    if (t->document_mask)
        EK_REQUIRE(
            json_object_set_new(r->settings, "document-mask", json_integer(t->document_end)) == 0,
            EK_ENOMEM, "no memory for the settings");
    EK_TRY(ek_run_add_fingerprints(r));
    return describe_run(r);
}

/* Finds the files beside the tokenizer and the model; others are generated. */
static ek_status read_tokenizer_files(ek_run *r)
{
    const ek_train_config *c = r->cfg;
    const ek_model_spec *m = &r->source.spec;
    ek_path folder = r->source.folder;

    if (c->tokenizer != NULL && strcmp(c->tokenizer, "bytes") == 0)
        folder.s[0] = '\0';
    else if (c->tokenizer != NULL)
        EK_TRY(ek_path_parent(c->tokenizer, &folder));
    if (folder.s[0] != '\0')
        EK_TRY(ek_tokenizer_files_read(folder.s, c->tokenizer == NULL, &r->tokenizer_files));
    return ek_tokenizer_files_complete(&r->tokenizer_files, r->tokenizer, m->bos_id, m->eos_id,
                                       m->max_positions);
}

/* The end-of-document token, with --document-mask. */
static ek_status find_documents(ek_run *r)
{
    ek_trainer_config *t = &r->training;

    t->document_mask = r->cfg->document_mask;
    if (!t->document_mask)
        return EK_OK;
    EK_TRY(ek_documents_end(r->tokenizer, r->source.spec.eos_id, &t->document_end));
    return r->rank == 0 ? ek_documents_check(r->sources.tokens, r->sources.n, t->document_end)
                        : EK_OK;
}

/* The nearest existing folder above a path. */
static ek_status find_folder(const char *path, ek_path *folder)
{
    ek_path above;

    EK_TRY(ek_path_parent(path, folder));
    while (ek_file_kind_of(folder->s) == EK_FILE_NONE) {
        EK_TRY(ek_path_parent(folder->s, &above));
        *folder = above;
    }
    return EK_OK;
}

static ek_status open_data(ek_run *r)
{
    const ek_train_config *c = r->cfg;
    const char *tokenizer;
    ek_path folder;
    int texts, eval_texts;
    ek_tokens_config tc = {.paths = c->data,
                           .n_paths = c->n_data,
                           .token_bytes = c->token_bytes,
                           .vocab = r->source.spec.vocab,
                           .progress = r->hooks->tokenising,
                           .stop = r->hooks->stop,
                           .context = r->hooks->context,
                           .text_field = c->text_field};

    /* token files need none, but checkpoints store one if there is one */
    EK_TRY(ek_sources_have_texts(c->data, c->n_data, &texts));
    EK_TRY(ek_sources_have_texts(c->eval_data, c->n_eval_data, &eval_texts));
    if (c->tokenizer != NULL || r->source.tokenizer.s[0] != '\0' || texts || eval_texts) {
        EK_TRY(ek_model_source_tokenizer(&r->source, c->tokenizer, &tokenizer));
        EK_TRY(ek_tokenizer_open(tokenizer, &r->tokenizer));
        EK_REQUIRE(ek_tokenizer_vocab(r->tokenizer) <= r->source.spec.vocab, EK_EFORMAT,
                   "the tokenizer has %lld tokens, the model's vocabulary %lld: choose a model "
                   "with a larger one, or another --tokenizer",
                   (long long)ek_tokenizer_vocab(r->tokenizer), (long long)r->source.spec.vocab);
        if (ek_tokenizer_end(r->tokenizer) < 0 && r->source.spec.eos_id >= 0 &&
            r->source.spec.eos_id < ek_tokenizer_vocab(r->tokenizer))
            EK_TRY(ek_tokenizer_set_end(r->tokenizer, r->source.spec.eos_id));
    }
    EK_TRY(read_tokenizer_files(r));
    if (c->cache != NULL) {
        EK_TRY(ek_path_set(&folder, "%s/tokens", c->cache));
        tc.cache_dir = folder.s;
    } else {
        EK_TRY(find_folder(c->out, &folder));
        tc.scratch_dir = folder.s;
    }
    tc.tokenizer = r->tokenizer;
    EK_TRY(ek_sources_open(&tc, &r->sources));
    EK_TRY(find_documents(r));
    EK_TRY(ek_run_open_held_out(r, &tc));
    return ek_windows_init_sources(&r->windows, &r->sources, r->training.batch, r->training.seq,
                                   r->shuffled ? EK_ORDER_SHUFFLED : EK_ORDER_SEQUENTIAL, c->seed);
}

/* Limits micro-batches: each has its own ops in the graph, some kilobytes per layer. */
enum { MICRO_BATCHES_MAX = 16384 };

static ek_status check_sizes(const ek_run *r)
{
    const ek_trainer_config *t = &r->training;
    int64_t limit = ek_model_longest(&r->source.spec), window = r->source.spec.sliding_window;
    int64_t micros = (t->batch + t->micro_batch - 1) / t->micro_batch;

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

/* On rank 0: compares settings with those stored in run.json, if any, and logs differences. */
static ek_status compare_settings(ek_run *r)
{
    enum { CHANGES_CAP = 1000 };
    char changes[CHANGES_CAP];
    json_t *stored = NULL;
    ek_path path;
    ek_status st;

    if (r->rank != 0)
        return EK_OK;
    EK_TRY(ek_run_file_find(r->cfg->out, &path));
    if (path.s[0] == '\0')
        return EK_OK;
    EK_TRY_OUT(ek_run_file_read(path.s, &stored));
    EK_TRY_OUT(ek_train_settings_compare(stored, r->all_settings, r->cfg->override, changes,
                                         sizeof(changes)));
    if (changes[0] != '\0')
        ek_log("train", EK_LOG_INFO, "the run continues with other settings: %s", changes);
out:
    json_decref(stored);
    return st;
}

ek_status ek_run_find_checkpoint(ek_run *r)
{
    const ek_train_config *c = r->cfg;
    const ek_mesh *mesh = r->mesh != NULL ? r->mesh : &ek_mesh_one;
    ek_checkpoint_check check = r->memory_step >= 0 ? EK_CHECK_SIZES : EK_CHECK_SUMS;
    int needed = c->resume && r->memory_step < 0;
    ek_status st = ek_train_latest(mesh, c->out, check, needed, &r->found);

    r->checkpoint_step = 0;
    if (st == EK_ENOENT)
        return ek_out_no_checkpoint(c->out);
    EK_TRY(st);
    if (r->found.path.s[0] == '\0')
        return EK_OK;
    if (r->found.warning[0] != '\0' && r->rank == 0)
        ek_log("train", EK_LOG_WARN, "%s", r->found.warning);
    return ek_agree(r->world, "read the checkpoint's state",
                    ek_train_state(r->found.path.s, c->override ? NULL : r->settings, r->kernels,
                                   &r->source.spec, &r->checkpoint_step));
}

/* Finds the first step. */
static ek_status find_start(ek_run *r)
{
    const ek_train_config *c = r->cfg;
    ek_status st = EK_OK;

    if (!c->resume && !c->elastic)
        return EK_OK;
    if (r->rank == 0 && !c->elastic && ek_file_kind_of(c->out) == EK_FILE_FOLDER)
        st = ek_folder_lock(c->out, &r->lock);
    EK_TRY(ek_agree(r->world, "lock --out", st));
    EK_TRY(ek_run_find_checkpoint(r));
    EK_TRY(ek_agree(r->world, "compare the settings", compare_settings(r)));
    if (r->memory_step < r->checkpoint_step)
        r->memory_step = -1;
    r->first_step = r->memory_step >= 0 ? r->memory_step : r->checkpoint_step;
    return EK_OK;
}

/* Whether this start continues, or may continue, a run in --out. */
static int may_continue(const ek_run *r)
{
    return r->first_step > 0 || r->cfg->resume || r->cfg->elastic;
}

/* On rank 0, before anything is read: protects the contents of --out. */
static ek_status check_out(ek_run *r)
{
    const ek_train_config *c = r->cfg;
    ek_path found;
    int lock = -1;

    EK_REQUIRE(!c->overwrite || !may_continue(r), EK_EINVAL,
               "--overwrite starts a new run, and --%s continues the one in --out: leave one out",
               c->resume ? "resume" : "elastic");
    if (r->rank != 0)
        return EK_OK;
    if (c->overwrite || c->elastic || c->resume)
        return ek_out_check_own(c->out, c->resume);
    EK_TRY(ek_out_find(c->out, &found));
    if (found.s[0] != '\0' && r->lock < 0) { /* a running run has a message of its own */
        EK_TRY(ek_folder_lock(c->out, &lock));
        close(lock);
    }
    EK_REQUIRE(found.s[0] == '\0', EK_EINVAL,
               "--out %s: %s exists already; continue that run (--resume), replace it "
               "(--overwrite), or give another --out",
               c->out, found.s);
    return EK_OK;
}

/* Creates --out, or removes files of an earlier run.  Called after all inputs have been read: a
 * mistake in them has no effect, and the earlier run may itself be the model.  With --elastic
 * generations.jsonl stays. */
static ek_status open_out(ek_run *r)
{
    const ek_train_config *c = r->cfg;
    ek_path path;

    if (r->rank != 0)
        return EK_OK;
    if (r->first_step == 0 && !c->resume) {
        EK_TRY(ek_folder_make(NULL, c->out));
        if (!c->elastic)
            EK_TRY(ek_folder_lock(c->out, &r->lock));
        EK_TRY(check_out(r)); /* again, now that the lock is held */
        EK_TRY(ek_out_clear(c->out, c->elastic, &r->replaces));
    }
    ek_out_clear_temporaries(c->out);
    EK_TRY(ek_run_write_eval_state(r));
    EK_TRY(ek_path_set(&path, "%s/" EK_RUN_FILE, c->out));
    return ek_file_replace(NULL, path.s, r->run_file, strlen(r->run_file));
}

/* Reads the whole trace for --replay-routing, so that later changes of the file have no effect. */
static ek_status open_replay(ek_run *r)
{
    const char *path = r->cfg->replay_routing;
    const ek_model_spec *spec = &r->source.spec;
    int64_t routed = 0;

    if (path == NULL)
        return EK_OK;
    for (int64_t l = 0; l < spec->layers; l++)
        routed += !spec->dense[l];
    EK_REQUIRE(routed > 0, EK_EINVAL, "--replay-routing: the model has no routed layer");
    EK_TRY(ek_trace_read(path, &r->replay));
    EK_REQUIRE(r->replay.experts == spec->experts, EK_EFORMAT,
               "--replay-routing %s is of %lld experts, and the model has %lld", path,
               (long long)r->replay.experts, (long long)spec->experts);
    r->training.moe.replay = &r->replay;
    return EK_OK;
}

/* Every virtual stage needs a layer. */
static ek_status check_layout(const ek_run *r)
{
    const ek_train_config *c = r->cfg;
    int chunks = c->pp > 1 && c->chunks > 1 ? c->chunks : 1, pp = c->pp > 1 ? c->pp : 1;

    EK_TRY(ek_mesh_check(&r->sizes, r->ranks));
    EK_REQUIRE(!c->embed_columns || !r->source.spec.tie_embeddings, EK_EINVAL,
               "--embed-columns: this model's embedding is its head as well (tie_word_embeddings)");
    EK_REQUIRE((int64_t)pp * chunks <= r->source.spec.layers, EK_EINVAL,
               "--pp %d with --pp-chunks %d needs %d layers, and the model has %lld", pp, chunks,
               pp * chunks, (long long)r->source.spec.layers);
    return EK_OK;
}

static ek_status open_mesh(ek_run *r)
{
    return r->ranks > 1 ? ek_mesh_open(r->world, &r->sizes, &r->mesh) : EK_OK;
}

static int64_t comm_activity(void *world)
{
    return ek_comm_activity(world);
}

/* Without a free core on this host, a thread that polls the network would slow computation down. */
static ek_status configure_exec(ek_run *r)
{
    double busy = (double)r->kernels->threads;

    EK_TRY(ek_run_sum_on_host(r, &busy));
    r->training.exec.inline_network =
        r->kernels->memory == NULL && busy >= (double)ek_cores_usable();
    r->training.exec.watchdog_s = r->cfg->watchdog;
    if (r->ranks > 1) {
        r->training.exec.moved = comm_activity;
        r->training.exec.context = r->world;
    }
    return EK_OK;
}

/* Index of this rank among those of its host, from 0. */
static int rank_on_host(const ek_run *r)
{
    int n = 0;

    for (int i = 0; i < r->rank && r->ranks > 1; i++)
        n += ek_comm_node(r->world, i) == ek_comm_node(r->world, r->rank);
    return n;
}

/* Compute threads of this rank: as given, or its share of the host's cores. */
ek_status ek_run_open_kernels(ek_run *r)
{
    double ranks = 1, isa = (double)ek_cpu_isa();
    int threads = r->cfg->threads;

    EK_TRY(ek_run_minimum(r->all, &isa)); /* layout and updates must be the same on all ranks */
    if (threads == 0) {
        EK_TRY(ek_run_sum_on_host(r, &ranks));
        threads = (int)((double)ek_cores_usable() / ranks);
    }
    return ek_kernels_open(r->cfg->device, rank_on_host(r), r->mode, (ek_isa)isa,
                           threads > 1 ? threads : 1, &r->kernels);
}

/* Bytes of shared memory that this host's ranks still have to reserve: without preallocated memory
 * and without adopted state. */
static ek_status shm_bytes_needed(ek_run *r, double *bytes)
{
    *bytes = (double)r->model->state.bytes - (double)ek_recover_prealloc_bytes(&r->recovery);
    if (r->memory_step >= 0)
        *bytes -= (double)ek_recover_bytes(&r->recovery);
    EK_TRY(ek_run_sum_on_host(r, bytes));
    *bytes = *bytes > 0 ? *bytes : 0;
    return EK_OK;
}

double ek_run_memory_available(const ek_run *r)
{
    const ek_memory *m = r->kernels->memory;

    return m != NULL ? (double)m->available(m) : (double)ek_memory_available();
}

/* Linux overcommits memory and kills a process that uses too much without a message; so this checks
 * before. */
static ek_status check_memory(ek_run *r)
{
    double want =
        (double)r->out->info.predicted_bytes - (double)r->base_rss - (double)r->model->state.bytes;
    double have = r->cfg->dry_run > 1 ? 0 : ek_run_memory_available(r),
           copy = (double)ek_train_save_bytes(r->model);
    double room, state;

    EK_TRY(shm_bytes_needed(r, &state));
    EK_TRY(ek_run_sum_on_host(r, &want));
    want += state;
    EK_TRY(ek_run_sum_on_host(r, &copy));
    room = have == 0 || 1.1 * (want + copy) <= have;
    EK_TRY(ek_run_minimum(r->world, &room)); /* all ranks save in the background, or none */
    r->background = (r->cfg->save_every > 0 || r->cfg->save_seconds > 0) && room > 0;
    if (r->background)
        r->out->info.predicted_bytes += ek_train_save_bytes(r->model);
    EK_REQUIRE(have == 0 || want <= have, EK_ENOMEM,
               "the run needs about %.1f GB of memory, and %.1f GB are available; lower "
               "--micro-batch, --batch or --seq, %sor use a smaller model",
               want / 1e9, have / 1e9,
               r->training.moe.gather != 0 ? "take --adaptive-r etp, " : "");
    return EK_OK;
}

static ek_status layout_model(ek_run *r)
{
    const ek_train_config *c = r->cfg;
    ek_model_config mc = {.trained = 1,
                          .mesh = r->mesh,
                          .model_chunks = r->mesh != NULL && r->mesh->pp > 1 ? c->chunks : 1,
                          .zero = c->zero,
                          .embed_columns = c->embed_columns,
                          .never_touched = c->dry_run};
    size_t activations;

    EK_TRY(ek_run_set_balance(r, &mc));
    EK_TRY(ek_run_set_slices(r, &mc));
    if (c->elastic && !c->dry_run) {
        const ek_moe_config *moe = &r->training.moe;

        r->state.memory.moves = ek_moe_may_place(moe) && moe->plan_every > 0;
        mc.state = &r->state.memory;
    }
    r->base_rss = ek_rss_bytes();
    EK_TRY(ek_model_create(&r->source.spec, r->kernels, &mc, &r->model));
    EK_TRY(ek_trainer_measure(r->model, &r->training, &activations));
    r->out->info.predicted_bytes =
        (size_t)r->base_rss + r->model->arena.bytes + r->model->state.bytes + activations;
    return EK_OK;
}

/* Initial weights, from files or from the seed. */
static ek_status first_weights(ek_run *r)
{
    const ek_train_config *c = r->cfg;

    if (c->init != NULL)
        return ek_model_load_path(r->model, c->init);
    if (r->source.weights.s[0] != '\0')
        return ek_model_load_path(r->model, r->source.weights.s);
    EK_TRY(ek_model_source_no_weights(&r->source));
    ek_model_init(r->model, c->seed);
    return EK_OK;
}

static ek_status fill_model(ek_run *r)
{
    ek_run_report_phase(r, "transfer");
    EK_TRY(ek_run_fill_from_memory(r));
    if (r->memory_step < 0 && r->found.path.s[0] != '\0')
        EK_TRY(ek_train_load(r->model, r->found.path.s));
    else if (r->memory_step < 0)
        EK_TRY(ek_agree(r->world, "read the first weights", first_weights(r)));
    return ek_model_pack(r->model);
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
        ek_trainer_set_journal(r->trainer, &r->state.journal, r->state.extents_of);
}

/* Parameters used by one token: without experts to which it is not routed. */
static int64_t active_params(const ek_model *m)
{
    const ek_model_spec *s = &m->spec;
    int64_t idle = 0;

    for (int64_t l = 0; l < s->layers; l++)
        if (!s->dense[l])
            idle += (s->experts - s->top_k) * 3 * s->hidden * s->ff;
    return ek_hf_elements(&m->spec) - idle;
}

static void fill_info(ek_run *r)
{
    ek_train_info *i = &r->out->info;

    i->kernels = r->kernels->name;
    i->products = r->kernels->products;
    i->threads = r->kernels->threads;
    i->params = ek_hf_elements(&r->model->spec);
    i->active_params = active_params(r->model);
    i->tokens = ek_sources_tokens(&r->sources);
    i->first_step = r->first_step;
    i->from_memory = r->memory_step >= 0;
    i->memory_lacks = r->memory_step < 0 && r->recovery.n_survivors > 0;
    i->steps = r->training.optimizer.steps;
    i->batch = r->training.batch;
    i->seq = r->training.seq;
}

/* After the model is known. */
static ek_status read_schedules(ek_run *r)
{
    EK_TRY(ek_value_schedule_parse("top-k-schedule", r->cfg->top_k_schedule, 1,
                                   (double)r->source.spec.top_k, 1, &r->top_k_schedule));
    return ek_value_schedule_parse("capacity-schedule", r->cfg->capacity_schedule, -1000, 1000, 0,
                                   &r->capacity_schedule);
}

/* Checks without communication. */
static ek_status read_settings(ek_run *r)
{
    const ek_train_config *c = r->cfg;

    r->sizes = (ek_mesh_sizes){c->pp, c->tp, c->ep, c->etp};
    if (c->elastic)
        ek_mesh_fit(&r->sizes, r->ranks);
    EK_TRY(read_words(r));
    EK_TRY(ek_model_source_open(r->cfg->model, &r->source));
    fill_training(r);
    EK_TRY(check_sizes(r));
    EK_TRY(read_schedules(r));
    EK_TRY(open_replay(r));
    return check_layout(r);
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
    const ek_model_spec *spec = &r->source.spec;

    for (int64_t l = 0; l < spec->layers && r->mesh != NULL && r->mesh->ep > 1; l++)
        r->routed += !spec->dense[l];
    r->of_rank = calloc((size_t)r->ranks, sizeof(*r->of_rank));
    r->of_layer = calloc((size_t)r->routed + 1, sizeof(*r->of_layer));
    EK_REQUIRE(r->of_rank != NULL && r->of_layer != NULL, EK_ENOMEM, "no memory for %d ranks",
               r->ranks);
    return EK_OK;
}

static ek_status open_trace(ek_run *r)
{
    EK_TRY(take_metrics(r));
    if (r->rank == 0)
        EK_TRY(ek_metrics_open(r->cfg->out, r->first_step, &r->metrics));
    EK_TRY(ek_run_write_recovered_step(r));
    if (r->cfg->record_routing && r->rank == 0)
        EK_TRY(ek_routing_trace_open(&r->trace, &r->source.spec, r->cfg->out));
    if (r->cfg->record_plans && r->mesh->at == 0)
        EK_TRY(ek_plan_record_open(&r->plans, r->cfg->out, ek_trainer_pass(r->trainer)));
    return EK_OK;
}

static ek_status log_survivability(ek_run *r)
{
    EK_TRY(ek_run_evaluate_survivability(r));
    if (r->rank == 0 && r->out->balance.survivability_text[0] != '\0')
        ek_log("balance", EK_LOG_INFO, "--replicas-min %d: the current placement %s",
               r->cfg->replicas_min, r->out->balance.survivability_text);
    if (r->rank == 0 && r->out->balance.racks_text[0] != '\0')
        ek_log("balance", EK_LOG_INFO, "--replicas-min counts racks here: the current placement %s",
               r->out->balance.racks_text);
    return EK_OK;
}

/* Whether all steps, the last evaluation and the best model are in checkpoints. */
static int is_finished(const ek_run *r)
{
    int64_t saved = r->memory_step < 0 ? r->first_step : r->checkpoint_step;

    if (r->new_best)
        return 0;
    return (saved >= r->training.optimizer.steps && !ek_run_is_evaluation_due(r, r->first_step)) ||
           (ek_run_stops_early(r) && saved == r->first_step && saved > 0);
}

ek_status ek_run_open(ek_run *r)
{
    EK_TRY(ek_agree(r->world, "look at --out", check_out(r)));
    EK_TRY(ek_agree(r->world, "read the settings", read_settings(r)));
    EK_TRY(ek_agree(r->world, "open the kernels", ek_run_open_kernels(r)));
    EK_TRY(ek_run_leaders_first(r, "open the data", open_data));
    EK_TRY(ek_agree(r->world, "record the settings", make_settings(r)));
    EK_TRY(ek_run_check_same(r));
    EK_TRY(open_mesh(r));
    EK_TRY(ek_run_find_memory(r));
    EK_TRY(find_start(r));
    EK_TRY(ek_run_check_host_loss(r));
    EK_TRY(ek_run_restore_eval_state(r));
    if (is_finished(r)) {
        ek_run_describe_evaluations(r);
        r->out->finished_before = 1;
        return ek_run_release_memory(r);
    }
    EK_TRY(configure_exec(r));
    EK_TRY(ek_run_calibrate(r));
    EK_TRY(ek_agree(r->world, "lay out the model", layout_model(r)));
    EK_TRY(ek_agree(r->world, "get its memory", check_memory(r)));
    if (r->cfg->dry_run) {
        fill_info(r);
        return ek_run_dry(r);
    }
    EK_TRY(ek_agree(r->world, "start", complete_start(r)));
    if (r->cfg->elastic) /* before a host without access to --out gets state of the run; without
                            --elastic the folder is created last */
        EK_TRY(ek_run_check_shared(r));
    EK_TRY(fill_model(r));
    continue_run(r);
    EK_TRY(ek_run_spread_experts(r));
    EK_TRY(ek_run_commit_state(r));
    if (r->cfg->n_draining > 0) { /* a start that only drains hosts */
        fill_info(r);
        if (r->hooks->started != NULL)
            r->hooks->started(r->hooks->context, &r->out->info);
        return EK_OK;
    }
    if (r->cfg->elastic) /* else replicas do not exist yet */
        EK_TRY(log_survivability(r));
    EK_TRY(ek_agree(r->world, "make --out", open_out(r)));
    EK_TRY(ek_run_clear_memory(r));
    if (!r->cfg->elastic)
        EK_TRY(ek_run_check_shared(r));
    EK_TRY(ek_agree(r->world, "open the metrics", open_trace(r)));
    fill_info(r);
    ek_run_describe_memory(r);
    warn_of_gates(r);
    if (r->hooks->started != NULL)
        r->hooks->started(r->hooks->context, &r->out->info);
    return EK_OK;
}
