/* train/run/state.h - the state of a run, shared by the files of this folder. */
#ifndef TRAIN_RUN_STATE_H
#define TRAIN_RUN_STATE_H

#include "evenkeel/train.h"

#include "balance/roofline.h"
#include "balance/trace.h"
#include "base/memory_limit.h"
#include "cost/machine.h"
#include "data/sources.h"
#include "data/tokens.h"
#include "data/windows.h"
#include "model/hf/source.h"
#include "recover/recover.h"
#include "recover/supervised.h"
#include "store/checkpoint.h"
#include "train/checkpoint/checkpoint.h"
#include "train/output/eval_state.h"
#include "train/output/metrics.h"
#include "train/output/plan_record.h"
#include "train/output/routing_trace.h"
#include "train/output/spikes.h"
#include "train/run/state_addresses.h"
#include "train/save_interval.h"
#include "train/step.h"
#include "train/trainer.h"
#include "train/value_schedule.h"

/* What copies on other hosts are predicted to cost (copies.h). */
typedef struct {
    double
        lengthen;  /* a step, by this part of it; below 0, or 0 where there is no choice: unknown */
    double losses; /* part of the run's time that losses of hosts are expected to cost more
                      without them */
    int left_out;  /* 1: they are left out for that */
    int kept;      /* 1: there are such copies */
} ek_copies_costs;

/* What the options ask for, read once. */
typedef struct {
    ek_mesh_sizes sizes; /* with --elastic, fitted to the number of ranks */
    ek_mode mode;
    int shuffled;
    int adaptive_r;                    /* -1: tuned */
    int32_t replicas_min, spare_slots; /* as given, else chosen (protect.c) */
    ek_copies_costs copies;
    int no_room; /* 1: there is no memory for two copies of each expert, which would be chosen */
    int stages;  /* virtual stages, */
    int32_t stage_layers[EK_LAYERS_MAX]; /* and the layers of each */
    int64_t *shares; /* [dp + 1] of --batch-shares (nn/batch_shares.h); NULL: not given as a list */
    const int *rack_of; /* [ranks]; NULL: there are not several racks */
    ek_value_schedule top_k_schedule, capacity_schedule;
    ek_trace replay;      /* of --replay-routing */
    json_t *settings;     /* those that a checkpoint and state in memory must share */
    json_t *all_settings; /* those of run.json */
    char *run_file;       /* text of run.json */
} ek_run_options;

/* The training data, and the tokens of the next step. */
typedef struct {
    ek_tokenizer *tokenizer;
    ek_tokenizer_files tokenizer_files;
    ek_sources sources;
    ek_windows windows;
    int32_t *ahead;        /* [2, most sequences, seq]: prefetched inputs and targets */
    int64_t share_changes; /* ek_trainer_share_changes when they were read */
    ek_status status;      /* of the prefetch */
    char failure[1024];    /* its message */
} ek_run_data;

/* Evaluations. */
typedef struct {
    ek_tokens *held_out; /* of --eval-data; NULL: none */
    ek_eval_state state; /* of this start; without --eval-data, of earlier starts */
    int new_best;        /* 1: the model is the best so far, and not saved yet */
} ek_run_evaluation;

/* With a planner that uses measured costs; else NULL. */
typedef struct {
    ek_machine *machine;
    ek_roofline_work *layers; /* [layers], of the steps but the first */
} ek_run_costs;

/* What is recorded of each step. */
typedef struct {
    ek_metrics metrics;
    ek_spikes spikes;           /* on rank 0 */
    int routed;                 /* MoE layers */
    ek_rank_metrics *of_rank;   /* [ranks], of the last step */
    ek_layer_balance *of_layer; /* [routed], likewise */
    double *layer_waits;        /* [layers][2]: with experts on disk (ek_offload_take_stalls) */
    ek_routing_trace trace;
    ek_plan_record plans;
} ek_run_records;

/* The steps whose ops are recorded. */
typedef struct {
    int64_t origin_ns; /* rank 0's start of steps: time 0 of the timelines */
    int64_t *step_ns;  /* [n] start of each recorded step; NULL: none */
    int64_t first, n;
    int written;
} ek_run_timeline;

/* Checkpoints. */
typedef struct {
    ek_checkpoint_found found; /* the newest at the start */
    ek_train_saving *current;  /* a save in progress; NULL: none */
    int64_t saving_step;       /* of the current or last save */
    int64_t checkpoint_step;   /* steps done in the newest checkpoint */
    int64_t began_ns;          /* start of the last save, else of the first step */
    int background;            /* 1: memory suffices to save in the background */
    /* with --save-every auto; on rank 0 but for the risk */
    ek_save_history history;
    ek_loss_risk risk; /* by the placement of the last step, or an earlier one */
    ek_save_interval interval;
    double logged_s;  /* seconds of the interval that was logged last; 0: none */
    int timed;        /* 1: a save is under way whose cost is being measured: */
    double blocked_s; /* training waited this long when it began, */
    double excess_s;  /* steps since took this much longer than those without a save, */
    double write_s;   /* and it was complete after this time */
    double other_s;   /* part of the step under way that is not the step's: an evaluation */
    int64_t n_paid;   /* saves of this process whose cost was measured, */
    double paid_s;    /* and their cost */
} ek_run_saves;

/* The folder --out. */
typedef struct {
    ek_path path; /* absolute; "": not needed yet */
    int lock;     /* descriptor of its lock; -1: not taken */
    int replaces; /* 1: checkpoint.replaced exists until there is a new checkpoint */
} ek_run_folder;

/* With --elastic: the state in memory that outlives this process. */
typedef struct {
    ek_rank_state state;
    ek_state_addresses addresses; /* instead, of a rank that only is laid out */
    ek_recovery recovery;
    uint64_t fingerprint;
    int64_t step; /* steps done in the memory of an earlier generation; -1: none */
} ek_run_memory;

/* Memory of a copy of another rank's state, laid out as there (partners.h). */
typedef struct {
    ek_comm *world; /* in which only the owner exists */
    ek_mesh *mesh;
    ek_model *model;
    ek_rank_state state;
    ek_state_addresses addresses; /* instead, of a rank that only is laid out */
} ek_copied_rank;

typedef struct {
    int32_t *partner;       /* [ranks]: who has a copy of each; -1: nobody needs one.  NULL: no rank
                               has one */
    int32_t most;           /* copies of the rank with the most */
    ek_copied_rank *copied; /* [copies.n] */
    ek_rank_copies copies;
    double no_room; /* bytes of the rank with the most, for which there is no memory; else 0 */
    double seconds; /* of a step, for the copies, as measured; 0: not measured */
    ek_copies_costs costs;
} ek_run_partners;

static inline int ek_run_has_partners(const ek_run_partners *p)
{
    return p->partner != NULL;
}

/* The memory of this process. */
typedef struct {
    int64_t base_rss;            /* bytes before the model was laid out, ... */
    int64_t peak_before;         /* ... and the most until then: measuring costs, earlier layouts */
    double spare_bytes;          /* what each rank could use besides, before it trained */
    ek_file_reader_config files; /* how weights are read, by what the limit leaves */
    double replicas; /* bytes that keeping the weights of transient replicas for backward
                        takes, or would take, of the rank with the most */
} ek_run_room;

/* The step under way and the last one. */
typedef struct {
    int64_t step;        /* the current one */
    double votes;        /* sum over ranks of the current or last step */
    ek_step_result last; /* result of the last one */
    int64_t counted_ns;  /* end of the first step of this process; 0: not yet */
} ek_run_progress;

typedef struct ek_run_layouts ek_run_layouts; /* train/run/layouts.h */

/* The state of a run. */
typedef struct {
    /* the caller's */
    const ek_train_config *cfg;
    const ek_train_hooks *hooks;
    ek_train_summary *out;

    ek_run_layouts *layouts; /* its choice of a layout; NULL: the run is not executed */

    /* ranks */
    ek_comm *world; /* NULL: one rank */
    ek_comm *all;   /* the world; while ranks drain, of staying and draining ranks */
    int rank, ranks;
    ek_mesh *mesh; /* NULL: one rank */

    int64_t layers;     /* of the model, the first of those that it has; 0: all (imagined ranks) */
    const int *host_of; /* [ranks] (imagined ranks): ek_imagined_world; NULL: those of the world */

    /* constant after the first step is known */
    ek_run_options options;
    ek_trainer_config training;
    ek_model_source source;
    ek_run_costs costs;
    int64_t first_step;
    ek_run_room room;

    /* state of steps */
    ek_run_data data;
    ek_kernels *kernels;
    ek_model *model;
    ek_trainer *trainer;
    ek_run_progress progress;
    ek_run_evaluation eval;
    ek_run_memory memory;
    ek_run_partners partners;

    /* files */
    ek_run_folder folder;
    ek_run_records records;
    ek_run_timeline timeline;
    ek_run_saves saves;
} ek_run;

/* Executes a whole run; *out is zero.  Collective. */
EK_CHECKED ek_status ek_run_execute(const ek_train_config *cfg, const ek_train_hooks *hooks,
                                    ek_train_summary *out);

/* Whether the run is a run, or a dry run, and not imagined (train/imagine.h). */
static inline int ek_run_is_executed(const ek_run *r)
{
    return r->layouts != NULL;
}

/* Calls the phase hook, if there is one. */
static inline void ek_run_report_phase(const ek_run *r, const char *name)
{
    if (r->hooks->phase != NULL)
        r->hooks->phase(r->hooks->context, name);
}

static inline int64_t ek_run_timeline_from(const ek_run *r)
{
    return r->cfg->timeline_from >= 0 ? r->cfg->timeline_from : r->first_step;
}

/* Whether the ops of a step are recorded. */
static inline int ek_run_is_recorded(const ek_run *r, int64_t step)
{
    int64_t from = ek_run_timeline_from(r);

    return r->cfg->timeline && step >= from && step - from < r->cfg->timeline_steps;
}

/* Whether a step of this process but its first one is recorded. */
static inline int ek_run_is_timed(const ek_run *r)
{
    int64_t from = ek_run_timeline_from(r), second = r->first_step + 1;

    return ek_run_is_recorded(r, from > second ? from : second) &&
           from < r->training.optimizer.steps;
}

/* Everything before the first step.  Collective. */
EK_CHECKED ek_status ek_run_open(ek_run *r);

/* --- options and data (read_options.c, open_data.c); not collective --------------------------- */

/* Reads and checks the options: options, training, source, --replay-routing. */
EK_CHECKED ek_status ek_run_read_options(ek_run *r);
/* Opens the tokenizer, the training data and the held-out data. */
EK_CHECKED ek_status ek_run_open_data(ek_run *r);
/* After that: the settings that a resumed run must share, and those of run.json. */
EK_CHECKED ek_status ek_run_describe_settings(ek_run *r);

/* --- the first step and --out (start.c) ------------------------------------------------------- */

/* On rank 0, before anything is read: protects the contents of --out.  Not collective. */
EK_CHECKED ek_status ek_run_check_out(ek_run *r);
/* Finds the newest checkpoint and its number of steps; --resume requires one.  With memory.step >=
 * 0 checksums are not verified, as the state in memory will most likely be used.  Collective. */
EK_CHECKED ek_status ek_run_find_checkpoint(ek_run *r);
/* Finds the first step, in memory or in a checkpoint, and compares the settings with those of the
 * run that continues.  Collective. */
EK_CHECKED ek_status ek_run_find_start(ek_run *r);
/* On rank 0: creates --out, or removes files of an earlier run.  Called after all inputs have been
 * read: a mistake in them has no effect, and the earlier run may itself be the model.  With
 * --elastic generations.jsonl and lines of metrics stay.  Not collective. */
EK_CHECKED ek_status ek_run_open_out(ek_run *r);

/* --- kernels, model and memory (layout.c) ----------------------------------------------------- */

/* The part of opening a run that draining ranks need as well; r->options.mode is set.  Collective.
 */
EK_CHECKED ek_status ek_run_open_kernels(ek_run *r);
/* Collective. */
EK_CHECKED ek_status ek_run_configure_exec(ek_run *r);
/* Creates the model, without weights, and predicts the memory of the run.  Not collective. */
EK_CHECKED ek_status ek_run_layout_model(ek_run *r);
/* Parts of it that depend on the micro-batch and on recomputation, in this order: chooses the
 * all-to-all that training begins with, and keeps where it is not tuned; predicts the memory of the
 * run.  Local. */
void ek_run_choose_a2a(ek_run *r);
EK_CHECKED ek_status ek_run_measure(ek_run *r);
/* (memory.c) EK_ENOMEM if the run needs more memory than its limit; sets saves.background and
 * files.  Collective. */
EK_CHECKED ek_status ek_run_check_memory(ek_run *r);
/* Whether it fits on all ranks: 1, else 0.  Collective. */
EK_CHECKED ek_status ek_run_fits_memory(ek_run *r, double *fits);
/* Keeps the weights of transient replicas for backward if the limit leaves room; else they are sent
 * again.  Collective. */
EK_CHECKED ek_status ek_run_fit_replicas(ek_run *r);
/* Adds to the entries and forms of offloaded experts (model/offload.h) those that the limit leaves
 * room for.  Collective. */
EK_CHECKED ek_status ek_run_fit_entries(ek_run *r, ek_offload_config *o);
/* The limit of this process, or of the device. */
ek_memory_limit ek_run_memory_limit(const ek_run *r);
/* Fills the weights: from memory, a checkpoint, files or the seed.  Collective. */
EK_CHECKED ek_status ek_run_fill_model(ek_run *r);

/* --- ranks (ranks.c) -------------------------------------------------------------------------- */

/* Calls `work` on rank 0, then on the first rank of each other host, then on the rest, so that
 * later ranks find the files that earlier ones wrote; all ranks agree in between.  Collective. */
EK_CHECKED ek_status ek_run_leaders_first(ek_run *r, const char *what,
                                          ek_status (*work)(ek_run *r));

/* Sum of a number over the ranks of this host.  Collective. */
EK_CHECKED ek_status ek_run_sum_on_host(ek_run *r, double *x);

/* --- with --elastic, without which these do nothing (elastic.c); collective ------------------- */

/* When ranks are to be drained: splits the world into staying and draining ranks, with new rank
 * numbers; *draining: whether this rank drains.  Then draining ranks call ek_run_drain, and the
 * others open the run. */
EK_CHECKED ek_status ek_run_split_draining(ek_run *r, int *draining);
EK_CHECKED ek_status ek_run_drain(ek_run *r);
/* Before the model is laid out: looks for the run's state in memory. */
EK_CHECKED ek_status ek_run_find_memory(ek_run *r);
/* EK_ETIMEOUT, after a report to the supervisor, if the run would continue from an earlier step
 * than the supervisor permits (ek_supervised.least_step); lacks: what memory does not hold. */
EK_CHECKED ek_status ek_run_check_least_step(ek_run *r, const char *lacks);
/* At step 0 on several hosts: EK_EINVAL if there would be no copies of what --embed-columns shards.
 * A run that continues is not checked. */
EK_CHECKED ek_status ek_run_check_host_loss(ek_run *r);
/* After the model is laid out: fills it from memory, if the run continues from there.  If memory
 * does not hold the whole model, memory.step becomes -1 and first_step the checkpoint's. */
EK_CHECKED ek_status ek_run_fill_from_memory(ek_run *r);
/* With persistent replicas, at starts that are not filled from memory: creates replicas before this
 * generation becomes valid, so that a lost host never finds a valid generation without replicas. */
EK_CHECKED ek_status ek_run_spread_experts(ek_run *r);
/* After the model is filled, from any source: makes this generation valid. */
EK_CHECKED ek_status ek_run_commit_state(ek_run *r);
/* Tells the supervisor the state blocks of a rank, which a joining host preallocates.  Not
 * collective. */
void ek_run_describe_memory(ek_run *r);
/* The record of the last step done, if recovery.decision.record >= 0. */
ek_step_record ek_run_recovered_record(const ek_run *r);
/* Writes the metrics line of the last step done, if rank 0 was lost before it wrote it. */
EK_CHECKED ek_status ek_run_write_recovered_step(ek_run *r);
/* When all steps are done: removes the state in memory. */
EK_CHECKED ek_status ek_run_release_memory(ek_run *r);
/* Without --elastic and --resume, after --out is locked: removes an earlier run's state. */
EK_CHECKED ek_status ek_run_clear_memory(ek_run *r);
/* After the model is destroyed.  st: the status of the run; removes the state in memory if a
 * checkpoint holds it. */
void ek_run_close_state(ek_run *r, ek_status st);

/* --- checkpoints (saving.c) ----------------------------------------------------------------- */

/* Whether the run chooses the interval between checkpoints; whether it saves before its end. */
int ek_run_saves_by_itself(const ek_run *r);
int ek_run_saves_often(const ek_run *r);
/* After the warm state is restored: continues the history of saves, and counts the hosts that were
 * lost.  The same on all ranks. */
void ek_run_recall_saves(ek_run *r);
/* Before the first step, when the model is filled.  Collective. */
EK_CHECKED ek_status ek_run_begin_saves(ek_run *r);
/* Before a step, on rank 0: whether to save after it, when `done` steps are done. */
int ek_run_is_save_due(const ek_run *r, int64_t done);
/* Before a step: shares what rank 0 has measured. */
void ek_run_share_saves(ek_run *r);
/* After a step that took `seconds`, with all since the step before.  Collective. */
EK_CHECKED ek_status ek_run_time_step(ek_run *r, double seconds);

/* *considers: whether copies of experts are made by default if they cost little enough, so that
 * what they cost is predicted.  Collective; the same on all ranks (protect.c). */
EK_CHECKED ek_status ek_run_considers_copies(const ek_run *r, int *considers);
/* With --elastic, before the model is laid out: by default places each expert on two hosts, if
 * there is memory for it.  like: the settings of the model but its slots.  Collective (protect.c).
 */
EK_CHECKED ek_status ek_run_protect_experts(ek_run *r, const ek_model_config *like);
/* Before the model is laid out, if every expert is to be on several hosts: whether that takes all
 * of a rank's slots.  Collective (protect.c). */
EK_CHECKED ek_status ek_run_keep_all_slots(ek_run *r);
/* With --elastic, before the first step of a start that is not from memory of several hosts: warns
 * if one host alone holds some part of the model, and says what helps.  Collective (protect.c). */
EK_CHECKED ek_status ek_run_warn_of_loss(ek_run *r);

/* Which losses of hosts lose a part of the model, by the current placement.  Collective
 * (survivability.c). */
EK_CHECKED ek_status ek_run_find_risk(ek_run *r, ek_loss_risk *out);
int ek_run_count_hosts(const ek_run *r);
/* Whether the run keeps copies for the loss of a host: of experts, or of what ranks shard
 * (survivability.c). */
int ek_run_has_copies(const ek_run *r);
/* With these, and with --elastic on several hosts: computes which losses of hosts the current
 * placement tolerates, into out->balance.  Collective (survivability.c). */
EK_CHECKED ek_status ek_run_evaluate_survivability(ek_run *r);

/* --- evaluations: without --eval-data none are made (evaluate.c) ------------------------------ */

/* Opens the held-out data, configured like the training data.  Not collective. */
EK_CHECKED ek_status ek_run_open_held_out(ek_run *r, const ek_tokens_config *like);
/* Steps between evaluations; 0: there are none. */
int64_t ek_run_eval_every(const ek_run *r);
/* After the first step of this start is known: restores the evaluation state, and whether the model
 * is the best one and not saved as such yet.  Collective. */
EK_CHECKED ek_status ek_run_restore_eval_state(ek_run *r);
/* On rank 0: writes <out>/evaluation.json. */
EK_CHECKED ek_status ek_run_write_eval_state(const ek_run *r);
/* Whether --patience ends the run. */
int ek_run_stops_early(const ek_run *r);
/* Whether the model after `step` steps has to be evaluated and was not. */
int ek_run_is_evaluation_due(const ek_run *r, int64_t step);
/* After `step` steps and their metrics line: evaluates, if due.  *stop becomes 1 if a rank asked to
 * stop during the evaluation.  Collective. */
EK_CHECKED ek_status ek_run_evaluate(ek_run *r, int64_t step, int *stop);
/* Records a failure to read data: the run ends with a checkpoint after the current step or
 * evaluation, which all ranks finish first (run.c). */
void ek_run_keep_data_failure(ek_run *r, ek_status st);
/* Fills out->evaluation. */
void ek_run_describe_evaluations(ek_run *r);

/* With cfg->dry_run, after check_memory: fills out->plan instead of starting.  Collective
 * (dry.c). */
EK_CHECKED ek_status ek_run_dry(ek_run *r);
/* Fingerprints of inputs (fingerprint.c), from a sample of each token stream; errors as of
 * ek_tokens_read.  0 without held-out data. */
EK_CHECKED ek_status ek_run_data_fingerprint(const ek_run *r, uint64_t *out);
EK_CHECKED ek_status ek_run_held_out_fingerprint(const ek_run *r, uint64_t *out);
uint64_t ek_run_replay_fingerprint(const ek_run *r);
/* Adds those of data, tokenizer.json and replayed trace to r->options.settings. */
EK_CHECKED ek_status ek_run_add_fingerprints(ek_run *r);

/* Fails if ranks have not read the same data and settings.  Collective. */
EK_CHECKED ek_status ek_run_check_same(ek_run *r);

/* Fails if --out, which rank 0 creates, is not the same folder on all ranks.  Collective. */
EK_CHECKED ek_status ek_run_check_shared(ek_run *r);

#endif
