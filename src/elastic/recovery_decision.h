/* elastic/recovery_decision.h - from the surviving state of ranks: the generation and the step at
 * which training continues.
 *
 * Pure: all ranks that have the same list decide the same.  Whether the survivors together hold the
 * whole model is not decided here.
 *
 * Generation   the newest one of which any rank is READY: then all its ranks had their state in
 *              their segments (elastic/segment.h).  Without such a rank nothing can be recovered.
 * Step         the highest number of steps that any rank has done, plus one if that rank has begun
 *              the update of the next step: no rank begins to update before all ranks have reduced
 *              gradients, so all survivors can finish that step.  Otherwise the step under way is
 *              repeated. */
#ifndef ELASTIC_RECOVERY_DECISION_H
#define ELASTIC_RECOVERY_DECISION_H

#include "elastic/segment.h"
#include "elastic/step_journal.h"

/* The surviving state of one rank. */
typedef struct {
    int32_t generation, rank; /* of the segment (ek_segment_id): the rank that left it, or a copy */
    int32_t phase;            /* ek_segment_phase */
    ek_journal_state state;
} ek_survivor;

typedef enum {
    EK_SURVIVOR_STALE,   /* of another generation, or never FILLED: to be removed */
    EK_SURVIVOR_CURRENT, /* has done steps_done steps */
    EK_SURVIVOR_FINISH,  /* has to finish the last of them */
    EK_SURVIVOR_UNUSABLE /* cannot reach steps_done (a broken journal): not used */
} ek_survivor_role;

typedef struct {
    int32_t generation; /* to continue from; -1: none */
    int64_t steps_done; /* training continues with step number steps_done */
    int32_t record;     /* a survivor with the record of step steps_done - 1, by which others finish
                           that step and its metrics line is written; -1: none, and none has to
                           finish it */
} ek_recovery_decision;

/* Decides from survivors [n]; fills roles [n]. */
ek_recovery_decision ek_recovery_decide(const ek_survivor *survivors, int32_t n,
                                        ek_survivor_role *roles);

#endif
