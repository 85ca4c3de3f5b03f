/* train/tune/traffic.h - the dispatch settings of each step: given ones, or those of the tuner
 * (train/tune/tune.h), to which it gives the times of steps.
 *
 * Ranks   all ranks choose alike, as they give the same times. */
#ifndef TRAIN_TUNE_TRAFFIC_H
#define TRAIN_TUNE_TRAFFIC_H

#include "model/model.h"
#include "train/tune/tune.h"

typedef struct {
    const ek_moe_config *moe;
    int tune_degree, tune_a2a, tune_gather; /* 1: instead of moe's degree, a2a, gather; moe's a2a
                                               is tried first */
} ek_traffic_config;

typedef struct {
    const ek_mesh *mesh;
    int tunes_gather;
    ek_moe_traffic given;    /* of the next steps, unless they are tuned */
    ek_tune *tune;           /* NULL: no tuning */
    ek_tune_choice choice;   /* of the step under way */
    ek_tune_choice previous; /* of the step before, whose time is known at the end of this one */
    int has_previous;
} ek_traffic;

/* Whether a layer dispatches rows to other ranks. */
int ek_traffic_is_dispatched(const ek_model *m);

/* Fills out [EK_TUNE_SETTINGS] with the settings to choose from, or the given one; returns their
 * number. */
int ek_traffic_settings(const ek_model *m, const ek_traffic_config *cfg, ek_moe_traffic *out);

EK_CHECKED ek_status ek_traffic_init(ek_traffic *t, const ek_model *m,
                                     const ek_traffic_config *cfg);
void ek_traffic_fini(ek_traffic *t);

/* Sets the settings of the next steps, and ends tuning. */
void ek_traffic_set(ek_traffic *t, const ek_moe_traffic *given);

/* The settings of the next step; bucket: of ek_tune_bucket_of. */
ek_moe_traffic ek_traffic_begin_step(ek_traffic *t, int64_t bucket);

/* previous_s: seconds of the previous step, the same on all ranks, which is summed over ranks with
 * this step.  Logs the result of a search that has ended. */
void ek_traffic_end_step(ek_traffic *t, double previous_s);

#endif
