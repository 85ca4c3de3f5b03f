/* search/stage_time.h - what a pipeline stage takes for a micro-batch, from the graph of a step of
 * a single one. */
#ifndef SEARCH_STAGE_TIME_H
#define SEARCH_STAGE_TIME_H

#include "schedule/graph.h"
#include "search/bound_prices.h"

enum { EK_RECOMPUTES = 3 }; /* off, attention, full */

/* What a stage takes, by recomputation, in seconds. */
typedef struct {
    double micro[EK_RECOMPUTES];  /* a micro-batch: from its first computation to the end of its
                                     last */
    double end[EK_RECOMPUTES];    /* after the last micro-batch, with ZeRO as laid out, or less */
    double layers[EK_RECOMPUTES]; /* of a micro-batch, its layers alone, or less */
    double n_layers;
    int is_whole; /* 1: of a replay of all layers; 0: `end` is the update's computation alone */
} ek_stage_time;

/* Replays the stage of `n` ranks from `first` on alone, messages of other stages are always there.
 * g: a step of a micro-batch with full recomputation; is_whole: of all layers; prices: of the
 * layout.  EK_ENOMEM. */
EK_CHECKED ek_status ek_stage_time_of(int ranks, int32_t first, int32_t n, const ek_graph *g,
                                      int is_whole, const ek_bound_prices *prices,
                                      ek_stage_time *out);

#endif
