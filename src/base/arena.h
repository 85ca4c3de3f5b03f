/* base/arena.h - one reservation of memory, cut by a bump pointer.
 *
 * Measuring mode: an arena without memory hands out NULL and only counts, so the code that lays
 * out an object runs twice, first to learn its size, then to take it.  What was predicted and
 * what is used therefore come from one piece of code.
 *
 * Reserves     a piece may be laid out for a worst case that seldom comes
 * (ek_arena_alloc_expected); memory that nobody touches costs nothing, so what is expected to be
 * used is counted apart from what is laid out. Ownership    pieces are never freed one by one;
 * ek_arena_fini releases all of them. Host         beside an accelerator's memory there may be an
 * arena of the system's, for what only the host uses: a page that both sides use goes back and
 * forth between them. Contents     fresh memory is zero; of an ek_memory, reserves only as far as
 * they are likely to be used. */
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
    size_t bytes, used, high;
    size_t unused;         /* of `used`, what is not expected to be touched: the rest of reserves */
    int overflow;          /* a size product or the reservation itself was exceeded */
    int borrowed;          /* the memory is somebody else's */
    int never_touched;     /* only addresses are wanted: the system may have less than they take */
    const ek_memory *from; /* where it comes from; NULL: the system */
    ek_arena *host;        /* see ek_arena_host; NULL: this one */
};

/* An arena that only measures: every ek_arena_alloc returns NULL. */
void ek_arena_measure(ek_arena *a);
/* The same of an arena that will be cut from such memory (NULL: the system's).  Beside memory that
 * is not the system's, `host` (or NULL) is measured, reserved and released with it. */
void ek_arena_measure_from(ek_arena *a, const ek_memory *from, ek_arena *host);
/* Reserves what was measured; reserves do not count against the system's memory.  After a failure
 * it measures as before. */
EK_CHECKED ek_status ek_arena_reserve(ek_arena *a, const char *what);

/* The arena for what only the host reads and writes: `a` itself, or the one beside it. */
ek_arena *ek_arena_host(ek_arena *a);

/* Reserves `bytes` of zeroed memory.  EK_ENOMEM when the system refuses. */
EK_CHECKED ek_status ek_arena_init(ek_arena *a, size_t bytes, const char *what);
/* Cuts memory that is the caller's: zeroed, aligned to EK_ARENA_ALIGN, and there until fini. */
void ek_arena_over(ek_arena *a, void *memory, size_t bytes);
void ek_arena_fini(ek_arena *a);

/* n elements of `size` bytes, aligned to EK_ARENA_ALIGN; NULL when measuring or when exhausted.
 * Failure is sticky: check it once with ek_arena_check after a series of takes. */
void *ek_arena_alloc(ek_arena *a, int64_t n, size_t size);
/* Room for n elements of which only the first `expected` (at most n) are likely to be used. */
void *ek_arena_alloc_expected(ek_arena *a, int64_t n, int64_t expected, size_t size);
/* Bytes that are likely to be touched, of those taken so far. */
size_t ek_arena_expected(const ek_arena *a);
EK_CHECKED ek_status ek_arena_check(const ek_arena *a, const char *what);

/* What is taken next lies at a multiple of `to`, a power of two, from the arena's start. */
void ek_arena_round(ek_arena *a, size_t to);

/* Scratch discipline: remember a place, use, go back to it. */
size_t ek_arena_mark(const ek_arena *a);
void ek_arena_reset(ek_arena *a, size_t mark);

#endif
