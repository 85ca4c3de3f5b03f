/* model/param_buckets.h - weights as the ranks that share them move them: in units.
 *
 * A unit is a run of the weights of one place (a layer, or an end of the model) that the same
 * group of ranks has, laid out in one piece, so that one collective moves it.  The ranks of the
 * group share a unit out in runs of whole rows, as even as those allow: `first`.  What that means
 * is cfg.zero's choice:
 *
 *   0  masters, gradients and moments are whole everywhere; gradients are all-reduced
 *   1  moments are kept of the own run alone, and masters too where kernels read packed forms only;
 *      gradients are reduce-scattered, updated masters gathered
 *   2  gradients too: whole ones lie in one of two buffers that the layers take in turn, are
 *      reduce-scattered after each micro-batch and added to what is kept
 *   3  masters and packed forms too: gathered before a layer runs, the next one's under it
 *
 * A unit that one rank has alone is whole at every level.
 *
 * The builders below append ops to a step graph.  For each micro-batch, in the order of the ops:
 *
 *   ek_param_buckets_begin_step(m)                       once a step, before the first builder
 *   dep = ek_param_buckets_build_use(m, g, place, next, uses, dep)
 *   ... the ops of the place, after dep ...
 *   ek_param_buckets_build_reduce(m, g, place, micro, last, dep)      after a backward
 *
 * and the optimizer does the rest.  Ranks of a group must build these calls in the same order.
 * With ZeRO 0 and 1, ek_param_buckets_build_use appends nothing and returns dep. */
#ifndef MODEL_PARAM_BUCKETS_H
#define MODEL_PARAM_BUCKETS_H

#include "model/model.h"
#include "schedule/graph.h"

/* A place is a layer, or: */
enum { EK_MODULE_EMBED = -1, EK_MODULE_HEAD = -2, EK_MODULE_NONE = -3 };

/* What ops read of a place's weights, and whether they add to its gradients. */
enum {
    EK_USE_FORWARD = 1, /* the forms for products of the forward pass */
    EK_USE_BACKWARD = 2 /* those for gradients of inputs; gradients are written */
};

/* Forgets the ops of the step before. */
void ek_param_buckets_begin_step(ek_model *m);

/* Before the ops of a place: appends what makes its weights (ZeRO 3) and its gradient buffer
 * (ZeRO 2 and 3) ready, after all compute ops so far, and starts to bring those of `next`, the
 * place whose ops come after it (EK_MODULE_NONE: not known).  uses: EK_USE_*, both for the head
 * when training, and for a layer's backward that recomputes its forward.  Returns the op that those
 * of the place wait for; dep where nothing is to do. */
int32_t ek_param_buckets_build_use(ek_model *m, ek_graph *g, int32_t module, int32_t next, int uses,
                                   int32_t dep);

/* After the last op (dep) of a place's backward for a micro-batch, its weight gradients included:
 * network ops that reduce its gradients, if this is the step's last micro-batch (last) or ZeRO 2
 * and 3 need it now.  They wait for all compute ops so far.  also: a network op that adds to them
 * as well; -1: none.  What one rank has alone waits for it with the norms, which the whole stage
 * shares in every layer. */
void ek_param_buckets_build_reduce(ek_model *m, ek_graph *g, int32_t module, int32_t micro,
                                   int last, int32_t also, int32_t dep);

/* --- for the optimizer ------------------------------------------------------------------------ */

/* Memory that places take in turn.  Those of layers: even and odd layers of this rank alternate
 * between two for gradients and for masters that kernels read, and share one for the others. */
typedef enum {
    EK_SET_GRADIENT, /* whole gradients (ZeRO 2 and 3) */
    EK_SET_MASTER,   /* whole masters that kernels read (ZeRO 3) */
    EK_SET_STAGED,   /* whole masters on their way into packed forms */
    EK_SET_FORM,     /* packed forms (ZeRO 3) */
    EK_SET_KINDS
} ek_set_kind;

enum { EK_SETS = 4 }; /* two for layers, one for each end */

typedef struct {
    void *base;
    int64_t bytes;
    int32_t holds; /* in the graph being built: the place; EK_MODULE_NONE */
    int packed;    /* forms: which of EK_USE_* */
} ek_set;

/* One unit.  Runs are in elements of it; each weight starts at a cache line. */
typedef struct {
    int32_t module;
    ek_share share;
    int packed;  /* kernels read packed forms of these weights, never the master */
    int trained; /* 0: kept by feedback; neither reduced nor gathered */
    int sharded; /* ranks keep their own runs of it alone (ZeRO 1 to 3) */
    int32_t n_params;
    const int32_t *params;    /* entries of m->params, in the order of memory */
    int64_t n;                /* elements */
    ek_comm *group;           /* NULL: one rank */
    int size, rank;           /* of the group */
    int64_t *first;           /* [size + 1]: where each rank's run starts */
    int64_t kept_first, kept; /* what this rank keeps */
    void *p;                  /* R [n]: masters, or where they are brought; NULL: not trained */
    void *g;                  /* R [n]: where backward adds */
    void *p_kept, *g_kept;    /* R [kept] */
    void *m, *v;              /* R [kept] */
    ek_set *p_set, *g_set;    /* where p, g are if that is a set, and how far in; else NULL */
    int64_t p_at, g_at;
    size_t state_at; /* where its own memory begins in m->state */

    /* in the graph being built */
    int32_t reduced; /* the network op after which its gradients are complete; -1: none */
    int32_t fetched; /* the op that brought its masters; -1: none */
    int pending;     /* gradients are reduced, but not yet added to what is kept */
} ek_param_bucket;

struct ek_param_buckets {
    ek_param_bucket *bucket;
    int32_t n, staged; /* units; those whose masters are only staged (ZeRO 1 and 2) */
    int32_t *first;    /* [layers + 3]: units of the embedding, layer 0, ..., the head */
    int32_t *params;   /* [n_params]: entries of m->params, unit after unit */
    int64_t *runs;     /* of all units: ek_param_bucket.first */
    int32_t *deps;     /* [n + 4]: room of the builders */
    unsigned char buf_idx[EK_LAYERS_MAX]; /* which of two sets a layer takes */
    ek_set sets[EK_SET_KINDS][EK_SETS];
};

/* Sorts the model's weights into units and shares these out. */
EK_CHECKED ek_status ek_param_buckets_create(ek_model *m);
void ek_param_buckets_destroy(ek_param_buckets **us);
/* Lays out their memory in m->arena and m->state.  Measuring takes two calls: the first sizes the
 * sets. */
void ek_param_buckets_reserve(ek_model *m);

/* From place to place of a staging (ek_model.staging): bytes. */
size_t ek_param_buckets_module_bytes(const ek_model *m);

/* The memory that a place uses, of a kind that places take in turn. */
ek_set *ek_param_buckets_buffer(const ek_model *m, ek_set_kind kind, int32_t module);

/* Units of a place: [*first, *end). */
void ek_param_buckets_of(const ek_model *m, int32_t module, int32_t *first, int32_t *end);

/* Whether another rank, or none, answers for a weight (ek_param.idle). */
void ek_param_buckets_set_idle(ek_model *m, int32_t param, int idle);

/* Starts to bring the masters of a cut unit into u->p. */
EK_CHECKED ek_status ek_param_bucket_gather(const ek_model *m, const ek_param_bucket *u,
                                            ek_coll **op);
/* Makes packed forms (EK_USE_*) of a unit from u->p; of one of its weights. */
EK_CHECKED ek_status ek_param_bucket_pack(const ek_model *m, const ek_param_bucket *u, int uses);
EK_CHECKED ek_status ek_param_bucket_pack_weight(const ek_model *m, const ek_param_bucket *u,
                                                 const ek_param *p, int uses);
/* Bytes that packing all forms of a unit moves: masters in, forms out. */
double ek_param_bucket_pack_bytes(const ek_model *m, const ek_param_bucket *u);
/* ZeRO 2 and 3: adds the reduced run of u->g to what is kept, and clears u->g. */
void ek_param_bucket_collect(const ek_model *m, const ek_param_bucket *u);

/* Appends what completes the gradients of the step; returns the op after which g_kept of every
 * unit holds the sum over the ranks that share it. */
int32_t ek_param_buckets_build_finish(ek_model *m, ek_graph *g, int32_t dep);

/* Appends the gathering of unit u, a cut one, after op dep; returns the network op. */
int32_t ek_param_buckets_build_gather(ek_model *m, ek_graph *g, int32_t u, int32_t dep);
/* Appends the packing of its forms after op dep. */
int32_t ek_param_buckets_build_pack(ek_model *m, ek_graph *g, int32_t u, int32_t dep);

#endif
