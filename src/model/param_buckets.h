/* model/param_buckets.h - parameter buckets: weights grouped for collectives, and ZeRO.
 *
 * A parameter bucket holds weights of one module (a layer, the embedding or the head) that the same
 * group of ranks has, contiguous in memory, so that one collective moves it.  The ranks of the
 * group own contiguous ranges of whole rows of a bucket, as even as rows allow: `first`.  cfg.zero
 * selects what is sharded by these ranges:
 *
 *   0  nothing: masters, gradients and moments are replicated; gradients are all-reduced
 *   1  moments, and masters if kernels read packed forms only; gradients are reduce-scattered,
 *      updated masters gathered
 *   2  also gradients: whole ones use one of two buffers that alternate between layers, are
 *      reduce-scattered after each micro-batch and added to the kept range
 *   3  also masters and packed forms: gathered before a layer runs, overlapped with the layer
 *      before it
 *
 * A bucket whose group is a single rank is never sharded.
 *
 * With cfg.partner_copies a second rank of the group, on another host (placement/partners.h), keeps
 * each range, too: its partner.  It receives the reduced gradients and updates the masters and
 * moments of its copy like the owner, so that both have the same bits.  The same holds for the
 * columns of the embedding that a data-parallel rank has alone (cfg.embed_columns).  Where the
 * group is on one host there are no copies, nor of columns if some rank has none.
 *
 * The builders below append ops to a step graph.  For each micro-batch, in the order of the ops:
 *
 *   ek_param_buckets_begin_step(m)                       once a step, before the first builder
 *   dep = ek_param_buckets_build_use(m, g, module, next, uses, dep)
 *   ... the ops of the module, after dep ...
 *   ek_param_buckets_build_reduce(m, g, module, micro, last, also, dep)      after a backward
 *
 * The optimizer appends the rest.  Ranks of a group must make these calls in the same order.
 * With ZeRO 0 and 1, ek_param_buckets_build_use appends nothing and returns dep. */
#ifndef MODEL_PARAM_BUCKETS_H
#define MODEL_PARAM_BUCKETS_H

#include "model/model.h"
#include "schedule/graph.h"

/* A module is a layer (its number), or: */
enum { EK_MODULE_EMBED = -1, EK_MODULE_HEAD = -2, EK_MODULE_NONE = -3 };

/* How the ops of a module use its weights. */
enum {
    EK_USE_FORWARD = 1, /* packed forms of the forward pass */
    EK_USE_BACKWARD = 2 /* packed forms for input gradients; weight gradients are written */
};

/* Resets the per-graph state of all buckets. */
void ek_param_buckets_begin_step(ek_model *m);

/* Before the ops of a module: appends what makes its weights (ZeRO 3) and its gradient buffer (ZeRO
 * 2 and 3) ready, after all compute ops so far, and starts to gather the weights of `next`, the
 * module whose ops follow (EK_MODULE_NONE: not known). uses: EK_USE_*, both for the head when
 * training and for a layer's backward that recomputes its forward.  Returns the op that the
 * module's ops must depend on; dep if nothing was appended. */
int32_t ek_param_buckets_build_use(ek_model *m, ek_graph *g, int32_t module, int32_t next, int uses,
                                   int32_t dep);

/* After the last op (dep) of a module's backward for a micro-batch, weight gradients included:
 * appends the network ops that reduce its gradients, if this is the step's last micro-batch (last)
 * or ZeRO 2 or 3 requires it now.  They depend on all compute ops so far. also: another network op
 * that adds to the gradients of experts; -1: none.  Theirs complete after it, on a single rank
 * too. */
void ek_param_buckets_build_reduce(ek_model *m, ek_graph *g, int32_t module, int32_t micro,
                                   int last, int32_t also, int32_t dep);

/* Elements that a bucket, of whole experts or of other weights, has room for. */
int64_t ek_param_bucket_room(const ek_model *m, int experts);

/* --- for the optimizer ------------------------------------------------------------------------ */

/* Buffers that modules share.  Even and odd layers of this rank alternate between two buffers for
 * gradients and for masters that kernels read, and share one buffer of each other kind. */
typedef enum {
    EK_BUFFER_GRADIENT, /* whole gradients (ZeRO 2 and 3) */
    EK_BUFFER_MASTER,   /* whole masters that kernels read (ZeRO 3) */
    EK_BUFFER_STAGED,   /* whole masters that are only packed */
    EK_BUFFER_PACKED,   /* packed forms (ZeRO 3) */
    EK_BUFFER_KINDS
} ek_module_buffer_kind;

enum { EK_BUFFERS = 4 }; /* two for layers, one each for embedding and head */

typedef struct {
    void *base;
    int64_t bytes;
    int32_t holds; /* in the graph being built: the module that it holds; EK_MODULE_NONE */
    int packed;    /* packed forms that are present, EK_USE_* */
} ek_module_buffer;

/* What other ranks have of a bucket and this rank has a copy of, one after the other: their ranges,
 * or the columns of the embedding. */
typedef struct {
    const int32_t *partner; /* [size] of each rank; NULL: there are no copies */
    ek_comm *group;         /* among whose ranks partners are */
    ek_mesh_group mesh_group;
    int size, rank;      /* of the group; size 0: there are no copies */
    int64_t n;           /* elements of this rank's copies */
    void *p, *g, *m, *v; /* R [n], by owner */
} ek_bucket_copies;

/* One parameter bucket.  Ranges are in its elements; each weight starts at a cache line. */
typedef struct {
    int32_t module;
    ek_share share;
    int packed;        /* kernels read packed forms of these weights, never the master */
    int trained;       /* 0: updated by feedback; neither reduced nor gathered */
    int sharded;       /* each rank keeps only its own range (ZeRO 1 to 3) */
    int32_t offloaded; /* number among the buckets whose masters and moments are on disk
                          (model/offload.h): p, p_kept, m, v, and g if gradients are there too, are
                          NULL while they are not in memory; -1: in memory */
    int32_t n_params;
    const int32_t *params;    /* indices into m->params, in memory order */
    int64_t n;                /* elements */
    ek_comm *group;           /* NULL: one rank */
    ek_mesh_group mesh_group; /* which ranks of the mesh it is */
    int size, rank;           /* of the group */
    const int64_t *first;     /* [size + 1]: start of each rank's range */
    int64_t kept_first, kept; /* range that this rank keeps */
    void *p; /* R [n]: masters, or the buffer that they are gathered into; NULL if not trained */
    void *g; /* R [n]: gradients that backward adds to */
    void *p_kept, *g_kept; /* R [kept] */
    void *m, *v;           /* R [kept] */
    ek_bucket_copies copies;
    ek_module_buffer *p_set,
        *g_set; /* buffers that hold p and g, and byte offsets in them; NULL: memory of its own */
    int64_t p_at, g_at;
    size_t state_at; /* offset of its memory in m->state */

    struct {
        int32_t reduced; /* network op that completes its gradients; -1: none */
        int32_t fetched; /* op that gathered its masters; -1: none */
        int pending;     /* gradients are reduced, but not yet added to the kept range */
    } graph;             /* of the graph being built */
} ek_param_bucket;

struct ek_param_buckets {
    ek_param_bucket *bucket;
    int32_t n,
        staged;     /* buckets; those whose masters are gathered only to be packed (ZeRO 1 and 2) */
    int32_t *first; /* [layers + 3]: first bucket of the embedding, layer 0, ..., the head */
    int32_t *params;     /* [n_params]: indices into m->params, bucket after bucket */
    int64_t *ranges;     /* storage of ek_param_bucket.first, of those that differ */
    int32_t *deps;       /* [n + 4]: scratch of the builders */
    int32_t *partners;   /* [EK_SHARE_NONE][stage_size]: of the ranks of each group */
    int64_t *copy_bytes; /* [stage_size^2], 0: scratch of messages to partners */
    unsigned char buf_idx[EK_LAYERS_MAX]; /* which of two buffers a layer uses */
    ek_module_buffer sets[EK_BUFFER_KINDS][EK_BUFFERS];
};

/* Groups the model's weights into buckets and assigns the ranges of each rank. */
EK_CHECKED ek_status ek_param_buckets_create(ek_model *m);
void ek_param_buckets_destroy(ek_param_buckets **us);
/* Reserves the buckets' memory in m->arena and m->state.  Measuring takes two calls: the first
 * sizes the shared buffers. */
void ek_param_buckets_reserve(ek_model *m);

/* Bytes from one entry of the staging (ek_model.staging) to the next: masters and both moments of
 * an expert. */
size_t ek_param_buckets_staging_bytes(const ek_model *m);
/* Entries of a staging buffer: as many experts as a rank has slots with state. */
int32_t ek_param_buckets_staging_slots(const ek_model *m);
/* Whether an expert that migrates arrives with the masters of all ranks that shard it, which this
 * rank reads or packs, though it keeps only its own range of them (ZeRO 1 and 2). */
int ek_param_buckets_sends_whole_masters(const ek_model *m);
/* Elements of a weight that a rank of its bucket's group owns (unless it is idle), from *first on;
 * by ranges alone. */
int64_t ek_param_owned_by(const ek_param_bucket *u, const ek_param *p, int rank, int64_t *first);

/* --- copies on a second host (cfg.partner_copies) --------------------------------------------- */

/* For ek_param_buckets_create and ek_param_buckets_reserve. */
EK_CHECKED ek_status ek_param_buckets_choose_partners(ek_model *m);
void ek_param_bucket_reserve_copies(const ek_model *m, ek_param_bucket *u, ek_arena *a);

/* Bytes of this rank's copies. */
double ek_param_buckets_copy_bytes(const ek_model *m);

/* A part of a weight that this rank has a copy of. */
typedef struct {
    int64_t first, n;    /* elements of the weight; of columns all those that the owner has */
    int64_t col, cols;   /* columns of the embedding; cols 0: a range of a sharded bucket */
    void *p, *g, *m, *v; /* R [n] */
} ek_param_copy;

/* The part that rank `owner` of u->copies' group has and this rank copies; 0: there is none. */
int ek_param_copy_of(const ek_model *m, const ek_param_bucket *u, const ek_param *p, int owner,
                     ek_param_copy *out);

/* Copies masters and moments, after they were filled.  Collective over the stage. */
EK_CHECKED ek_status ek_param_buckets_fill_copies(const ek_model *m);

/* Appends the ops that send reduced gradients to partners; returns the op after which they are
 * there. */
int32_t ek_param_buckets_build_copies(ek_model *m, ek_graph *g, int32_t dep);

/* --- of single buckets ------------------------------------------------------------------------ */

/* The shared buffer of a kind that a module uses. */
ek_module_buffer *ek_param_buckets_buffer(const ek_model *m, ek_module_buffer_kind kind,
                                          int32_t module);

/* Buckets of a module: [*first, *end). */
void ek_param_buckets_of(const ek_model *m, int32_t module, int32_t *first, int32_t *end);

/* Bytes of the packed forms of a bucket that is offloaded, in one direction; 0: kernels read the
 * masters, or one form serves both directions and is the forward one. */
size_t ek_param_bucket_form_bytes(const ek_model *m, const ek_param_bucket *u, ek_form form);
/* Memory for such a bucket: each R [kept], but whole. */
typedef struct {
    void *masters, *first_moments, *second_moments;
    void *gradients;       /* NULL: they stay where they are */
    void *whole_gradients; /* R [n], that products add to; NULL: likewise */
    void *whole;           /* R [n]: if the bucket is sharded, where masters are gathered */
} ek_bucket_memory;

/* Points the bucket and its weights there, but for packed forms. */
void ek_param_bucket_attach(ek_model *m, ek_param_bucket *u, const ek_bucket_memory *at);
/* Points the weights to packed forms, each of ek_param_bucket_form_bytes, by direction; NULL: not
 * in memory. */
void ek_param_bucket_attach_forms(const ek_model *m, const ek_param_bucket *u,
                                  void *const forms[2]);

/* Whether gradients of a bucket come into memory with its state (model/offload.h). */
int ek_param_bucket_has_gradients_on_disk(const ek_model *m, const ek_param_bucket *u);

/* Starts the sum of a bucket's gradients, u->g, over its ranks: of all, or if it is sharded of each
 * rank's range.  Collective over u->group. */
EK_CHECKED ek_status ek_param_bucket_reduce(const ek_model *m, const ek_param_bucket *u,
                                            ek_coll **op);
/* The work of that, and of gathering the masters of a sharded bucket. */
ek_work ek_param_bucket_reduce_work(const ek_model *m, const ek_param_bucket *u);
ek_work ek_param_bucket_gather_work(const ek_model *m, const ek_param_bucket *u);
/* ZeRO 2 and 3: adds the reduced range of u->g to u->g_kept, and clears u->g. */
void ek_param_bucket_collect(const ek_model *m, const ek_param_bucket *u);

/* Sets ek_param.idle and updates the range that this rank owns. */
void ek_param_buckets_set_idle(ek_model *m, int32_t param, int idle);

/* Make packed forms (EK_USE_*): of a bucket, from u->p; of a weight, from its whole master. */
EK_CHECKED ek_status ek_param_bucket_pack(const ek_model *m, const ek_param_bucket *u, int uses);
EK_CHECKED ek_status ek_param_pack(const ek_model *m, const ek_weight *w, const void *master,
                                   int uses);
/* Bytes moved by packing all forms of a bucket: masters read, forms written. */
double ek_param_bucket_pack_bytes(const ek_model *m, const ek_param_bucket *u);
/* Appends the ops that complete the step's gradients; returns the op after which g_kept of every
 * bucket is summed over its group. */
int32_t ek_param_buckets_build_finish(ek_model *m, ek_graph *g, int32_t dep);

/* Appends the all-gather of bucket u, a sharded one, after op dep; returns the network op. */
int32_t ek_param_buckets_build_gather(ek_model *m, ek_graph *g, int32_t u, int32_t dep);
/* Appends the packing of its forms after op dep; returns the op. */
int32_t ek_param_buckets_build_pack(ek_model *m, ek_graph *g, int32_t u, int32_t dep);

#endif
