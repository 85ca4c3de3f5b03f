/* model/model.h - a transformer with mixture-of-experts layers: its weights.
 *
 * Per layer   x += Wo attention(rope(Wqkv norm1(x)));  x += experts(norm2(x))
 * then        logits = head(final_norm(x)).
 *
 * Query, key and value weights are one matrix [(heads + 2 kv_heads) head_dim, hidden], gate and up
 * weights of an expert one of [2 ff, hidden], so that each is one product; Hugging Face tensors are
 * row ranges of them (model/hf/weights.h).
 *
 * Shards       a rank holds the layers of its pipeline stage; its tensor-parallel shard of
 *              attention, embedding, head, dense layers and shared experts (ek_local_sizes), of the
 *              embedding optionally a column range of that; and the experts that the placement puts
 *              on it, each cut by inner width over etp.
 * Memory       trained, every weight has a master, a gradient and two moments, all R (16 bytes a
 *              parameter in fp32), and the packed forms that the kernels read.  Not trained, it has
 *              one form: the packed one, or a master if kernels read that (a tied embedding: both).
 */
#ifndef MODEL_MODEL_H
#define MODEL_MODEL_H

#include "base/arena.h"
#include "comm/mesh.h"
#include "exec/exec.h"
#include "moe/moe.h"
#include "spec/model.h"
#include "store/disk.h"
#include "tensor/kernels.h"
#include "tensor/weight.h"

typedef struct {
    ek_weight norm1, qkv, qkv_bias, q_norm, k_norm, out, norm2;
    ek_moe_weights experts;
} ek_layer;

/* The group of ranks that hold the same shard of a weight and reduce its gradient together. */
typedef enum {
    EK_SHARE_DP,    /* data parallel ranks: shards cut by tensor parallelism */
    EK_SHARE_STAGE, /* all ranks of the stage: whole tensors, each rank processes its own tokens */
    EK_SHARE_EDP,   /* expert data parallel ranks */
    EK_SHARE_NONE   /* this rank alone */
} ek_share;

/* A weight, for code that treats all weights alike (optimizer, gradient norm, packing). */
typedef struct {
    ek_weight *w;
    int32_t layer, expert; /* -1: none */
    int32_t slot;          /* expert slot of this rank, within the layer; -1: not an expert's */
    ek_share share;
    int decay;   /* a matrix: weight decay applies */
    int trained; /* 0: updated by feedback (router bias), not by gradients */
    int forms;   /* operand of matrix products, so it has packed forms */
    int idle;    /* slot is empty or holds a replica: another rank owns the weight, or none does */
    int copy;    /* the last stage's copy of a tied embedding; the first stage owns it */
    int32_t module; /* EK_MODULE_* or layer, and its parameter bucket (model/param_buckets.h) */
    int32_t bucket;
    int64_t offset; /* in the bucket, elements */
    void *g_kept;   /* R [w->kept]: gradient, summed over the group once reduced */
} ek_param;

/* This rank's local sizes, from ek_range_first and ek_range_length; query heads follow their key
 * heads. */
typedef struct {
    int64_t heads, kv_first, kv_heads; /* of attention, over tp */
    int64_t vocab_first, vocab;        /* rows of embedding and head, over tp */
    int64_t embed_first, embed_cols;   /* columns of the embedding: all, or over dp */
    int64_t ff_first, ff;              /* of each expert, over etp */
    int64_t shared_first, shared_ff;   /* of each shared expert, over tp */
    int64_t dense_first, dense_ff;     /* of each dense layer, over tp */
} ek_local_sizes;

typedef struct ek_model ek_model;

/* Provider of memory for masters, gradients and moments that outlives the process.  Each parameter
 * bucket (model/param_buckets.h), and each entry of the staging memory, starts a new state block;
 * an expert slot has a bucket of its own. */
typedef struct {
    /* Returns zeroed memory, aligned to EK_ARENA_ALIGN and valid until the model is destroyed;
     * pages are not touched before weights are written. m: its buckets, and their offsets in the
     * memory (state_at), are known. */
    ek_status (*take)(void *context, const ek_model *m, size_t bytes, void **memory);
    /* Reports the expert whose complete state (weights and moments) a slot of this rank holds
     * from now on; -1: none, because the slot is about to be overwritten or is no longer
     * updated. slot < 0: entry -1 - slot of the layer's staging (ek_model.staging), which holds
     * received experts. */
    void (*holds)(void *context, int32_t layer, int32_t slot, int32_t expert);
    void *context;
    size_t align; /* of state blocks, a power of two */
} ek_model_memory;

/* Where the masters and moments of experts are in training, if not in memory (model/offload.h). */
typedef struct {
    const char *dir; /* folder of the scratch file */
    int32_t entries; /* buckets in memory at once: at least EK_OFFLOAD_ENTRIES_MIN; more than
                        there are buckets are not used */
    int32_t forms;   /* packed forms of a bucket, in one direction, in memory at once; as many as
                        entries if fewer; more than all buckets have are not used */
    int gradients;   /* 1: gradients are on disk, too */
    ek_disk_backend backend; /* of the queue */
    const ek_disk_io *io;    /* NULL: the system's */
} ek_offload_config;

/* One entry in use, one being read, one being written. */
enum { EK_OFFLOAD_ENTRIES_MIN = 3 };

typedef struct {
    int trained; /* gradients, moments and backward forms exist; 0: nor do masters of weights of
                    which kernels read packed forms only */
    const ek_mesh *mesh; /* NULL: one rank; borrowed */
    int model_chunks; /* model chunks (virtual stages) per pipeline stage, interleaved schedule; 0
                         is 1 */
    const int32_t *stage_layers; /* [pp * model_chunks] layers of each virtual stage, at least one,
                                    the same on all ranks; NULL: even.  Copied */
    int zero; /* ZeRO stage 0 to 3 (model/param_buckets.h); without effect if not trained */
    int partner_copies;   /* a partner on another host keeps a copy of each range of masters and
                             moments (zero > 0), and of each rank's columns of the embedding
                             (embed_columns), and updates it, too; not with offload */
    const int *rack_of;   /* [ranks of the world] for these; NULL: not known.  Borrowed */
    int32_t spare_slots;  /* spare slots of each rank, for replicas */
    int persistent_slots; /* every slot has optimizer state, so that experts and persistent replicas
                             can be placed in any; 0: only the slots that hold experts initially */
    int32_t transient_slots; /* with persistent_slots: how many of a rank's slots, the last ones,
                                have none, as they are for transient replicas */
    int migrates;            /* experts may migrate (model/experts/migrate.h): `state` has staging
                                memory, and where several ranks hold the same experts, every slot
                                has a bucket of its own */
    int slot_buckets;        /* an expert slot has a bucket of its own, as always with `state` */
    int embed_columns; /* data parallel ranks hold column ranges of the embedding instead of all of
                          it; not with a tied head */
    int64_t bucket_bytes; /* bytes of a gradient bucket, about; 0: 32 MiB, 16 of experts on disk, or
                             that several ranks hold */
    int experts_elsewhere; /* not trained, one rank: no memory for the experts' weights, which have
                              sizes only; a store provides them (ek_moe_weights.store) */
    int never_touched; /* the model is only measured, or steps only built: memory for its weights
                          and activations need not exist, nor a file for those that are
                          offloaded.  Of the CPU's kernels, if steps are built */
    const ek_offload_config *offload; /* trained: experts' masters and moments are on disk
                                                (model/offload.h); NULL: in memory.  Copied */
    const ek_model_memory *state;     /* NULL: the model allocates; borrowed */
} ek_model_config;

typedef struct ek_param_buckets ek_param_buckets; /* model/param_buckets.h */

struct ek_model {
    ek_model_spec spec; /* of the whole model */
    const ek_kernels *k;
    ek_model_config cfg; /* mesh is never NULL, model_chunks never 0 */
    ek_local_sizes local;
    /* embed is on the first stage, final_norm and head on the last.  Tied: head.p == embed.p with
     * one stage, else the last stage has a copy. */
    ek_weight embed, final_norm, head;
    ek_layer *layers;      /* [spec.layers]; layers of other stages are zeroed */
    ek_param *params;      /* this rank's weights */
    int64_t n_params;      /* entries of params */
    int64_t n_elements;    /* elements of this rank's masters */
    int32_t *vstage_first; /* [vstages + 1] first layer of each virtual stage */
    int32_t *vstage_of;    /* [spec.layers] virtual stage of each layer */
    ek_param_buckets *buckets;
    struct ek_offload *offload; /* model/offload.h; NULL: all state is in memory */
    ek_arena arena;             /* weights, gradients, moments, packed forms */
    ek_arena state;             /* memory that cfg.state provides */
    void *staging[2];           /* in `state`, alternating between layers: [slots] entries of
                                   ek_param_buckets_staging_bytes; NULL: none */
    size_t staging_at[2];       /* offsets in `state` */
    ek_arena tables;            /* tables that describe the weights */
};

/* Creates this rank's shard of a model; masters are zero. k and cfg->mesh are borrowed.  EK_EINVAL,
 * EK_ENOMEM. ek_model_destroy accepts NULL and *m == NULL. */
EK_CHECKED ek_status ek_model_create(const ek_model_spec *spec, const ek_kernels *k,
                                     const ek_model_config *cfg, ek_model **out);
void ek_model_destroy(ek_model **m);

/* Creates an executor for the model's ops that synchronises with the accelerator, if any; config as
 * for ek_exec_create. */
EK_CHECKED ek_status ek_model_exec(const ek_model *m, const ek_exec_config *config, ek_exec **out);
/* Allocates inputs, targets and (unless starts is NULL) document starts, [n] each, from an arena of
 * the model's device memory. */
EK_CHECKED ek_status ek_model_reserve_tokens(const ek_model *m, int64_t n, ek_arena *a,
                                             int32_t **inputs, int32_t **targets, int32_t **starts);

/* The model is cut into virtual stages, contiguous layer ranges in order: virtual stage i is chunk
 * i / pp of pipeline stage i % pp.  Number of virtual stages; the one of a layer. */
int ek_model_vstages(const ek_model *m);
int ek_model_vstage_of(const ek_model *m, int64_t layer);
/* First layer of a virtual stage; the number of layers for vstage == ek_model_vstages. */
int64_t ek_model_vstage_first(const ek_model *m, int vstage);
/* Whether this rank's stage holds the layer, and as a MoE layer; the embedding, the head. */
int ek_model_has_layer(const ek_model *m, int64_t layer);
int ek_model_has_moe_layer(const ek_model *m, int64_t layer);
int ek_model_has_embed(const ek_model *m);
int ek_model_has_head(const ek_model *m);
/* The next layer after l (-1: the first) of this stage with experts; the number of layers if there
 * is none. */
int32_t ek_model_next_moe(const ek_model *m, int32_t l);
/* The last routed layer of this stage in [first, end); -1: none. */
int32_t ek_model_last_moe(const ek_model *m, int32_t first, int32_t end);

/* Completes masters and packed forms after the kept ranges have been filled: gathers the ranges of
 * other ranks (ZeRO 1 and 2), then packs.  Collective over the stage with ZeRO 1 and 2. */
EK_CHECKED ek_status ek_model_pack(ek_model *m);

#endif
