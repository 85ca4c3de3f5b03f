/* model/stage_cut.h - cuts the layers of a model into pipeline stages by what each layer costs. */
#ifndef MODEL_STAGE_CUT_H
#define MODEL_STAGE_CUT_H

#include "evenkeel/err.h"

#include <stdint.h>

/* Cuts `layers` layers into n contiguous stages of at least one layer each, 1 <= n <= layers:
 * part [n] := the number of layers of each.  cost [layers]: of a layer, at least 0; before, after:
 * what the first stage and the last one have beside their layers (embedding, head), in the same
 * unit.  The costliest stage costs the least possible; among such cuts, the sum of the squares of
 * the costs is the least, and the first stages have most layers.  EK_ENOMEM.  Time and memory grow
 * with n layers^2 and n layers. */
EK_CHECKED ek_status ek_stage_cut(const double *cost, int32_t layers, double before, double after,
                                  int32_t n, int32_t *part);

/* The cost of the costliest stage of a cut, and of all over n times that: 1 if they are even. */
double ek_stage_cut_most(const double *cost, double before, double after, int32_t n,
                         const int32_t *part);
double ek_stage_cut_evenness(const double *cost, double before, double after, int32_t n,
                             const int32_t *part);

#endif
