/* train/layout_decision.h - whether a run should go on with another layout of its pool, by
 * simulated step times under its present loads (SmartMoE, ATC 2023, section 5: a pool of layouts
 * found before the run, a choice among them in it).
 *
 * Simulated times are corrected: a layout that was in use by what its steps took then, others by
 * what the one in use takes now.  So a simulation that is wrong by the same factor for all layouts
 * changes nothing, and a layout that has disappointed is not chosen again for the same reason. */
#ifndef TRAIN_LAYOUT_DECISION_H
#define TRAIN_LAYOUT_DECISION_H

#include "train/layout_pool.h"

typedef struct {
    int64_t n, current;
    double correction[EK_LAYOUT_POOL_MAX]; /* measured over simulated; 0: never in use */
} ek_layout_decision;

/* What a decision is made from. */
typedef struct {
    const double *simulated; /* [n] seconds of a step; infinite: it cannot be used */
    double measured_s;       /* of a step with the layout in use */
    double change_s;         /* what a change costs */
    int64_t steps;           /* until the next decision, or the end */
} ek_layout_prospect;

typedef struct {
    int64_t best;      /* the layout that is expected to take least, */
    double expected_s; /* and what a step with it should take */
    int change;        /* 1: the run should go on with it: over the steps it saves twice what the
                          change costs, and at least a twentieth of a step */
} ek_layout_verdict;

ek_layout_verdict ek_layout_decide(ek_layout_decision *d, const ek_layout_prospect *p);

#endif
