/* train/timing/predict.h - predicted times of the ops of a step, from a machine's cost tables.
 *
 * Predicted are expert products, by their FLOPs at the rate for their number of rows, and ops that
 * only move memory and exchanges of rows, by their bytes.  An op's FLOPs and bytes are those of an
 * even spread, so a rank with more rows than the mean takes longer than predicted; an exchange also
 * takes longer while it waits for its peers.  Other ops (attention, sums over ranks) are not
 * predicted. */
#ifndef TRAIN_TIMING_PREDICT_H
#define TRAIN_TIMING_PREDICT_H

#include "cost/compare.h"
#include "cost/machine.h"
#include "exec/exec.h"
#include "spec/model.h"

typedef struct {
    const ek_machine *machine;
    const ek_model_spec *spec;
    int64_t ranks, nodes; /* that exchange rows: ep * etp, and the nodes that they lie on */
    int64_t experts;      /* that a rank holds */
    int64_t etp;          /* ranks that share an expert; 0 and 1 alike */
} ek_predict_config;

/* Seconds; negative: not predicted. */
double ek_predict_op(const ek_predict_config *cfg, const ek_event *e);

/* Adds events to the sums by kind. */
void ek_predict_add(const ek_predict_config *cfg, const ek_event *events, int64_t n, ek_compare *c);

#endif
