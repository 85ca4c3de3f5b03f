/* base/memory.h - an allocator of large memory other than the system's. */
#ifndef BASE_MEMORY_H
#define BASE_MEMORY_H

#include "evenkeel/err.h"

#include <stddef.h>

/* Memory that both the CPU and an accelerator can access (unified memory). */
typedef struct ek_memory ek_memory;

struct ek_memory {
    /* `bytes` (not 0) of unwritten memory, aligned to 256 bytes; `what` is for the message. */
    ek_status (*alloc)(const ek_memory *m, size_t bytes, const char *what, void **out);
    void (*free)(const ek_memory *m, void *memory, size_t bytes);
    /* Bytes that can still be allocated. */
    size_t (*available)(const ek_memory *m);
};

#endif
