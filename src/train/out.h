/* train/out.h - the folder that a run writes: what an earlier run has left in it, and how a new run
 * replaces that without losing the earlier model before it has one of its own.
 *
 * A run writes run.json, metrics.jsonl, checkpoint/, and on request timeline.json, routing.npy and
 * plans.jsonl (of several ranks also timeline-rankN.json, plans-stageN.jsonl); with --eval-data
 * also evaluation.json and the link best, with --elastic also generations.jsonl.  A file under such
 * a name that no run has written is never deleted. */
#ifndef TRAIN_OUT_H
#define TRAIN_OUT_H

#include "base/file.h"

/* The first thing in `dir` that a run writes; found->s "" if there is none, or no such folder. */
EK_CHECKED ek_status ek_out_find(const char *dir, ek_path *found);

/* EK_EINVAL, which names it, where something stands under such a name that no run has written.
 * resume: only what a run that goes on would replace or delete counts, and files may be links,
 * which it writes through. */
EK_CHECKED ek_status ek_out_check_own(const char *dir, int resume);

/* Removes what an earlier run has left; elastic: but for what it says of its starts.  Its
 * checkpoints only stand aside, as checkpoint.replaced; *aside: whether there were any. */
EK_CHECKED ek_status ek_out_clear(const char *dir, int elastic, int *aside);

/* Deletes the temporary files of writers that were killed; nobody else may be writing there. */
void ek_out_clear_temporaries(const char *dir);

/* Deletes the checkpoints that stand aside: the new run has one of its own. */
EK_CHECKED ek_status ek_out_drop_replaced(const char *dir);

/* The new run has failed without a checkpoint: the earlier ones take their place again, and the new
 * run's files become run-failed.json and metrics-failed.jsonl.  Leaves the text of the failure
 * alone; false: it could not be done. */
int ek_out_restore(const char *dir);

/* EK_ENOENT, for a run that is to go on in `dir` and finds no complete checkpoint there; says what
 * there is instead, and what to do. */
EK_CHECKED ek_status ek_out_no_checkpoint(const char *dir);

/* The folder of a run that was not told one: of `run`, `run-2`, `run-3`, ... the one after the last
 * in which there is a run; with `go_on` that last one, or `run` where there is none. */
EK_CHECKED ek_status ek_out_default(int go_on, ek_path *out);

#endif
