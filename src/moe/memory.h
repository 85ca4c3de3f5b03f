/* moe/memory.h - the memory of a MoE layer, reserved once for the largest micro-batch.
 *
 * Order: weights, then the scratch and the planning that all layers share, then the state of each
 * layer and its activation slots. */
#ifndef MOE_MEMORY_H
#define MOE_MEMORY_H

#include "moe/routing_plan.h"

/* Reserves the scratch that all layers share; s->dx and s->tp are set.  If the layers are
 * distributed, buffers have address space for the worst case (every row on one rank), while the
 * expected use that is counted is that of an even spread (ek_arena_alloc_expected). */
void ek_moe_reserve_scratch(ek_moe_scratch *s, ek_arena *a, const ek_kernels *k,
                            const ek_model_spec *spec, const ek_mesh *mesh,
                            const ek_moe_config *cfg, const ek_moe_limits *limits, int training);

/* Reserves what planners need, which all layers share; nothing unless the layers are distributed.
 */
void ek_moe_reserve_planning(ek_moe_planning *d, ek_arena *a, const ek_model_spec *spec,
                             const ek_mesh *mesh, const ek_moe_config *cfg,
                             const ek_moe_limits *limits);

/* Sets the kind of layer `layer`, this rank's widths, and the initial placement: block order, every
 * expert once in each of the edp expert-parallel groups, spare_slots empty slots on each rank.
 * shared: the placement of another layer to use instead, as none of them will change; NULL: the
 * layer has its own. */
void ek_moe_reserve_weights(ek_moe_weights *w, ek_arena *a, const ek_model_spec *spec,
                            const ek_mesh *mesh, int32_t spare_slots, int layer,
                            const ek_placement *shared);

/* The arrays of m itself; m->k, spec, mesh, cfg, w, step, scratch and planning are set, and the
 * latter two are reserved.  slots: activation slots, i.e. micro-batches in flight, whose own memory
 * is reserved by the following functions. */
void ek_moe_reserve_state(ek_moe *m, ek_arena *a, int64_t max_seq, int slots);

/* The weights of transient replicas, where each layer has its own (ek_moe_config.replica_sets), of
 * so many activation slots. */
void ek_moe_reserve_replicas(ek_moe *m, ek_arena *a, const ek_moe_limits *limits, int slots,
                             int training);

/* The activations of one activation slot.  any: large enough for every kind of layer of this spec,
 * so that all layers and slots can share them. */
void ek_moe_reserve_activations(ek_moe *m, int slot, ek_arena *a, const ek_moe_limits *limits,
                                int any);
/* Lets a slot use the activations of slot 0 of another layer. */
void ek_moe_share_activations(ek_moe *m, int slot, const ek_moe *other);
/* Sets where the residual stream x, R [n, d], and its norm y, C [n, d], of a slot are; borrowed. */
void ek_moe_set_tokens(ek_moe *m, int slot, void *x, void *y);

#endif
