/* base/memory.h - an allocator of large memory other than the system's. */
#ifndef BASE_MEMORY_H
#define BASE_MEMORY_H

#include "evenkeel/err.h"

#include <stddef.h>

/* Who uses memory next. */
typedef enum { EK_USED_BY_HOST, EK_USED_BY_ACCELERATOR } ek_memory_user;

/* Memory that both the CPU and an accelerator can access (unified memory). */
typedef struct ek_memory ek_memory;

struct ek_memory {
    /* `bytes` (not 0) of unwritten memory, aligned to 256 bytes, `likely` of which are expected to
     * be used: those count against the capacity.  `what` is for the message.  alloc and free: one
     * thread at a time. */
    ek_status (*alloc)(const ek_memory *m, size_t bytes, size_t likely, const char *what,
                       void **out);
    void (*free)(const ek_memory *m, void *memory, size_t likely);
    /* Bytes that this process may use in all, allocated ones included. */
    size_t (*capacity)(const ek_memory *m);
    /* Zeroes memory where the accelerator uses it; it is zero on return.  Like a kernel's, a
     * failure is returned by the next ek_kernels_wait. */
    void (*clear)(const ek_memory *m, void *memory, size_t bytes);
    /* Begins to move memory to its next user, all at once: pages that are not there when they are
     * used move one by one.  Contents stay, and the host may use the memory meanwhile.  Failures as
     * of `clear`.  Several threads may call it at once. */
    void (*move)(const ek_memory *m, void *memory, size_t bytes, ek_memory_user next);
};

#endif
