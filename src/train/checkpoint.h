/* train/checkpoint.h - what a training run keeps, written to and read from a checkpoint folder.
 *
 *   config.json           the model, as Hugging Face reads it
 *   model.safetensors     masters, under Hugging Face names (F32; F64 in fp64)
 *   optimizer.safetensors NAME.exp_avg and NAME.exp_avg_sq
 *                         of several ranks: model-00001-of-00004.safetensors, ..., in which each
 *                         has what it answers for, and model.safetensors.index.json, which says
 *                         where each tensor or part (store/tensor_slices.h) is; likewise optimizer
 *   tokenizer.json        where there is a tokenizer, with the files of data/tokenizer_files.h
 *   run.json              all settings of the run (train/settings.h)
 *   state.json            steps done, what the matrix products were made of, the settings that a
 *                         resumed run must share, and with held-out data what is known of
 *                         evaluations (train/eval_state.h)
 *   manifest.json         sizes and checksums (store/checkpoint.h) */
#ifndef TRAIN_CHECKPOINT_H
#define TRAIN_CHECKPOINT_H

#include "data/tokenizer.h"
#include "data/tokenizer_files.h"
#include "model/model.h"
#include "store/checkpoint.h"
#include "train/eval_state.h"

#include <jansson.h>

/* --- writing ---------------------------------------------------------------------------------- */

typedef struct {
    ek_model *model;                           /* its mesh says who saves with whom */
    const ek_tokenizer *tokenizer;             /* may be NULL; as out_dir borrowed until the end */
    const ek_tokenizer_files *tokenizer_files; /* likewise */
    const json_t *settings;                    /* what a resumed run must share */
    const char *run_file;                      /* text of run.json; NULL: none */
    const ek_eval_state *evaluation;           /* what is known of evaluations; NULL: nothing */
    int best;                                  /* this one becomes <out>/best */
    int64_t steps_done, keep; /* the newest `keep` checkpoints stay, and the best */
    const char *out_dir;      /* the same folder for all ranks */
    int background;  /* a thread writes a copy of what this rank answers for while the caller goes
                        on; where memory for it is refused, begin writes.  0: the model may not
                        change until the save is finished */
    const ek_io *io; /* NULL: the system's */
} ek_train_save_config;

typedef struct ek_train_saving ek_train_saving; /* a save under way */

/* Begins to save the model as it is now.  Rank 0 makes the temporary folder; from here to the end
 * each rank writes its own files into it.
 *
 * Collective   as poll and finish: all ranks of the mesh, at the same points.  A failure on one
 *              rank fails all (comm/agree.h); then nothing is committed, the temporary folder is
 *              gone, and the checkpoint before is the newest.
 * Threads      communication is the caller's; the thread only writes. */
EK_CHECKED ek_status ek_train_save_begin(const ek_train_save_config *cfg, ek_train_saving **out);

/* To be called after each step while *s is not NULL.  When all have written, rank 0 commits; when
 * that is done, or has failed, *s is NULL.  Waits for no disk, and of other ranks only for one that
 * has not made its call before this one yet. */
EK_CHECKED ek_status ek_train_save_poll(ek_train_saving **s);

/* Waits until the save has ended: at the end of a run, or before the next save. */
EK_CHECKED ek_status ek_train_save_finish(ek_train_saving **s);

/* After another failure: stops writing and frees, without asking the other ranks.  Rank 0 deletes
 * the temporary folder.  Leaves the text of the failure alone. */
void ek_train_save_abandon(ek_train_saving **s);

/* Bytes of the copy that a save in the background takes until this rank has written. */
size_t ek_train_save_bytes(const ek_model *m);

/* Begins and finishes, without a copy. */
EK_CHECKED ek_status ek_train_save(ek_model *m, const ek_tokenizer *tokenizer,
                                   const json_t *settings, int64_t steps_done, int64_t keep,
                                   const char *out_dir);

/* --- reading ---------------------------------------------------------------------------------- */

/* ek_checkpoint_latest by rank 0, told to all.  needed: 0: where there is none, out->path is empty,
 * and that is no failure.  Collective. */
EK_CHECKED ek_status ek_train_latest(const ek_mesh *mesh, const char *dir,
                                     ek_checkpoint_check check, int needed,
                                     ek_checkpoint_found *out);

/* Settings that stand for what files hold; checkpoints of versions before them have none. */
#define EK_DATA_FINGERPRINT      "data-fingerprint"
#define EK_TOKENIZER_FINGERPRINT "tokenizer-fingerprint"
#define EK_REPLAY_FINGERPRINT    "replay-routing-fingerprint"

/* Reads steps done from a checkpoint folder, and refuses settings or a model that differ; settings
 * NULL: they may.  Kernels that differ are worth a warning: bits will too. */
EK_CHECKED ek_status ek_train_state(const char *folder, const json_t *settings, const ek_kernels *k,
                                    const ek_model_spec *spec, int64_t *steps_done);

/* Checks what checksums do not say: that the manifest lists the files that a checkpoint of a run
 * needs, and every file of tensors that is there, and that state.json, run.json and the tokenizer
 * can be read and are of this step.  files: of the manifest.  The tensors are ek_hf_check's. */
EK_CHECKED ek_status ek_train_check(const char *folder, const json_t *files, int64_t step);

/* Reads what this rank keeps of masters and moments from a checkpoint of any layout; the caller
 * calls ek_model_pack.  Collective. */
EK_CHECKED ek_status ek_train_load(ek_model *m, const char *folder);

#endif
