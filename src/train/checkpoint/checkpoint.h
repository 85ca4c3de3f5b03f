/* train/checkpoint/checkpoint.h - writes and reads the checkpoint folders of training runs.
 *
 *   config.json           the model, as Hugging Face reads it
 *   model.safetensors     masters, under Hugging Face names (F32; F64 in fp64)
 *   optimizer.safetensors NAME.exp_avg and NAME.exp_avg_sq
 *                         with several ranks: model-00001-of-00004.safetensors, ..., one per rank
 *                         with the slices that it saves, and model.safetensors.index.json, which
 *                         lists the file of each tensor or slice (store/tensor_slices.h); likewise
 *                         optimizer
 *   tokenizer.json        where there is a tokenizer, with the files of data/tokenizer_files.h
 *   run.json              all settings of the run (train/output/run_file.h)
 *   state.json            steps done, the matrix product kernels, the settings that a resumed run
 *                         must share, and with held-out data the evaluation state
 *                         (train/output/eval_state.h)
 *   manifest.json         sizes and checksums (store/checkpoint.h) */
#ifndef TRAIN_CHECKPOINT_CHECKPOINT_H
#define TRAIN_CHECKPOINT_CHECKPOINT_H

#include "data/tokenizer.h"
#include "data/tokenizer_files.h"
#include "model/model.h"
#include "store/checkpoint.h"
#include "store/file_batch.h"
#include "train/output/eval_state.h"

#include <jansson.h>

/* --- writing ---------------------------------------------------------------------------------- */

typedef struct {
    ek_model *model;               /* saved by all ranks of its mesh */
    const ek_tokenizer *tokenizer; /* may be NULL; borrowed until the end, like out_dir */
    const ek_tokenizer_files *tokenizer_files; /* likewise */
    const json_t *settings;                    /* those that a resumed run must share */
    const char *run_file;                      /* text of run.json; NULL: none */
    const ek_eval_state *evaluation;           /* NULL: none */
    int best;                                  /* 1: <out>/best becomes a link to it */
    int64_t steps_done, keep; /* the newest `keep` checkpoints stay, and the best */
    const char *out_dir;      /* the same folder for all ranks */
    int background;  /* 1: a thread writes a copy of what this rank saves while training continues;
                        without memory for the copy, begin writes.  0: the model must not change
                        until the save is finished.  Experts on disk (model/offload.h), which have no
                        update pending, are not copied: before the second step that follows,
                        ek_train_save_wait_written */
    const ek_io *io; /* NULL: the system's */
} ek_train_save_config;

typedef struct ek_train_saving ek_train_saving; /* a save in progress */

/* Begins to save the model in its current state.  Rank 0 creates a temporary folder, to which each
 * rank writes its own files.
 *
 * Collective   like poll and finish: all ranks of the mesh, in the same order.  A failure on one
 *              rank fails all (comm/agree.h): nothing is committed, the temporary folder is
 *              removed, and the previous checkpoint stays the newest.
 * Threads      the caller communicates; the background thread only writes files. */
EK_CHECKED ek_status ek_train_save_begin(const ek_train_save_config *cfg, ek_train_saving **out);

/* Call after each step while *s is not NULL.  When all ranks have written, rank 0 commits; *s
 * becomes NULL when that is done or has failed.  Does not wait for disks; waits at most for ranks
 * that have not made their previous call.  Collective. */
EK_CHECKED ek_status ek_train_save_poll(ek_train_saving **s);

/* Waits until the save has ended: at the end of a run, or before the next save.  Collective. */
EK_CHECKED ek_status ek_train_save_finish(ek_train_saving **s);

/* After another failure: stops writing and frees, without communication.  Rank 0 deletes the
 * temporary folder.  Keeps the message of the failure. */
void ek_train_save_abandon(ek_train_saving **s);

/* Waits until no rank reads the model any more.  Collective. */
EK_CHECKED ek_status ek_train_save_wait_written(ek_train_saving **s);

/* Bytes of tensors that this rank writes. */
size_t ek_train_save_bytes(const ek_model *m);
/* Bytes of the copy that a background save holds until this rank has written. */
size_t ek_train_copy_bytes(const ek_model *m);

/* --- reading ---------------------------------------------------------------------------------- */

/* ek_checkpoint_latest on rank 0, broadcast to all.  needed = 0: if there is no checkpoint, returns
 * EK_OK with an empty out->path.  Collective. */
EK_CHECKED ek_status ek_train_latest(const ek_mesh *mesh, const char *dir,
                                     ek_checkpoint_check check, int needed,
                                     ek_checkpoint_found *out);

/* Settings that are fingerprints of input files; older checkpoints lack them. */
#define EK_DATA_FINGERPRINT      "data-fingerprint"
#define EK_TOKENIZER_FINGERPRINT "tokenizer-fingerprint"
#define EK_REPLAY_FINGERPRINT    "replay-routing-fingerprint"

/* Reads steps done from a checkpoint folder.  EK_EINVAL if settings (NULL: not compared) or the
 * model differ.  Warns if kernels differ, as results will then differ in their last bits. */
EK_CHECKED ek_status ek_train_state(const char *folder, const json_t *settings, const ek_kernels *k,
                                    const ek_model_spec *spec, int64_t *steps_done);

/* Checks beyond checksums: the manifest lists all files that a run's checkpoint needs and every
 * tensor file in the folder; state.json, run.json and the tokenizer can be read and belong to this
 * step.  files: of the manifest.  ek_hf_check checks the tensors. */
EK_CHECKED ek_status ek_train_check(const char *folder, const json_t *files, int64_t step);

/* Reads this rank's masters and moments from a checkpoint of any layout; the caller then calls
 * ek_model_pack.  files: NULL for the defaults.  Collective. */
EK_CHECKED ek_status ek_train_load(ek_model *m, const char *folder,
                                   const ek_file_reader_config *files);

#endif
