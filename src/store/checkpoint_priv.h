/* store/checkpoint_priv.h - names and checks shared by writing and reading checkpoints. */
#ifndef STORE_CHECKPOINT_PRIV_H
#define STORE_CHECKPOINT_PRIV_H

#include "store/checkpoint.h"

#define EK_MANIFEST_NAME   "manifest.json"
#define EK_MANIFEST_FORMAT "evenkeel-checkpoint"
#define EK_STEP_FORMAT     "step-%08lld"
#define EK_BEST_NAME       "best"

enum { EK_MANIFEST_VERSION = 1 };

/* Whether a file name is valid in a checkpoint: no path, not hidden. */
int ek_checkpoint_name_ok(const char *name);

/* Checks one folder against its manifest; *step is the manifest's. */
EK_CHECKED ek_status ek_checkpoint_check_folder(const char *path, ek_checkpoint_check check,
                                                int64_t *step);

/* A step folder, or one set aside. */
typedef struct {
    char name[40];
    int64_t step;
    int aside; /* step-N.old */
} ek_step_entry;

/* Whether a name is that of a step folder being written: step-N.tmp. */
int ek_checkpoint_is_temporary(const char *name);

/* The step folders in `folder`, newest first, step-N before step-N.old.  The caller frees *list. */
EK_CHECKED ek_status ek_checkpoint_steps(const char *folder, ek_step_entry **list, int64_t *n);

/* The step folder that a link like <out>/best names; returns false if it is no such link. */
int ek_checkpoint_read_best(const char *link, ek_step_entry *out);

#endif
