/* elastic/segment.h - named shared memory of a host that outlives the process that created it.
 *
 * A rank of an elastic run keeps its state (masters, moments, step journal) in a segment of shared
 * memory.  Segments stay when mpiexec kills all processes, until they are removed or the host is
 * gone; the next generation of processes continues from them.
 *
 * Folder       /dev/shm/evenkeel-RUN-GENERATION-RANK-RANDOM, mode 0700.  RUN: 16 hexadecimal digits
 *              derived from the user and the run's --out (ek_run_id), so that the same command
 *              finds its segments again.  RANDOM: 32 new random digits for each segment, so that
 *              no other user can have taken the name.  Folders of other users are never used.
 * Memory       reserved at creation, so that no later write can fail; mode 0600.
 * Layout       the file "front" holds the head and the front of the body; the state blocks of the
 *              body are files of their own, "0", "1", ..., of the sizes given at creation.  Mapped,
 *              the body is one range of addresses.
 * Blocks       a new segment creates its blocks, or adopts blocks of another segment of the same
 *              host: link() gives the file a second name, so that nothing is copied and either
 *              segment can be removed.  The adopter must not change what readers of the other
 *              segment need until that segment is removed.
 * Phases       BUILDING from creation on; FILLED when the rank's state is in it; READY when all
 *              ranks are FILLED: then this generation is valid, and segments of earlier ones are
 *              no longer needed.  A BUILDING segment is never recovered from.
 * Locks        the creator holds the segment's lock (flock) as long as it lives, so that a segment
 *              in use is not taken for an abandoned one; so does a process that opens it to change
 *              it.
 * Errors       EK_ENOSPC states the free memory; EK_ECORRUPT a segment whose contents are invalid.
 * Threads      calls on the same segment must not run concurrently. */
#ifndef ELASTIC_SEGMENT_H
#define ELASTIC_SEGMENT_H

#include "evenkeel/err.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum {
    EK_SEGMENT_FOLDER = 128,    /* bytes of a folder's path, with the terminating 0 */
    EK_SEGMENT_ALIGN = 1 << 16, /* of blocks: a multiple of every supported page size */
    EK_SEGMENT_TEXT = 256
};

/* Identity of a segment. */
typedef struct {
    uint64_t run;
    int32_t generation, rank; /* from 0; the ranks of the generation and more: a copy of the rank
                                 that is so much less, on another host */
} ek_segment_id;

typedef enum { EK_SEGMENT_BUILDING, EK_SEGMENT_FILLED, EK_SEGMENT_READY } ek_segment_phase;

/* The head of a segment, at its start. */
typedef struct {
    char magic[8];
    uint32_t version, head_bytes;
    uint64_t bytes; /* of the segment, with head and blocks */
    uint64_t front; /* bytes of the body in the file "front" */
    int64_t blocks;
    ek_segment_id id;
    int32_t ranks;             /* of its generation */
    int32_t pid;               /* of the creator */
    uint64_t supervisor_id;    /* of the supervisor that started the creator; 0: none */
    uint64_t fingerprint;      /* of the settings that a continuing run must share */
    char host[64];             /* its name */
    char out[EK_SEGMENT_TEXT]; /* the run's --out, for messages; truncated */
    _Atomic int32_t phase;     /* ek_segment_phase */
} ek_segment_head;

/* A segment mapped into this process. */
typedef struct {
    ek_segment_head *head;    /* NULL: not mapped */
    const uint64_t *block_at; /* [blocks + 1]: byte offsets in the body */
    unsigned char *body;      /* page-aligned; zero in a new segment */
    size_t body_bytes;
    int fd; /* of "front"; holds the lock */
    char folder[EK_SEGMENT_FOLDER];
} ek_segment;

/* The run number of this user and --out, an absolute path; not 0. */
uint64_t ek_run_id(const char *out);

/* Creates and maps a segment with `front` bytes behind its head and addresses for n blocks of
 * block_bytes [n]; front and blocks are rounded up to EK_SEGMENT_ALIGN.  No block exists yet.
 * Replaces a segment with the same id.  ranks, fingerprint and out go to the head; its
 * supervisor_id is 0.  The caller closes s.  EK_ENOSPC, EK_EIO. */
EK_CHECKED ek_status ek_segment_create(const ek_segment_id *id, int32_t ranks, uint64_t fingerprint,
                                       const char *out, size_t front, const size_t *block_bytes,
                                       int64_t n, ek_segment *s);

/* Creates block k, all zero.  EK_ENOSPC. */
EK_CHECKED ek_status ek_segment_create_block(ek_segment *s, int64_t k);

/* Adopts block j of another segment of this host as block k: both have the same size. */
EK_CHECKED ek_status ek_segment_adopt_block(ek_segment *s, int64_t k, const ek_segment *from,
                                            int64_t j);

/* Moves block j of another segment of this host here as block k: both have the same size.
 * EK_ENOENT: the other segment lacks the block, or it was not completed. */
EK_CHECKED ek_status ek_segment_move_block(ek_segment *s, int64_t k, const ek_segment *from,
                                           int64_t j);

static inline size_t ek_segment_block_bytes(const ek_segment *s, int64_t k)
{
    return (size_t)(s->block_at[k + 1] - s->block_at[k]);
}

/* Whether segment number `rank` of a generation of so many ranks is a copy; whose state it has. */
static inline int ek_segment_is_copy(int32_t rank, int32_t ranks)
{
    return rank >= ranks;
}

static inline int32_t ek_segment_owner(int32_t rank, int32_t ranks)
{
    return ek_segment_is_copy(rank, ranks) ? rank - ranks : rank;
}

/* Maps an existing segment and takes its lock, waiting up to wait_s seconds; negative: does not
 * lock, for reading.  Of a BUILDING segment only the front is mapped.  The caller closes s.
 * EK_ENOENT: there is no such segment; EK_ESTATE: another process holds the lock; EK_ECORRUPT: its
 * contents are invalid; EK_EUNSUPPORTED: another format version. */
EK_CHECKED ek_status ek_segment_open(const ek_segment_id *id, double wait_s, ek_segment *s);

/* Kills the process that holds the lock of a segment created under this supervisor: one that hangs
 * or is stopped, of an earlier start by it.  Returns the process id; 0: no process holds the lock,
 * it belongs to another supervisor, or the system does not list lock holders. */
int ek_segment_kill_holder(const ek_segment_id *id, uint64_t supervisor_id);

/* Unmaps and unlocks; the memory stays. */
void ek_segment_close(ek_segment *s);

static inline ek_segment_phase ek_segment_phase_of(const ek_segment *s)
{
    return (ek_segment_phase)atomic_load_explicit(&s->head->phase, memory_order_acquire);
}

/* A release: a process that sees this phase sees all earlier writes to the segment. */
static inline void ek_segment_set_phase(ek_segment *s, ek_segment_phase phase)
{
    atomic_store_explicit(&s->head->phase, (int32_t)phase, memory_order_release);
}

/* Removes a segment.  Memory is freed when no process maps it and no other segment has adopted it.
 * EK_OK where there is none. */
EK_CHECKED ek_status ek_segment_remove(const ek_segment_id *id);

/* Lists this user's segments on this host, sorted by run, generation and rank, including those of
 * which only blocks are left; run 0: of all runs.  The caller frees *ids. */
EK_CHECKED ek_status ek_segment_list(uint64_t run, ek_segment_id **ids, int64_t *n);

/* Describes a folder that has a name of this run but is not used, as it belongs to another user or
 * others have access: "/dev/shm/... belongs to user mallory"; "" if there is none. */
EK_CHECKED ek_status ek_segment_foreign(uint64_t run, char *text, size_t cap);

/* Free bytes of /dev/shm on this host. */
EK_CHECKED ek_status ek_segment_available(size_t *bytes);
/* EK_ENOSPC: `what` needs so many bytes, and how many are free. */
EK_CHECKED ek_status ek_segment_too_small(const char *what, double bytes);

#endif
