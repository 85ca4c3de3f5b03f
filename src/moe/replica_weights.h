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
 *   backward   weights are sent again, in the form for input gradients, where other layers have
 *              used the memory since; where each layer has its own, that form is made of what
 *              forward has received.  Weight gradients are reduced into the primary's, overlapping
 *              with what follows the layer
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
 * Memory      moe/replica_memory.h
 * Order       lists of ranks begin with the primary; the others ascend, but those that send experts
 *             of their own come last (placement/passing.h).  Sums follow the list, so that results
 *             are bitwise reproducible. */
#ifndef MOE_REPLICA_WEIGHTS_H
#define MOE_REPLICA_WEIGHTS_H

#include "moe/expert_waves.h"
#include "moe/replica_memory.h"

/* The messages of one op in flight. */
typedef struct ek_replica_flight {
    ek_coll **coll; /* [2 slots, etp] */
    int n;
    unsigned calls; /* of these; ek_replicas.calls or .sums before the op */
    int waiting;    /* its messages have not been started */
} ek_replica_flight;

/* EK_EINVAL: so many spare slots a rank need more message tags than there are. */
EK_CHECKED ek_status ek_replicas_check(const ek_mesh *mesh, int64_t spare_slots);

/* Messages in flight of one layer. */
void ek_replicas_reserve_flights(ek_moe *m, ek_arena *a);

/* Forgets the op ids of the previous graph. */
void ek_replicas_begin_graph(ek_moe *m);

/* The network ops that fetch the replicas' weights: a prefetch, and the fetch after the plan; -1:
 * none. */
typedef struct {
    int32_t before, after;
} ek_replica_fetch;

/* Appends the fetch of the replicas' weights, in the form for forward or backward products, unless
 * a prefetch does all of it. */
ek_replica_fetch ek_replicas_build_fetch(const ek_moe_builder *b, int backward, int32_t dep);
/* Where weights are sent once: appends what makes their forms for backward. */
int32_t ek_replicas_build_forms(const ek_moe_builder *b, int32_t dep);
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

/* Appends, after a backward of the layer, the sum of the gradients in memory over the persistent
 * copies of each expert, which starts when its experts have them.  Readers of these gradients wait
 * for m->ids.reduce unless it is negative.  each_micro: after every micro-batch, not the last
 * alone. */
void ek_moe_build_share(ek_moe *m, ek_graph *g, int32_t micro, int each_micro);

/* Bytes that the step's replicas moved: weights once, or for forward and backward, and gradients.
 */
double ek_moe_replica_bytes(const ek_moe *m);

#endif
