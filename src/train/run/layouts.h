/* train/run/layouts.h - a run's choice of its layout from a pool (train/layout_pool.h), at the
 * start, and every --layout-every steps by simulating the pool under the loads of the steps before
 * (train/layout_decision.h).
 *
 * A run changes its layout by a checkpoint: it is written, the run is closed, and opened again from
 * it with other settings, in the same processes.  With elastic the state in memory is removed when
 * the checkpoint is complete, and written anew; run.json says which layout is in use, once its
 * start is ready: processes that a supervisor starts after a loss go on with that one. */
#ifndef TRAIN_RUN_LAYOUTS_H
#define TRAIN_RUN_LAYOUTS_H

#include "sim/cluster.h"
#include "train/layout_decision.h"
#include "train/run/state.h"

struct ek_run_layouts {
    const ek_train_config *given; /* the caller's */
    ek_train_config cfg;          /* the same with the layout in use; a run's cfg */
    ek_layout_pool *pool;         /* NULL: none, and nothing below is used */
    ek_pool_layout in_use;        /* with elastic: the layout that the run in `out` has */
    int continues;                /* 1: there is a run in `out`, which goes on */
    int stays;                   /* 1: it has another number of ranks than the pool, and keeps it */
    int *host_of;                /* [ranks]; NULL: a layout need not survive the loss of a host */
    int left;                    /* ek_layout_ranks_left */
    ek_layout_decision decision; /* current: -1 if the layout in use stays */
    int64_t changes;
    int changing;        /* 1: the run is to be opened again */
    int lock;            /* descriptor of the lock of --out, from one start to the next; -1: none */
    int64_t changing_ns; /* start of a change whose cost is being measured; 0: none is */
    double change_s;     /* what the last one cost; 0: there was none */
    ek_save_history saves; /* what an earlier layout has measured of checkpoints and losses */
    int64_t began_ns;      /* the first step of the process; 0: not yet */
    int64_t opened_ns;     /* when the model in use began to be laid out */
    double start_s;        /* from opened_ns to the end of the first step of the start */
    int64_t next;          /* steps done at the next decision */
    ek_cluster *cluster;   /* on rank 0, with --layout-every */
    double *loads;     /* on rank 0: [MoE layers][experts] assignments since the last decision */
    double *simulated; /* on rank 0: [n] */
    int *refused;      /* on rank 0: [n] why a layout was left out (layouts.c); 0: it was not */
    double shared_cap; /* bytes of shared memory that each rank may have; infinite: any */
    double step_s;   /* sum over the steps since the last decision, without first ones of starts */
    int64_t n_steps; /* number of the steps in step_s */
};

/* Chooses the first layout.  Closed by ek_run_layouts_close, also after a failure.  EK_EINVAL: the
 * pool is of another run; errors of its file and of the cluster's.  Collective over cfg->world. */
EK_CHECKED ek_status ek_run_layouts_open(ek_run_layouts *l, const ek_train_config *cfg);
void ek_run_layouts_close(ek_run_layouts *l);

/* After the options of a start are read: EK_EINVAL if the pool is of another model or batch.
 * Local. */
EK_CHECKED ek_status ek_run_layouts_check(const ek_run *r);

/* Before the model is laid out: what was done before, a change of the layout repeats from caches.
 */
void ek_run_layouts_note_opening(ek_run_layouts *l);

/* When the first step of the process began, or now if none has. */
int64_t ek_run_layouts_begin(ek_run_layouts *l);

/* After a step of `seconds`: counts its loads. */
void ek_run_layouts_add_step(ek_run *r, double seconds);

/* After a step: *change becomes 1 if the run is to go on with another layout, which cfg then has:
 * the caller saves, closes the run, and opens it again.  Collective. */
EK_CHECKED ek_status ek_run_layouts_decide(ek_run *r, int *change);

/* Whether the run is to be opened again; that is then begun. */
int ek_run_layouts_continue(ek_run_layouts *l);

/* Fills the summary's part. */
void ek_run_layouts_describe(const ek_run_layouts *l, ek_train_summary *out);

#endif
