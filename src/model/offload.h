/* model/offload.h - training with the experts' masters and moments on disk.
 *
 * The parameter buckets of experts ("offloaded" ones, each of whole experts) have their state in a
 * scratch file, and a few of them at a time in memory, in entries:
 *
 *   on disk     a record for each bucket: first moments, second moments, masters and perhaps
 *               gradients, each R [kept] rounded up to EK_DISK_ALIGN (gradients with ZeRO 1: [n])
 *   an entry    memory for one record
 *   a form      memory for the packed weights of one bucket that kernels read, in one direction
 *   gradients   are in memory, or in the record too: then each micro-batch's backward reads what
 *               earlier ones have written, adds to it, and writes it
 *
 * Of a bucket that several ranks hold, gradients on disk are summed over the ranks when products
 * have added to them, before they are written, while the next bucket's products run.  The sums are
 * those of model/param_buckets.h, in the same order:
 *
 *   ZeRO 0      after the last micro-batch, all-reduced; before, each rank writes its own
 *   ZeRO 1      likewise reduce-scattered; the record has room for R [n] of gradients, of which the
 *               kept range is written then
 *   ZeRO 2, 3   products add to one of two buffers, R [n], that buckets take in turn; after each
 *               micro-batch it is reduce-scattered, and added to the kept range
 *
 * Update at fetch.  Clipping needs all gradients before any update, so a step's update of an
 * offloaded bucket waits until its state is read for the next forward, which has to read it anyway:
 * 12 bytes a parameter are read and written once a step (fp32), under the computation of other
 * experts.  While an expert's masters are in memory, the form that backward reads is packed too, as
 * far as there are buffers, so that backward needs no masters; without a buffer it reads them
 * again, 4 bytes.  Gradients on disk are 4 bytes more to read and to write.  The same arithmetic in
 * the same order gives the same bits as training in memory.
 *
 * A bucket whose experts no token chose rests: the updates that it misses are counted, and replayed
 * in their order when it is needed, or by ek_offload_build_flush (offload_demand.c).
 *
 * A step's uses of buckets are known before its graph is built: pass_build plans them.  Reads are
 * appended as early as an entry is free for them, and what is used last gives way (Belady's rule),
 * among entries and among forms.  A layer's products run in waves (moe/expert_waves.h), one for
 * each bucket.
 *
 * Errors of the disk end the step; the file is scratch, and what survives is the checkpoint. */
#ifndef MODEL_OFFLOAD_H
#define MODEL_OFFLOAD_H

#include "model/model.h"
#include "model/param_buckets.h"
#include "moe/expert_waves.h"

/* What was read and written since the model was created. */
typedef struct {
    int64_t uses, hits;     /* of buckets by products; those that were in memory already */
    int64_t updates;        /* of buckets, each of one step or more */
    int64_t deferred;       /* steps' updates of buckets that were put off, as experts rested */
    int64_t stall_ns;       /* time that products waited for the disk; of it, */
    int64_t entry_stall_ns; /* that until an entry was free, so that the read could start */
    ek_disk_stats disk;
} ek_offload_stats;

/* Bytes on disk for this rank's records, of an entry, and of a buffer for forms; 0 without
 * offloaded buckets, and if kernels read masters. */
int64_t ek_offload_disk_bytes(const ek_model *m);
size_t ek_offload_entry_bytes(const ek_model *m);
size_t ek_offload_form_bytes(const ek_model *m);
/* Offloaded buckets of this rank: more entries are of no use. */
int32_t ek_offload_buckets(const ek_model *m);
void ek_offload_get_stats(const ek_model *m, ek_offload_stats *out);
/* The stall of each layer's products since the last call, in seconds: [layers][2], of its forward
 * (recomputed ones, too) and of its backward. */
void ek_offload_take_stalls(ek_model *m, double *seconds);

/* --- for model/create.c ----------------------------------------------------------------------- */

/* Tables of the offloaded buckets, which exist, and the waves of the layers. */
EK_CHECKED ek_status ek_offload_create(ek_model *m);
/* Reserves the entries' memory in m->arena. */
void ek_offload_reserve(ek_model *m);
/* Makes the scratch file.  EK_ENOSPC, EK_ENOENT, EK_EIO. */
EK_CHECKED ek_status ek_offload_open(ek_model *m);
void ek_offload_destroy(ek_model *m);

/* --- state outside of steps ------------------------------------------------------------------- */

/* Parts of a record, in its order. */
typedef enum {
    EK_PART_M = 1,
    EK_PART_V = 2,
    EK_PART_MASTER = 4,
    EK_PART_STATE = 7,   /* these three */
    EK_PART_GRADIENT = 8 /* in steps alone */
} ek_offload_part;

/* Whether a bucket's state is on disk. */
static inline int ek_param_bucket_is_offloaded(const ek_param_bucket *u)
{
    return u->offloaded >= 0;
}

/* The offloaded bucket of a weight of an expert; NULL: its state is in memory, or this rank has
 * none. */
const ek_param_bucket *ek_offload_bucket_of(const ek_model *m, const ek_weight *w, int64_t layer,
                                            int64_t expert);

/* Brings a bucket's state into memory, and points its weights at it: these parts are read, others
 * are zeroed.  Valid until the next call, or the next step.  On any thread, while no step runs. */
EK_CHECKED ek_status ek_offload_load(ek_model *m, const ek_param_bucket *u, unsigned parts);
/* Writes parts of the state that ek_offload_load brought. */
EK_CHECKED ek_status ek_offload_store(ek_model *m, const ek_param_bucket *u, unsigned parts);

/* --- beside steps ----------------------------------------------------------------------------- */

/* Reads the state of buckets on one thread into memory of its own, while another may run the one
 * step that follows ek_offload_build_flush: what is on disk stays as it is until the second step
 * applies the updates of the first.  Reads give way to those of the step. */
typedef struct {
    const ek_model *m;
    unsigned char *memory;         /* [ek_offload_reader_bytes], a multiple of EK_DISK_ALIGN */
    const ek_param_bucket *bucket; /* that it holds; NULL: none */
    unsigned parts;                /* EK_PART_*, of it */
} ek_offload_reader;

/* 0 without offloaded buckets. */
size_t ek_offload_reader_bytes(const ek_model *m);
/* Memory of the model for a reader, if no step runs until it has ended, nor ek_offload_load. */
unsigned char *ek_offload_reader_memory(ek_model *m);
/* *data: element `at` of the kept range of a weight of the bucket, in a part of its state.  Reads
 * the masters, or both moments, of the whole bucket, unless they are there; valid until the next
 * read. */
EK_CHECKED ek_status ek_offload_read(ek_offload_reader *r, const ek_param_bucket *u,
                                     const ek_weight *w, ek_offload_part part, int64_t at,
                                     const void **data);

/* --- steps ------------------------------------------------------------------------------------ */

/* The most updates of a bucket that are put off. */
enum { EK_OFFLOAD_DEFERRED_MAX = 64 };

/* The optimizer's last n updates of a bucket whose weights are in memory, in their order: the first
 * with its gradients, which are zero after it.  n is at most EK_OFFLOAD_DEFERRED_MAX. */
void ek_offload_set_update(ek_model *m,
                           void (*update)(void *context, const ek_param_bucket *u, int n),
                           void *context);

/* While a graph is planned: forgets the ops of the last one; adds a layer's waves, in the order of
 * its products with a chunk's rows (-1: with all); then appends the first reads. */
void ek_offload_begin_plan(ek_model *m);
EK_CHECKED ek_status ek_offload_plan_layer(ek_model *m, int32_t layer, int32_t chunk,
                                           ek_wave_use use);
void ek_offload_end_plan(ek_model *m, ek_graph *g);
/* After the last product of a step: appends what completes the gradients of offloaded buckets;
 * returns the last op of the compute lane, dep if there is nothing. */
int32_t ek_offload_build_finish(ek_model *m, ek_graph *g, int32_t dep);

/* What a step moves between memory and disk on this rank, and the uses of buckets by its products,
 * with those that find them in memory. */
typedef struct {
    double read_bytes, written_bytes, uses, hits;
} ek_offload_traffic;

typedef ek_status (*ek_offload_plan_fn)(void *context);

/* Counts the traffic of one of many equal steps, by building the ops of steps whose layers `plan`
 * adds (ek_offload_plan_layer); nothing is run.  For a model of which no step was planned: one that
 * is only measured will do. */
EK_CHECKED ek_status ek_offload_count(ek_model *m, ek_offload_plan_fn plan, void *context,
                                      ek_offload_traffic *out);

/* Whether a parameter's gradient is on disk when a step has been run; its sum of squares then. */
int ek_offload_has_sum(const ek_model *m, int64_t param, double *sum);

/* A step's update is known: from now on every offloaded bucket has one more to apply. */
void ek_offload_set_pending(ek_model *m);
int ek_offload_is_pending(const ek_model *m);
/* Appends the update of all buckets that have one pending, for a graph of its own. */
EK_CHECKED ek_status ek_offload_build_flush(ek_model *m, ek_graph *g);
/* Forgets what entries hold: before the state is saved, as ranks that gather together then differ
 * in what they load. */
void ek_offload_forget(ek_model *m);

#endif
