/* model/hf/expert_reads.h - experts read from Hugging Face files past the page cache, several in
 * flight.
 *
 * An expert's tensors lie beside one another in most files and are read by one request, rounded
 * outwards, into a buffer; those in several places (slices of a checkpoint) by several.  Its forms
 * are packed from there while the next experts arrive.  Where the files have all experts as C, they
 * stay there instead, as values: the buffer becomes the slot's memory, and the slot's the buffer.
 * Experts that are wanted are read in the order in which they were named, as buffers become
 * free. */
#ifndef MODEL_HF_EXPERT_READS_H
#define MODEL_HF_EXPERT_READS_H

#include "model/hf/io.h"
#include "moe/expert_store.h"
#include "store/disk.h"

/* The fewest buffers: one expert is packed while the others arrive. */
enum { EK_EXPERT_BUFFERS = 3 };

typedef struct {
    size_t buffer_bytes; /* of all buffers: as many as it has room for, EK_EXPERT_BUFFERS at
                            least */
    int32_t lendable;    /* buffers that can be lent to it besides, if a slot's memory is the host's
                            and enough for one */
    size_t slot_bytes;   /* memory of a slot: buffers that may become one have as many */
    ek_disk_backend backend;
    const ek_disk_io *io; /* NULL: the real system calls */
} ek_expert_reads_config;

typedef struct ek_expert_reads ek_expert_reads;

/* Bytes of a buffer for experts of so many bytes. */
size_t ek_expert_reads_room(size_t expert);

/* m and files are borrowed.  EK_ENOMEM, and the errors of opening files. */
EK_CHECKED ek_status ek_expert_reads_create(ek_model *m, const ek_slice_set *files,
                                            const ek_expert_reads_config *config,
                                            ek_expert_reads **out);
void ek_expert_reads_destroy(ek_expert_reads **r);

/* Its own, and how many more can be lent to it. */
int32_t ek_expert_reads_buffers(const ek_expert_reads *r);
int32_t ek_expert_reads_lendable(const ek_expert_reads *r);
/* Bytes of its own. */
size_t ek_expert_reads_buffer_bytes(const ek_expert_reads *r);

/* As lend and take_back of ek_expert_source: memory of a slot. */
void ek_expert_reads_lend(ek_expert_reads *r, void *memory);
void *ek_expert_reads_take_back(ek_expert_reads *r);

/* As prefetch, drop and read of ek_expert_source.  A read that fails with EK_EIO is made once more.
 */
void ek_expert_reads_want(ek_expert_reads *r, const ek_expert_form *expert, int idle);
void ek_expert_reads_drop(ek_expert_reads *r, const ek_expert_form *expert);
EK_CHECKED ek_status ek_expert_reads_read(ek_expert_reads *r, int64_t n, ek_expert_form *experts);

/* Packs an expert that is values into a free buffer, which becomes the slot's memory; nothing if
 * none is free, or if kernels gain nothing from it. */
EK_CHECKED ek_status ek_expert_reads_pack(ek_expert_reads *r, ek_expert_form *expert);

/* Bytes that were read from the disk, and of them those of experts that were not dropped. */
void ek_expert_reads_traffic(const ek_expert_reads *r, int64_t *disk, int64_t *used);

#endif
