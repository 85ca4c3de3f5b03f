/* elastic/ledger.h - how a rank's optimizer step commits, in memory that outlives the process.
 *
 * mpiexec may kill every rank at any instant, also in the middle of the update of masters and
 * moments, which is made in place and uses up the gradients.  The ledger makes that update one that
 * somebody else can finish:
 *
 *   1. gradients of step t are whole               ek_ledger_reduced(l, t)
 *   2. a collective over all ranks (the norm of the gradients is one): from here on every rank has
 *      done 1
 *   3. what the update needs besides, and what the step has to tell, as a record
 *                                                  ek_ledger_record(l, t, ...)
 *   4. the update, run by run, each leaving a trail (base/trail.h)
 *                                                  ek_ledger_update(l, ...)
 *
 * After a failure (elastic/verdict.h decides): where any survivor has begun 4, all have done 1, and
 * all finish the step from their own gradients with that rank's record (ek_ledger_finish), bit for
 * bit as if nothing had happened; else the step is taken again from its tokens.  Finishing may
 * itself be killed, and finished by the next.
 *
 * Numbers      arrays of a real type of 4 or 8 bytes: masters, gradients, two moments.  Runs of
 *              them are given once, and updated in their order.
 * Threads      one at a time; the update it calls may use a team, a lane of the trail for each.
 * Processes    one writes; others may look (ek_ledger_look) when it has ended. */
#ifndef ELASTIC_LEDGER_H
#define ELASTIC_LEDGER_H

#include "evenkeel/err.h"

#include "base/trail.h"

#include <stddef.h>
#include <stdint.h>

enum {
    EK_LEDGER_RECORD = 1024,           /* bytes of a record, at most */
    EK_LEDGER_NOTE = 1 << 18,          /* of a note */
    EK_LEDGER_ARRAYS = EK_TRAIL_ARRAYS /* masters, gradients, first and second moments */
};

/* Numbers that lie in one piece in each of the arrays. */
typedef struct {
    int64_t at[EK_LEDGER_ARRAYS]; /* bytes from the start of the ledger's memory */
    int64_t n;
    int64_t decays; /* weight decay applies */
} ek_ledger_run;

typedef struct ek_ledger_head ek_ledger_head;

typedef struct {
    unsigned char *memory;
    ek_ledger_head *head;
    ek_ledger_run *run;
    ek_trail *trails; /* one a lane */
} ek_ledger;

/* Updates a run as the record says, from where the trails say that an update of it has come. */
typedef struct {
    void (*fn)(void *context, const void *record, const ek_ledger_run *run,
               void *const arrays[EK_LEDGER_ARRAYS], int lanes, ek_trail *trails);
    void *context;
} ek_ledger_rule;

/* Bytes at the start of the memory that the ledger takes for itself, a multiple of 64. */
size_t ek_ledger_bytes(int64_t runs, int lanes);

/* Starts a ledger at the beginning of `memory` (zeroed, aligned to 64 bytes), of `bytes` in all,
 * after steps_done steps. */
EK_CHECKED ek_status ek_ledger_create(void *memory, size_t bytes, const ek_ledger_run *runs,
                                      int64_t n_runs, int lanes, int real_bytes, int64_t steps_done,
                                      ek_ledger *l);

/* Bytes of the numbers in its arrays; where its own bytes end. */
int ek_ledger_real_bytes(const ek_ledger *l);
size_t ek_ledger_end(const ek_ledger *l);

/* Finds the one that is there.  EK_ECORRUPT: there is none, or its runs lie outside. */
EK_CHECKED ek_status ek_ledger_open(void *memory, size_t bytes, ek_ledger *l);

/* --- while steps are taken ---------------------------------------------------------------------
 */

void ek_ledger_reduced(ek_ledger *l, int64_t step);

/* bytes: at most EK_LEDGER_RECORD. */
void ek_ledger_record(ek_ledger *l, int64_t step, const void *record, size_t bytes);

/* Updates runs [first, end) by the record of the step under way.  Calls go through all runs in
 * order; the last one's end is the step's. */
void ek_ledger_update(ek_ledger *l, const ek_ledger_rule *rule, int64_t first, int64_t end);

/* What those that go on had better know, and can do without: room for EK_LEDGER_NOTE bytes; so many
 * of them are written, and replace those before. */
void *ek_ledger_begin_note(ek_ledger *l);
void ek_ledger_end_note(ek_ledger *l, size_t bytes);

/* --- after a failure ---------------------------------------------------------------------------
 */

/* Where a rank stands. */
typedef struct {
    int64_t steps_done;
    int64_t reduced;  /* the last step whose gradients were whole; -1: none */
    int64_t recorded; /* the last step with a whole record; -1: none */
    int begun;        /* the update of step steps_done has begun */
} ek_ledger_state;

ek_ledger_state ek_ledger_look(const ek_ledger *l);

/* Whether it can be gone on with: its counters and trails fit its runs.  EK_ECORRUPT: they do not.
 */
EK_CHECKED ek_status ek_ledger_check(const ek_ledger *l);

/* The last whole record; of the step that ek_ledger_look says. */
const void *ek_ledger_recorded(const ek_ledger *l);
/* The last whole note, and how long it is; 0: there is none. */
const void *ek_ledger_noted(const ek_ledger *l, size_t *bytes);

/* Finishes the step under way with its record, this rank's own or another's: goes on where
 * the trails end.  The step's gradients have to be whole. */
EK_CHECKED ek_status ek_ledger_finish(ek_ledger *l, const ek_ledger_rule *rule, int64_t step,
                                      const void *record);

#endif
