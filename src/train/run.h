/* train/run.h - a training run from its settings to its files: what `evenkeel train` does.
 *
 * <out>/metrics.jsonl, <out>/checkpoint/, <out>/timeline.json, <out>/routing.npy.  Texts are
 * tokenised into <out>/../.evenkeel-tokens, which runs share. */
#ifndef TRAIN_RUN_H
#define TRAIN_RUN_H

#include "train/trainer.h"

#include <jansson.h>

/* Numbers that are 0 (or negative where 0 means something) take the preset's value. */
typedef struct {
    const char *model, *init, *tokenizer, *out;
    const char *const *data;
    int64_t n_data;
    int token_bytes;
    int64_t batch, seq, micro_batch, steps;
    int shuffled;
    uint64_t seed;
    double lr, min_lr; /* min_lr < 0: lr / 10 */
    int64_t warmup;    /* < 0: 1 % of the steps */
    int cosine;
    double decay, beta1, beta2, eps, clip;
    double aux_coef, z_coef, capacity_factor;
    int64_t top_k;
    ek_recompute recompute;
    ek_mode mode;
    ek_isa isa;
    int threads;
    int64_t save_every, keep; /* save_every 0: at the end alone */
    int resume, timeline, record_routing;
} ek_run_config;

typedef struct {
    int64_t step, steps; /* done, to do */
    ek_step_result last;
    double step_ms, tokens_per_s; /* of the last step, end to end */
    double seconds;               /* of this process's steps */
} ek_run_progress;

/* Facts of a run, known before its first step. */
typedef struct {
    const char *kernels;
    int threads;
    int64_t params, active_params, tokens, first_step, steps, batch, seq;
    size_t predicted_bytes; /* peak resident memory */
} ek_run_info;

/* What the run says while it works; each may be NULL. */
typedef struct {
    void *context;
    void (*started)(void *context, const ek_run_info *info);
    void (*step)(void *context, const ek_run_progress *p);
    void (*tokenising)(void *context, int64_t done, int64_t total);
    int (*stop)(void *context); /* true: save and end with EK_ECANCELED */
} ek_run_hooks;

typedef struct {
    ek_run_info info;
    ek_run_progress end;
    double tokens_per_s; /* mean over this process's steps but the first */
    int64_t peak_rss_bytes;
    int finished_before; /* --resume of a run that had nothing left to do */
    char checkpoint[4096];
} ek_run_summary;

/* Runs.  EK_ECANCELED when hooks->stop asked for it (the checkpoint is written then).
 * out is filled as far as the run came, also on failure. */
EK_CHECKED ek_status ek_run(const ek_run_config *cfg, const ek_run_hooks *hooks,
                            ek_run_summary *out);

#endif
