/** @file
 *  evenkeel/train.h - a whole training run, from settings to output files: what `evenkeel train`
 *  does.
 *
 *  A run leaves in `out`: run.json (all settings), metrics.jsonl (one JSON object a step),
 *  checkpoint/ (folders that are Hugging Face folders too), with eval_data evaluation.json and
 *  best (a link to the best checkpoint), and on request timeline.json, routing.npy and
 *  plans.jsonl. Tokenised texts are cached in cache/tokens, which runs share.
 *
 *  Choices are strings, the same as the values of the command's options.
 *
 *  @par Threads
 *  A run uses its caller's thread, an OpenMP team, a thread for network ops if a core is spare,
 *  and one that writes checkpoints in the background.  One run at a time per process.
 *
 *  @par The folder `out`
 *  One that already holds a run is refused (EK_EINVAL), unless the run continues (resume,
 *  elastic) or replaces it (overwrite).
 *
 *  @par Errors
 *  EK_EINVAL a setting, EK_ESTATE `out` is in use by another run, EK_ENOENT / EK_EFORMAT /
 *  EK_EUNSUPPORTED / EK_ECORRUPT an input, EK_ENOSPC / EK_EIO the disk, EK_ENOMEM more memory
 *  than there is, EK_ENONFINITE a loss or gradient that is not a number, EK_EPEER another rank
 *  failed, EK_ETIMEOUT the watchdog, EK_ECOMM MPI, EK_EDEVICE the accelerator, EK_ECANCELED the
 *  stop hook. */
#ifndef EK_TRAIN_H
#define EK_TRAIN_H

#include "evenkeel/err.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/** A value of ek_train_config.elastic. */
enum { EK_ELASTIC_BY_DEFAULT = 2 };

/** Settings of a run.  A number of 0 (batch to steps) is the preset's.  Words and paths that may be
 *  NULL say so. */
typedef struct {
    size_t size;             /**< of this struct, set by the initialiser below */
    const char *model;       /**< preset, config.json, or folder */
    const char *init;        /**< initial weights: safetensors file or folder; NULL: random */
    const char *tokenizer;   /**< "bytes" or a tokenizer.json; NULL: the model folder's, or bytes */
    const char *out;         /**< folder */
    const char *const *data; /**< texts, JSON Lines and folders, or .bin token files; PATH:0.3 gives
                                a sampling weight */
    int64_t n_data;          /**< how many */
    int token_bytes;         /**< of .bin files: 2 or 4 */
    int64_t batch;           /**< sequences a step */
    int64_t seq;             /**< tokens a sequence */
    int64_t micro_batch;     /**< sequences at once, at most the batch */
    int64_t steps;           /**< in total */
    const char *data_order;  /**< "sequential" or "shuffled" */
    uint64_t seed;           /**< of weights, order, noise */
    double lr;               /**< learning rate, after warmup */
    double min_lr;           /**< learning rate at the end; negative: lr / 10 */
    const char *lr_schedule; /**< "constant" or "cosine" */
    int64_t warmup;          /**< steps; negative: 1 % of them */
    double wd;               /**< AdamW: weight decay */
    double beta1;            /**< AdamW: decay of the first moment */
    double beta2;            /**< AdamW: decay of the second moment */
    double eps;              /**< AdamW: added to the root of the second moment */
    double clip;             /**< largest global norm of gradients; 0: any */
    double aux_coef;         /**< coefficient of the balance loss */
    double z_coef;           /**< coefficient of the router z-loss */
    double capacity_factor;  /**< 0: dropless */
    int64_t top_k;           /**< experts a token in use; 0: the model's */
    const char *recompute;   /**< "off", "attention" or "full" */
    const char *dtype;  /**< "bf16", "fp32" or "fp64"; NULL: bf16 with AVX2 or CUDA, else fp32 */
    const char *device; /**< "cpu" or "cuda"; NULL: cpu */
    int threads;        /**< compute threads of this process; 0: its share of the host's cores */
    int64_t save_every; /**< steps between checkpoints; 0: at the end; negative: with elastic at an
                           interval from the measured cost of a save and the losses of hosts so far,
                           else at the end */
    int64_t keep;       /**< how many checkpoints to keep */
    int resume;   /**< 1: continues from the newest checkpoint in `out`.  EK_EINVAL if settings that
                     affect losses differ from run.json.  To continue with the stored settings the
                     caller reads them from run.json */
    int timeline; /**< 1: records the ops of some steps in timeline.json */
    int record_routing;     /**< 1: records the loads of experts in routing.npy */
    int record_plans;       /**< 1: records plans with their reasons in plans.jsonl */
    int64_t timeline_from;  /**< timeline: its first step; negative: the first of this process */
    int64_t timeline_steps; /**< timeline: how many steps */
    int elastic; /**< 1: the state of ranks is kept in shared memory, which outlives processes.  The
                    run continues from there, else from the newest checkpoint, else from the start.
                    ep becomes the smallest factor of a stage's ranks that is at least the one
                    given. The caller must ensure that one run at a time uses `out` (ek_train does
                    not lock it).  EK_ELASTIC_BY_DEFAULT: the same, but experts get copies by
                    default only where those are expected to lengthen a step by little */
    struct ek_supervised *supervised; /**< elastic: what the supervisor asks of this process; set
                                         by ek_elastic_train(); NULL: there is none */
    struct ek_comm *world; /**< the job's processes (evenkeel/job.h); NULL: this process alone.  All
                              of them give the same settings */
    int pp;  /**< pipeline stages.  Data parallelism takes the ranks that pp and tp leave */
    int tp;  /**< tensor-parallel ranks of attention, embeddings and cross entropy */
    int ep;  /**< expert-parallel ranks: ep * etp is a factor of a stage's ranks, independent of tp
              */
    int etp; /**< ranks that share one expert */
    const char *adaptive_r; /**< Tutel's r: the number of an expert's etp shards to which a row is
                               sent, which gather the slices of the others: a divisor of etp, as
                               text; "0": rows stay, and every rank gathers every expert; "auto":
                               tuned while training; "etp": nothing is gathered */
    int zero; /**< ZeRO stage: data-parallel ranks shard 0 nothing, 1 optimizer state, 2 also
                 gradients, 3 also weights */
    int embed_columns;     /**< 1: data-parallel ranks shard the embedding by columns */
    int chunks;            /**< virtual stages of a pipeline stage (1: 1F1B, more: interleaved) */
    const char *pp_layers; /**< layers of each virtual stage in the model's order: "even"; "auto":
                              by FLOPs, with the head in the last one; "measured": by FLOPs and the
                              speeds of stages, which are measured at each start, so that cuts may
                              differ; or a list, "6,2" */
    int pipeline_degree;   /**< chunks of a MoE layer's rows, so that all-to-all and computation
                              overlap; 0: tuned while training (with offload "experts": 1) */
    int smart_group;   /**< FasterMoE's schedule instead, with groups of this many ranks; 0: off */
    const char *a2a;   /**< all-to-all: "linear", "pairwise", "2dh"; "auto": tuned in training */
    int force_balance; /**< 1: a gate that spreads tokens evenly over the experts */
    const char *balance; /**< the policy that balances expert ranks (ep > 1): see
                            evenkeel/balance.h, or a planner of one's own: evenkeel/planner.h */
    int spare_slots; /**< slots of each rank for replicas of experts; negative: 1, or with elastic
                        on several hosts what replicas_min needs, where memory allows */
    int64_t plan_every; /**< steps between persistent placements; 0: never a new one */
    const char *cache; /**< folder of machine costs and of tokenised texts (cache/tokens, which must
                          be accessible to this user alone).  NULL: nothing is cached */
    int recalibrate;   /**< 1: measures machine costs even if they are cached */
    int replicas_min;  /**< hosts that must hold each expert, for policies with persistent replicas;
                          0:  1, or with elastic on several hosts, balance "auto" and ep above 1 two,
                          where memory (and EK_ELASTIC_BY_DEFAULT) allows */
    const int *rack_of; /**< [ranks of world] rack numbers, in any numbering: with several racks
                           replicas_min counts racks; NULL: unknown */
    const char *replay_routing; /**< a routing trace (.npy) with the same number of experts, whose
                                   loads replace the gate's; NULL: none */
    const char *reroute;  /**< "off"; "topology" or "swipe": replaces some choices of the gate while
                             training, which CHANGES THE MODEL, topology even with the layout */
    double reroute_limit; /**< topology: how much of a sequence's assignments may leave a node */
    double watchdog;      /**< seconds without progress after which a run fails; 0: never */
    const char *text_field; /**< of JSON Lines files: the key of a line's text; NULL: "text" */
    int document_mask; /**< 1: a token attends to tokens of its own document only, and the first
                          token of a document is no target.  EK_EFORMAT if no end-of-document token
                          is known */
    int override;      /**< 1, with resume: settings that affect losses may differ */
    int overwrite;     /**< 1: replaces a run in `out` (not with resume or elastic) */
    const char *const *command;   /**< [n_command] the command line, for run.json; NULL: none */
    int64_t n_command;            /**< its words */
    const char *caller_settings;  /**< JSON object of further settings, such as the number of
                                     processes, to store in run.json; NULL: none */
    const char *const *eval_data; /**< held-out data, evaluated between steps: paths as of data,
                                     without weights; NULL: none */
    int64_t n_eval_data;          /**< how many */
    int64_t eval_every;  /**< steps between evaluations, besides one at the end; 0: a 20th of all */
    int64_t eval_tokens; /**< most tokens of an evaluation; 0: all */
    int64_t patience; /**< the run ends after this many evaluations without a new best; 0: never */
    int64_t save_seconds; /**< seconds between checkpoints, by rank 0's clock; 0: see save_every */
    const char *top_k_schedule; /**< values of top_k that hold from a step on, until the next entry:
                                   "STEP:VALUE,STEP:VALUE,...", steps from 0 and ascending; NULL:
                                   top_k holds throughout */
    const char *capacity_schedule; /**< likewise of capacity_factor */
    int dry_run; /**< 1: checks everything up to the first step, writes nothing but the cache of
                    tokenised texts, and fills the summary's plan.  2: likewise, and does not
                    require that memory suffices here, as ranks will be on other hosts */
    int64_t memory_limit; /**< most bytes of memory of this process, page cache of its files
                             included; 0: what its cgroups allow, else what is free */
    const char *offload; /**< "experts": their masters and moments are in a scratch file, as many of
                            them in memory as the limit leaves room for; "off": all in memory.
                            Results are the same bits */
    const char *offload_dir; /**< existing folder of that file, on a fast local disk; NULL: the one
                                that `out` is in */
    const char *offload_gradients; /**< of these experts: "memory", "disk", or "auto": memory if
                                      they fit there */
    double host_mtbf; /**< elastic: hours after which a host is lost, on average, as long as the run
                         has not seen otherwise (docs/resilience.md) */
    const char *prefer; /**< where replicas_min is above 1: "speed", or "survival" of as many losses
                           of more hosts as possible, at the cost of balance */
    const char *rank_speeds; /**< "measured": plans heed how fast expert ranks are, by the times of
                                their products, where they differ; "equal": they do not */
    /** How data-parallel ranks share the sequences of a micro-batch: "even"; "measured": by those
     * speeds (ep > 1), with memory for 1.5 times an even share, rounded up to sequences; or a list
     * of relative shares, one for each, from 0.001 to 1000: "2,2,1" (not with elastic). */
    const char *batch_shares;
    /** The run's layout (pp, chunks, tp, ep, etp, zero, micro_batch, recompute, and perhaps
     * balance, whatever these are here) is one of a pool: the file of `evenkeel search --pool`, or
     * its JSON text, which begins with a brace (of a file so named, give ./ before it).  The first,
     * or with a micro_batch the first that has it; with resume the one in use before.  A policy of
     * the pool is taken instead of balance.  Rank 0 reads it.  NULL: the layout is as given.  With
     * elastic only with layout_every: the first that survives the loss of any host, or, if `out`
     * has a run, the one that its run.json says; on another number of ranks than the pool is of
     * that stays.  Not with ek_elastic_train(). */
    const char *layout_pool;
    int64_t layout_every; /**< steps after which the run may change to another layout of the pool
                             with the same micro_batch (with elastic one that survives the loss of
                             any host), if one is simulated to take less under the present loads of
                             experts by twice what the change costs; 0: never.  Not
                             with timeline, record_routing, record_plans, offload, and reroute
                             "topology" */
    const char *cluster;  /**< with layout_every: the file of the cluster to simulate on
                             (docs/formats.md), read by rank 0 */
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
    /* device */ "cpu",                                                                            \
    /* threads */ 0,                                                                               \
    /* save_every */ -1,                                                                           \
    /* keep */ 2,                                                                                  \
    /* resume */ 0,                                                                                \
    /* timeline */ 0,                                                                              \
    /* record_routing */ 0,                                                                        \
    /* record_plans */ 0,                                                                          \
    /* timeline_from */ -1,                                                                        \
    /* timeline_steps */ 10,                                                                       \
    /* elastic */ 0,                                                                               \
    /* supervised */ NULL,                                                                         \
    /* world */ NULL,                                                                              \
    /* pp */ 1,                                                                                    \
    /* tp */ 1,                                                                                    \
    /* ep */ 1,                                                                                    \
    /* etp */ 1,                                                                                   \
    /* adaptive_r */ "etp",                                                                        \
    /* zero */ 0,                                                                                  \
    /* embed_columns */ 0,                                                                         \
    /* chunks */ 1,                                                                                \
    /* pp_layers */ "even",                                                                        \
    /* pipeline_degree */ 0,                                                                       \
    /* smart_group */ 0,                                                                           \
    /* a2a */ "auto",                                                                              \
    /* force_balance */ 0,                                                                         \
    /* balance */ "auto",                                                                          \
    /* spare_slots */ -1,                                                                          \
    /* plan_every */ 10,                                                                           \
    /* cache */ NULL,                                                                              \
    /* recalibrate */ 0,                                                                           \
    /* replicas_min */ 0,                                                                          \
    /* rack_of */ NULL,                                                                            \
    /* replay_routing */ NULL,                                                                     \
    /* reroute */ "off",                                                                           \
    /* reroute_limit */ 0.14,                                                                      \
    /* watchdog */ 300,                                                                            \
    /* text_field */ "text",                                                                       \
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
    /* dry_run */ 0,                                                                               \
    /* memory_limit */ 0,                                                                          \
    /* offload */ "off",                                                                           \
    /* offload_dir */ NULL,                                                                        \
    /* offload_gradients */ "auto",                                                                \
    /* host_mtbf */ 24,                                                                            \
    /* prefer */ "speed",                                                                          \
    /* rank_speeds */ "measured",                                                                  \
    /* batch_shares */ "even",                                                                     \
    /* layout_pool */ NULL,                                                                        \
    /* layout_every */ 0,                                                                          \
    /* cluster */ NULL                                                                             \
    }
/* clang-format on */

/** Properties of a run, known before its first step. */
typedef struct {
    const char *kernels;   /**< name of the kernels; valid during the run, as the next */
    const char *products;  /**< name of the matrix products */
    int threads;           /**< compute threads of this process */
    int64_t params;        /**< parameters of the model */
    int64_t active_params; /**< those used by one token */
    int64_t tokens;        /**< of the data */
    int64_t first_step;    /**< steps done before */
    int64_t steps;         /**< in total */
    int64_t batch;         /**< sequences a step */
    int64_t seq;           /**< tokens a sequence */
    int from_memory;     /**< 1: first_step and state come from shared memory of an earlier start */
    double memory_taken; /**< bytes, all ranks: of that state, adopted in place */
    double memory_copied;   /**< bytes, all ranks: copied within hosts */
    double memory_received; /**< bytes, all ranks: received from other hosts */
    double memory_prealloc; /**< bytes, all ranks: preallocated by hosts before they joined */
    int memory_lacks;       /**< 1: shared memory held state, but not the whole model */
    size_t predicted_bytes; /**< peak resident memory */
    char stage_layers[512]; /**< layers of each virtual stage, "6,2"; ends in "..." if it has no
                               room for all */
} ek_train_info;

/** Progress of a run, after each step. */
typedef struct {
    int64_t step;  /**< steps done */
    int64_t steps; /**< steps in total */
    double loss;   /**< mean cross entropy of the step, nats, before its update; NaN: no step was
                      taken */
    double expert_max_over_mean; /**< busiest expert over the mean, worst layer */
    double step_ms;              /**< of the step, end to end */
    double tokens_per_s;         /**< of the step, end to end */
    double seconds;              /**< of this process's steps */
    int64_t eval_tokens;         /**< targets of the evaluation after the step; 0: no evaluation */
    double eval_loss;            /**< its mean cross entropy, nats */
    int eval_best;               /**< 1: the best so far */
    double disk_hits;   /**< of this rank's uses of experts whose state is on disk, those that found
                           it in memory: 0 to 1; negative: no expert's state is on disk */
    double disk_wait;   /**< share of the step in which products waited for the disk: 0 to 1 */
    double memory_wait; /**< part of disk_wait in which no memory was free to read into */
} ek_train_progress;

/** A MoE layer on FasterMoE's DDL-Roofline, over the steps of this process but the first.  FLOP/s
 *  of one rank. */
typedef struct {
    int64_t layer; /**< from 0 */
    double r_cc; /**< compute time of the busiest rank over communication time of the busiest link;
                    infinite without communication */
    double achieved;   /**< useful FLOP/s in the layer's time */
    double semi_ideal; /**< balanced, computation and communication one after the other */
    double ideal;      /**< computation and communication overlap fully */
    double peak;       /**< of the matrix products alone */
    int measured;      /**< 0: the layer's time is predicted, as there is no timeline */
    const char *line;  /**< the same as text; valid until the hook returns */
} ek_train_layer;

/** Predicted and measured time of the ops of one name on rank 0, over the same steps. */
typedef struct {
    const char *op;     /**< its name; valid until the hook returns */
    int64_t count;      /**< ops of that name */
    double predicted_s; /**< seconds; negative: no prediction */
    double measured_s;  /**< seconds */
} ek_train_cost;

/** Callbacks of a run; each may be NULL.  Called on the thread that called ek_train, except
 *  warning, and in the host's locale. */
typedef struct {
    void *context; /**< the first argument of each */
    /** Once, before the first step. */
    void (*started)(void *context, const ek_train_info *info);
    /** After each step. */
    void (*step)(void *context, const ek_train_progress *progress);
    /** While texts are tokenised. */
    void (*tokenising)(void *context, int64_t bytes_done, int64_t bytes_total);
    /** Polled; returns 1: save and end with EK_ECANCELED. */
    int (*stop)(void *context);
    /** At the end, on rank 0, for every MoE layer, if a policy balances. */
    void (*layer)(void *context, const ek_train_layer *layer);
    /** At the end, on rank 0, for every op name, with a timeline. */
    void (*cost)(void *context, const ek_train_cost *cost);
    /** When a phase begins: "transfer" (of weights to ranks), "step", "evaluate",
     *  "checkpoint", "end". */
    void (*phase)(void *context, const char *name);
    /** During an evaluation, after each batch of windows. */
    void (*evaluating)(void *context, int64_t windows_done, int64_t windows);
    /** On every rank that notices it, which may be all, from any thread: the run goes on, but
     *  something does not work as asked, such as a planner that failed.  One line; must not call
     *  the library. */
    void (*warning)(void *context, const char *message);
} ek_train_hooks;

enum {
    EK_TRAIN_LOST = 3 /**< length of ek_train_balance.survivability */
};

/** Results of balancing: means over the steps of this process but the first; with layout_every
 *  over those since the last change of the layout. */
typedef struct {
    const char *policy; /**< its name, static; NULL: there was nothing to balance */
    double before; /**< busiest rank's rows over the mean, worst layer: with the initial placement
                      without replicas */
    double after;  /**< likewise with the placements used */
    double deviation_before; /**< standard deviation of the ranks' rows over their mean, worst
                                layer: with the initial placement without replicas */
    double deviation_after;  /**< likewise with the placements used; before over after is RB
                                (Pro-Prophet, arXiv 2411.10003) */
    double replicas;         /**< non-primary copies, over layers and micro-batches of a step */
    double replicas_ahead;   /**< of these, those whose weights were sent before the gate */
    double replica_bytes;    /**< bytes that these moved in a step */
    double experts_moved;    /**< by persistent placements, a step */
    double plan_s;           /**< seconds of a step: planning */
    double waited_s;         /**< seconds of a step: stall of computation that waits for replicas */
    double step_s;           /**< seconds of a step */
    double saved_s;          /**< seconds by which a step would take longer without balance by the
                                expert products of its busiest rank, in the initial placement
                                without replicas, at the time of a row as measured, less waited_s
                                and a stage's part of plan_s.  What rows on links take longer is
                                not counted */
    double slowest_rank;     /**< speed of the slowest expert rank over that of the fastest, by what
                                plans heeded; 1: all were equal */
    double copies_lengthen;  /**< with elastic on several hosts: by which part of itself a step is
                                predicted to get longer by copies on other hosts; 0 or less: not
                                predicted, as there was nothing to choose */
    double losses_cost;      /**< likewise: part of its time that the run is expected to lose by
                                losses of hosts without such copies, by saves and repeated steps */
    int copies_left_out; /**< 1: they were left out, as they cost more than that, and elastic was
                            on by default */
    int copies_kept;     /**< 1: there are such copies; with neither there is no memory, or too few
                            slots are given */
    int hosts;    /**< with replicas_min above 1, or elastic: the number of hosts, if several */
    int survives; /**< likewise, for the final placement: how many hosts, whichever they are, can be
                     lost while every part of the model keeps a copy */
    double survivability[EK_TRAIN_LOST]; /**< the probability of that when 1, 2, ... random hosts
                                            are lost */
    char survivability_text[192];        /**< the same as text; "" without */
    char racks_text[192];                /**< likewise of racks, if there are several */
} ek_train_balance;

/** The interval between checkpoints that the run has chosen (save_every negative, with elastic). */
typedef struct {
    int automatic;          /**< 1: the other members are valid */
    int64_t interval_steps; /**< the last one */
    double interval_s;      /**< the same in seconds */
    double save_s;          /**< cost of a save: by this it prolongs the run */
    double mtbf_s;          /**< mean time until state is lost from memory, as estimated */
    int64_t hosts_lost;     /**< over the whole run */
    int64_t saved;          /**< checkpoints of this process whose cost was measured */
    double paid_s;          /**< seconds that they cost together */
    char reason[320];       /**< the interval and its reason as text */
} ek_train_checkpoints;

/** Evaluations on eval_data.  Steps count those done. */
typedef struct {
    int64_t count;              /**< by this process */
    int64_t step;               /**< of the last; 0: none */
    int64_t best_step;          /**< of the best of the whole run; 0: none */
    double loss;                /**< mean cross entropy of the last, nats */
    double best_loss;           /**< mean cross entropy of the best, nats */
    int64_t since_best;         /**< evaluations since the best */
    int stopped_early;          /**< 1: patience ended the run */
    char best_checkpoint[4096]; /**< `out`/best, a link to the best checkpoint; "": none */
} ek_train_evaluation;

/** Experts on disk, in a plan. */
typedef struct {
    double scratch_least;    /**< bytes of the smallest scratch file of a rank */
    double scratch_most;     /**< of the largest; 0: no experts are on disk */
    double scratch_host;     /**< of those of the first rank's host together; 0: other hosts */
    double free;             /**< bytes that are free in its folder; 0: unknown */
    char folder[4096];       /**< of the first rank's file */
    int64_t buckets;         /**< parameter buckets on disk, of the rank with the most */
    int64_t entries;         /**< of them in memory at once */
    int gradients;           /**< 1: gradients are on disk, too */
    double read;             /**< bytes a step, of the rank that reads the most */
    double written;          /**< likewise */
    double uses;             /**< of buckets by that rank's products in a step */
    double hits;             /**< of them those that are in memory */
    double tokens_of_expert; /**< of a step, mean */
} ek_train_plan_offload;

/** What a run would do (dry_run). */
typedef struct {
    int made;                 /**< 1: the other members are valid */
    int ranks;                /**< of the job */
    int pp;                   /**< pipeline stages */
    int dp;                   /**< data-parallel ranks */
    int tp;                   /**< tensor-parallel ranks */
    int edp;                  /**< expert-parallel groups of a stage */
    int ep;                   /**< expert ranks of a group */
    int etp;                  /**< ranks that share one expert */
    int64_t step_tokens;      /**< of all ranks */
    double epochs;            /**< passes over the data of all steps together */
    int64_t eval_every;       /**< steps; 0: no evaluations */
    int64_t eval_windows;     /**< of an evaluation */
    double memory_least;      /**< bytes of the rank with the least */
    double memory_most;       /**< bytes of the rank with the most */
    int memory_most_rank;     /**< that rank */
    double memory_host;       /**< bytes that the ranks of the first rank's host need together */
    double memory_available;  /**< bytes available there; 0: unknown */
    int64_t checkpoint_bytes; /**< of one checkpoint */
    int64_t checkpoints_most; /**< checkpoints at once, with the one being written */
    int64_t disk_free;        /**< bytes */
    char files[256];          /**< names in `out` */
    double memory_limit;      /**< most bytes of the first rank's process; 0: unknown */
    char memory_limit_source[512]; /**< what sets it */
    ek_train_plan_offload offload; /**< with offload "experts" */
    double replicas;   /**< bytes that keeping the weights of transient replicas for backward takes
                            on the rank with the most */
    int replicas_kept; /**< 1: they are kept; 0: that much is not left, and they are sent again */
    double partner_copies; /**< with `elastic`, and `zero`, `embed_columns`, `pp` or `tp`: bytes
                              that copies of what other hosts alone have take on the rank with the
                              most of them */
} ek_train_plan;

/** The run's layouts, with layout_pool. */
typedef struct {
    int64_t n;         /**< layouts of the pool; 0: there is none */
    int64_t changes;   /**< how often this process changed to another one */
    char options[256]; /**< the one in use at the end, as options of `evenkeel train` */
} ek_train_layouts;

/** Results of a run. */
typedef struct {
    ek_train_info info;               /**< as the started hook got it */
    ek_train_plan plan;               /**< with dry_run */
    ek_train_progress end;            /**< after the last step */
    ek_train_balance balance;         /**< with a policy that balances */
    ek_train_evaluation evaluation;   /**< with eval_data */
    ek_train_checkpoints checkpoints; /**< with elastic and save_every negative */
    ek_train_layouts layouts;         /**< with layout_pool */
    int64_t spikes; /**< steps of this process with a loss or gradient norm far above the median
                       (docs/training.md) */
    double tokens_per_s;    /**< mean over this process's steps but the first; with layout_every
                               over those since the last change */
    int64_t peak_rss_bytes; /**< of this process */
    int finished_before;    /**< 1: all steps were done before this start */
    char checkpoint[4096];  /**< the newest; "" if none was written */
} ek_train_summary;

/** Trains, from settings to output files.  Collective over cfg->world.
 *
 *  @param[in]  cfg    settings; strings are borrowed until the call returns
 *  @param[in]  hooks  may be NULL
 *  @param[out] out    filled as far as the run came, also on failure
 *  @return see the top */
EK_CHECKED EK_API ek_status ek_train(const ek_train_config *cfg, const ek_train_hooks *hooks,
                                     ek_train_summary *out);

#ifdef __cplusplus
}
#endif
#endif
