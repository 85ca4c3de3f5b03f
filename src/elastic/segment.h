/* elastic/segment.h - named memory of a host that outlives the process which made it.
 *
 * A rank of an elastic run keeps its state (masters, moments, where its step stands) in a segment
 * of shared memory.  When mpiexec kills all processes, the segments stay, until somebody
 * removes them or the host is gone; the next generation of processes goes on from them.
 *
 * Folder       /dev/shm/evenkeel-RUN-GENERATION-RANK-RANDOM, mode 0700.  RUN is 16 hexadecimal
 *              digits, made of the user and the run's --out (ek_run_id), so that the same command
 *              finds its own again; RANDOM is 32, made anew for each segment, so that nobody else
 *              can have taken its name.  Folders of other users are not used, whatever they are
 *              called.
 * Memory       reserved when it is made, so that no write can fail later; mode 0600.
 * Pieces       behind its front, which lies in the file "front", a segment goes on in files of
 *              their own, "0", "1", ..., each as large as its maker says.  Mapped, all of it
 *              is one body.  A new segment makes its pieces anew, or takes over those of another
 *              that is on the same host: by a second name of the same file (link), so that either
 *              segment can be removed, and nothing is copied.  Whoever does so changes nothing in
 *              them that the other one's readers need until that one is given up.
 * Phases       BUILDING from the start on, FILLED when the rank's state is in it, READY when all
 *              ranks' states are in theirs: from then on this generation counts, and an earlier
 *              one's segments are no longer needed.  A segment that is still being built is never
 *              recovered from.
 * Locks        whoever made a segment holds its lock as long as it lives (flock), so that nobody
 *              takes it for left behind before; so does the one who opens it to change it.
 * Errors       EK_ENOSPC names the room that there is; EK_ECORRUPT a segment that is not one.
 * Threads      none of these calls may race with another on the same segment. */
#ifndef ELASTIC_SEGMENT_H
#define ELASTIC_SEGMENT_H

#include "evenkeel/err.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum {
    EK_SEGMENT_FOLDER = 128,    /* bytes of a folder's path, its end included */
    EK_SEGMENT_ALIGN = 1 << 16, /* of pieces: a multiple of every page size that there is */
    EK_SEGMENT_TEXT = 256
};

/* Whose a segment is. */
typedef struct {
    uint64_t run;
    int32_t generation, rank; /* from 0 */
} ek_segment_id;

typedef enum { EK_SEGMENT_BUILDING, EK_SEGMENT_FILLED, EK_SEGMENT_READY } ek_segment_phase;

/* What a segment begins with. */
typedef struct {
    char magic[8];
    uint32_t version, head_bytes;
    uint64_t bytes; /* of the segment, this head and its pieces included */
    uint64_t front; /* of its body, in the file of that name */
    int64_t blocks;
    ek_segment_id id;
    int32_t ranks;             /* of its generation */
    int32_t pid;               /* who made it */
    uint64_t supervisor_id;    /* who had started that; 0: nobody in particular */
    uint64_t fingerprint;      /* of what those who go on from it must share with the run */
    char host[64];             /* where */
    char out[EK_SEGMENT_TEXT]; /* the run's --out, for people; cut where it is longer */
    _Atomic int32_t phase;     /* ek_segment_phase */
} ek_segment_head;

/* A segment that is mapped here. */
typedef struct {
    ek_segment_head *head;    /* NULL: none */
    const uint64_t *block_at; /* [pieces + 1]: in the body, of each piece and of its end */
    unsigned char *body;      /* at the start of a page; all zero in a new one */
    size_t body_bytes;
    int fd; /* which holds the lock */
    char folder[EK_SEGMENT_FOLDER];
} ek_segment;

/* The run of this user with this --out: an absolute path. */
uint64_t ek_run_id(const char *out);

/* Makes a segment with room for `front` bytes behind its head, and maps it; behind that, rounded up
 * to EK_SEGMENT_ALIGN, addresses are kept for n pieces of so many bytes each (rounded up as well),
 * of which none is there yet.  One of the same name that an earlier try has left is replaced.
 * ranks, likeness, out: of the head, whose starter is 0. */
EK_CHECKED ek_status ek_segment_create(const ek_segment_id *id, int32_t ranks, uint64_t fingerprint,
                                       const char *out, size_t front, const size_t *block_bytes,
                                       int64_t n, ek_segment *s);

/* Makes piece k, all zero. */
EK_CHECKED ek_status ek_segment_create_block(ek_segment *s, int64_t k);

/* Takes over piece j of another segment of this host as piece k: of the same size. */
EK_CHECKED ek_status ek_segment_adopt_block(ek_segment *s, int64_t k, const ek_segment *from,
                                            int64_t j);

/* Moves piece j of another segment of this host here, as piece k: of the same size.  EK_ENOENT:
 * that one does not have it, or not whole. */
EK_CHECKED ek_status ek_segment_move_block(ek_segment *s, int64_t k, const ek_segment *from,
                                           int64_t j);

static inline size_t ek_segment_block_bytes(const ek_segment *s, int64_t k)
{
    return (size_t)(s->block_at[k + 1] - s->block_at[k]);
}

/* Maps one that is there, and takes its lock, for which it waits so many seconds; negative: at once
 * and without the lock, to look.  While it is being built its body is its front alone.
 * EK_ENOENT: it is not there; EK_ESTATE: somebody holds the lock; EK_ECORRUPT: it is not whole;
 * EK_EUNSUPPORTED: it is of another version. */
EK_CHECKED ek_status ek_segment_open(const ek_segment_id *id, double wait_s, ek_segment *s);

/* Kills the process that holds the lock of a segment which was made by a process of this starter:
 * one that hangs, or is stopped, and of a start that this one knows to be over.  Returns its
 * number; 0: there is none, it is of another starter, or the system does not say who holds the
 * lock. */
int ek_segment_kill_holder(const ek_segment_id *id, uint64_t supervisor_id);

/* Takes the mapping away; the memory stays. */
void ek_segment_close(ek_segment *s);

static inline ek_segment_phase ek_segment_phase_of(const ek_segment *s)
{
    return (ek_segment_phase)atomic_load_explicit(&s->head->phase, memory_order_acquire);
}

/* All that was written to the segment before is there for whoever sees this phase. */
static inline void ek_segment_set_phase(ek_segment *s, ek_segment_phase phase)
{
    atomic_store_explicit(&s->head->phase, (int32_t)phase, memory_order_release);
}

/* Gives the memory back once nobody maps it any more, and no other segment has taken it over.  A
 * missing one is no failure. */
EK_CHECKED ek_status ek_segment_remove(const ek_segment_id *id);

/* This user's segments on this host, by run, generation, rank; run 0: of all runs; also one of
 * which nothing but pieces is left.  The caller frees *ids. */
EK_CHECKED ek_status ek_segment_list(uint64_t run, ek_segment_id **ids, int64_t *n);

/* "/dev/shm/... belongs to user mallory": one that has a name of this run's and is not used, as it
 * is another user's or open to others; "": there is none. */
EK_CHECKED ek_status ek_segment_foreign(uint64_t run, char *text, size_t cap);

/* Bytes that segments of this host may still take. */
EK_CHECKED ek_status ek_segment_available(size_t *bytes);

#endif
