/* base/memory.h - where large memory comes from, other than the system's. */
#ifndef BASE_MEMORY_H
#define BASE_MEMORY_H

#include "evenkeel/err.h"

#include <stddef.h>

/* Memory that this processor may use like any other, and an accelerator as well. */
typedef struct ek_memory ek_memory;

struct ek_memory {
    /* `bytes` (not 0), aligned to 256 bytes, that nothing was written to; what: for the message. */
    ek_status (*alloc)(const ek_memory *m, size_t bytes, const char *what, void **out);
    void (*free)(const ek_memory *m, void *memory, size_t bytes);
    /* How many more there are. */
    size_t (*available)(const ek_memory *m);
};

#endif
