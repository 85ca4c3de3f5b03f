/* moe/replica_weights.h - transient replicas of experts, for one micro-batch: fetch of their
 * weights from the primary, reduction of their gradients to it.
 *
 * A rank has spare slots.  A plan (moe/routing_plan.h) puts experts of other ranks there for one
 * micro-batch of one layer; the optimizer state stays with the primary.
 *
 *   forward    the primary multicasts packed weights, in the form that forward products read, to
 *              all ranks with a replica: after the plan, overlapping with the dispatch all-to-all;
 *              or, where the plan is made from the previous micro-batch, before the gate, as soon
 *              as the previous layer has used its own replicas (moe/replica_prefetch.c)
 *   backward   weights are sent again, in the form for input gradients, as other layers have used
 *              the memory since; weight gradients are reduced into the primary's, overlapping with
 *              what follows the layer
 *
 * In waves    where a primary's weights come into memory in waves (moe/expert_waves.h), each wave
 *             sends the weights of its experts, in forward and in backward, and their rows are
 *             multiplied when all waves have been.  If weight gradients come and go with a wave,
 *             those of its experts are reduced in it.
 *
 * Tutel's r   (MLSys 2023, section 3.2, its table 4) uses the same messages for slices.  An expert
 *             is split into `etp` slices of its inner width, each with a primary shard.  With
 *             r < etp the shards of an expert rank form r groups, whose members fetch the slices
 *             that they lack, of every expert they serve, so that a row is sent to one member of
 *             each group only.  With r = 0 every rank fetches every expert, and no rows are sent.
 *             The primary shard of a slice, with its optimizer state, does not depend on r.  The
 *             shards of a persistent replica gather from each other, and reduce to each other's
 *             slices, before gradients are summed over persistent copies.
 *
 * Persistent replicas, where the planner has both kinds: a transient replica comes from the primary
 *             and its gradients are summed into the primary's, as without them.  After the last
 *             backward of a step (with ZeRO 2 and 3 over several ranks of each expert: after each
 *             backward, as gradients are reduced then) the gradients of all persistent copies are
 *             summed, the primary first.  So no gradient is counted twice, and all persistent
 *             copies get the same bits.
 *
 * Memory      all layers share a slot's packed weights, of which there can be two sets
 *             (ek_moe_config.replica_sets): layers alternate between them, so that the next layer's
 *             weights arrive under this one's products.  In backward a layer uses the set that it
 *             does not use in forward, so that the last layer's arrive under its own products.  A
 *             slot's gradients are double-buffered likewise, so that one is reduced while the next
 *             layer adds to the other.
 * Order       lists of ranks begin with the primary, the others ascend; sums follow the list, so
 *             that results are bitwise reproducible. */
#ifndef MOE_REPLICA_WEIGHTS_H
#define MOE_REPLICA_WEIGHTS_H

#include "moe/build.h"
#include "moe/expert_waves.h"

/* The messages of one op in flight. */
typedef struct ek_replica_flight {
    ek_coll **coll; /* [2 slots, etp] */
    int n;
} ek_replica_flight;

/* Memory for one slice of a transient replica. */
typedef struct {
    void *up[2], *down[2];           /* packed weights; one set: [0] alone */
    void *up_grad[2], *down_grad[2]; /* R */
} ek_replica;

typedef struct ek_replicas {
    int32_t n;          /* slices that a rank may fetch; -1: replicas are persistent only */
    int32_t first;      /* the first of a rank's slots for transient replicas, if those before are
                           for persistent ones, of which other slices may be fetched; -1: transient
                           ones may be in any that is empty */
    int sets;           /* of packed weights: 1 or 2 */
    ek_replica *slot;   /* [n] */
    int32_t cleared[2]; /* in the graph being built, by gradient buffer: the op after which its
                           contents are no longer needed; -1: none */

    /* used by the thread that starts network ops */
    unsigned calls;  /* collectives so far, from which tags are made */
    int32_t *number; /* [experts], index of experts that are sent; -1: not sent */
    int *ranks;      /* [ep * etp] */
} ek_replicas;

/* EK_EINVAL: so many spare slots a rank need more message tags than there are. */
EK_CHECKED ek_status ek_replicas_check(const ek_mesh *mesh, int64_t spare_slots);

/* Spare slots of a rank, and the slots for transient replicas, its last ones: -1: any that is
 * empty; 0: replicas are persistent only. */
typedef struct {
    int32_t spare, transient;
} ek_replica_slots;

/* Memory shared by all layers.  members: the largest number of shards that gather their slices.
 * sets: of packed weights. */
ek_replicas *ek_replicas_reserve(ek_arena *a, const ek_kernels *k, const ek_model_spec *spec,
                                 const ek_mesh *mesh, ek_replica_slots slots, int members, int sets,
                                 int training);
/* Memory of one layer. */
void ek_replicas_reserve_flights(ek_moe *m, ek_arena *a);

/* Forgets the op ids of the previous graph. */
void ek_replicas_begin_graph(ek_moe *m);

/* Experts in this rank's slots for the micro-batch of an op: [slots], -1: empty. */
const int32_t *ek_moe_experts_held(const ek_moe *m, const ek_op *op);

/* Weights and gradients of a slice of the expert in a slot. */
typedef struct {
    void *up, *down, *up_grad, *down_grad;
} ek_slot_weights;

/* slot counts from this rank's first.  Returns 0, and leaves *out, if the slot is empty. */
int ek_slot_weights_of(const ek_moe *m, const int32_t *held, int32_t slot, int slice, int backward,
                       ek_slot_weights *out);

/* The network ops that fetch the replicas' weights: a prefetch, and the fetch after the plan; -1:
 * none. */
typedef struct {
    int32_t before, after;
} ek_replica_fetch;

/* Appends the fetch of the replicas' weights, in the form for forward or backward products, unless
 * a prefetch does all of it. */
ek_replica_fetch ek_replicas_build_fetch(const ek_moe_builder *b, int backward, int32_t dep);
/* Whether the weights of the next layer's replicas can arrive while this layer's are read. */
int ek_replicas_alternate(const ek_moe *m);
/* Whether replicas are sent wave by wave, rather than by the fetch. */
int ek_replicas_in_waves(const ek_moe *m);
/* Replicas, in the micro-batch of an op, of the experts in slots [first, end) of this rank; 0
 * unless they are sent in waves. */
int32_t ek_replicas_of_slots(const ek_moe *m, const ek_op *op, int32_t first, int32_t end);
/* Then: appends the messages of the wave at a place in the order of a pass, [0, waves->most): its
 * experts' weights, or the reduction of their gradients into the primaries'; returns the op. */
int32_t ek_replicas_build_wave(const ek_moe_builder *b, ek_wave_use use, int32_t place, int32_t dep,
                               int32_t dep2);
/* Before and after the weight gradients' products: clears the replicas' gradients, and reduces them
 * into the primaries'. */
int32_t ek_replicas_build_clear(const ek_moe_builder *b, int32_t dep);
void ek_replicas_build_reduce(const ek_moe_builder *b, int32_t dep);
/* Appends a prefetch for the layer's next forward, by an op that has set the route's expert_of when
 * it calls ek_replicas_fetch_forward; returns its id. */
int32_t ek_replicas_add_prefetch(const ek_moe_builder *b, ek_op_fn run, int32_t dep);
EK_CHECKED ek_status ek_replicas_fetch_forward(void *self, const ek_op *op);

/* Appends, after a backward of the layer (dep), the all-reduce of the gradients in memory over the
 * persistent copies of each expert.  Readers of these gradients wait for m->ids.reduce unless it is
 * negative. */
void ek_moe_build_share(ek_moe *m, ek_graph *g, int32_t micro, int32_t dep);

/* Bytes that the step's replicas moved: weights twice, for forward and backward, and gradients. */
double ek_moe_replica_bytes(const ek_moe *m);

#endif
