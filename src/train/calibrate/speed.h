/* train/calibrate/speed.h - how fast the matrix products of each rank are, for work that is divided
 * by speed before a run begins.
 *
 * A pass is the products of one layer and the head, forward and backward: projections of
 * attention, experts (a few of them; or the network of dense layers), head.  All ranks make the
 * same passes at once, as many as fit in a round, and each rank's FLOP/s are those of its whole
 * passes in wall time, so that a share of a processor and ranks that share one count as in
 * training.  Of large matrices a part is measured, and of a micro-batch as many rows as make a pass
 * of some milliseconds on the fastest rank. */
#ifndef TRAIN_CALIBRATE_SPEED_H
#define TRAIN_CALIBRATE_SPEED_H

#include "comm/comm.h"
#include "spec/model.h"
#include "tensor/kernels.h"

/* Rounds, so that one that was disturbed can be told. */
enum { EK_SPEED_ROUNDS = 3 };

typedef struct {
    const ek_model_spec *spec;
    const ek_kernels *k;
    ek_comm *world; /* NULL: one rank */
    int64_t rows;   /* tokens of a micro-batch on a rank */
    int64_t top_k;  /* experts of a token */
    double round_s; /* 0: 0.2, which is several scheduling periods */
} ek_speed_config;

/* speed [EK_SPEED_ROUNDS][ranks] := FLOP/s, above 0, the same on all ranks.  Collective; all ranks
 * give the same config, each with its own k and world. */
EK_CHECKED ek_status ek_measure_speeds(const ek_speed_config *cfg, double *speed);

#endif
