/* train/recover.h - a generation of ranks goes on from what an earlier one has left in memory.
 *
 * The way to start is the way to recover: every generation looks for segments of its run on all its
 * hosts (find), lays out its model in segments of its own, and fills these from what was found
 * (load), from a checkpoint or anew.  When all have theirs (commit), the earlier ones are removed;
 * until then they stay, so that a failure in between loses nothing.  Pieces that are taken over are
 * part of both until then, and are not changed before: not even gradients, as a host that is not
 * seen now and is later may be the one that had begun to update, and then all finish that step.
 *
 * Collective   over the world, all of them; world NULL: one rank.  A failure on one rank fails
 *              all. */
#ifndef TRAIN_RECOVER_H
#define TRAIN_RECOVER_H

#include "elastic/recovery_decision.h"
#include "train/state.h"

/* What is left of one rank, known to all. */
typedef struct {
    ek_survivor survivor;
    ek_survivor_role role;
    int32_t host, server; /* where it is; the rank that reads it for the other hosts */
    uint64_t fingerprint;
    int64_t shards;
    int32_t ranks; /* of its generation */
} ek_survivor_info;

/* A segment of this host.  One of the host's ranks serves it: holds its lock, finishes its step,
 * sends from it, removes it. */
typedef struct {
    ek_segment_id id;
    int served;         /* by this rank */
    int prealloc;       /* memory for a rank to come (elastic/prealloc.h), without state */
    ek_segment segment; /* head NULL: it is of no use */
    ek_journal journal;
    ek_shard_table shards;
    int32_t survivor; /* which of ek_recovery.left; -1: none of them */
} ek_found_segment;

typedef struct {
    ek_comm *world;
    int rank, ranks;
    uint64_t run, supervisor_id;
    int32_t generation; /* this one */
    ek_found_segment *found;
    int64_t n_found;
    ek_survivor_info *survivors;
    int32_t n_survivors;
    ek_recovery_decision decision;
    ek_step_record record;  /* of step verdict.steps_done - 1, where somebody has it */
    int64_t finished;       /* ranks that had to finish that step */
    ek_shard_owner *tables; /* parts of those that are of use, for all to read */
    int32_t *table_of;      /* [n_tables] of left */
    int32_t n_tables;
    void *warm_state; /* of one of those (elastic/step_journal.h), the same for all */
    uint64_t warm_state_bytes;
    /* By this rank: that stayed where they were, of its host, from others. */
    int64_t bytes_adopted, bytes_copied, bytes_received;
    int64_t bytes_prealloc; /* that were made before it came */
    int real;               /* bytes of a number */
} ek_recovery;

/* Finds what is left, and brings it to one step: verdict.generation -1: nothing is.  Processes of
 * an earlier start by this starter that are still there are killed (elastic/segment.h). */
EK_CHECKED ek_status ek_recover_find(ek_recovery *r, ek_comm *world, uint64_t run,
                                     uint64_t supervisor_id, const ek_kernels *k);

/* Fails where what is left is of a run with other settings.  EK_EINVAL names what to do. */
EK_CHECKED ek_status ek_recover_check(const ek_recovery *r, uint64_t fingerprint, const char *out);

/* Tells all what lies where in what is left, the tables, and what was noted. */
EK_CHECKED ek_status ek_recover_read_tables(ek_recovery *r);

/* Makes the pieces of a rank's state that are not there yet, of memory that was made for it where
 * there is some; the rest of that is given back.  By itself, unlike the others. */
EK_CHECKED ek_status ek_recover_create_blocks(ek_recovery *r, ek_rank_state *s);

/* Fills masters and moments from what is left, of which there are tables: takes over pieces of it,
 * makes the others and copies.  s: NULL for a rank that only gives.  EK_ENOENT: not all of the
 * model is there, and *missing is a tensor (of ek_hf_tensor_at) that is not whole; nothing has been
 * filled then. */
EK_CHECKED ek_status ek_recover_load(ek_recovery *r, ek_rank_state *s, int32_t *missing);

/* Bytes of this host that are taken by what this rank serves, and may come to use again. */
int64_t ek_recover_bytes(const ek_recovery *r);
/* Those of memory that was made ready for ranks to come. */
int64_t ek_recover_prealloc_bytes(const ek_recovery *r);

/* This rank's state is in its segment (s: NULL: it has none): from here on this generation counts,
 * and earlier ones are removed. */
EK_CHECKED ek_status ek_recover_commit(ek_recovery *r, ek_rank_state *s);

/* Removes what was found, and gives its memory back. */
EK_CHECKED ek_status ek_recover_remove(ek_recovery *r);

void ek_recover_close(ek_recovery *r);

#endif
