/* The public model handle: source, kernels, weights and tokenizer. */
#include "evenkeel/lm.h"

#include "base/clock.h"
#include "base/entry.h"
#include "base/threads.h"
#include "data/documents.h"
#include "data/tokenizer.h"
#include "data/tokenizer_files.h"
#include "data/tokens.h"
#include "infer/evaluate.h"
#include "infer/expert_choice.h"
#include "infer/memory.h"
#include "infer/sampler.h"
#include "infer/session.h"
#include "infer/text_out.h"
#include "model/hf/config.h"
#include "model/hf/expert_files.h"
#include "model/hf/io.h"
#include "model/hf/source.h"
#include "tensor/select/select.h"

#include <stdlib.h>
#include <string.h>

struct ek_lm {
    ek_model_source source;
    ek_kernels *kernels;
    ek_model *model;
    ek_expert_files *experts; /* NULL: all experts are in memory */
    int64_t expert_slots;
    int64_t prompt_bytes; /* that experts of prompts took */
    ek_tokenizer *tokenizer;
    int64_t memory_limit; /* bytes; 0: auto */
};

/* Copies the settings of a caller that may use an earlier, shorter struct. first: bytes of the
 * first version; later fields, of 8 bytes each, are zero if the caller lacks them. */
static ek_status copy_config(const char *name, const void *cfg, size_t first, void *out,
                             size_t bytes)
{
    size_t given;

    memcpy(&given, cfg, sizeof(given));
    EK_REQUIRE(given >= first && given <= bytes && given % 8 == 0, EK_EINVAL,
               "%s is %zu bytes, this library expects %zu", name, given, bytes);
    memset(out, 0, bytes);
    memcpy(out, cfg, given);
    return EK_OK;
}

/* Callbacks run in the caller's locale. */
typedef struct {
    ek_lm_text *text;
    int (*stop)(void *context);
    void (*progress)(void *context, const char *what, int64_t done, int64_t all);
    void *context;
    locale_t locale;
} caller_function;

static int call_text(void *context, const char *text, size_t bytes)
{
    const caller_function *f = context;
    locale_t own = uselocale(f->locale);
    int stop = f->text(f->context, text, bytes);

    uselocale(own);
    return stop;
}

static int call_stop(void *context)
{
    const caller_function *f = context;
    locale_t own = uselocale(f->locale);
    int stop = f->stop(f->context);

    uselocale(own);
    return stop;
}

static void call_progress(const caller_function *f, const char *what, int64_t done, int64_t all)
{
    locale_t own = uselocale(f->locale);

    f->progress(f->context, what, done, all);
    uselocale(own);
}

/* Opens the named tokenizer, else the model's, unless one is open; its end token defaults to the
 * config's. */
static ek_status open_tokenizer(ek_lm *lm, const char *named)
{
    int64_t vocab = lm->source.spec.vocab, end = lm->source.spec.eos_id, has;
    const char *name;

    if (lm->tokenizer != NULL)
        return EK_OK;
    EK_TRY(ek_model_source_tokenizer(&lm->source, named, &name));
    EK_TRY(ek_tokenizer_open(name, &lm->tokenizer));
    has = ek_tokenizer_vocab(lm->tokenizer);
    EK_REQUIRE(
        has <= vocab, EK_EFORMAT,
        "the tokenizer %s has %lld tokens, the model's vocabulary %lld; give the model's own "
        "with --tokenizer",
        name, (long long)has, (long long)vocab);
    if (ek_tokenizer_end(lm->tokenizer) < 0 && end >= 0 && end < has)
        EK_TRY(ek_tokenizer_set_end(lm->tokenizer, end));
    return EK_OK;
}

/* Resolves a model that has weights. */
static ek_status open_source(const char *model, ek_model_source *out)
{
    EK_TRY(ek_model_source_open(model, out));
    EK_REQUIRE(out->weights.s[0] != '\0', EK_ENOENT,
               "%s has no weights (model.safetensors); give a checkpoint or a Hugging Face folder",
               model);
    return EK_OK;
}

static void report_reading(void *context, int64_t done, int64_t all)
{
    call_progress(context, "reading weights", done, all);
}

static ek_status open_experts(ek_lm *lm, const ek_expert_choice *c)
{
    ek_expert_files_config fc = {.slots = c->room.slots,
                                 .kept = c->kept,
                                 .ring = c->ring,
                                 .mapped = c->mapped,
                                 .eviction = c->eviction,
                                 .lookahead = c->lookahead,
                                 .buffer_bytes =
                                     ek_expert_files_buffer_bytes(lm->model, c->room.buffers)};

    lm->expert_slots = c->room.slots;
    return ek_expert_files_open(lm->model, lm->source.weights.s, &fc, &lm->experts);
}

static ek_status open_model(ek_lm *lm, const char *model, ek_mode mode, const ek_lm_config *cfg,
                            locale_t locale)
{
    caller_function caller = {.progress = cfg->progress, .context = cfg->context, .locale = locale};
    ek_load_options how = {.progress = {cfg->progress != NULL ? report_reading : NULL, &caller}};
    ek_model_config mc = {.trained = 0};
    ek_expert_choice experts;

    EK_TRY(ek_expert_choice_check(cfg));
    EK_TRY(open_source(model, &lm->source));
    if (cfg->tokenizer != NULL || cfg->needs_tokenizer)
        EK_TRY(open_tokenizer(lm, cfg->tokenizer));
    EK_TRY(ek_kernels_open(cfg->device, 0, mode, ek_cpu_isa(),
                           cfg->threads > 0 ? cfg->threads : ek_cores_usable(), &lm->kernels));
    lm->memory_limit = cfg->memory_limit;
    EK_TRY(ek_expert_choice_make(cfg, &lm->source.spec, lm->kernels, &experts));
    EK_TRY(ek_infer_check_model(&lm->source.spec, lm->kernels, mode, cfg->memory_limit,
                                cfg->positions, experts.room, &how.files.cache_bytes));
    mc.experts_elsewhere = experts.room.slots > 0;
    EK_TRY(ek_model_create(&lm->source.spec, lm->kernels, &mc, &lm->model));
    EK_TRY(ek_model_load_path(lm->model, lm->source.weights.s, &how));
    EK_TRY(ek_model_pack(lm->model));
    if (experts.room.slots > 0)
        EK_TRY(open_experts(lm, &experts));
    return ek_kernels_wait(lm->kernels);
}

ek_status ek_lm_open(const char *model, const ek_lm_config *config, ek_lm **out)
{
    EK_C_LOCALE;
    ek_lm_config cfg = {.size = sizeof(cfg)};
    ek_lm *lm = NULL;
    ek_mode mode;
    ek_status st = EK_OK;

    EK_NOT_NULL(model);
    EK_NOT_NULL(out);
    *out = NULL;
    EK_TRY(ek_stack_check());
    if (config != NULL)
        EK_TRY(copy_config("ek_lm_config", config, offsetof(ek_lm_config, progress), &cfg,
                           sizeof(cfg)));
    EK_TRY(ek_mode_parse(cfg.dtype, cfg.device, &mode));
    lm = calloc(1, sizeof(*lm));
    EK_REQUIRE(lm != NULL, EK_ENOMEM, "no memory for a model");
    EK_TRY_OUT(open_model(lm, model, mode, &cfg, host_locale));
    *out = lm;
    lm = NULL;
out:
    ek_lm_close(&lm);
    return st;
}

ek_status ek_lm_get_expert_stats(const ek_lm *lm, ek_lm_expert_stats *out)
{
    EK_C_LOCALE;
    ek_expert_files_stats s = {0};

    EK_NOT_NULL(lm);
    EK_NOT_NULL(out);
    EK_REQUIRE(out->size == sizeof(*out), EK_EINVAL,
               "ek_lm_expert_stats is %zu bytes, this library expects %zu", out->size,
               sizeof(*out));
    if (lm->experts != NULL)
        s = ek_expert_files_get_stats(lm->experts);
    *out = (ek_lm_expert_stats){.size = sizeof(*out),
                                .slots = lm->expert_slots,
                                .uses = s.store.uses,
                                .hits = s.store.hits,
                                .read_bytes = s.store.read_bytes,
                                .read_s = (double)s.store.read_ns * 1e-9,
                                .prompt_bytes = lm->prompt_bytes,
                                .passes = s.store.passes,
                                .disk_bytes = s.disk_bytes,
                                .wasted_bytes = s.wasted_bytes,
                                .predicted = s.store.predicted,
                                .confirmed = s.store.confirmed};
    return EK_OK;
}

void ek_lm_close(ek_lm **plm)
{
    if (plm == NULL || *plm == NULL)
        return;
    ek_expert_files_close(&(*plm)->experts);
    ek_model_destroy(&(*plm)->model);
    ek_kernels_destroy(&(*plm)->kernels);
    ek_tokenizer_destroy(&(*plm)->tokenizer);
    free(*plm);
    *plm = NULL;
}

static int64_t promised_bytes(const ek_lm *lm)
{
    return lm->experts != NULL ? ek_expert_files_untouched(lm->experts) : 0;
}

/* Window length: `seq` or the default, checked against the model. */
static ek_status choose_length(const ek_model_spec *s, int64_t *len)
{
    int64_t seq = *len;

    if (seq == 0) {
        seq = s->max_positions < EK_EVAL_SEQ ? s->max_positions : EK_EVAL_SEQ;
        seq = s->sliding_window > 0 && s->sliding_window < seq ? s->sliding_window : seq;
        *len = seq;
    }
    EK_REQUIRE(seq > 0 && seq <= ek_model_longest(s), EK_EINVAL,
               "a window of %lld tokens; the model has 1 to %lld positions", (long long)seq,
               (long long)ek_model_longest(s));
    EK_REQUIRE(s->sliding_window == 0 || seq <= s->sliding_window, EK_EUNSUPPORTED,
               "a window of %lld tokens is over the config's sliding_window %lld, which is not "
               "implemented",
               (long long)seq, (long long)s->sliding_window);
    return EK_OK;
}

static void report_tokenising(void *context, int64_t done, int64_t all)
{
    call_progress(context, "tokenising", done, all);
}

static void report_evaluating(void *context, int64_t done, int64_t all)
{
    call_progress(context, "evaluating", done, all);
}

static ek_status read_eval_config(const ek_lm_eval_config *cfg, ek_lm_eval_config *out)
{
    EK_TRY(copy_config("ek_lm_eval_config", cfg, offsetof(ek_lm_eval_config, text_field), out,
                       sizeof(*out)));
    EK_REQUIRE(out->n_data > 0 && out->data != NULL, EK_EINVAL, "no data to evaluate on");
    for (int64_t i = 0; i < out->n_data; i++)
        EK_REQUIRE(out->data[i] != NULL, EK_EINVAL, "ek_lm_eval_config: entry %lld of data is NULL",
                   (long long)i);
    EK_REQUIRE(out->cache_dir != NULL || out->scratch_dir != NULL ||
                   ek_tokens_is_file(out->data[0]),
               EK_EINVAL,
               "ek_lm_eval_config: cache_dir and scratch_dir are NULL; the tokens of texts are "
               "written to a file in one of them");
    return EK_OK;
}

ek_status ek_lm_eval(ek_lm *lm, const ek_lm_eval_config *config, ek_lm_eval_result *out)
{
    EK_C_LOCALE;
    const ek_model_spec *s;
    ek_lm_eval_config cfg;
    caller_function caller;
    ek_tokens_config tc = {0};
    ek_evaluate_config ec = {0};
    ek_evaluation e = {0};
    ek_tokens *tokens = NULL;
    ek_status st = EK_OK;

    EK_NOT_NULL(lm);
    EK_NOT_NULL(config);
    EK_NOT_NULL(out);
    EK_TRY(read_eval_config(config, &cfg));
    EK_TRY(ek_stack_check());
    caller = (caller_function){
        .stop = cfg.stop, .progress = cfg.progress, .context = cfg.context, .locale = host_locale};
    s = &lm->model->spec;
    tc.vocab = s->vocab;
    tc.paths = cfg.data;
    tc.n_paths = cfg.n_data;
    tc.token_bytes = cfg.token_bytes;
    tc.cache_dir = cfg.cache_dir;
    tc.scratch_dir = cfg.scratch_dir;
    tc.text_field = cfg.text_field;
    tc.stop = ec.stop = cfg.stop != NULL ? call_stop : NULL;
    tc.progress = cfg.progress != NULL ? report_tokenising : NULL;
    ec.progress = cfg.progress != NULL ? report_evaluating : NULL;
    tc.context = ec.context = &caller;
    ec.seq = cfg.seq;
    EK_TRY(choose_length(s, &ec.seq));
    ec.batch = EK_EVAL_TOKENS / ec.seq > 0 ? EK_EVAL_TOKENS / ec.seq : 1;
    EK_TRY(ek_infer_check_evaluation(lm->model, lm->memory_limit, promised_bytes(lm), ec.batch,
                                     ec.seq));
    if (!ek_tokens_is_file(cfg.data[0]) || (cfg.document_mask && lm->source.tokenizer.s[0] != '\0'))
        EK_TRY(open_tokenizer(lm, NULL));
    tc.tokenizer = lm->tokenizer;
    ek_kernels_enter(lm->kernels);
    EK_TRY(ek_tokens_open(&tc, &tokens));
    ec.document_mask = cfg.document_mask;
    if (cfg.document_mask) {
        EK_TRY_OUT(ek_documents_end(lm->tokenizer, lm->source.spec.eos_id, &ec.document_end));
        EK_TRY_OUT(ek_documents_check(&tokens, 1, ec.document_end));
    }
    EK_TRY_OUT(ek_evaluate(lm->model, tokens, &ec, &e));
    *out = (ek_lm_eval_result){e.loss, e.tokens, s->layers, s->experts, e.load};
    e.load = NULL;
out:
    ek_tokens_close(&tokens);
    free(e.load);
    return st;
}

/* --- generation ------------------------------------------------------------------------------ */

/* Ids of a prompt; an empty one becomes the begin or end token. */
static ek_status encode_prompt(const ek_lm *lm, const char *prompt, ek_ids *ids)
{
    int64_t first =
        lm->source.spec.bos_id >= 0 ? lm->source.spec.bos_id : ek_tokenizer_end(lm->tokenizer);
    ek_encoder *e = NULL;
    ek_status st;

    EK_TRY(ek_encoder_create(lm->tokenizer, &e));
    st = ek_encode(e, prompt, strlen(prompt), ids);
    ek_encoder_destroy(&e);
    EK_TRY(st);
    if (ids->n > 0)
        return EK_OK;
    EK_REQUIRE(first >= 0, EK_EINVAL, "the prompt is empty, and the model has no begin token");
    return ek_ids_push(ids, (uint32_t)first);
}

/* Draws and feeds until the token limit, the end token, a stop string, or the callback ends the
 * text. strip: leading spaces to drop if there is no prompt. */
static ek_status continue_text(const ek_lm *lm, ek_session *s, ek_sampler *sampler, int64_t tokens,
                               int64_t strip, ek_text_out *text, int64_t *made)
{
    const unsigned char *bytes;
    size_t n;
    int over = 0;

    for (*made = 0; *made < tokens && !over; ++*made) {
        int32_t id;

        if (*made > 0)
            EK_TRY(ek_session_feed(s, &id, 1));
        EK_TRY(ek_sampler_next(sampler, lm->kernels->real, ek_session_logits(s),
                               ek_session_position(s), &id));
        if (id == ek_tokenizer_end(lm->tokenizer))
            break;
        ek_sampler_count(sampler, id);
        EK_TRY(ek_tokenizer_decode(lm->tokenizer, id, &bytes, &n));
        for (; strip > 0 && n > 0 && bytes[0] == ' '; strip--, n--)
            bytes++;
        strip = n > 0 ? 0 : strip;
        over = ek_text_out_append(text, bytes, n);
    }
    ek_text_out_finish(text);
    return EK_OK;
}

static ek_status read_generate_config(const ek_lm_generate_config *cfg, ek_lm_generate_config *out)
{
    EK_TRY(copy_config("ek_lm_generate_config", cfg, offsetof(ek_lm_generate_config, stop), out,
                       sizeof(*out)));
    EK_REQUIRE(out->n_stop >= 0 && (out->n_stop == 0 || out->stop != NULL), EK_EINVAL,
               "%lld stop strings and no list of them", (long long)out->n_stop);
    for (int64_t i = 0; i < out->n_stop; i++)
        EK_REQUIRE(out->stop[i] != NULL, EK_EINVAL, "ek_lm_generate_config: stop[%lld] is NULL",
                   (long long)i);
    return EK_OK;
}

static ek_status check_length(const ek_lm *lm, int64_t prompt, int64_t tokens)
{
    int64_t most = ek_model_longest(&lm->source.spec);

    EK_REQUIRE(tokens >= 0 && tokens <= most - prompt, EK_EINVAL,
               "the prompt has %lld tokens, and %lld are to be added (--tokens), but the model has "
               "%lld positions; give a shorter prompt or add fewer tokens",
               (long long)prompt, (long long)tokens, (long long)most);
    return EK_OK;
}

/* Excludes ids without a token: the model's vocabulary may be larger than the tokenizer's, which
 * may have unused ids. */
static ek_status create_sampler(const ek_lm *lm, const ek_lm_generate_config *cfg,
                                const ek_ids *prompt, ek_sampler **out)
{
    int64_t n = ek_tokenizer_vocab(lm->tokenizer);
    ek_sampler_config sc = {.temperature = cfg->temperature,
                            .top_p = cfg->top_p,
                            .top_k = cfg->top_k,
                            .seed = cfg->seed,
                            .min_p = cfg->min_p,
                            .repetition_penalty = cfg->repetition_penalty};

    EK_TRY(ek_sampler_create(&sc, n, out));
    for (int64_t id = 0; id < n; id++)
        if (!ek_tokenizer_has(lm->tokenizer, id))
            ek_sampler_exclude(*out, (int32_t)id);
    for (int64_t i = 0; i < prompt->n; i++)
        ek_sampler_count(*out, prompt->ids[i]);
    return EK_OK;
}

static int64_t expert_bytes(const ek_lm *lm)
{
    return lm->experts != NULL ? ek_expert_files_get_stats(lm->experts).store.read_bytes : 0;
}

static ek_status feed_prompt(ek_lm *lm, ek_session *s, const ek_ids *ids)
{
    int64_t before = expert_bytes(lm);
    ek_status st = ek_session_feed(s, ids->ids, ids->n);

    lm->prompt_bytes += expert_bytes(lm) - before;
    return st;
}

ek_status ek_lm_generate(ek_lm *lm, const char *prompt, const ek_lm_generate_config *config,
                         ek_lm_text *text, void *context, int64_t *made)
{
    EK_C_LOCALE;
    caller_function reader = {.text = text, .context = context, .locale = host_locale};
    ek_session_config session_cfg = {0};
    ek_lm_generate_config cfg;
    ek_text_out *out = NULL;
    int64_t count = 0, begin, fed;
    ek_session *session = NULL;
    ek_sampler *sampler = NULL;
    ek_ids ids = {0};
    ek_status st = EK_OK;

    EK_NOT_NULL(lm);
    EK_NOT_NULL(prompt);
    EK_NOT_NULL(config);
    EK_TRY(read_generate_config(config, &cfg));
    EK_TRY(ek_stack_check());
    EK_TRY_OUT(open_tokenizer(lm, NULL));
    EK_TRY_OUT(
        ek_text_out_create(text != NULL ? call_text : NULL, &reader, cfg.stop, cfg.n_stop, &out));
    ek_kernels_enter(lm->kernels);
    EK_TRY_OUT(encode_prompt(lm, prompt, &ids));
    EK_TRY_OUT(check_length(lm, ids.n, cfg.tokens));
    session_cfg.capacity = ids.n + cfg.tokens;
    EK_TRY_OUT(
        ek_infer_check_session(lm->model, lm->memory_limit, promised_bytes(lm), ids.n, cfg.tokens));
    EK_TRY_OUT(ek_session_create(lm->model, &session_cfg, &session));
    EK_TRY_OUT(create_sampler(lm, &cfg, &ids, &sampler));
    begin = ek_clock_ns();
    EK_TRY_OUT(feed_prompt(lm, session, &ids));
    fed = ek_clock_ns();
    EK_TRY_OUT(continue_text(lm, session, sampler, cfg.tokens,
                             prompt[0] == '\0' ? ek_tokenizer_strip(lm->tokenizer) : 0, out,
                             &count));
    if (cfg.times != NULL)
        *cfg.times = (ek_lm_generate_times){ids.n, (double)(fed - begin) / 1e9,
                                            (double)(ek_clock_ns() - fed) / 1e9};
    if (made != NULL)
        *made = count;
out:
    free(ids.ids);
    ek_text_out_destroy(&out);
    ek_sampler_destroy(&sampler);
    ek_session_destroy(&session);
    return st;
}

/* --- export ---------------------------------------------------------------------------------- */

/* Writes tokenizer.json and the files beside it. */
static ek_status write_tokenizer(const ek_tokenizer *tokenizer, const ek_tokenizer_files *files,
                                 const char *folder)
{
    ek_path path;

    if (tokenizer != NULL) {
        EK_TRY(ek_path_set(&path, "%s/tokenizer.json", folder));
        EK_TRY(ek_tokenizer_save(tokenizer, path.s));
    }
    for (int i = 0; i < EK_TOKENIZER_FILES; i++) {
        if (files->text[i] == NULL)
            continue;
        EK_TRY(ek_path_set(&path, "%s/%s", folder, ek_tokenizer_file_name(i)));
        EK_TRY(ek_file_write(NULL, path.s, files->text[i], files->bytes[i]));
    }
    return EK_OK;
}

/* Writes the files of the folder; the model is only measured, and weights are copied from file to
 * file. */
static ek_status write_folder(const ek_model_source *source, ek_dtype dtype, const char *folder)
{
    ek_model_spec spec = source->spec;
    ek_tokenizer_files beside = {0};
    ek_tokenizer *tokenizer = NULL;
    ek_slice_set *files = NULL;
    char *config = NULL;
    ek_path path;
    ek_status st;

    EK_TRY_OUT(ek_slice_set_open(source->weights.s, &files));
    if (source->tokenizer.s[0] != '\0')
        EK_TRY_OUT(ek_tokenizer_open(source->tokenizer.s, &tokenizer));
    EK_TRY_OUT(ek_tokenizer_files_read(source->folder.s, 1, &beside));
    EK_TRY_OUT(ek_tokenizer_files_complete(&beside, tokenizer, spec.bos_id, spec.eos_id,
                                           spec.max_positions));
    spec.eos_id = ek_tokenizer_files_eos(tokenizer, spec.eos_id);
    EK_TRY_OUT(ek_path_set(&path, "%s/config.json", folder));
    EK_TRY_OUT(ek_hf_config_text(&spec, &config));
    EK_TRY_OUT(ek_file_write(NULL, path.s, config, strlen(config)));
    EK_TRY_OUT(ek_path_set(&path, "%s/model.safetensors", folder));
    EK_TRY_OUT(ek_hf_copy(&source->spec, files, dtype, NULL, path.s, EK_WRITE_NEW));
    EK_TRY_OUT(write_tokenizer(tokenizer, &beside, folder));
out:
    ek_tokenizer_files_free(&beside);
    free(config);
    ek_tokenizer_destroy(&tokenizer);
    ek_slice_set_close(&files);
    return st;
}

ek_status ek_lm_export(const char *from, const char *to, const char *dtype)
{
    EK_C_LOCALE;
    ek_model_source source;
    ek_path name, made, temporary = {""};
    ek_status st = EK_OK;
    int bf16;

    EK_NOT_NULL(from);
    EK_NOT_NULL(to);
    EK_TRY(ek_stack_check());
    EK_TRY(ek_path_set(&name, "%s", to));
    for (size_t n = strlen(to); n > 1 && name.s[n - 1] == '/'; n--)
        name.s[n - 1] = '\0'; /* places the temporary name beside it */
    EK_REQUIRE(ek_file_kind_of(name.s) == EK_FILE_NONE, EK_EINVAL,
               "%s exists already; name a folder that does not", to);
    EK_REQUIRE(dtype == NULL || strcmp(dtype, "bf16") == 0 || strcmp(dtype, "fp32") == 0, EK_EINVAL,
               "no export dtype %s; there are bf16 and fp32", dtype);
    EK_TRY(open_source(from, &source));
    bf16 = strcmp(source.spec.torch_dtype, "bfloat16") == 0;
    if (dtype != NULL)
        bf16 = strcmp(dtype, "bf16") == 0;
    memcpy(source.spec.torch_dtype, bf16 ? "bfloat16" : "float32", bf16 ? 9 : 8);
    EK_TRY_OUT(ek_folder_make_temporary(NULL, name.s, &made));
    temporary = made;
    EK_TRY_OUT(write_folder(&source, bf16 ? EK_BF16 : EK_F32, temporary.s));
    EK_TRY_OUT(ek_file_rename(NULL, temporary.s, name.s));
    temporary.s[0] = '\0';
out:
    if (temporary.s[0] != '\0')
        ek_folder_discard(NULL, temporary.s);
    return st;
}
