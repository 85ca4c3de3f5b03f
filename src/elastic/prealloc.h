/* elastic/prealloc.h - memory that is made for a rank before it comes.
 *
 * A host that joins a run has memory to find and to clear for its ranks' state, while all others
 * would wait.  So it does that first: in a segment of its own kind, still being built, whose number
 * of a rank no rank has, and whose pieces are as large as those that another rank has.  When the
 * rank is there it moves those over that it has a use for; all of them are zero. */
#ifndef ELASTIC_PREALLOC_H
#define ELASTIC_PREALLOC_H

#include "elastic/segment.h"

enum { EK_PREALLOC_RANK = 1 << 24, EK_PREALLOC_TEXT = 512 };

static inline int ek_prealloc_is(const ek_segment_id *id)
{
    return id->rank >= EK_PREALLOC_RANK;
}

/* How large the pieces of a segment are, each as often as it has them: "65536x3,131072x1", into
 * text [cap]; "": there are none, or too many sizes. */
void ek_prealloc_describe(const ek_segment *s, char *text, size_t cap);

/* All of such a list; EK_EINVAL: it is none. */
EK_CHECKED ek_status ek_prealloc_bytes(const char *text, size_t *bytes);

/* Makes such pieces for a rank to come; id: of a run, its rank EK_PREALLOC_RANK or above.  What an
 * earlier order (of this starter) has made or still makes under this id is replaced.  starter, out:
 * as in a head.  EK_EINVAL: the text is none; EK_ENOSPC: there is no room, and nothing is left of
 * it. */
EK_CHECKED ek_status ek_prealloc_create(const ek_segment_id *id, uint64_t supervisor_id,
                                        const char *out, const char *text);

/* Moves what has the size of a piece that is not there yet; missing [pieces of s]: 1 for each of
 * those, and 0 once it is there.  *bytes grows by what was moved. */
EK_CHECKED ek_status ek_prealloc_move(const ek_segment *prealloc, ek_segment *s,
                                      unsigned char *missing, int64_t *bytes);

/* Removes all of a run on this host; whoever makes some, by the order of this starter, is ended. */
EK_CHECKED ek_status ek_prealloc_remove(uint64_t run, uint64_t supervisor_id);

#endif
