/* train/output/folder.h - the output folder of a run: files of an earlier run in it, and how a new
 * run replaces them but keeps the earlier checkpoints until it has one of its own.
 *
 * A run writes run.json, metrics.jsonl (and metrics-undone.jsonl), checkpoint/, and on request
 * timeline.json, routing.npy and plans.jsonl (of several ranks also timeline-rankN.json,
 * plans-stageN.jsonl); with --eval-data also evaluation.json and the link best, with --elastic also
 * generations.jsonl.  A file with such a name that was not written by a run is never deleted. */
#ifndef TRAIN_OUTPUT_FOLDER_H
#define TRAIN_OUTPUT_FOLDER_H

#include "base/file.h"

/* Finds a file of an earlier run in `dir`; found->s is "" if there is none, or no such folder. */
EK_CHECKED ek_status ek_out_find(const char *dir, ek_path *found);

/* EK_EINVAL, with the name, if `dir` has a file with such a name that was not written by a run.
 * resume: checks only what a resumed run replaces or deletes; files may then be symbolic links. */
EK_CHECKED ek_status ek_out_check_own(const char *dir, int resume);

/* Removes the files of an earlier run; elastic: except generations.jsonl, metrics.jsonl and
 * metrics-undone.jsonl, as the run may have gone back to its start.  Renames its checkpoints to
 * checkpoint.replaced; *aside: whether there were any. */
EK_CHECKED ek_status ek_out_clear(const char *dir, int elastic, int *aside);

/* Deletes the temporary files of killed writers; no other process may be writing in `dir`. */
void ek_out_clear_temporaries(const char *dir);

/* Deletes checkpoint.replaced, once the new run has a checkpoint. */
EK_CHECKED ek_status ek_out_drop_replaced(const char *dir);

/* After a new run failed without a checkpoint: restores the earlier checkpoints, and renames the
 * new run's files to run-failed.json and metrics-failed.jsonl.  Keeps the message of the failure.
 * Returns 0 if it could not be done. */
int ek_out_restore(const char *dir);

/* Returns EK_ENOENT for a resumed run that finds no complete checkpoint in `dir`; the message
 * states what is there instead, and what to do. */
EK_CHECKED ek_status ek_out_no_checkpoint(const char *dir);

/* The default output folder: of `run`, `run-2`, `run-3`, ... the one after the last that holds a
 * run; with `go_on` that last one, or `run` if there is none. */
EK_CHECKED ek_status ek_out_default(int go_on, ek_path *out);

#endif
