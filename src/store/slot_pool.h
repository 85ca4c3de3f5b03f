/* store/slot_pool.h - which expert each slot of a pool in memory holds, and which one gives way.
 *
 * The experts themselves are in files; a pool has fewer slots than there are experts.  It keeps
 * account only: contents are read by its user (moe/expert_store.h).
 *
 * Eviction     LRU: the expert that was used longest ago.  LFU: the one that was used least, by
 *              counts that outlive eviction and are halved every 4 slots uses (SE-MoE's Algorithm 2
 *              evicts every expert below a threshold, forgets counts of evicted ones, and never
 *              ages them, so that its cache freezes; here one gives way at a time).  AUTO: LRU, or
 *              LFU, with these counts or with some that fade eight times slower, while that would
 *              have had clearly more hits lately: three accounts without slots follow the same
 *              uses.
 * Passes       a pass over all layers that uses each expert once is the worst case of LRU and LFU:
 *              all is read again each time.  So experts that ek_slot_pool_keep names do not give
 *              way in a pass (ek_slot_pool_take_in_pass): the slots they take are slots of hits.
 * Pins         a pinned slot is not evicted; a slot is pinned from ek_slot_pool_take on.
 * Threads      one at a time. */
#ifndef STORE_SLOT_POOL_H
#define STORE_SLOT_POOL_H

#include "evenkeel/err.h"

#include <stdint.h>

typedef enum { EK_EVICT_LRU, EK_EVICT_LFU, EK_EVICT_AUTO } ek_eviction;

typedef struct ek_slot_pool ek_slot_pool;

/* A pool of empty slots.  slots >= 1, layers >= 1, experts >= 1 of each layer. */
EK_CHECKED ek_status ek_slot_pool_create(int32_t slots, int32_t layers, int32_t experts,
                                         ek_eviction eviction, ek_slot_pool **out);
void ek_slot_pool_destroy(ek_slot_pool **p);

/* The slot that holds an expert; -1: none.  Not a use. */
int32_t ek_slot_pool_find(const ek_slot_pool *p, int32_t layer, int32_t expert);

/* Counts a use of an expert, and pins and returns its slot if there is one; -1: it must be taken
 * one. */
int32_t ek_slot_pool_use(ek_slot_pool *p, int32_t layer, int32_t expert);
/* Gives an expert without a slot an empty or evicted one, pinned; -1: all slots are pinned. */
int32_t ek_slot_pool_take(ek_slot_pool *p, int32_t layer, int32_t expert);
/* Empties the slot that gives way in a pass next, pins it, and returns it; -1: all are pinned.
 * ek_slot_pool_drop puts it back. */
int32_t ek_slot_pool_take_empty(ek_slot_pool *p);
/* Names an expert that gives way in a pass only if no other can. */
void ek_slot_pool_keep(ek_slot_pool *p, int32_t layer, int32_t expert);
/* As ek_slot_pool_take, in a pass: of the experts that are not kept, the one that was used longest
 * ago gives way. */
int32_t ek_slot_pool_take_in_pass(ek_slot_pool *p, int32_t layer, int32_t expert);
void ek_slot_pool_unpin(ek_slot_pool *p, int32_t slot);
/* Empties a slot, pinned or not: its contents are not what take promised. */
void ek_slot_pool_drop(ek_slot_pool *p, int32_t slot);

#endif
