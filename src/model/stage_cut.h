/* model/stage_cut.h - cuts the layers of a model into pipeline stages by what each layer costs. */
#ifndef MODEL_STAGE_CUT_H
#define MODEL_STAGE_CUT_H

#include "evenkeel/err.h"

#include <stdint.h>

/* What is cut into n stages, 1 <= n <= layers.  A stage takes the cost of what it has over its
 * speed. */
typedef struct {
    const double *layer; /* [layers] cost of each, at least 0 */
    int32_t layers, n;
    double before, after; /* of what the first and the last stage have beside their layers */
    const double *speed;  /* [n] of each stage, above 0; NULL: 1 */
} ek_stage_costs;

/* Cuts the layers into n contiguous stages of at least one layer each: part [n] := the number of
 * layers of each.  The stage that takes longest takes the least possible; among such cuts, the sum
 * of the squares of the times is the least, and the first stages have most layers.  EK_ENOMEM.
 * Time and memory grow with n layers^2 and n layers. */
EK_CHECKED ek_status ek_stage_cut(const ek_stage_costs *c, int32_t *part);

/* The time of the stage of a cut that takes longest; and how much of the speed of all stages
 * together is used if each waits for that one: 1 if all take the same. */
double ek_stage_cut_most(const ek_stage_costs *c, const int32_t *part);
double ek_stage_cut_evenness(const ek_stage_costs *c, const int32_t *part);

#endif
