/* moe/replicas.h - replicas of experts for one micro-batch: their weights out of their homes, and
 * their gradients back.
 *
 * A rank has a few slots without an expert of its own.  A plan (moe/routing_plan.h) puts experts of
 * other ranks there, for one micro-batch of one layer; optimizer state stays home.
 *
 *   forward    weights go out, in the form that forward products read, by a multicast from the home
 *              to all ranks with a replica: after the plan and under the dispatch of rows, or,
 *              where a plan is made one micro-batch ahead, before the gate, as soon as the layer
 *              before has used its own (moe/replica_prefetch.c)
 *   backward   they go out again, in the form that the products for gradients of inputs read, for
 *              the slots' memory has served other layers meanwhile; the gradients of the weights
 *              are summed on the way back into the home's, under what comes after the layer
 *
 * Tutel's r   (MLSys 2023, section 3.2, its table 4) is the same with slices.  An expert is cut
 *             into `etp` slices of its inner width, each with a home shard; with r < etp the shards
 *             of an expert rank form r groups, and each brings its members the slices that they
 *             lack, of every expert they serve, so that a row need only go to one of them.  With
 *             r = 0 every rank is brought everything, and no row travels.  Where a slice is at
 *             home, and its optimizer state, never depends on r.
 *
 * Memory      a slot's forms are shared by all layers; its gradient by every other layer, so that
 *             one can be on its way home while the next is added to.
 * Order       lists of ranks begin with the home, the others ascend; sums follow the list, so that
 *             every run gives the same bits. */
#ifndef MOE_REPLICAS_H
#define MOE_REPLICAS_H

#include "moe/moe_priv.h"

/* Messages of one op, in flight. */
typedef struct ek_replica_flight {
    ek_coll **coll; /* [2 slots, etp] */
    int n;
} ek_replica_flight;

/* Memory for one slice of a slot's expert that does not stay. */
typedef struct {
    void *up, *down;                 /* forms */
    void *up_grad[2], *down_grad[2]; /* R; by turns of layers */
} ek_replica;

struct ek_replicas {
    int32_t n; /* slices that a rank may be brought; -1: replicas stay, and keep their own state */
    ek_replica *slot;
    int32_t cleared[2]; /* in the graph being built, by turn: the op after which gradients of the
                           replicas are no longer needed; -1: none */

    /* of the thread that starts network ops */
    unsigned calls;  /* collectives so far: their tags */
    int32_t *number; /* [experts] of those with replicas, in order of their slots */
    int *ranks;      /* [ep * etp] */
};

/* Whether so many spare slots a rank are few enough for their messages to have tags of their own.
 */
EK_CHECKED ek_status ek_replicas_check(const ek_mesh *mesh, int64_t spare_slots);

/* spare_slots -1: replicas stay.  members: most shards that gather their slices. */
ek_replicas *ek_replicas_reserve(ek_arena *a, const ek_kernels *k, const ek_model_spec *spec,
                                 const ek_mesh *mesh, int32_t spare_slots, int members,
                                 int training);
/* What a layer needs. */
void ek_replicas_reserve_flights(ek_moe *m, ek_arena *a);

/* What this rank's slots hold for the micro-batch of an op: [slots]. */
const int32_t *ek_moe_experts_held(const ek_moe *m, const ek_op *op);

/* The slices of an expert that this rank computes with are those of its group, in order.  The
 * first column of one in the group's width, which is that of slice x.members. */
static inline int64_t ek_slice_first(const ek_moe *m, int slice)
{
    int first = m->mesh->etp_rank / m->x.members * m->x.members;

    return ek_range_first(m->spec->ff, m->mesh->etp, first + slice) -
           ek_range_first(m->spec->ff, m->mesh->etp, first);
}

static inline int64_t ek_slice_width(const ek_moe *m, int slice)
{
    return ek_slice_first(m, slice + 1) - ek_slice_first(m, slice);
}

/* What products read and write of a slice in one of this rank's slots, counted from its first. */
typedef struct {
    void *up, *down, *up_grad, *down_grad;
} ek_slot_weights;

/* 0: the slot is empty. */
int ek_slot_weights_of(const ek_moe *m, const int32_t *held, int32_t slot, int slice, int backward,
                       ek_slot_weights *out);

/* Appends what brings the weights of replicas, in the form for forward or backward products;
 * returns the network op, -1 where there are no replicas, or the one that was appended ahead of
 * time.  Its other end is in the compute lane, before the first product of the layer. */
int32_t ek_replicas_build_fetch(const ek_moe_builder *b, int backward, int32_t dep);
int32_t ek_replicas_build_wait(const ek_moe_builder *b, int32_t fetched, int32_t dep);
/* Before and after the products for gradients of weights: clears the replicas' gradients, and sums
 * them into the homes'. */
int32_t ek_replicas_build_clear(const ek_moe_builder *b, int32_t dep);
void ek_replicas_build_reduce(const ek_moe_builder *b, int32_t dep);

#endif
