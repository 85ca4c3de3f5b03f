/* train/timing/predict.h - predicted times of the ops of a step, from a machine's cost tables.
 *
 * Predicted are ops that compute or move memory (sim/price_compute.h), and all-to-alls, by the
 * bytes and ranks of their work.  An op's work is that of an even spread, so a rank with more rows
 * than the mean takes longer than predicted; an all-to-all also takes longer while it waits for its
 * peers.  Other network ops, disk ops and ops that only wait are not predicted. */
#ifndef TRAIN_TIMING_PREDICT_H
#define TRAIN_TIMING_PREDICT_H

#include "cost/compare.h"
#include "cost/machine.h"
#include "exec/exec.h"

typedef struct {
    const ek_machine *machine;
    int64_t nodes; /* that the ranks lie on with which this one exchanges rows */
} ek_predict_config;

/* Seconds; negative: not predicted. */
double ek_predict_op(const ek_predict_config *cfg, const ek_event *e);

/* Adds events to the sums by kind. */
void ek_predict_add(const ek_predict_config *cfg, const ek_event *events, int64_t n, ek_compare *c);

#endif
