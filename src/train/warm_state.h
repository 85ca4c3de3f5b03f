/* train/note.h - what a trainer has learnt beside its weights, for another process to go on from:
 * what its tuner has found out, the loads that planners go by, and whether one has placed the
 * experts by them.  It lies in the ledger (elastic/ledger.h), is the same on all ranks of a stage,
 * and nothing depends on it but speed. */
#ifndef TRAIN_NOTE_H
#define TRAIN_NOTE_H

#include "model/pass.h"
#include "train/tune.h"

/* Writes a note of what fits into `room` bytes; returns its bytes.  tune: or NULL. */
size_t ek_note_write(const ek_tune *tune, const ek_pass *pass, void *note, size_t room);

typedef struct {
    int loads;  /* those of all layers that planners place are known now, */
    int placed; /* and experts lay where a planner had placed them */
} ek_note_found;

/* Goes on from a note, as far as it is of the same layers, experts and settings; others: of another
 * number of ranks.  What is not sound is left out. */
ek_note_found ek_note_read(ek_tune *tune, const ek_pass *pass, const void *note, size_t bytes,
                           int others);

#endif
