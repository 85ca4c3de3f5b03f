/* train/output/metrics.h - metrics.jsonl: one JSON object per step, every step exactly once.
 *
 * A line is written by one write call, and so is an evaluation that is added to the last line.
 * When a run is resumed at step N, lines of steps from N on and an incomplete last line are removed
 * first.  The file is read from its end, so the cost depends on the lines removed only.
 *
 * Lines that are removed are kept in metrics-undone.jsonl, the newest of each step, until it is
 * replaced at the next removal: a run that goes back while hosts are out of reach, and goes on from
 * the later state of these when they return, takes the lines of the steps between from it. */
#ifndef TRAIN_OUTPUT_METRICS_H
#define TRAIN_OUTPUT_METRICS_H

#include "train/trainer.h"

typedef struct {
    int fd;
    int64_t next; /* the step after the last line of an earlier start that was kept */
    char path[4096];
    char *line; /* [cap]; reused from step to step */
    size_t cap;
} ek_metrics;

/* Metrics of one rank at the end of a step; plain numbers, so that they can be gathered. */
typedef struct {
    double comm_bytes, peak_rss_bytes, params_held, flops;
    ek_step_disk disk;
} ek_rank_metrics;

/* The contents of a line. */
typedef struct {
    const ek_step_result *result;
    double step_ms;
    const ek_rank_metrics *of_rank; /* [ranks]; NULL: unknown, of a recovered step */
    int ranks;
    const ek_layer_balance *of_layer; /* [layers], those with experts */
    int layers;                       /* 0: no metrics of layers */
    int spikes;                       /* EK_SPIKE_* (train/output/spikes.h) */
    int offloads;                     /* 1: experts are on disk; then: */
    const double *layer_waits;        /* [n_layers][2]: seconds that products of a layer waited for
                                         the disk, forward and backward */
    int n_layers;
    int64_t save_interval; /* steps between checkpoints that the run chooses now; 0: none */
} ek_metrics_step;

/* Opens <out>/metrics.jsonl and keeps the lines of steps before `first_step`; m->next is the step
 * after them.  EK_EFORMAT: it is not a regular file.  The caller closes m, also on failure. */
EK_CHECKED ek_status ek_metrics_open(const char *out_dir, int64_t first_step, ek_metrics *m);
/* Appends the lines of steps from m->next to end_step - 1 that were removed before, and sets
 * m->next, if they are all there; else does nothing. */
EK_CHECKED ek_status ek_metrics_fill(ek_metrics *m, int64_t end_step);
/* Appends the line of a step. */
EK_CHECKED ek_status ek_metrics_write(ek_metrics *m, const ek_metrics_step *s);

/* What an evaluation after a step found. */
typedef struct {
    double loss;    /* mean cross entropy, nats */
    int64_t tokens; /* targets */
    double seconds;
} ek_metrics_eval;

/* Adds an evaluation to the last line, which has to be that of `step`; does nothing if that line
 * has one already or does not exist (a recovered run may have lost it). */
EK_CHECKED ek_status ek_metrics_add_eval(ek_metrics *m, int64_t step, const ek_metrics_eval *e);

/* fsync: called before a checkpoint of the same steps is committed. */
EK_CHECKED ek_status ek_metrics_sync(const ek_metrics *m);
void ek_metrics_close(ek_metrics *m);

#endif
