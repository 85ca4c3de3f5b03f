/* model/hf/expert_files.h - experts that stay in the model's files until a layer needs them.
 *
 * For models created with experts_elsewhere (model/model.h).  Gives every MoE layer a store
 * (moe/expert_store.h) whose slots are filled from the files, in the form that kernels read. */
#ifndef MODEL_HF_EXPERT_FILES_H
#define MODEL_HF_EXPERT_FILES_H

#include "model/model.h"
#include "moe/expert_store.h"
#include "store/disk.h"

/* Slots of a cache that may be lent as buffers in a pass (moe/expert_store.h): with its own buffers
 * as many as a ring has for a layer of 64 experts. */
enum { EK_EXPERTS_LENT = 53 };

typedef struct ek_expert_files ek_expert_files;

typedef struct {
    int64_t slots; /* of the store, at least 1; more than the model has experts is as many */
    int64_t kept;  /* experts that keep their slots in passes (moe/expert_store.h) */
    int ring;      /* every layer is part of a pass */
    int mapped;    /* experts are taken from mapped files (model/hf/file_maps.h) */
    ek_eviction eviction;
    int lookahead;       /* experts are predicted a layer ahead (moe/expert_lookahead.h) for few
                            tokens, too */
    size_t buffer_bytes; /* the rest as in ek_expert_reads_config */
    ek_disk_backend backend;
    const ek_disk_io *io;
} ek_expert_files_config;

/* What was done, and the bytes that were read from the disk past the page cache: all of them, and
 * those of experts that no layer needed in the end. */
typedef struct {
    ek_expert_store_stats store;
    int64_t disk_bytes, wasted_bytes;
} ek_expert_files_stats;

/* Bytes of one slot of such a store. */
size_t ek_expert_files_slot_bytes(const ek_model *m);

/* How many experts should be on their way at a time, in buffers of their own, for a cache of so
 * many slots: what a disk reads while attention computes, but few beside the slots. */
int64_t ek_expert_files_buffers(int64_t slots);

/* Bytes of so many buffers, for experts stored as the config says; the first few have room for F32
 * values. */
size_t ek_expert_files_buffer_bytes(const ek_model *m, int64_t buffers);

/* path: as for ek_model_load_path.  Borrows m, whose layers use the store until the close. */
EK_CHECKED ek_status ek_expert_files_open(ek_model *m, const char *path,
                                          const ek_expert_files_config *config,
                                          ek_expert_files **out);
void ek_expert_files_close(ek_expert_files **x);

/* About how many bytes of slots and buffers nothing has been read to yet: the system counts them as
 * free. */
int64_t ek_expert_files_untouched(const ek_expert_files *x);

ek_expert_files_stats ek_expert_files_get_stats(const ek_expert_files *x);

#endif
