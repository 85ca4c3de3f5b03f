/* elastic/prealloc.h - shared memory that a joining host reserves and clears before its ranks
 * start.
 *
 * Reserving and clearing memory for the state of ranks takes time in which all other ranks would
 * wait.  So a joining host does it first, while training continues: in a segment that stays in
 * phase BUILDING, whose rank number is EK_PREALLOC_RANK or above, and whose blocks have the sizes
 * of another rank's blocks.  When the new rank starts it moves the blocks that it needs to its own
 * segment.  All of them are zero. */
#ifndef ELASTIC_PREALLOC_H
#define ELASTIC_PREALLOC_H

#include "elastic/segment.h"

enum { EK_PREALLOC_RANK = 1 << 24, EK_PREALLOC_TEXT = 512 };

static inline int ek_prealloc_is(const ek_segment_id *id)
{
    return id->rank >= EK_PREALLOC_RANK;
}

/* Writes the block sizes of a segment with their counts, "65536x3,131072x1", to text [cap]; "" if
 * it has no blocks, or more than 32 sizes, or the list is longer than cap. */
void ek_prealloc_describe(const ek_segment *s, char *text, size_t cap);

/* Total bytes of such a list.  EK_EINVAL: the text is not such a list. */
EK_CHECKED ek_status ek_prealloc_bytes(const char *text, size_t *bytes);

/* Reserves blocks of these sizes (text as above) for a future rank; id->rank: EK_PREALLOC_RANK or
 * above.  Replaces what an earlier call for the same id and supervisor has made, and kills the
 * process that is still making it.  out: the run's --out.  EK_EINVAL: the text is not a list;
 * EK_ENOSPC: /dev/shm has too little free memory, and nothing stays reserved. */
EK_CHECKED ek_status ek_prealloc_create(const ek_segment_id *id, uint64_t supervisor_id,
                                        const char *out, const char *text);

/* Moves blocks to `s` where it lacks a block of the same size.  missing [blocks of s]: 1 for blocks
 * that s lacks; becomes 0 for those moved.  Adds the bytes moved to *bytes. */
EK_CHECKED ek_status ek_prealloc_move(const ek_segment *prealloc, ek_segment *s,
                                      unsigned char *missing, int64_t *bytes);

/* Removes all preallocated segments of a run on this host; kills processes that this supervisor has
 * started and that are still making one. */
EK_CHECKED ek_status ek_prealloc_remove(uint64_t run, uint64_t supervisor_id);

#endif
