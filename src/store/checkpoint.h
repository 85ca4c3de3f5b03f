/* store/checkpoint.h - checkpoints that a crash cannot spoil.
 *
 *   <out>/checkpoint/step-00000300/   model.safetensors, state.json, ...: what the caller writes
 *                                     manifest.json: format, version, step, and size and XXH64
 *                                     of every file; written last
 *   <out>/best -> checkpoint/step-...   the one that the caller has called the best
 *
 * A checkpoint of several ranks is one folder, too: each rank writes files of its own into the
 * temporary folder, and one of them begins, enters the sums of all files, and commits.
 *
 * A checkpoint is written into a temporary folder, synced, and appears under its name by one
 * rename.  The first one is written in <out>/checkpoint.tmp/step-N, so that <out>/checkpoint
 * itself appears only with a complete checkpoint in it; later ones in <out>/checkpoint/step-N.tmp.
 * A step that exists already stands aside as step-N.old while the new one takes its name.
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

/* Clears leftovers and makes the temporary folder (and out_dir, if missing).  io: NULL for the
 * system. */
EK_CHECKED ek_status ek_checkpoint_begin(const ek_io *io, const char *out_dir, int64_t step,
                                         ek_checkpoint **out);

/* The temporary folder: where the caller writes files, under their final names, synced. */
const char *ek_checkpoint_folder(const ek_checkpoint *c);

/* Enters a file that stands in the folder into the manifest. */
EK_CHECKED ek_status ek_checkpoint_add(ek_checkpoint *c, const char *name, const ek_file_sum *sum);

/* Writes a small file and enters it. */
EK_CHECKED ek_status ek_checkpoint_write(ek_checkpoint *c, const char *name, const void *data,
                                         size_t bytes);

/* Notes in the manifest one number of the layout that the checkpoint is written by, such as "tp".
 */
EK_CHECKED ek_status ek_checkpoint_layout(ek_checkpoint *c, const char *key, int64_t value);

/* Writes the manifest and gives the folder its name.  Frees *c in any case; after a failure the
 * checkpoint before is the newest one, or, if only the last sync failed, the new one is. */
EK_CHECKED ek_status ek_checkpoint_commit(ek_checkpoint **c);

/* Gives up: deletes the temporary folder.  Leaves the text of the failure alone. */
void ek_checkpoint_abort(ek_checkpoint **c);

/* Makes <out>/best a link to the checkpoint of this step, relative to <out>, in place of what it
 * was. */
EK_CHECKED ek_status ek_checkpoint_set_best(const ek_io *io, const char *out_dir, int64_t step);

/* <out>/best, where that is a link to the checkpoint of this step, which is there; else "". */
EK_CHECKED ek_status ek_checkpoint_best(const char *out_dir, int64_t step, ek_path *out);

/* Whether a name in <out>/checkpoint is one that checkpoints have: step-N, with eight digits or
 * more, alone or followed by .tmp or .old. */
int ek_checkpoint_is_step(const char *name);

/* Whether something is a link such as <out>/best, wherever the checkpoint is. */
int ek_checkpoint_is_best_link(const char *path);

/* Deletes all checkpoints older than the `keep` newest complete ones, each manifest first; not the
 * one that <out>/best names. */
EK_CHECKED ek_status ek_checkpoint_prune(const ek_io *io, const char *out_dir, int64_t keep);

/* Deletes <out>/checkpoint as a whole: the name goes first. */
EK_CHECKED ek_status ek_checkpoint_clear(const ek_io *io, const char *out_dir);

/* --- reading ---------------------------------------------------------------------------------- */

typedef enum {
    EK_CHECK_SIZES, /* manifest there and well-formed, every file there with its size */
    EK_CHECK_SUMS   /* and every checksum right: reads everything */
} ek_checkpoint_check;

typedef struct {
    ek_path path;
    int64_t step;
    char warning[1024]; /* damaged newer ones that were passed over; "" if none */
} ek_checkpoint_found;

/* The newest complete checkpoint of `dir`: an <out>, an <out>/checkpoint, or a checkpoint folder.
 * EK_ENOENT when there is none, EK_ECORRUPT when all there are are damaged. */
EK_CHECKED ek_status ek_checkpoint_latest(const char *dir, ek_checkpoint_check check,
                                          ek_checkpoint_found *out);

/* The newest checkpoint folder of such a `dir` by its name, whether it is complete or not. */
EK_CHECKED ek_status ek_checkpoint_newest(const char *dir, ek_path *out);

/* Checks one checkpoint folder, checksums included: EK_ECORRUPT names the file. */
EK_CHECKED ek_status ek_checkpoint_verify(const char *path);

#endif
