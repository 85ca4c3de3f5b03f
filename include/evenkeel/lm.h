/* evenkeel/lm.h - a trained language model for use: its loss over data, and texts that it writes.
 *
 * Ownership    open gives, close takes; strings and arrays given are borrowed during the call.
 * Threads      one at a time per model. */
#ifndef EK_LM_H
#define EK_LM_H

#include "evenkeel/err.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ek_lm ek_lm;

typedef struct {
    size_t size;           /* of this struct */
    const char *tokenizer; /* "bytes" or a tokenizer.json; NULL: the model's */
    const char *dtype;     /* "bf16", "fp32" or "fp64"; NULL: the best of the device */
    int threads;           /* 0: all cores */
    const char *device;    /* "cpu" or "cuda"; NULL: cpu */
    int needs_tokenizer;   /* a model without tokenizer is refused before its weights are read, not
                              when a text is met */
} ek_lm_config;

/** Opens a Hugging Face folder, a checkpoint, or a run's folder (its newest checkpoint).
 *
 *  @param[in] cfg  NULL for the defaults
 *  @return EK_ENOENT without config or weights; EK_EFORMAT, EK_EUNSUPPORTED for what they say */
EK_CHECKED EK_API ek_status ek_lm_open(const char *model, const ek_lm_config *cfg, ek_lm **out);

/** Releases *lm and sets it to NULL; NULL and *lm == NULL are fine. */
EK_API void ek_lm_close(ek_lm **lm);

typedef struct {
    size_t size;
    const char *const *data; /* texts, JSON Lines and folders, or .bin token files */
    int64_t n_data;
    int token_bytes;         /* of .bin files: 2 or 4 */
    int64_t seq;             /* tokens a window, without overlap, the last one shorter; 0: 256,
                                or the model's positions if they are fewer */
    const char *cache_dir;   /* where tokenised texts are kept: a folder of this user's alone, made
                                if missing; NULL: they are not kept, ... */
    const char *text_field;  /* of JSON Lines files: the key of a line's text; NULL: "text" */
    const char *scratch_dir; /* ... but in a file without a name in this folder, during the call */
    int (*stop)(void *context); /* asked now and then; true ends with EK_ECANCELED; may be NULL */
    void *context;              /* of stop and progress */
    int document_mask; /* documents of a window are kept apart: a token attends to those of its
                          own document alone, and the first token of a document is no target.
                          EK_EFORMAT where no token is known to end a document */
    /* Called now and then, may be NULL: "tokenising" of so many bytes, "evaluating" of windows. */
    void (*progress)(void *context, const char *what, int64_t done, int64_t all);
} ek_lm_eval_config;

typedef struct {
    double loss;    /* mean cross entropy, nats a token */
    int64_t tokens; /* targets: all tokens but the first, of each document with document_mask */
    int64_t layers, experts; /* shape of load */
    int64_t *load;           /* [layers, experts], assignments; dense layers are 0; free() it */
} ek_lm_eval_result;

/** Mean loss over data, read once.
 *
 *  @param[in] config  its size may be that of an earlier, shorter version of the struct */
EK_CHECKED EK_API ek_status ek_lm_eval(ek_lm *lm, const ek_lm_eval_config *config,
                                       ek_lm_eval_result *out);

/** How long a text took; for speeds. */
typedef struct {
    int64_t prompt_tokens;
    double prompt_s; /* computing the prompt */
    double tokens_s; /* drawing and computing the tokens that follow it */
} ek_lm_generate_times;

typedef struct {
    size_t size;
    int64_t tokens;     /* to add, at most; the end token stops before */
    double temperature; /* 0: the likeliest each time */
    double top_p;       /* draw from the likeliest tokens that hold this share */
    int64_t top_k;      /* draw from this many of the likeliest; 0: all */
    uint64_t seed;
    const char *const *stop; /* UTF-8 strings: the text ends before the first that comes, whatever
                                its tokens; the prompt does not count */
    int64_t n_stop;
    double min_p; /* draw from tokens of at least this share of the likeliest one's probability;
                     0: all */
    double repetition_penalty;   /* above 1: tokens of the prompt and of the text so far are less
                                    likely (their logits divided by it, or multiplied where negative);
                                    1 and 0: off */
    ek_lm_generate_times *times; /* filled once the text is complete; may be NULL */
} ek_lm_generate_config;

/** Receives text as it is made, whole UTF-8 sequences at a time; returns true to stop. */
typedef int ek_lm_text(void *context, const char *text, size_t bytes);

/** Continues a prompt.  Settings apply in this order: repetition penalty, temperature, top_k,
 * top_p, min_p, as in Hugging Face transformers.
 *
 *  @param[in] config  its size may be that of an earlier, shorter version of the struct
 *  @param[out] made  tokens drawn; may be NULL
 *  @return EK_EUNSUPPORTED for expert choice gates, which need the whole sequence */
EK_CHECKED EK_API ek_status ek_lm_generate(ek_lm *lm, const char *prompt,
                                           const ek_lm_generate_config *config, ek_lm_text *text,
                                           void *context, int64_t *made);

/** Writes a model as a Hugging Face folder: config.json, model.safetensors, tokenizer.json,
 *  tokenizer_config.json, special_tokens_map.json, generation_config.json, chat_template.jinja.
 *  The last four are those of `from`; what is missing of them, but for the template, is made.
 *
 *  @param[in] to     must not exist; it appears complete or not at all
 *  @param[in] dtype  "bf16" or "fp32"; NULL: what the config says */
EK_CHECKED EK_API ek_status ek_lm_export(const char *from, const char *to, const char *dtype);

#ifdef __cplusplus
}
#endif
#endif
