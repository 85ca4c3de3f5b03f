/* model/hf/expert_reads.h - experts read from Hugging Face files past the page cache, several in
 * flight.
 *
 * An expert's tensors lie beside one another in most files and are read by one request, rounded
 * outwards, into a buffer, from which its forms are packed while the next experts arrive.  Experts
 * that are wanted are read in the order in which they were named, as buffers become free. */
#ifndef MODEL_HF_EXPERT_READS_H
#define MODEL_HF_EXPERT_READS_H

#include "model/hf/io.h"
#include "moe/expert_store.h"
#include "store/disk.h"

/* Experts in buffers at a time: one is packed while the others arrive. */
enum { EK_EXPERT_BUFFERS = 3 };

typedef struct ek_expert_reads ek_expert_reads;

/* m and files are borrowed.  *out is NULL where the experts' tensors are not each contiguous in one
 * file (sliced checkpoints). */
EK_CHECKED ek_status ek_expert_reads_create(ek_model *m, const ek_slice_set *files,
                                            ek_expert_reads **out);
void ek_expert_reads_destroy(ek_expert_reads **r);

/* As prefetch and read of ek_expert_source. */
void ek_expert_reads_want(ek_expert_reads *r, const ek_expert_form *expert);
EK_CHECKED ek_status ek_expert_reads_read(ek_expert_reads *r, int64_t n,
                                          const ek_expert_form *experts);

#endif
