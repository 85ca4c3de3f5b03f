/* store/checkpoint.h - crash-safe checkpoints.
 *
 *   <out>/checkpoint/step-00000300/   model.safetensors, state.json, ...: written by the caller
 *                                     manifest.json: format, version, step, and size and XXH64
 *                                     of every file; written last
 *   <out>/best -> checkpoint/step-...   set by the caller
 *
 * A checkpoint of several ranks is one folder: each rank writes its own files into the temporary
 * folder, and one rank begins it, adds the checksums of all files, and commits.
 *
 * A crash at any instant leaves the newest committed checkpoint whole.  Leftovers (*.tmp, *.old)
 * are cleared when the next one begins.
 *
 * Ownership    one writer at a time per <out>; files may be written by several, in parallel. */
#ifndef STORE_CHECKPOINT_H
#define STORE_CHECKPOINT_H

#include "evenkeel/err.h"

#include "base/file.h"
#include "store/safetensors.h"

#include <stddef.h>
#include <stdint.h>

/* --- writing ---------------------------------------------------------------------------------- */

typedef struct ek_checkpoint ek_checkpoint;

/* Clears leftovers and creates the temporary folder (and out_dir, if missing). io: NULL for the
 * system. */
EK_CHECKED ek_status ek_checkpoint_begin(const ek_io *io, const char *out_dir, int64_t step,
                                         ek_checkpoint **out);

/* The temporary folder, where the caller writes files under their final names and syncs them. */
const char *ek_checkpoint_folder(const ek_checkpoint *c);

/* Adds a file that exists in the folder to the manifest. */
EK_CHECKED ek_status ek_checkpoint_add(ek_checkpoint *c, const char *name, const ek_file_sum *sum);

/* Writes a small file and adds it to the manifest. */
EK_CHECKED ek_status ek_checkpoint_write(ek_checkpoint *c, const char *name, const void *data,
                                         size_t bytes);

/* Records a size of the parallel layout, such as "tp", in the manifest. */
EK_CHECKED ek_status ek_checkpoint_layout(ek_checkpoint *c, const char *key, int64_t value);

/* Writes the manifest and renames the folder.  Frees *c in any case.  After a failure the newest
 * checkpoint is still the previous one, or, if only the last sync failed, the new one. */
EK_CHECKED ek_status ek_checkpoint_commit(ek_checkpoint **c);

/* Deletes the temporary folder and frees *c.  Leaves the error text unchanged. */
void ek_checkpoint_abort(ek_checkpoint **c);

/* Makes <out>/best a link, relative to <out>, to the checkpoint of this step; replaces an existing
 * link. */
EK_CHECKED ek_status ek_checkpoint_set_best(const ek_io *io, const char *out_dir, int64_t step);

/* The path <out>/best if it is a link to the existing checkpoint of this step; else "". */
EK_CHECKED ek_status ek_checkpoint_best(const char *out_dir, int64_t step, ek_path *out);

/* Whether a name in <out>/checkpoint is a checkpoint's: step-N, with eight digits or more,
 * optionally followed by .tmp or .old. */
int ek_checkpoint_is_step(const char *name);

/* Whether a path is a link like <out>/best, whether or not its target exists. */
int ek_checkpoint_is_best_link(const char *path);

/* Deletes all checkpoints older than the `keep` newest complete ones, each manifest first, except
 * the one that <out>/best names. */
EK_CHECKED ek_status ek_checkpoint_prune(const ek_io *io, const char *out_dir, int64_t keep);

/* --- reading ---------------------------------------------------------------------------------- */

typedef enum {
    EK_CHECK_SIZES, /* manifest there and well-formed, every file there with its size */
    EK_CHECK_SUMS   /* also every checksum: reads all data */
} ek_checkpoint_check;

typedef struct {
    ek_path path;
    int64_t step;
    char warning[1024]; /* damaged newer checkpoints that were skipped; "" if none */
} ek_checkpoint_found;

/* The newest complete checkpoint of `dir`: an <out>, an <out>/checkpoint, or a checkpoint folder.
 * EK_ENOENT: there is none; EK_ECORRUPT: all of them are damaged. */
EK_CHECKED ek_status ek_checkpoint_latest(const char *dir, ek_checkpoint_check check,
                                          ek_checkpoint_found *out);

/* The newest checkpoint folder of such a `dir` by name, complete or not. */
EK_CHECKED ek_status ek_checkpoint_newest(const char *dir, ek_path *out);

/* Checks one checkpoint folder, checksums included: EK_ECORRUPT names the file. */
EK_CHECKED ek_status ek_checkpoint_verify(const char *path);

#endif
