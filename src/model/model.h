/* model/model.h - a transformer with mixture-of-experts layers: its weights.
 *
 * Per layer   x += Wo attention(rope(Wqkv norm1(x)));  x += experts(norm2(x))
 * then        logits = head(final_norm(x)).
 *
 * Query, key and value weights are one matrix [(heads + 2 kv_heads) head_dim, hidden], the gate
 * and up weights of an expert one of [2 ff, hidden], so that each is one product; Hugging Face
 * tensors are runs of rows of them (ek_model_find).
 *
 * Parts        on a mesh of ranks a model holds only this rank's part: the layers of its pipeline
 *              stage; of attention, the embedding, the head and shared experts what falls to its
 *              tensor parallel rank (ek_local_sizes), of the embedding perhaps a run of columns of
 * that; of the experts the ones that the placement puts here, of each a run of its inner width.
 * ek_model_span says which part of a Hugging Face tensor lies where. Memory       every weight has
 * a master, and where it is trained a gradient and two moments, all R (16 bytes a parameter in
 * fp32), and the packed forms that the kernels read. */
#ifndef MODEL_MODEL_H
#define MODEL_MODEL_H

#include "base/arena.h"
#include "comm/mesh.h"
#include "exec/exec.h"
#include "model/hf_names.h"
#include "moe/moe.h"
#include "spec/model.h"
#include "tensor/kernels.h"
#include "tensor/weight.h"

typedef struct {
    ek_weight norm1, qkv, qkv_bias, q_norm, k_norm, out, norm2;
    ek_moe_weights experts;
} ek_layer;

/* The ranks that hold the same part of a weight as this one, and so share its gradient. */
typedef enum {
    EK_SHARE_DP,    /* data parallel ranks: parts are cut by tensor parallelism */
    EK_SHARE_STAGE, /* all ranks of the stage: whole tensors, each rank has met its own tokens */
    EK_SHARE_EDP,   /* expert data parallel ranks */
    EK_SHARE_NONE   /* this rank alone */
} ek_share;

/* One weight for those who treat all alike (optimizer, norm of the gradient, packing). */
typedef struct {
    ek_weight *w;
    int32_t layer, expert; /* -1: of no layer, no expert */
    int32_t slot;          /* of this rank's for experts, in its layer; -1: of none */
    ek_share share;
    int decay;      /* a matrix: weight decay applies */
    int trained;    /* 0: kept by feedback (router bias), not by gradients */
    int forms;      /* a side of matrix products */
    int idle;       /* of a slot without an expert, or with a replica: another answers for it */
    int copy;       /* the last stage's copy of a tied embedding: the first stage answers for it */
    int32_t module; /* where in the model, and which unit it moves in (model/param_buckets.h) */
    int32_t bucket;
    int64_t offset; /* in the unit */
    void *g_kept;   /* R [w->kept]: its gradient, over all ranks once it is reduced */
} ek_param;

/* What this rank's parts are cut to.  Runs are ek_run's; query heads follow their key heads. */
typedef struct {
    int64_t heads, kv_first, kv_heads; /* of attention, over tp */
    int64_t vocab_first, vocab;        /* rows of embedding and head, over tp */
    int64_t embed_first, embed_cols;   /* columns of the embedding: all, or over dp */
    int64_t ff_first, ff;              /* of each expert, over etp */
    int64_t shared_first, shared_ff;   /* of each shared expert, over tp */
    int64_t dense_first, dense_ff;     /* of each dense layer, over tp */
} ek_local_sizes;

typedef struct ek_model ek_model;

/* Who gives memory for masters, gradients and moments, so that they can outlive the process.  Each
 * unit (model/param_buckets.h) begins a piece of it, and so does each place of the staging; a slot
 * of experts makes a unit. */
typedef struct {
    /* Zeroed, aligned to EK_ARENA_ALIGN, there until the model is destroyed; not touched before
     * weights are.  m: its units are known, and where in the memory they lie (state_at). */
    ek_status (*take)(void *context, const ek_model *m, size_t bytes, void **memory);
    /* Which expert a slot of this rank's holds whole from now on, with its moments; -1: none, for
     * it is about to be overwritten or is no longer kept up.  slot < 0: place -1 - slot of the
     * layer's staging (ek_model.staging), which holds experts on their way. */
    void (*holds)(void *context, int32_t layer, int32_t slot, int32_t expert);
    void *context;
    int moves;    /* experts will move for good: staging is needed */
    size_t align; /* of pieces, a power of two */
} ek_model_memory;

typedef struct {
    int trained;         /* gradients, moments and backward forms exist */
    const ek_mesh *mesh; /* NULL: one rank; borrowed */
    int model_chunks;    /* pieces of the model a pipeline stage (interleaved schedule); 0 is 1 */
    int zero; /* 0 to 3: what data parallel ranks share out (model/param_buckets.h); a model that
                 is not trained shares out nothing */
    int32_t spare_slots;  /* of each rank, for replicas of experts */
    int persistent_slots; /* every slot keeps optimizer state, so that experts and replicas can come
                          to stay; 0: those that experts start in alone */
    int embed_columns;    /* data parallel ranks cut the embedding by columns instead of holding it
                             each; it must not be the head as well */
    int64_t bucket_bytes; /* gradients are reduced in pieces of about so much; 0: 32 MiB */
    int never_touched;    /* the model is only measured: there need not be memory for its weights */
    const ek_model_memory *state; /* NULL: the model's own; borrowed */
} ek_model_config;

typedef struct ek_param_buckets ek_param_buckets; /* model/param_buckets.h */

struct ek_model {
    ek_model_spec spec; /* of the whole model */
    const ek_kernels *k;
    ek_model_config cfg; /* mesh is never NULL, chunks never 0 */
    ek_local_sizes local;
    /* embed lies on the first stage, final_norm and head on the last; tied: head.p == embed.p on
     * one stage, and a copy of it on the last where that is another. */
    ek_weight embed, final_norm, head;
    ek_layer *layers;   /* [spec.layers]; those of other stages are all zero */
    ek_param *params;   /* the weights that are here */
    int64_t n_params;   /* entries of params */
    int64_t n_elements; /* numbers that this rank keeps in masters */
    int64_t n_whole;    /* numbers of the whole model */
    ek_param_buckets *buckets;
    ek_arena arena;       /* of numbers */
    ek_arena state;       /* of those numbers that cfg.state gives memory for */
    void *staging[2];     /* there, by turns of layers (param_buckets.h): [slots],
                             ek_param_buckets_module_bytes each, of     which R [9 hidden ff] are used;
                             NULL: none */
    size_t staging_at[2]; /* in `state` */
    ek_arena tables;      /* of what describes them */
};

/* Lays out this rank's part of a model; masters are zero. */
EK_CHECKED ek_status ek_model_create(const ek_model_spec *spec, const ek_kernels *k,
                                     const ek_model_config *cfg, ek_model **out);
void ek_model_destroy(ek_model **m);

/* An executor of the model's ops, which waits where they compute on an accelerator; config as in
 * ek_exec_create. */
EK_CHECKED ek_status ek_model_exec(const ek_model *m, const ek_exec_config *config, ek_exec **out);
/* Room for n tokens, what follows each, and (starts: NULL where it is not wanted) where its
 * document begins, where the model's kernels read them; of an arena of its own. */
EK_CHECKED ek_status ek_model_take_tokens(const ek_model *m, int64_t n, ek_arena *a,
                                          int32_t **inputs, int32_t **targets, int32_t **starts);

/* The model in pieces, layer runs in order: piece i = chunk i / pp of stage i % pp. */
int ek_model_vstages(const ek_model *m);
int ek_model_vstage_of(const ek_model *m, int64_t layer);
/* First layer of a piece; piece == ek_model_vstages gives the number of layers. */
int64_t ek_model_vstage_first(const ek_model *m, int vstage);
/* Whether this rank's stage holds it. */
int ek_model_has_layer(const ek_model *m, int64_t layer);
int ek_model_has_embed(const ek_model *m);
int ek_model_has_head(const ek_model *m);

/* Initial weights (of the runs that are kept here): normal with the spec's init_range, norms one,
 * biases zero; a number depends on seed, tensor name and index alone. */
void ek_model_init(ek_model *m, uint64_t seed);

/* Makes masters and packed forms ready for the first step, once the kept runs are filled: gathers
 * what others keep (ZeRO 1 and 2), then packs.  Collective over the stage with ZeRO 1 and 2. */
EK_CHECKED ek_status ek_model_pack(ek_model *m);

/* The part of a Hugging Face tensor that this rank computes with: rows x cols of it, from
 * (row, col) on (a vector is one column), starting at element `first` of weight w, whose rows are
 * ld apart.  Where w->kept is less than w, of these elements only [kept_first, kept_first + kept)
 * are here, in w->p_kept; own == 0: another rank answers for all of it. */
typedef struct {
    ek_weight *w;
    int64_t first, ld;
    int64_t row, rows, col, cols;
} ek_span;

/* 0: this rank holds nothing of it. */
int ek_model_span(ek_model *m, const ek_hf_tensor *t, ek_span *out);

#endif
