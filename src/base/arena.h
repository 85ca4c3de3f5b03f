/* base/arena.h - one contiguous reservation of memory, allocated from by a bump pointer.
 *
 * Measuring mode: an arena without memory returns NULL and only counts.  The code that lays out an
 * object runs twice, once to learn its size and once to allocate it, so the predicted and the
 * actual size come from the same code.
 *
 * Worst cases  an allocation may be sized for a worst case that rarely occurs
 *              (ek_arena_alloc_expected).  Untouched memory costs nothing, so the bytes expected to
 *              be touched are counted separately from the bytes laid out.
 * Ownership    allocations are never freed one by one; ek_arena_fini releases all of them.
 * Host         an arena in accelerator memory may be paired with one in system memory, for data
 *              that only the host uses: a page used by both sides migrates back and forth.
 * Contents     fresh memory is zero; in an ek_memory, of a worst-case allocation only the expected
 *              part is, and it is where the accelerator uses it (ek_memory.clear). */
#ifndef BASE_ARENA_H
#define BASE_ARENA_H

#include "evenkeel/err.h"

#include "base/memory.h"

#include <stddef.h>
#include <stdint.h>

enum { EK_ARENA_ALIGN = 64 };

typedef struct ek_arena ek_arena;

struct ek_arena {
    unsigned char *base; /* NULL: measuring */
    size_t bytes, used;
    size_t unused;         /* bytes of `used` that are not expected to be touched */
    size_t likely;         /* of `bytes`, what counted when they came from `from` */
    int overflow;          /* a size product or the reservation itself was exceeded */
    int borrowed;          /* the memory belongs to the caller (ek_arena_over) */
    int never_touched;     /* addresses only: may exceed the system's memory */
    const ek_memory *from; /* allocator of the memory; NULL: the system */
    ek_arena *host;        /* see ek_arena_host; NULL: this arena */
};

/* An arena that only measures: every ek_arena_alloc returns NULL. */
void ek_arena_measure(ek_arena *a);
/* The same for an arena whose memory will come from `from` (NULL: the system).  If `from` is not
 * NULL, `host` (may be NULL) is the paired host arena: it is measured, reserved and released
 * together with `a`. */
void ek_arena_measure_from(ek_arena *a, const ek_memory *from, ek_arena *host);
/* Reserves the measured bytes; of worst-case allocations only the expected bytes count against the
 * memory of the system (MAP_NORESERVE) or of `from`.  After a failure the arena is in measuring
 * mode again. */
EK_CHECKED ek_status ek_arena_reserve(ek_arena *a, const char *what);

/* The arena for data that only the host uses: the paired host arena, or `a` itself. */
ek_arena *ek_arena_host(ek_arena *a);

/* Reserves `bytes` of zeroed memory.  EK_ENOMEM when the system refuses. */
EK_CHECKED ek_status ek_arena_init(ek_arena *a, size_t bytes, const char *what);
/* An arena over the caller's memory: zeroed, aligned to EK_ARENA_ALIGN, valid until fini. */
void ek_arena_over(ek_arena *a, void *memory, size_t bytes);
/* Releases the memory, and that of a paired host arena; `a` is then zero.  Memory of the caller
 * stays. */
void ek_arena_fini(ek_arena *a);

/* n elements of `size` bytes, aligned to EK_ARENA_ALIGN; NULL when measuring or when exhausted.
 * Failure is sticky: check it once with ek_arena_check after a series of allocations. */
void *ek_arena_alloc(ek_arena *a, int64_t n, size_t size);
/* n elements, of which only the first `expected` (at most n) are likely to be used. */
void *ek_arena_alloc_expected(ek_arena *a, int64_t n, int64_t expected, size_t size);
/* Of the bytes allocated so far, those likely to be touched. */
size_t ek_arena_expected(const ek_arena *a);
/* EK_EOVERFLOW if an allocation did not fit; `what` names the object in the message. */
EK_CHECKED ek_status ek_arena_check(const ek_arena *a, const char *what);

/* Aligns the next allocation to `to` bytes, a power of two, from the arena's start. */
void ek_arena_round(ek_arena *a, size_t to);

#endif
