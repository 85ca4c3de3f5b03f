/* search/objective.h - what layouts are ranked by: the time of a step, the steps that are left when
 * nodes fail, or what a step costs; and a layout in runs under failures. */
#ifndef SEARCH_OBJECTIVE_H
#define SEARCH_OBJECTIVE_H

#include "train/failures.h"

typedef enum { EK_OBJECTIVE_STEP, EK_OBJECTIVE_GOODPUT, EK_OBJECTIVE_COST } ek_objective;

#define EK_OBJECTIVE_WORDS "step|goodput|cost" /* in their order */

/* What losses do in a search: the words of simulate, or for each layout what leaves more steps:
 * recovery where --elastic supports it and its copies fit in memory, or restarts. */
#define EK_SEARCH_ON_FAILURE_WORDS "best|" EK_ON_FAILURE_WORDS

/* A layout in runs under failures. */
typedef struct {
    ek_on_failure what;
    int elastic;   /* ek_train_config: 1: copies of experts are kept whatever they cost */
    double step_s; /* of a run for each step that it completes, */
    double node_s; /* and seconds of nodes that are up */
    ek_sim_failures of;
} ek_search_failures;

#endif
