/* elastic/recovery_decision.h - from what is left of a run's ranks: where to go on.
 *
 * Pure: the same answer for whoever has the same list.  Not decided here is whether what is left
 * holds all of the model; that depends on what lies where.
 *
 * Generation   the newest one of which any rank is READY: that one has passed the point behind
 *              which all of them had their state (elastic/segment.h).  Without such there is
 *              nothing to go on from.
 * Step         steps that the farthest rank has done, and one more if it has begun to update: as
 *              nobody updates before all have whole gradients, all others can finish that step
 *              too.  Otherwise it is taken again, and nobody has lost more than the work on it. */
#ifndef ELASTIC_RECOVERY_DECISION_H
#define ELASTIC_RECOVERY_DECISION_H

#include "elastic/segment.h"
#include "elastic/step_journal.h"

/* What is left of a rank. */
typedef struct {
    int32_t generation, rank; /* as it was */
    int32_t phase;            /* ek_segment_phase */
    ek_journal_state state;
} ek_survivor;

typedef enum {
    EK_SURVIVOR_STALE,   /* of another generation, or never whole: to be removed */
    EK_SURVIVOR_CURRENT, /* has done that many steps */
    EK_SURVIVOR_FINISH,  /* has to finish one more */
    EK_SURVIVOR_UNUSABLE /* cannot get there, which should not be: not to be used */
} ek_survivor_role;

typedef struct {
    int32_t generation; /* to go on from; -1: none */
    int64_t steps_done; /* where to go on */
    int32_t record;     /* the survivor with the record of step steps_done - 1, by which that one is
                           finished and told of; -1: none has it, and nobody has to finish it */
} ek_recovery_decision;

/* roles [n]. */
ek_recovery_decision ek_recovery_decide(const ek_survivor *of, int32_t n, ek_survivor_role *roles);

#endif
