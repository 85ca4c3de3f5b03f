/* train/layout_pool.h - a pool of layouts, from which a run chooses: the file that `evenkeel search
 * --pool` writes (docs/formats.md, "Layout pool"). */
#ifndef TRAIN_LAYOUT_POOL_H
#define TRAIN_LAYOUT_POOL_H

#include "train/layout.h"

enum { EK_LAYOUT_POOL_MAX = 256, EK_LAYOUT_POLICY = 32 };

typedef struct {
    ek_layout choice;
    char balance[EK_LAYOUT_POLICY]; /* policy that it was simulated with; "": the run's own */
    double step_s;                  /* simulated, when the pool was made */
    double memory;                  /* bytes of the rank with most, without the process itself */
} ek_pool_layout;

/* Plain values, so that it can be broadcast. */
typedef struct {
    int64_t ranks, batch, seq, params; /* of the run that it was made for */
    int64_t n;
    ek_pool_layout layout[EK_LAYOUT_POOL_MAX]; /* [n] in the file's order: the fastest first */
} ek_layout_pool;

/* Reads a pool, strictly; clears *out on failure.  `file` is for messages.  EK_EFORMAT. */
EK_CHECKED ek_status ek_layout_pool_parse(const char *text, size_t bytes, const char *file,
                                          ek_layout_pool *out);
/* From a file, or from the JSON text itself, which begins with a brace.  Also EK_ENOENT, EK_EIO. */
EK_CHECKED ek_status ek_layout_pool_read(const char *file_or_text, ek_layout_pool *out);

/* Sets a layout in a run's settings.  Its policy is borrowed from the pool. */
void ek_pool_layout_apply(const ek_pool_layout *l, ek_train_config *cfg);

#endif
