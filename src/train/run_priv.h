/* train/run_priv.h - the inside of a run, for run.c (steps), run_open.c (what comes before them)
 * and the other files run_*.c, one for each thing that runs do beside their steps. */
#ifndef TRAIN_RUN_PRIV_H
#define TRAIN_RUN_PRIV_H

#include "evenkeel/train.h"

#include "balance/roofline.h"
#include "balance/trace.h"
#include "cost/machine.h"
#include "data/sources.h"
#include "data/tokens.h"
#include "data/windows.h"
#include "model/source.h"
#include "store/checkpoint.h"
#include "train/checkpoint.h"
#include "train/eval_state.h"
#include "train/metrics.h"
#include "train/plan_record.h"
#include "train/recover.h"
#include "train/routing_trace.h"
#include "train/spikes.h"
#include "train/trainer.h"
#include "train/value_schedule.h"

/* All that a run holds open. */
typedef struct {
    const ek_train_config *cfg;
    const ek_train_hooks *hooks;
    ek_train_summary *out;
    ek_comm *world; /* NULL: one rank */
    int rank, ranks;
    ek_comm *all;        /* the same, and with cfg->givers the other side as well */
    ek_mesh_sizes sizes; /* with --elastic, of the ranks there are */
    ek_mesh *mesh;       /* NULL: one rank */
    ek_model_source source;
    ek_kernels *kernels;
    ek_tokenizer *tokenizer;
    ek_sources sources;
    ek_tokenizer_files tokenizer_files;
    ek_windows windows;
    ek_tokens *held_out; /* of --eval-data; NULL: none */
    ek_eval_state eval;  /* with it; without, what starts before had found out */
    int new_best;        /* the model is the best so far, and not saved yet */
    ek_model *model;
    ek_trainer *trainer;
    ek_trainer_config training;
    ek_machine *machine;      /* what it takes, where somebody plans by it; NULL: nobody does */
    ek_roofline_work *layers; /* [model's], of the steps but the first; NULL like machine */
    ek_mode mode;
    int shuffled;
    int adaptive_r;     /* -1: tuned */
    const int *rack_of; /* [ranks], several; NULL: hosts fail by themselves */
    ek_metrics metrics;
    ek_spikes spikes;           /* on rank 0 */
    ek_rank_metrics *of_rank;   /* [ranks], of the last step */
    ek_layer_balance *of_layer; /* [routed], likewise */
    int32_t *ahead;             /* [2, sequences, seq]: inputs and targets of the next step */
    ek_status data_status;      /* of reading them */
    char data_failure[1024];    /* why it failed */
    int routed;                 /* layers whose experts are spread over ranks */
    ek_routing_trace trace;
    ek_plan_record plans;
    ek_trace replay;      /* what the gates replay */
    json_t *settings;     /* that a checkpoint and state in memory are compared by */
    json_t *all_settings; /* that run.json keeps */
    char *run_file;       /* text of run.json */
    ek_checkpoint_found found;
    ek_step_result last;
    ek_train_saving *saving; /* a checkpoint under way; NULL: none */
    int background;          /* there is memory to save while steps go on */
    ek_value_schedule top_k_schedule, capacity_schedule;
    int64_t first_step, base_rss;
    int64_t step;       /* under way */
    int64_t saved_ns;   /* when the last save began, or the steps did */
    double votes;       /* with the step under way or just done: those of all ranks */
    int64_t counted_ns; /* when the first step of this process had ended; 0: it has not */
    int64_t origin_ns;  /* when rank 0 began its steps: 0 of the timelines */
    int64_t *step_ns;   /* [n_recorded] when each step of the timeline began; NULL: none has */
    int64_t first_recorded, n_recorded;
    int timeline_done; /* it is written */
    int replaces;      /* checkpoints of an earlier run stand aside until there is a new one */
    int lock;          /* of --out, so that two runs do not write to it; -1: not taken */

    /* with --elastic */
    ek_rank_state state;
    ek_recovery recovery;
    uint64_t fingerprint;
    ek_path out_path;                     /* of --out, from the root */
    int64_t checkpoint_step, memory_step; /* steps done there; memory: -1: none */
    int64_t saving_step;                  /* of the save under way, or of the last one */
} ek_run;

/* A run from its settings to its end; *out is zero. */
EK_CHECKED ek_status ek_run_execute(const ek_train_config *cfg, const ek_train_hooks *hooks,
                                    ek_train_summary *out);

/* Rank 0's hook. */
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

/* Everything before the first step. */
EK_CHECKED ek_status ek_run_open(ek_run *r);
/* Of that, what ranks that only give need as well; the mode is known. */
EK_CHECKED ek_status ek_run_open_kernels(ek_run *r);

/* Finds the newest checkpoint, and how many steps it has: with --resume there has to be one.  With
 * memory_step >= 0 its checksums are not looked at: what is in memory is most likely newer, and
 * waits.  Collective. */
EK_CHECKED ek_status ek_run_find_checkpoint(ek_run *r);

/* Rank 0 calls `work`, then the first rank of each other host, then the rest, so that what one
 * leaves on the disk is there for those after it; all agree in between.  Collective. */
EK_CHECKED ek_status ek_run_leaders_first(ek_run *r, const char *what,
                                          ek_status (*work)(ek_run *r));

/* --- with --elastic, without which these do nothing (run_elastic.c); collective --------------- */

/* With cfg->givers: makes those that stay and those that give worlds of their own, in which a rank
 * has another number; whether this one gives.  Then it does that alone, while the others open the
 * run. */
EK_CHECKED ek_status ek_run_split_draining(ek_run *r, int *draining);
EK_CHECKED ek_status ek_run_drain(ek_run *r);
/* Before the model is laid out: looks for the run's state in memory. */
EK_CHECKED ek_status ek_run_find_memory(ek_run *r);
/* Where a run begins, or begins anew, on several hosts: EK_EINVAL if one alone has a part of what
 * is not of experts.  One that goes on does with whoever is left. */
EK_CHECKED ek_status ek_run_check_host_loss(ek_run *r);
/* Once it is: fills it from there, if that is where the run goes on from.  Where not all is there
 * memory_step becomes -1, and first_step the checkpoint's. */
EK_CHECKED ek_status ek_run_fill_from_memory(ek_run *r);
/* Where replicas of experts last: before anything is filled in from memory, experts are said to lie
 * where that has them (elastic/restart_placement.h; train/restart_experts.c); what starts otherwise
 * has them brought before anybody counts on this generation.  So the loss of a host never finds it
 * without.
 */
EK_CHECKED ek_status ek_run_restart_experts(ek_run *r);
EK_CHECKED ek_status ek_run_spread_experts(ek_run *r);
/* Once it is filled, from wherever. */
EK_CHECKED ek_status ek_run_commit_state(ek_run *r);
/* What a host that is about to join can make ready, into out->info.  By itself. */
void ek_run_describe_memory(ek_run *r);
/* Writes the line of the step before the first one where the rank that was to write it is gone. */
EK_CHECKED ek_status ek_run_write_recovered_step(ek_run *r);
/* Where nothing is left to do: removes what is in memory. */
EK_CHECKED ek_status ek_run_release_memory(ek_run *r);
/* Without --elastic and --resume, once --out is locked: removes what an earlier run has left. */
EK_CHECKED ek_status ek_run_clear_memory(ek_run *r);
/* After the model is gone; st: how the run ended. */
void ek_run_close_state(ek_run *r, ek_status st);

/* Sum of a number over the ranks of this one's host; its least over ranks (NULL: one). */
EK_CHECKED ek_status ek_run_sum_on_host(ek_run *r, double *x);
EK_CHECKED ek_status ek_run_minimum(ek_comm *ranks, double *x);

/* With --replicas-min above 1: what losses of hosts the experts outlive, as they lie now, goes into
 * out->balance.  Collective (survival.c). */
EK_CHECKED ek_status ek_run_evaluate_survivability(ek_run *r);

/* --- evaluations: without --eval-data none are made (run_eval.c) ------------------------------ */

/* Opens the held-out data, with what those of training are opened with; by itself. */
EK_CHECKED ek_status ek_run_open_held_out(ek_run *r, const ek_tokens_config *like);
/* Steps between evaluations; 0: there are none. */
int64_t ek_run_eval_every(const ek_run *r);
/* Whenever it is known where the run goes on: what its evaluations were, and whether the model
 * there is the best one and has yet to be saved as that.  Collective. */
EK_CHECKED ek_status ek_run_restore_eval_state(ek_run *r);
/* Rank 0: <out>/evaluation.json, of what is known now. */
EK_CHECKED ek_status ek_run_write_eval_state(const ek_run *r);
/* Whether --patience is over. */
int ek_run_stops_early(const ek_run *r);
/* Whether the model after so many steps is to be evaluated, and has not been. */
int ek_run_is_evaluation_due(const ek_run *r, int64_t step);
/* After so many steps, and after their line of metrics: evaluates, if it is time.  *stop becomes 1
 * where it was cut short because somebody wants to stop.  Collective. */
EK_CHECKED ek_status ek_run_evaluate(ek_run *r, int64_t step, int *stop);
/* A failure to read data ends the run after the step or the evaluation under way, which all ranks
 * finish first, with a checkpoint (run.c). */
void ek_run_keep_data_failure(ek_run *r, ek_status st);
/* Into out->evaluation. */
void ek_run_describe_evaluations(ek_run *r);

/* With cfg->dry_run, in place of all that would follow check_memory: out->plan.  Collective
 * (run_dry.c). */
EK_CHECKED ek_status ek_run_dry(ek_run *r);
/* Of this host, or of the device; 0: not known. */
double ek_run_memory_available(const ek_run *r);

/* Fingerprints of inputs (run_fingerprint.c).  Of streams a sample is read, and may fail as
 * ek_tokens_read does; 0 where nothing is held out. */
EK_CHECKED ek_status ek_run_data_fingerprint(const ek_run *r, uint64_t *out);
EK_CHECKED ek_status ek_run_held_out_fingerprint(const ek_run *r, uint64_t *out);
uint64_t ek_run_replay_fingerprint(const ek_run *r);
/* Those of data, tokenizer.json and replayed trace, to the settings that a resumed run must share.
 */
EK_CHECKED ek_status ek_run_add_fingerprints(ek_run *r);

/* Fails where ranks have not read the same data and settings. */
EK_CHECKED ek_status ek_run_check_same(ek_run *r);

/* Fails where --out, which rank 0 makes, is not the same folder for all ranks. */
EK_CHECKED ek_status ek_run_check_shared(ek_run *r);

#endif
