/** @file
 *  evenkeel/lm.h - use of a trained language model: loss over data, text generation, export.
 *
 *  @par Collective
 *  No call is: a model is used by one process.
 *
 *  @par Ownership
 *  ek_lm_open creates, ek_lm_close releases; strings and arrays that are passed in are borrowed
 *  during the call.
 *
 *  @par Threads
 *  One at a time per model. */
#ifndef EK_LM_H
#define EK_LM_H

#include "evenkeel/err.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/** An opened model. */
typedef struct ek_lm ek_lm;

/** Settings of ek_lm_open. */
typedef struct {
    size_t size;           /**< of this struct */
    const char *tokenizer; /**< "bytes" or a tokenizer.json; NULL: the model's */
    const char *dtype;     /**< "bf16", "fp32" or "fp64"; NULL: bf16 with AVX2 or CUDA, else fp32 */
    int threads;           /**< 0: all cores */
    const char *device;    /**< "cpu" or "cuda"; NULL: cpu */
    int needs_tokenizer;   /**< fail before the weights are read if the model has no tokenizer, not
                              when a text is tokenised */
    /** Called while the weights are read, with what "reading weights", in parameters; NULL: not
     *  wanted. */
    void (*progress)(void *context, const char *what, int64_t done, int64_t all);
    void *context; /**< of progress */
    /** Where experts' weights are kept: "memory": all of them in memory; "cache": in the model's
     *  files, and some of them in memory, read when a layer needs them; "ring": in the files, read
     *  layer by layer in a circle, for large batches; "mmap": the files are mapped, and the kernel
     *  decides what is in memory, for comparisons: an I/O error, or a file that is cut short while
     *  it is read, is SIGBUS; NULL or "auto": "memory" if the model fits, else "cache". */
    const char *expert_store;
    int64_t expert_slots; /**< experts of all layers that are in memory at a time; 0: what
                               memory_limit leaves room for */
    /** The expert that gives way to another: "lru": used longest ago; "lfu": used least often;
     *  NULL or "auto": whichever would have had more hits lately. */
    const char *expert_eviction;
    int64_t memory_limit; /**< most bytes of memory of this process, page cache of the model's files
                             included; 0: what its cgroups allow, else what is free */
    int64_t positions;    /**< tokens of a text that memory has to hold beside the weights, checked
                             before they are read; 0: not known, ek_lm_generate checks */
    int64_t ring; /**< layers of a ring: one that computes, one that is read, and of the others all
                     experts stay in memory, unless expert_eviction is given: then none does; at
                     least 2; 0: what memory_limit leaves room for */
    /** "on": when a token is generated, the next layer's experts are predicted by its router from
     *  this layer's input, and read while the disk is idle; "off" or NULL: only for prompts, where
     *  many tokens make it certain. */
    const char *expert_lookahead;
} ek_lm_config;

/** Opens a Hugging Face folder, a checkpoint, or a run's folder (its newest checkpoint).  Not
 *  collective.  Of each weight one form is kept in memory, in the type of dtype; with bf16 that are
 *  the bytes of a folder in bf16 (a tied embedding has two forms, any embedding is float).
 *
 *  @param[in]  model  the folder
 *  @param[in]  config NULL for the defaults; its size may be that of an earlier, shorter version
 *  @param[out] out    released by ek_lm_close
 *  @return EK_ENOENT: no config or weights; EK_EFORMAT, EK_EUNSUPPORTED: their contents;
 *          EK_ENOMEM: the model needs more than memory_limit, before anything large is read */
EK_CHECKED EK_API ek_status ek_lm_open(const char *model, const ek_lm_config *config, ek_lm **out);

/** What a model's expert cache has done since it was opened. */
typedef struct {
    size_t size;          /**< of this struct, set by the caller */
    int64_t slots;        /**< experts that fit; 0: all experts are in memory */
    int64_t uses;         /**< experts that layers needed, counted once for each layer and block of
                               tokens */
    int64_t hits;         /**< those that were in memory */
    int64_t read_bytes;   /**< bytes of the others, as they are kept in memory */
    double read_s;        /**< seconds in which computation waited for them */
    int64_t prompt_bytes; /**< of read_bytes, those for prompts of ek_lm_generate */
    int64_t passes;       /**< layers that were run with all experts of the next ones fetched in
                               advance: those of a ring, and of batches that need most experts */
    int64_t disk_bytes;   /**< bytes read from the disk past the page cache */
    int64_t wasted_bytes; /**< of them, those of experts that no layer needed in the end */
    int64_t predicted;    /**< experts that were predicted a layer ahead */
    int64_t confirmed;    /**< of them, those that the layer needed */
} ek_lm_expert_stats;

/** Statistics of the expert cache.  Not collective.
 *
 *  @param[in]  lm   the model
 *  @param[out] out  filled in; its size is set before
 *  @return EK_EINVAL: size */
EK_CHECKED EK_API ek_status ek_lm_get_expert_stats(const ek_lm *lm, ek_lm_expert_stats *out);

/** Releases a model.  Not collective.
 *
 *  @param[in,out] lm  *lm is set to NULL; NULL and *lm == NULL are allowed */
EK_API void ek_lm_close(ek_lm **lm);

/** Data and settings of ek_lm_eval. */
typedef struct {
    size_t size;             /**< of this struct */
    const char *const *data; /**< texts, JSON Lines and folders, or .bin token files */
    int64_t n_data;          /**< how many */
    int token_bytes;         /**< of .bin files: 2 or 4 */
    int64_t seq; /**< tokens per window, without overlap, the last one shorter; 0: 256, or the
                    model's positions if they are fewer */
    const char *cache_dir;  /**< cache of tokenised texts: a folder private to this user, created if
                               missing; NULL: no cache, but scratch_dir is used */
    const char *text_field; /**< of JSON Lines files: the key of a line's text; NULL: "text" */
    const char *scratch_dir; /**< without a cache: a folder for an unnamed file during the call */
    int (*stop)(void *context); /**< polled; true ends with EK_ECANCELED; may be NULL */
    void *context;              /**< of stop and progress */
    int document_mask; /**< 1: a token attends only to its own document, and the first token of a
                          document is no target. EK_EFORMAT if no end-of-document token is known */
    /** Called with what: "tokenising", in bytes, or "evaluating", in windows.  May be NULL. */
    void (*progress)(void *context, const char *what, int64_t done, int64_t all);
} ek_lm_eval_config;

/** Results of ek_lm_eval. */
typedef struct {
    double loss;     /**< mean cross entropy, nats a token */
    int64_t tokens;  /**< targets: all tokens but the first, of each document with document_mask */
    int64_t layers;  /**< rows of load */
    int64_t experts; /**< columns of load */
    int64_t *load;   /**< [layers, experts], assignments; 0 for dense layers; the caller frees it */
} ek_lm_eval_result;

/** Mean loss over data, read once.  Not collective.
 *
 *  @param[in]  lm      the model
 *  @param[in]  config  its size may be that of an earlier, shorter version of the struct
 *  @param[out] out     filled in; the caller frees its load
 *  @return EK_EFORMAT: data; EK_ENONFINITE: the loss; EK_ECANCELED: stop */
EK_CHECKED EK_API ek_status ek_lm_eval(ek_lm *lm, const ek_lm_eval_config *config,
                                       ek_lm_eval_result *out);

/** Durations of a generation. */
typedef struct {
    int64_t prompt_tokens; /**< tokens of the prompt */
    double prompt_s;       /**< seconds: processing the prompt */
    double tokens_s;       /**< seconds: sampling and processing the generated tokens */
} ek_lm_generate_times;

/** Settings of ek_lm_generate. */
typedef struct {
    size_t size;        /**< of this struct */
    int64_t tokens;     /**< maximum number of new tokens; the end token stops earlier */
    double temperature; /**< 0: always the most likely token */
    double top_p;  /**< draw from the most likely tokens that have this share of the probability */
    int64_t top_k; /**< draw from this many of the most likely tokens; 0: all */
    uint64_t seed; /**< of the draws */
    const char *const *stop; /**< UTF-8 strings: the text ends before the first one that occurs,
                                even across tokens; the prompt is not searched */
    int64_t n_stop;          /**< how many */
    double min_p;            /**< draw from tokens with at least this share of the most likely one's
                                probability; 0: all */
    double repetition_penalty; /**< above 1: makes tokens of the prompt and of the text so far less
                                  likely (their logits are divided by it, or multiplied if
                                  negative); 1 and 0: off */
    ek_lm_generate_times *times; /**< filled once the text is complete; may be NULL */
} ek_lm_generate_config;

/** Receives generated text.
 *
 *  @param[in] context  that of ek_lm_generate
 *  @param[in] text     whole UTF-8 sequences, valid during the call
 *  @param[in] bytes    length of text
 *  @return true to stop */
typedef int ek_lm_text(void *context, const char *text, size_t bytes);

/** Continues a prompt.  Settings apply in this order: repetition penalty, temperature, top_k,
 *  top_p, min_p, as in Hugging Face transformers.  Not collective.
 *
 *  @param[in]  lm       the model
 *  @param[in]  prompt   UTF-8
 *  @param[in]  config   its size may be that of an earlier, shorter version of the struct
 *  @param[in]  text     receives the text as it grows; may be NULL
 *  @param[in]  context  of text
 *  @param[out] made     number of tokens drawn; may be NULL
 *  @return EK_EUNSUPPORTED: expert-choice gates, which need the whole sequence */
EK_CHECKED EK_API ek_status ek_lm_generate(ek_lm *lm, const char *prompt,
                                           const ek_lm_generate_config *config, ek_lm_text *text,
                                           void *context, int64_t *made);

/** Writes a model as a Hugging Face folder: config.json, model.safetensors, tokenizer.json,
 *  tokenizer_config.json, special_tokens_map.json, generation_config.json, chat_template.jinja.
 *  The last four are copied from `from`; missing ones are made, except the template.  Not
 *  collective.
 *
 *  @param[in] from   as for ek_lm_open
 *  @param[in] to     must not exist; it appears complete or not at all
 *  @param[in] dtype  "bf16" or "fp32"; NULL: that of the config
 *  @return EK_ENOENT, EK_EFORMAT, EK_EUNSUPPORTED: `from`; EK_ENOSPC, EK_EIO: `to` */
EK_CHECKED EK_API ek_status ek_lm_export(const char *from, const char *to, const char *dtype);

#ifdef __cplusplus
}
#endif
#endif
