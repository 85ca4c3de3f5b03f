/* evenkeel/train.h - a training run from its settings to its files: what `evenkeel train` does.
 *
 * A run leaves in `out`: run.json (all settings), metrics.jsonl (one JSON object a step),
 * checkpoint/ (folders that are Hugging Face folders too), with eval_data evaluation.json and best
 * (a link to the best checkpoint), and on request timeline.json, routing.npy and plans.jsonl.
 * Tokens of texts are kept in cache/tokens, which runs share.
 *
 * Choices are words, the same as the command's options.
 *
 * Threads      a run uses its caller's thread, an OpenMP team and, where ops wait for something
 *              else, one thread a lane.  One run at a time per process.
 * `out`        a folder that holds a run already is refused (EK_EINVAL), unless the run goes on
 *              (resume, elastic) or replaces it (overwrite).
 *
 * Errors       EK_EINVAL a setting, EK_ESTATE `out` is in use by another run, EK_ENOENT /
 *              EK_EFORMAT / EK_EUNSUPPORTED / EK_ECORRUPT an input, EK_ENOSPC / EK_EIO the disk,
 *              EK_ENOMEM more memory than there is, EK_ENONFINITE a loss or gradient that is not
 *              a number, EK_ECANCELED the stop hook. */
#ifndef EK_TRAIN_H
#define EK_TRAIN_H

#include "evenkeel/err.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Settings of a run.  A number of 0 (batch to steps) is the preset's.  Words and paths that may be
 *  NULL say so. */
typedef struct {
    size_t size;             /* of this struct, set by the initialiser below */
    const char *model;       /* preset, config.json, or folder */
    const char *init;        /* initial weights: safetensors file or folder; NULL: random */
    const char *tokenizer;   /* "bytes" or a tokenizer.json; NULL: the model folder's; bytes for a
                                preset */
    const char *out;         /* folder */
    const char *const *data; /* texts, JSON Lines and folders, or .bin token files; each may have a
                                weight, as PATH:0.3, and then is drawn from by it */
    int64_t n_data;
    int token_bytes;              /* of .bin files: 2 or 4 */
    int64_t batch, seq;           /* sequences a step, tokens a sequence */
    int64_t micro_batch;          /* sequences at once */
    int64_t steps;                /* in total */
    const char *data_order;       /* "sequential" or "shuffled" */
    uint64_t seed;                /* of weights, order, noise */
    double lr, min_lr;            /* min_lr < 0: lr / 10 */
    const char *lr_schedule;      /* "constant" or "cosine" */
    int64_t warmup;               /* steps; < 0: 1 % of them */
    double wd, beta1, beta2, eps; /* AdamW */
    double clip;                  /* global norm; 0: never */
    double aux_coef, z_coef;      /* balance loss, router z-loss */
    double capacity_factor;       /* 0: dropless */
    int64_t top_k;                /* experts a token in use; 0: the model's */
    const char *recompute;        /* "off", "attention" or "full" */
    const char *dtype;            /* "bf16", "fp32" or "fp64"; NULL: the best of the device */
    const char *device;           /* "cpu" or "cuda"; NULL: cpu */
    int threads; /* compute threads of this process; 0: its share of the host's cores */
    int64_t save_every, keep; /* steps between checkpoints (0: at the end); how many to keep */
    /* resume: from the newest checkpoint in `out`.  EK_EINVAL where settings that decide about
     * losses are not those of run.json.  Callers who want to go on with its settings read them
     * there. */
    int resume, timeline, record_routing, record_plans;
    int64_t timeline_from, timeline_steps; /* with timeline: the first step of it (below 0: the
                                              first that is taken), and how many steps */
    int elastic; /* state outlives this process, in shared memory; the run goes on from what is
                    there, else from the newest checkpoint, else starts.  ep becomes the least that
                    fits the ranks and is not below the one given.  Whoever starts processes again
                    and again sees to it that one run at a time works in `out` (ek_train does not
                    lock it then) */
    uint64_t
        supervisor_id; /* elastic: whoever that is, by a number of its own (0: nobody).  A process
                    of an earlier start of the same one that is still there is killed */
    struct ek_comm *world;  /* the job's processes (evenkeel/job.h); NULL: this process alone.  All
                               of them give the same settings */
    int n_draining;         /* with elastic: no step is taken, but the state in memory becomes that
                           of the other ranks, and the last so many of the world keep nothing of
                           it: their hosts are about to go.  0: nobody's is */
    int pp, tp;             /* pipeline stages; ranks that share a layer's attention, embeddings
                               and cross entropy.  Data parallelism takes the rest */
    int ep, etp;            /* ranks that share experts out, and the ranks that share one expert:
                               factors of a stage's ranks, like tp and independent of it */
    const char *adaptive_r; /* Tutel's r, of the etp shards of an expert those that a row goes to,
                               which gather the slices of the others: a divisor of etp, as text;
                               "0": rows stay, and every rank is brought every expert; "auto": tuned
                               while training; "etp": nothing is gathered */
    int zero;               /* what data parallel ranks do not keep twice: 0 nothing, 1 optimizer
                               state, 2 and gradients, 3 and weights */
    int embed_columns;      /* data parallel ranks cut the embedding by columns instead of holding
                               it each */
    int chunks;             /* pipeline: runs of layers a stage (1: 1F1B, more: interleaved) */
    int pipeline_degree;    /* parts of a MoE layer's rows, so that exchange and computation
                               overlap; 0: tuned while training */
    int smart_group;     /* instead: FasterMoE's schedule, with groups of so many ranks; 0: off */
    const char *a2a;     /* all-to-all: "linear", "pairwise", "2dh", or "auto": tuned
                            while training */
    int force_balance;   /* a gate that spreads tokens evenly over the experts */
    const char *balance; /* who keeps expert ranks (ep > 1) evenly loaded: a policy of
                            evenkeel/balance.h */
    int spare_slots;     /* slots of each rank for replicas of experts */
    int64_t plan_every;  /* steps between placements that last (0: never a new one) */
    const char *cache;   /* folder for what can be made again: the machine's costs, and tokens of
                            texts in cache/tokens, which has to be this user's alone.  NULL: made
                            anew each time */
    int recalibrate;     /* measured anew whatever is kept */
    int replicas_min;    /* hosts that have to hold each expert, for policies whose replicas last */
    const int *rack_of;  /* [ranks of world] by any numbers: where there are several racks
                            replicas_min is of these; NULL: they are not known */
    const char *replay_routing; /* a routing trace (.npy) with as many experts, whose loads the gate
                                   has in place of its own; NULL: none */
    const char *reroute;    /* "off"; "topology" or "swipe": replaces some choices of the gate while
                               training, which CHANGES THE MODEL, topology even with the layout */
    double reroute_limit;   /* topology: part of a sequence's assignments that may leave a node */
    double watchdog;        /* seconds without progress after which a run fails; 0: never */
    const char *text_field; /* of JSON Lines files: the key of a line's text; NULL: "text" */
    int document_mask;      /* documents of a sequence are kept apart: a token attends to those of
                               its own document alone, and the first token of a document is no
                               target.  EK_EFORMAT where no token is known to end a document */
    int override;           /* with resume: settings that decide about losses may differ */
    int overwrite;          /* a run that is in `out` is replaced (never with resume or elastic) */
    const char *const *command; /* [n_command] the command line, for run.json; NULL: none */
    int64_t n_command;
    const char *caller_settings;  /* JSON object of further settings, such as the number of
                                     processes, that run.json is to keep; NULL: none */
    const char *const *eval_data; /* held-out data, evaluated between steps: paths as of data,
                                     without weights; NULL: none */
    int64_t n_eval_data;
    int64_t eval_every;   /* steps between evaluations, besides one at the end; 0: a 20th of all */
    int64_t eval_tokens;  /* most tokens of an evaluation; 0: all there are */
    int64_t patience;     /* the run ends after so many evaluations without a new best; 0: never */
    int64_t save_seconds; /* seconds between checkpoints, by rank 0's clock; 0: see save_every */
    /* Values that hold from a step on, until the next entry: "STEP:VALUE,STEP:VALUE,...", steps
     * from 0 and ascending; NULL: top_k and capacity_factor hold throughout. */
    const char *top_k_schedule, *capacity_schedule;
    int dry_run; /* 1: everything up to the first step is looked at, and nothing made but the cache
                    of tokenised texts; the summary's plan says what would be done.  2: as well, and
                    memory need not suffice here, for ranks will be on other hosts */
} ek_train_config;

/* clang-format off */
/** The defaults, in the order of the fields: C++ before C++20 has no designated initialisers. */
#define EK_TRAIN_CONFIG_INIT {                                                                     \
    /* size */ sizeof(ek_train_config),                                                            \
    /* model */ "tiny",                                                                            \
    /* init */ NULL,                                                                               \
    /* tokenizer */ NULL,                                                                          \
    /* out */ "run",                                                                               \
    /* data */ NULL,                                                                               \
    /* n_data */ 0,                                                                                \
    /* token_bytes */ 2,                                                                           \
    /* batch */ 0,                                                                                 \
    /* seq */ 0,                                                                                   \
    /* micro_batch */ 0,                                                                           \
    /* steps */ 0,                                                                                 \
    /* data_order */ "shuffled",                                                                   \
    /* seed */ 0,                                                                                  \
    /* lr */ 1e-3,                                                                                 \
    /* min_lr */ -1,                                                                               \
    /* lr_schedule */ "cosine",                                                                    \
    /* warmup */ -1,                                                                               \
    /* wd */ 0.1,                                                                                  \
    /* beta1 */ 0.9,                                                                               \
    /* beta2 */ 0.95,                                                                              \
    /* eps */ 1e-8,                                                                                \
    /* clip */ 1.0,                                                                                \
    /* aux_coef */ 0.01,                                                                           \
    /* z_coef */ 0.0,                                                                              \
    /* capacity_factor */ 0.0,                                                                     \
    /* top_k */ 0,                                                                                 \
    /* recompute */ "off",                                                                         \
    /* dtype */ NULL,                                                                              \
    /* device */ NULL,                                                                             \
    /* threads */ 0,                                                                               \
    /* save_every */ 0,                                                                            \
    /* keep */ 2,                                                                                  \
    /* resume */ 0,                                                                                \
    /* timeline */ 0,                                                                              \
    /* record_routing */ 0,                                                                        \
    /* record_plans */ 0,                                                                          \
    /* timeline_from */ -1,                                                                        \
    /* timeline_steps */ 10,                                                                       \
    /* elastic */ 0,                                                                               \
    /* starter */ 0,                                                                               \
    /* world */ NULL,                                                                              \
    /* givers */ 0,                                                                                \
    /* pp */ 1,                                                                                    \
    /* tp */ 1,                                                                                    \
    /* ep */ 1,                                                                                    \
    /* etp */ 1,                                                                                   \
    /* adaptive_r */ "etp",                                                                        \
    /* zero */ 0,                                                                                  \
    /* embed_columns */ 0,                                                                         \
    /* chunks */ 1,                                                                                \
    /* pipeline_degree */ 0,                                                                       \
    /* smart_group */ 0,                                                                           \
    /* a2a */ "auto",                                                                              \
    /* force_balance */ 0,                                                                         \
    /* balance */ "auto",                                                                          \
    /* spare_slots */ 1,                                                                           \
    /* plan_every */ 10,                                                                           \
    /* cache */ NULL,                                                                              \
    /* recalibrate */ 0,                                                                           \
    /* replicas_min */ 1,                                                                          \
    /* rack_of */ NULL,                                                                            \
    /* replay_routing */ NULL,                                                                     \
    /* reroute */ "off",                                                                           \
    /* reroute_limit */ 0.14,                                                                      \
    /* watchdog */ 300,                                                                            \
    /* text_field */ NULL,                                                                         \
    /* document_mask */ 0,                                                                         \
    /* override */ 0,                                                                              \
    /* overwrite */ 0,                                                                             \
    /* command */ NULL,                                                                            \
    /* n_command */ 0,                                                                             \
    /* caller_settings */ NULL,                                                                    \
    /* eval_data */ NULL,                                                                          \
    /* n_eval_data */ 0,                                                                           \
    /* eval_every */ 0,                                                                            \
    /* eval_tokens */ 131072,                                                                      \
    /* patience */ 0,                                                                              \
    /* save_seconds */ 0,                                                                          \
    /* top_k_schedule */ NULL,                                                                     \
    /* capacity_schedule */ NULL,                                                                  \
    /* dry_run */ 0                                                                                \
    }
/* clang-format on */

/** Facts of a run, known before its first step. */
typedef struct {
    const char *kernels, *products; /* names; valid during the run */
    int threads;
    int64_t params, active_params; /* all, and those that one token meets */
    int64_t tokens;                /* of the data */
    int64_t first_step, steps, batch, seq;
    int from_memory;         /* first_step and state are what an earlier start has left in memory */
    double memory_taken;     /* bytes of it that all ranks together have left where they lie */
    double memory_copied;    /* that they have copied on their hosts */
    double memory_received;  /* and that they have received from other hosts */
    double memory_prealloc;  /* that was made for those to come, on hosts that were about to join */
    char memory_blocks[544]; /* the run's number and a rank's pieces of memory: what `evenkeel
                                reserve` makes there; "": without elastic, or too many sizes */
    int memory_lacks;        /* something was left there, and too little to go on with */
    size_t predicted_bytes;  /* peak resident memory */
} ek_train_info;

/** Where a run is, after each step. */
typedef struct {
    int64_t step, steps;          /* done, to do */
    double loss;                  /* mean cross entropy of the step, nats, before its update; NaN:
                                     no step was left to take */
    double expert_max_over_mean;  /* busiest expert over the mean, worst layer */
    double step_ms, tokens_per_s; /* of the step, end to end */
    double seconds;               /* of this process's steps */
    int64_t eval_tokens; /* targets of the evaluation that was made after the step; 0: none was */
    double eval_loss;    /* its mean cross entropy, nats */
    int eval_best;       /* it is the best so far */
} ek_train_progress;

/** Where a MoE layer stands on FasterMoE's DDL-Roofline, over the steps of this process but the
 *  first.  FLOP/s are one rank's. */
typedef struct {
    int64_t layer;
    double r_cc;       /* time that the busiest rank computes over that in which the busiest link
                          talks; infinite where nothing is said */
    double achieved;   /* useful ones in the layer's time */
    double semi_ideal; /* balanced, products and exchanges in turn */
    double ideal;      /* products and exchanges overlap in full */
    double peak;       /* of the products alone */
    int measured;      /* 0: the layer's time is predicted, as there is no timeline */
    const char *line;  /* the same in words, until the hook returns */
} ek_train_layer;

/** What the ops of a name were predicted to take on rank 0, and took, in the same steps. */
typedef struct {
    const char *op;
    int64_t count;
    double predicted_s; /* negative: nobody predicts it */
    double measured_s;
} ek_train_cost;

/** What a run calls while it works; each may be NULL. */
typedef struct {
    void *context;
    void (*started)(void *context, const ek_train_info *info);
    void (*step)(void *context, const ek_train_progress *progress);
    void (*tokenising)(void *context, int64_t bytes_done, int64_t bytes_total);
    int (*stop)(void *context); /* true: save and end with EK_ECANCELED */
    /* At the end, on rank 0: every MoE layer where a policy balances; with a timeline, every op */
    void (*layer)(void *context, const ek_train_layer *layer);
    void (*cost)(void *context, const ek_train_cost *cost);
    /* What begins: "transfer" (of weights, from wherever), "step", "evaluate", "checkpoint",
     * "end" */
    void (*phase)(void *context, const char *name);
    /* While held-out data are evaluated, after each batch of windows */
    void (*evaluating)(void *context, int64_t windows_done, int64_t windows);
} ek_train_hooks;

enum { EK_TRAIN_LOST = 3 };

/** What balance did, means of the steps of this process but the first. */
typedef struct {
    const char *policy;      /* NULL: there was nothing to balance */
    double before, after;    /* busiest rank's rows over the mean, worst layer: with every expert
                                alone where it began, and as it was */
    double replicas;         /* of all layers and micro-batches of a step */
    double replica_bytes;    /* that these moved in a step */
    double experts_moved;    /* for good, a step */
    double plan_s, waited_s; /* of a step: planning; products that stood still for replicas */
    /* With replicas_min above 1, as experts lay in the end: of so many hosts any so many may be
     * lost without the last replica of any expert of any layer; the chance of that when 1, 2, ...
     * random ones are lost; and both in words ("" without). */
    int hosts, survives;
    double survivability[EK_TRAIN_LOST];
    char survivability_text[192],
        racks_text[192]; /* the latter of racks, where there are several */
} ek_train_balance;

/** Evaluations on eval_data.  Steps count those done. */
typedef struct {
    int64_t count;           /* that this process has made */
    int64_t step, best_step; /* of the last, and of the best of the whole run; 0: there is none */
    double loss, best_loss;  /* mean cross entropy, nats */
    int64_t since_best;      /* evaluations since the best */
    int stopped_early;       /* patience has ended the run */
    char best_checkpoint[4096]; /* <out>/best, a link to the best one's checkpoint; "": none */
} ek_train_evaluation;

/** What a run would do (dry_run).  The layout is that of ek_train_config, with what follows. */
typedef struct {
    int made; /* the rest is filled in */
    int ranks, pp, dp, tp, edp, ep, etp;
    int64_t step_tokens;
    double epochs;                        /* how often all steps together see the data */
    int64_t eval_every, eval_windows;     /* 0: no evaluations */
    double memory_least, memory_most;     /* bytes of a rank */
    int memory_most_rank;                 /* which takes the most */
    double memory_host, memory_available; /* of the first rank's host: of its ranks together, and
                                             what there is; 0: not known */
    int64_t checkpoint_bytes;             /* of one */
    int64_t checkpoints_most, disk_free;  /* at once, with the one that is being written; bytes */
    char files[256];                      /* names in `out` */
} ek_train_plan;

typedef struct {
    ek_train_info info;
    ek_train_plan plan;
    ek_train_progress end;
    ek_train_balance balance;
    ek_train_evaluation evaluation;
    int64_t spikes;         /* steps of this process with a loss or gradient norm far above the
                               usual (docs/training.md) */
    double tokens_per_s;    /* mean over this process's steps but the first */
    int64_t peak_rss_bytes; /* of this process */
    int finished_before;    /* resume found nothing left to do */
    char checkpoint[4096];  /* the newest; "" if none was written */
} ek_train_summary;

/** Runs.
 *
 *  @param[in]  cfg    settings; strings are borrowed until the call returns
 *  @param[in]  hooks  may be NULL
 *  @param[out] out    filled as far as the run came, also on failure */
EK_CHECKED EK_API ek_status ek_train(const ek_train_config *cfg, const ek_train_hooks *hooks,
                                     ek_train_summary *out);

#ifdef __cplusplus
}
#endif
#endif
