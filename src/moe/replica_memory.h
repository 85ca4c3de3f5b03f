/* moe/replica_memory.h - where the weights and gradients of transient replicas lie.
 *
 * A slot that is not persistent has packed weights, and two buffers of gradients, which layers take
 * in turn, so that one is reduced while the next layer adds to the other.  Of packed weights there
 * can be (ek_moe_config.replica_sets):
 *
 *   one set     shared by all layers, for a fetch in forward and another in backward
 *   two sets    layers take them in turn, so that the next layer's weights arrive under this one's
 *               products.  In backward a layer uses the set that it does not use in forward, so
 *               that the last layer's arrive under its own products
 *   EACH        a set of each layer for each micro-batch in flight: what forward has received stays
 *               until its backward, and weights are sent once.  Kernels whose packed form for
 *               backward is another one make it from what was received, in memory that all layers
 *               share */
#ifndef MOE_REPLICA_MEMORY_H
#define MOE_REPLICA_MEMORY_H

#include "moe/build.h"

/* Packed weights of a slice of an expert. */
typedef struct ek_replica_weights {
    void *up, *down;
} ek_replica_weights;

/* Memory for one slice of a transient replica, which all layers share. */
typedef struct {
    ek_replica_weights set[2];       /* one set: [0] alone; EACH: [0] alone, for the form for
                                        backward, if there is one */
    void *up_grad[2], *down_grad[2]; /* R */
} ek_replica;

typedef struct ek_replicas {
    int32_t n;          /* slices that a rank may fetch; -1: replicas are persistent only */
    int32_t first;      /* the first of a rank's slots for transient replicas, if those before are
                           for persistent ones, of which other slices may be fetched; -1: transient
                           ones may be in any that is empty */
    int sets;           /* of packed weights: 1, 2 or EK_REPLICA_SETS_EACH */
    ek_replica *slot;   /* [n] */
    int32_t cleared[2]; /* in the graph being built, by gradient buffer: the op after which its
                           contents are no longer needed; -1: none */

    /* used by the thread that starts network ops */
    unsigned calls;  /* collectives so far, from which tags are made */
    unsigned sums;   /* those of persistent copies, which have tags of their own */
    int32_t *number; /* [experts], index of experts that are sent; -1: not sent */
    int *ranks;      /* [ep * etp] */
    int32_t *order;  /* [2 * ep] in which ranks pass weights on (placement/passing.h) */
} ek_replicas;

/* Spare slots of a rank, and the slots for transient replicas, its last ones: -1: any that is
 * empty; 0: replicas are persistent only. */
typedef struct {
    int32_t spare, transient;
} ek_replica_slots;

/* Memory shared by all layers.  members: the largest number of shards that gather their slices.
 * sets: see above. */
ek_replicas *ek_replicas_reserve(ek_arena *a, const ek_kernels *k, const ek_model_spec *spec,
                                 const ek_mesh *mesh, ek_replica_slots slots, int members, int sets,
                                 int training);
/* EACH: the sets of one layer, of so many activation slots. */
void ek_replicas_reserve_layer(ek_moe *m, ek_arena *a, ek_replica_slots slots, int act_slots);

/* Bytes of a packed matrix; kernels that do not pack read the master weights. */
int64_t ek_replica_weight_bytes(const ek_kernels *k, int64_t out, int64_t in, int backward);

/* Whether there is memory for the next layer's weights while this layer's are read. */
int ek_replicas_overlap(const ek_moe *m);
/* Whether each layer has sets of its own: weights are sent once. */
int ek_replicas_are_kept(const ek_moe *m);

/* The buffer of gradients that the layer uses. */
int ek_replicas_gradient_buffer(const ek_moe *m);

/* The slice of its group that this rank holds persistently. */
int ek_replicas_own_slice(const ek_moe *m);

/* Experts in this rank's slots for the micro-batch of an op: [slots], -1: empty. */
const int32_t *ek_moe_experts_held(const ek_moe *m, const ek_op *op);

/* The memory that a slice of a slot's expert is fetched to, an index of ek_replicas.slot; -1: the
 * slice is persistent here. */
int32_t ek_replicas_find(const ek_moe *m, const int32_t *held, int32_t slot, int slice);

/* Weights and gradients of a slice of the expert in a slot. */
typedef struct {
    void *up, *down, *up_grad, *down_grad;
} ek_slot_weights;

/* slot counts from this rank's first.  Returns 0, and leaves *out, if the slot is empty. */
int ek_slot_weights_of(const ek_moe *m, int32_t micro, const int32_t *held, int32_t slot, int slice,
                       int backward, ek_slot_weights *out);

/* EACH: appends the op that makes the replicas' forms for backward; returns dep where none is
 * needed. */
int32_t ek_replicas_build_pack(const ek_moe_builder *b, double slices, int32_t dep);

#endif
