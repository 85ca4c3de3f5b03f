/* model/hf/expert_files.h - experts that stay in the model's files until a layer needs them.
 *
 * For models created with experts_elsewhere (model/model.h).  Gives every MoE layer a store
 * (moe/expert_store.h) whose slots are filled from the files, in the form that kernels read. */
#ifndef MODEL_HF_EXPERT_FILES_H
#define MODEL_HF_EXPERT_FILES_H

#include "model/model.h"
#include "moe/expert_store.h"

typedef struct ek_expert_files ek_expert_files;

/* Bytes of one slot of such a store. */
size_t ek_expert_files_slot_bytes(const ek_model *m);

/* Bytes of the buffers through which experts are read, at most, unless they are stored in F64. */
size_t ek_expert_files_buffer_bytes(const ek_model *m);

/* path: as for ek_model_load_path.  slots: of the store, at least 1; more than the model has
 * experts is as many.  Borrows m, whose layers use the store until the close. */
EK_CHECKED ek_status ek_expert_files_open(ek_model *m, const char *path, int64_t slots,
                                          ek_eviction eviction, ek_expert_files **out);
void ek_expert_files_close(ek_expert_files **x);

/* Whether experts are read by themselves, past the page cache where the file system allows it
 * (model/hf/expert_reads.h); else, because their tensors are in pieces, through the page cache. */
int ek_expert_files_are_direct(const ek_expert_files *x);

ek_expert_store_stats ek_expert_files_stats(const ek_expert_files *x);

#endif
