/* elastic/step_journal.h - how a rank's optimizer step commits, in memory that outlives the
 * process.
 *
 * mpiexec may kill every rank at any instant, also in the middle of the update of masters and
 * moments, which is made in place and uses up the gradients.  The ledger makes that update one that
 * somebody else can finish:
 *
 *   1. gradients of step t are whole               ek_journal_reduced(l, t)
 *   2. a collective over all ranks (the norm of the gradients is one): from here on every rank has
 *      done 1
 *   3. what the update needs besides, and what the step has to tell, as a record
 *                                                  ek_journal_record(l, t, ...)
 *   4. the update, run by run, each leaving a trail (base/undo_log.h)
 *                                                  ek_journal_update(l, ...)
 *
 * After a failure (elastic/recovery_decision.h decides): where any survivor has begun 4, all have
 * done 1, and all finish the step from their own gradients with that rank's record
 * (ek_journal_finish), bit for bit as if nothing had happened; else the step is taken again from
 * its tokens.  Finishing may itself be killed, and finished by the next.
 *
 * Numbers      arrays of a real type of 4 or 8 bytes: masters, gradients, two moments.  Runs of
 *              them are given once, and updated in their order.
 * Threads      one at a time; the update it calls may use a team, a lane of the trail for each.
 * Processes    one writes; others may look (ek_journal_look) when it has ended. */
#ifndef ELASTIC_STEP_JOURNAL_H
#define ELASTIC_STEP_JOURNAL_H

#include "evenkeel/err.h"

#include "base/undo_log.h"

#include <stddef.h>
#include <stdint.h>

enum {
    EK_JOURNAL_RECORD = 1024,          /* bytes of a record, at most */
    EK_JOURNAL_WARM_STATE = 1 << 18,   /* of a note */
    EK_JOURNAL_ARRAYS = EK_UNDO_ARRAYS /* masters, gradients, first and second moments */
};

/* Numbers that lie in one piece in each of the arrays. */
typedef struct {
    int64_t at[EK_JOURNAL_ARRAYS]; /* bytes from the start of the ledger's memory */
    int64_t n;
    int64_t decays; /* weight decay applies */
} ek_journal_extent;

typedef struct ek_journal_head ek_journal_head;

typedef struct {
    unsigned char *memory;
    ek_journal_head *head;
    ek_journal_extent *extent;
    ek_undo_log *undo_logs; /* one a lane */
} ek_journal;

/* Updates a run as the record says, from where the trails say that an update of it has come. */
typedef struct {
    void (*fn)(void *context, const void *record, const ek_journal_extent *run,
               void *const arrays[EK_JOURNAL_ARRAYS], int lanes, ek_undo_log *undo_logs);
    void *context;
} ek_journal_rule;

/* Bytes at the start of the memory that the ledger takes for itself, a multiple of 64. */
size_t ek_journal_bytes(int64_t extents, int lanes);

/* Starts a ledger at the beginning of `memory` (zeroed, aligned to 64 bytes), of `bytes` in all,
 * after steps_done steps. */
EK_CHECKED ek_status ek_journal_create(void *memory, size_t bytes, const ek_journal_extent *extents,
                                       int64_t n_extents, int lanes, int real_bytes,
                                       int64_t steps_done, ek_journal *l);

/* Bytes of the numbers in its arrays; where its own bytes end. */
int ek_journal_real_bytes(const ek_journal *l);
size_t ek_journal_end(const ek_journal *l);

/* Finds the one that is there.  EK_ECORRUPT: there is none, or its runs lie outside. */
EK_CHECKED ek_status ek_journal_open(void *memory, size_t bytes, ek_journal *l);

/* --- while steps are taken ---------------------------------------------------------------------
 */

void ek_journal_reduced(ek_journal *l, int64_t step);

/* bytes: at most EK_JOURNAL_RECORD. */
void ek_journal_record(ek_journal *l, int64_t step, const void *record, size_t bytes);

/* Updates runs [first, end) by the record of the step under way.  Calls go through all runs in
 * order; the last one's end is the step's. */
void ek_journal_update(ek_journal *l, const ek_journal_rule *rule, int64_t first, int64_t end);

/* What those that go on had better know, and can do without: room for EK_JOURNAL_WARM_STATE bytes;
 * so many of them are written, and replace those before. */
void *ek_journal_begin_warm_state(ek_journal *l);
void ek_journal_end_warm_state(ek_journal *l, size_t bytes);

/* --- after a failure ---------------------------------------------------------------------------
 */

/* Where a rank stands. */
typedef struct {
    int64_t steps_done;
    int64_t reduced;  /* the last step whose gradients were whole; -1: none */
    int64_t recorded; /* the last step with a whole record; -1: none */
    int begun;        /* the update of step steps_done has begun */
} ek_journal_state;

ek_journal_state ek_journal_look(const ek_journal *l);

/* Whether it can be gone on with: its counters and trails fit its runs.  EK_ECORRUPT: they do not.
 */
EK_CHECKED ek_status ek_journal_check(const ek_journal *l);

/* The last whole record; of the step that ek_journal_look says. */
const void *ek_journal_recorded(const ek_journal *l);
/* The last whole note, and how long it is; 0: there is none. */
const void *ek_journal_warm_state(const ek_journal *l, size_t *bytes);

/* Finishes the step under way with its record, this rank's own or another's: goes on where
 * the trails end.  The step's gradients have to be whole. */
EK_CHECKED ek_status ek_journal_finish(ek_journal *l, const ek_journal_rule *rule, int64_t step,
                                       const void *record);

#endif
