/* train/metrics.h - metrics.jsonl: one JSON object a step, every step exactly once.
 *
 * A line is written whole by one write, and so is what an evaluation adds to the last one.  When a
 * run is resumed at step N the lines of steps from N on, and what a crash has left of a line, are
 * removed first: the file is read from its end and shortened, so that this takes as long as the
 * lines that are removed, however long the run was. */
#ifndef TRAIN_METRICS_H
#define TRAIN_METRICS_H

#include "train/trainer.h"

typedef struct {
    int fd;
    int64_t next; /* the step after the last line of an earlier start that was kept */
    char path[4096];
    char *line; /* kept from step to step */
    size_t room;
} ek_metrics;

/* What each rank says of itself at the end of a step; plain numbers, so that they can travel. */
typedef struct {
    double comm_bytes, peak_rss_bytes, params_held, flops;
} ek_rank_metrics;

/* What a line is made of. */
typedef struct {
    const ek_step_result *result;
    double step_ms;
    const ek_rank_metrics *of_rank; /* [ranks]; NULL: those who could tell are gone */
    int ranks;
    const ek_layer_balance *of_layer; /* [layers], those with experts */
    int layers;                       /* 0: nothing is said of layers */
    int spikes;                       /* EK_SPIKE_* (train/spikes.h) */
} ek_metrics_step;

/* Opens <out>/metrics.jsonl, keeping the lines of steps before `first_step`; 0 starts it anew.
 * EK_EFORMAT: it is not a regular file.  m has to be closed on failure, too. */
EK_CHECKED ek_status ek_metrics_open(const char *out_dir, int64_t first_step, ek_metrics *m);
EK_CHECKED ek_status ek_metrics_write(ek_metrics *m, const ek_metrics_step *s);
/* What an evaluation after a step found. */
typedef struct {
    double loss;    /* mean cross entropy, nats */
    int64_t tokens; /* targets */
    double seconds;
} ek_metrics_eval;

/* Adds it to the last line, which has to be that of `step`; does nothing where that line has one
 * already, or is not there (a recovered run may have lost it). */
EK_CHECKED ek_status ek_metrics_add_eval(ek_metrics *m, int64_t step, const ek_metrics_eval *e);

/* What was written is on the disk when this returns: before a checkpoint that counts on it. */
EK_CHECKED ek_status ek_metrics_sync(const ek_metrics *m);
void ek_metrics_close(ek_metrics *m);

#endif
