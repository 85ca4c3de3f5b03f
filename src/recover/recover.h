/* recover/recover.h - starts a generation of ranks from the state that an earlier one left in
 * memory.
 *
 * Start and recovery are one path: every generation looks for segments of its run on all its hosts
 * (find), lays out its model in new segments, and fills these from the segments found (load), from
 * a checkpoint or with initial weights.  When all ranks are filled (commit), the earlier segments
 * are removed; until then they stay, so that a failure in between loses nothing.  Adopted blocks
 * belong to both generations until then and are not changed, not even gradients: a host that is
 * unreachable now may have begun the update and be found by the next generation, in which case all
 * ranks have to finish that step.
 *
 * An update that a survivor left unfinished is finished by the rule that the caller gives; this
 * layer knows neither the optimizer nor what the record of a step says.
 *
 * Collective   all calls over the world, unless stated; world NULL: one rank.  A failure on one
 *              rank fails all. */
#ifndef RECOVER_RECOVER_H
#define RECOVER_RECOVER_H

#include "elastic/recovery_decision.h"
#include "model/hf/names.h"
#include "recover/rank_state.h"

/* The surviving state of one earlier rank, known to all ranks. */
typedef struct {
    ek_survivor survivor;
    ek_survivor_role role;
    int32_t host, server; /* its host; the rank that serves it */
    uint64_t fingerprint;
    int64_t shards;
    int32_t ranks; /* of its generation; survivor.rank is this or above: a copy of another rank */
} ek_survivor_info;

/* A segment of this host.  One of the host's ranks serves it: holds its lock, finishes its step,
 * sends its state, removes it. */
typedef struct {
    ek_segment_id id;
    int served;         /* by this rank */
    int prealloc;       /* preallocated memory (elastic/prealloc.h), without state */
    ek_segment segment; /* head NULL: not usable */
    ek_journal journal;
    ek_shard_table shards;
    int32_t survivor;     /* index in ek_recovery.survivors; -1: none */
    unsigned char *taken; /* [blocks] that this rank has adopted; NULL: none */
} ek_found_segment;

/* How ranks finish an update: the rule, and the size of the record that it reads. */
typedef struct {
    ek_journal_rule rule;
    size_t record_bytes; /* at most EK_JOURNAL_RECORD; the same on all ranks */
    int real_bytes;      /* of a number of the state: 4 or 8 */
} ek_recover_update;

/* Bytes of this rank's state, by where they came from. */
typedef struct {
    int64_t adopted;  /* in place */
    int64_t copied;   /* within its host */
    int64_t received; /* from other hosts */
    int64_t prealloc; /* memory used that was preallocated */
} ek_recover_bytes_by_source;

typedef struct {
    ek_comm *world;
    int rank, ranks;
    uint64_t run, supervisor_id;
    int32_t generation; /* the new one */
    ek_found_segment *found;
    int64_t n_found;
    ek_survivor_info *survivors;
    int32_t n_survivors;
    ek_recovery_decision decision;
    ek_recover_update update;
    /* of step decision.steps_done - 1, if decision.record >= 0; update.record_bytes long */
    unsigned char record[EK_JOURNAL_RECORD];
    int64_t finished;        /* survivors that had to finish that step */
    ek_shard_owner *tables;  /* shard tables of usable survivors, the same on all ranks */
    int32_t *table_survivor; /* [n_tables]: index in survivors */
    int32_t n_tables;
    void *warm_state; /* of one of these survivors, the same on all ranks */
    uint64_t warm_state_bytes;
    ek_recover_bytes_by_source bytes;
} ek_recovery;

/* Finds survivors and brings them to the same step; decision.generation -1: there are none.  The
 * new generation's number is above that of all found, and at least rank 0's first_generation. Kills
 * processes of earlier starts by this supervisor that still hold segments (elastic/segment.h).  The
 * caller calls ek_recover_close, also on failure. */
EK_CHECKED ek_status ek_recover_find(ek_recovery *r, ek_comm *world, uint64_t run,
                                     uint64_t supervisor_id, int32_t first_generation,
                                     const ek_recover_update *update);

/* EK_EINVAL if survivors belong to a run with other settings; the message states what to do.  Not
 * collective. */
EK_CHECKED ek_status ek_recover_check(const ek_recovery *r, uint64_t fingerprint, const char *out);

/* Broadcasts the shard tables of usable survivors, and the warm state of one of them. */
EK_CHECKED ek_status ek_recover_read_tables(ek_recovery *r);

/* Creates the missing blocks of a rank's state, from preallocated memory as far as it suffices;
 * frees the rest of that memory.  Not collective. */
EK_CHECKED ek_status ek_recover_create_blocks(ek_recovery *r, ek_rank_state *s);

/* Fills masters and moments from survivors, after ek_recover_read_tables: adopts blocks, creates
 * the others and copies.  s: NULL for a draining rank, which only sends.  EK_ENOENT: survivors do
 * not hold the whole model; *missing is an incomplete tensor (of ek_hf_tensor_at), and nothing has
 * been filled.  May be called again, for copies of other ranks' state. */
EK_CHECKED ek_status ek_recover_load(ek_recovery *r, ek_rank_state *s, int32_t *missing);

/* Survivors that are copies of other ranks' state.  Not collective. */
int32_t ek_recover_copies(const ek_recovery *r);

/* Bytes of the segments with state that this rank serves.  Not collective. */
int64_t ek_recover_bytes(const ek_recovery *r);
/* Bytes of preallocated memory that this rank serves.  Not collective. */
int64_t ek_recover_prealloc_bytes(const ek_recovery *r);

/* Called when this rank's state, and copies of others', are in their segments: s [n].  Makes this
 * generation the valid one, and removes earlier ones. */
EK_CHECKED ek_status ek_recover_commit(ek_recovery *r, ek_rank_state *const *s, int32_t n);

/* Removes the segments found, and frees their memory. */
EK_CHECKED ek_status ek_recover_remove(ek_recovery *r);

void ek_recover_close(ek_recovery *r);

#endif
