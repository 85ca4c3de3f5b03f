/* base/populate.h - memory that the system provides before it is used.
 *
 * The system clears a page when it is touched first: a core's time at 2 to 10 GB/s, and on a
 * virtual machine whose host has taken the memory back up to twenty times as long.  A read past the
 * page cache pays for it in the call that starts it.  So threads of this object touch memory that
 * is about to be used, in order, while others compute or wait.
 *
 * Memory       nothing is touched but what was asked for, rounded up to pages.
 *              Contents do not change.
 * Threads      they start when memory is asked for first, and end when all is there.  Where the
 *              system cannot (Linux before 5.14), nothing happens: memory is provided at its use.
 *              Functions are called by one thread at a time. */
#ifndef BASE_POPULATE_H
#define BASE_POPULATE_H

#include "evenkeel/err.h"

#include <stddef.h>

typedef struct ek_populate ek_populate;

/* For memory [bytes] of a private mapping, at the start of a page.  threads: at least 1; no more
 * than a few are used.  EK_ENOMEM. */
EK_CHECKED ek_status ek_populate_create(void *memory, size_t bytes, int threads, ek_populate **out);
/* Asks for the first `bytes`, if more than before; does not wait. */
void ek_populate_ask(ek_populate *p, size_t bytes);
/* Bytes from the start that were or are being touched; 0 if the system cannot. */
size_t ek_populate_touched(ek_populate *p);
/* Waits for what is being touched, not for what else was asked for.  Before the memory is freed. */
void ek_populate_destroy(ek_populate **p);

#endif
