/* elastic/step_journal.h - how a rank's optimizer step commits, in memory that outlives the
 * process.
 *
 * mpiexec may kill every rank at any instant, also during the update of masters and moments, which
 * is made in place and overwrites the gradients.  The step journal lets another process finish that
 * update:
 *
 *   1. gradients of step t are reduced             ek_journal_reduced(l, t)
 *   2. a collective over all ranks (the norm of the gradients): after it every rank has done 1
 *   3. a record of the parameters of the update and the results of the step
 *                                                  ek_journal_record(l, t, ...)
 *   4. the update, extent by extent, each with an undo log (base/undo_log.h)
 *                                                  ek_journal_update(l, ...)
 *
 * After a failure (elastic/recovery_decision.h decides): if any survivor has begun 4, all have done
 * 1, and all finish the step from their own gradients with that rank's record (ek_journal_finish),
 * with the bits that the undisturbed step would have given; otherwise the step is repeated from its
 * tokens.  Finishing may itself be killed, and is then finished by the next generation.
 *
 * Numbers      arrays of a real type of 4 or 8 bytes: masters, gradients, two moments.  Extents are
 *              given once, at creation, and updated in their order.
 * Threads      one thread at a time; the update rule may use a team, with one undo log a lane.
 * Processes    one writes; others may read (ek_journal_look) after it has ended. */
#ifndef ELASTIC_STEP_JOURNAL_H
#define ELASTIC_STEP_JOURNAL_H

#include "evenkeel/err.h"

#include "base/undo_log.h"

#include <stddef.h>
#include <stdint.h>

enum {
    EK_JOURNAL_RECORD = 1024,          /* bytes of a record, at most */
    EK_JOURNAL_WARM_STATE = 1 << 18,   /* bytes of warm state, at most */
    EK_JOURNAL_ARRAYS = EK_UNDO_ARRAYS /* masters, gradients, first and second moments */
};

/* How the numbers of an extent are updated. */
enum {
    EK_EXTENT_UNDECAYED, /* by their gradients */
    EK_EXTENT_DECAYED,   /* likewise, with weight decay */
    EK_EXTENT_FEEDBACK   /* what is in the place of the gradient is added */
};

/* A contiguous range of numbers in each of the arrays. */
typedef struct {
    int64_t at[EK_JOURNAL_ARRAYS]; /* byte offset in the journal's memory */
    int64_t n;
    int64_t kind; /* EK_EXTENT_* */
} ek_journal_extent;

typedef struct ek_journal_head ek_journal_head;

typedef struct {
    unsigned char *memory;
    ek_journal_head *head;
    ek_journal_extent *extent;
    ek_undo_log *undo_logs; /* [lanes] */
} ek_journal;

/* Updates an extent with the parameters in the record; resumes where the undo logs say. */
typedef struct {
    void (*fn)(void *context, const void *record, const ek_journal_extent *extent,
               void *const arrays[EK_JOURNAL_ARRAYS], int lanes, ek_undo_log *undo_logs);
    void *context;
} ek_journal_rule;

/* Bytes of the journal itself, at the start of its memory; a multiple of 64. */
size_t ek_journal_bytes(int64_t extents, int lanes);

/* Creates a journal at the start of `memory` [bytes] (zeroed, aligned to 64 bytes, borrowed), with
 * steps_done steps done.  EK_EINVAL; EK_ECORRUPT: an extent lies outside of the memory. */
EK_CHECKED ek_status ek_journal_create(void *memory, size_t bytes, const ek_journal_extent *extents,
                                       int64_t n_extents, int lanes, int real_bytes,
                                       int64_t steps_done, ek_journal *l);

/* Bytes of a number; byte offset of the end of the journal itself. */
int ek_journal_real_bytes(const ek_journal *l);
size_t ek_journal_end(const ek_journal *l);

/* Uses the journal in memory (borrowed).  EK_ECORRUPT: there is none, or an extent lies outside. */
EK_CHECKED ek_status ek_journal_open(void *memory, size_t bytes, ek_journal *l);

/* --- during steps ----------------------------------------------------------------------------- */

void ek_journal_reduced(ek_journal *l, int64_t step);

/* bytes: at most EK_JOURNAL_RECORD. */
void ek_journal_record(ek_journal *l, int64_t step, const void *record, size_t bytes);

/* Updates extents [first, end) with the record of the step under way.  Calls cover all extents in
 * order; the step is done after the last extent. */
void ek_journal_update(ek_journal *l, const ek_journal_rule *rule, int64_t first, int64_t end);

/* Warm state: optional hints for the next generation (train/tune/warm_state.h).  begin returns a
 * buffer of EK_JOURNAL_WARM_STATE bytes; end commits its first `bytes`, which replace the state
 * before. */
void *ek_journal_begin_warm_state(ek_journal *l);
void ek_journal_end_warm_state(ek_journal *l, size_t bytes);

/* --- after a failure -------------------------------------------------------------------------- */

/* The progress of a rank. */
typedef struct {
    int64_t steps_done;
    int64_t reduced;  /* the last step whose gradients were reduced; -1: none */
    int64_t recorded; /* the last step with a complete record; -1: none */
    int begun;        /* 1: the update of step steps_done has begun */
} ek_journal_state;

ek_journal_state ek_journal_look(const ek_journal *l);

/* EK_ECORRUPT: counters or undo logs do not match the extents. */
EK_CHECKED ek_status ek_journal_check(const ek_journal *l);

/* The last complete record: of step `recorded`. */
const void *ek_journal_recorded(const ek_journal *l);
/* The last complete warm state and its size; 0: there is none. */
const void *ek_journal_warm_state(const ek_journal *l, size_t *bytes);

/* Finishes step `step` with its record, of this rank or another: resumes where the undo logs end.
 * EK_ESTATE: the step is not the one under way, or its gradients were not reduced. */
EK_CHECKED ek_status ek_journal_finish(ek_journal *l, const ek_journal_rule *rule, int64_t step,
                                       const void *record);

#endif
