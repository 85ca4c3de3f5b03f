/* Slot pools: eviction against plain models of it, pins, and what LFU and AUTO are for. */
#include "base/random.h"
#include "ek_test.h"
#include "store/slot_pool.h"

enum { LAYERS = 3, EXPERTS = 8, ITEMS = LAYERS * EXPERTS, USES = 4000 };

/* Uses an expert as a store does: a miss takes a slot.  Returns whether it was a hit. */
static int use(ek_slot_pool *p, int32_t layer, int32_t expert)
{
    int32_t slot = ek_slot_pool_use(p, layer, expert);
    int hit = slot >= 0;

    if (!hit)
        slot = ek_slot_pool_take(p, layer, expert);
    CHECK(slot >= 0);
    CHECK_INT(ek_slot_pool_find(p, layer, expert), slot);
    ek_slot_pool_unpin(p, slot);
    return hit;
}

static ek_slot_pool *pool_of(int32_t slots, ek_eviction eviction)
{
    ek_slot_pool *p = NULL;

    CHECK(ek_slot_pool_create(slots, LAYERS, EXPERTS, eviction, &p) == EK_OK);
    return p;
}

/* Skewed towards low numbers. */
static int32_t draw(uint64_t stream, int64_t i)
{
    double u = (double)(ek_random_bits(5, stream, (uint64_t)i) >> 11) * 0x1p-53;

    return (int32_t)(u * u * ITEMS);
}

/* Least recently used, kept as a list in order of use. */
static int lru_use(int32_t *list, int32_t *n, int32_t slots, int32_t item)
{
    int32_t at = 0;
    int hit;

    while (at < *n && list[at] != item)
        at++;
    hit = at < *n;
    if (!hit) {
        if (*n == slots) {
            memmove(list, list + 1, (size_t)(slots - 1) * sizeof(*list));
            (*n)--;
        }
    } else {
        memmove(list + at, list + at + 1, (size_t)(*n - 1 - at) * sizeof(*list));
        (*n)--;
    }
    list[(*n)++] = item;
    return hit;
}

static void lru_hits_as_a_list_in_order_of_use_does(void)
{
    for (int32_t slots = 1; slots <= ITEMS + 1; slots += 3) {
        ek_slot_pool *p = pool_of(slots, EK_EVICT_LRU);
        int32_t list[ITEMS + 1], n = 0;

        for (int64_t i = 0; i < USES; i++) {
            int32_t item = draw((uint64_t)slots, i);
            int want = lru_use(list, &n, slots, item);

            if (use(p, item / EXPERTS, item % EXPERTS) != want) {
                EK_T_FAIL("%d slots, use %d: hit is not %d", (int)slots, (int)i, want);
                break;
            }
        }
        ek_slot_pool_destroy(&p);
    }
}

/* After any uses every slot holds an expert whose find() is that slot, and no two the same. */
static void each_expert_has_at_most_one_slot(void)
{
    static const ek_eviction all[] = {EK_EVICT_LRU, EK_EVICT_LFU, EK_EVICT_AUTO};

    for (int e = 0; e < 3; e++) {
        ek_slot_pool *p = pool_of(7, all[e]);

        for (int64_t i = 0; i < USES; i++) {
            int32_t item = draw((uint64_t)(100 + e), i), held = 0;
            unsigned taken = 0;

            use(p, item / EXPERTS, item % EXPERTS);
            for (int32_t k = 0; k < ITEMS; k++) {
                int32_t slot = ek_slot_pool_find(p, k / EXPERTS, k % EXPERTS);

                if (slot >= 0) {
                    CHECK((taken & (1u << slot)) == 0);
                    taken |= 1u << slot;
                    held++;
                }
            }
            CHECK(held <= 7);
        }
        ek_slot_pool_destroy(&p);
    }
}

static void a_pinned_slot_is_not_taken(void)
{
    ek_slot_pool *p = pool_of(2, EK_EVICT_LRU);
    int32_t a = ek_slot_pool_take(p, 0, 0), b = ek_slot_pool_take(p, 0, 1);

    CHECK(a >= 0 && b >= 0 && a != b);
    CHECK_INT(ek_slot_pool_take(p, 0, 2), -1);
    CHECK_INT(ek_slot_pool_use(p, 0, 0), a); /* pinned twice */
    ek_slot_pool_unpin(p, a);
    CHECK_INT(ek_slot_pool_take(p, 0, 2), -1);
    ek_slot_pool_unpin(p, a);
    CHECK_INT(ek_slot_pool_take(p, 0, 2), a);
    CHECK_INT(ek_slot_pool_find(p, 0, 0), -1);
    CHECK_INT(ek_slot_pool_find(p, 0, 1), b);
    ek_slot_pool_drop(p, a);
    CHECK_INT(ek_slot_pool_find(p, 0, 2), -1);
    CHECK_INT(ek_slot_pool_take(p, 2, 7), a); /* the empty one */
    ek_slot_pool_destroy(&p);
}

/* Hits of a trace in which two experts are hot, and the others pass by in order. */
static int64_t hits_beside_a_scan(ek_eviction eviction)
{
    ek_slot_pool *p = pool_of(4, eviction);
    int64_t hits = 0;

    for (int64_t i = 0; i < USES; i++) {
        hits += use(p, 0, (int32_t)(i / 4 % 2));
        hits += use(p, 1, (int32_t)(i % EXPERTS));
        hits += use(p, 2, (int32_t)((i + 3) % EXPERTS));
        hits += use(p, 1, (int32_t)((i + 4) % EXPERTS));
    }
    ek_slot_pool_destroy(&p);
    return hits;
}

/* Hits of a trace whose hot expert changes now and then. */
static int64_t hits_of_a_shift(ek_eviction eviction)
{
    ek_slot_pool *p = pool_of(3, eviction);
    int64_t hits = 0;

    for (int64_t i = 0; i < USES; i++)
        hits += use(p, 0, (int32_t)((i / 50 * 3 + i % 3) % EXPERTS));
    ek_slot_pool_destroy(&p);
    return hits;
}

static void auto_is_near_the_better_of_both(void)
{
    int64_t scan_lru = hits_beside_a_scan(EK_EVICT_LRU),
            scan_lfu = hits_beside_a_scan(EK_EVICT_LFU);
    int64_t shift_lru = hits_of_a_shift(EK_EVICT_LRU), shift_lfu = hits_of_a_shift(EK_EVICT_LFU);

    CHECK(scan_lfu > scan_lru + USES / 8);
    CHECK(hits_beside_a_scan(EK_EVICT_AUTO) > scan_lfu - (scan_lfu - scan_lru) / 4);
    CHECK(hits_of_a_shift(EK_EVICT_AUTO) > shift_lru - USES / 50 && shift_lru >= shift_lfu);
    /* LFU is not frozen: what was hot long ago gives way */
    CHECK(shift_lfu > USES / 2);
}

/* Passes over all experts: kept ones stay, and the others, though unpinned, take turns. */
static void kept_experts_stay_in_passes(void)
{
    ek_slot_pool *p = pool_of(8, EK_EVICT_LRU);
    int64_t hits = 0, kept = 0;

    for (int32_t i = 0; i < ITEMS; i += 4)
        ek_slot_pool_keep(p, i / EXPERTS, i % EXPERTS);
    for (int pass = 0; pass < 5; pass++)
        for (int32_t i = 0; i < ITEMS; i++) {
            int32_t slot = ek_slot_pool_use(p, i / EXPERTS, i % EXPERTS);

            hits += slot >= 0;
            kept += slot >= 0 && i % 4 == 0;
            if (slot < 0)
                slot = ek_slot_pool_take_in_pass(p, i / EXPERTS, i % EXPERTS);
            CHECK(slot >= 0);
            ek_slot_pool_unpin(p, slot);
        }
    CHECK_INT(kept, 4 * ITEMS / 4);
    CHECK_INT(hits, kept);
    /* outside of passes they give way like others */
    for (int i = 0; i < 2; i++)
        for (int32_t e = 0; e < EXPERTS; e++)
            CHECK(use(p, 1, e) || i == 0);
    CHECK_INT(ek_slot_pool_find(p, 0, 0), -1);
    ek_slot_pool_destroy(&p);
}

/* Where all slots hold kept experts, one of them gives way. */
static void a_kept_expert_gives_way_if_no_other_can(void)
{
    ek_slot_pool *p = pool_of(2, EK_EVICT_LRU);

    for (int32_t e = 0; e < 3; e++) {
        ek_slot_pool_keep(p, 0, e);
        ek_slot_pool_unpin(p, ek_slot_pool_take_in_pass(p, 0, e));
    }
    CHECK_INT(ek_slot_pool_find(p, 0, 0), -1);
    CHECK(ek_slot_pool_find(p, 0, 1) >= 0 && ek_slot_pool_find(p, 0, 2) >= 0);
    ek_slot_pool_destroy(&p);
}

/* Slots that are emptied are those of experts that are not kept, the one used longest ago first; no
 * expert is in them until they are put back. */
static void emptied_slots_are_those_that_give_way_in_a_pass(void)
{
    ek_slot_pool *p = pool_of(4, EK_EVICT_AUTO);
    int32_t first, second;

    ek_slot_pool_keep(p, 0, 0);
    ek_slot_pool_keep(p, 0, 2);
    for (int32_t e = 0; e < 4; e++)
        CHECK(!use(p, 0, e));
    CHECK(use(p, 0, 1));
    first = ek_slot_pool_find(p, 0, 3);
    second = ek_slot_pool_find(p, 0, 1);
    CHECK_INT(ek_slot_pool_take_empty(p), first);
    CHECK_INT(ek_slot_pool_take_empty(p), second);
    CHECK_INT(ek_slot_pool_find(p, 0, 3), -1);
    CHECK(use(p, 0, 0) && use(p, 0, 2));
    for (int32_t e = 0; e < EXPERTS; e++) {
        int32_t slot = ek_slot_pool_take_in_pass(p, 1, e);

        CHECK(slot >= 0 && slot != first && slot != second);
        ek_slot_pool_unpin(p, slot);
    }
    ek_slot_pool_drop(p, second);
    CHECK_INT(ek_slot_pool_take(p, 2, 0), second);
    ek_slot_pool_destroy(&p);
}

static void impossible_pools_are_refused(void)
{
    ek_slot_pool *p = NULL;

    CHECK_INT(ek_slot_pool_create(0, 1, 1, EK_EVICT_LRU, &p), EK_EINVAL);
    CHECK_INT(ek_slot_pool_create(1, 0, 1, EK_EVICT_LRU, &p), EK_EINVAL);
    CHECK_INT(ek_slot_pool_create(1, 1, 0, EK_EVICT_LRU, &p), EK_EINVAL);
    CHECK_INT(ek_slot_pool_create(1, 1 << 20, 1 << 20, EK_EVICT_LRU, &p), EK_EINVAL);
    CHECK(p == NULL);
}

static const ek_case cases[] = {
    EK_CASE(lru_hits_as_a_list_in_order_of_use_does),
    EK_CASE(each_expert_has_at_most_one_slot),
    EK_CASE(a_pinned_slot_is_not_taken),
    EK_CASE(auto_is_near_the_better_of_both),
    EK_CASE(kept_experts_stay_in_passes),
    EK_CASE(a_kept_expert_gives_way_if_no_other_can),
    EK_CASE(emptied_slots_are_those_that_give_way_in_a_pass),
    EK_CASE(impossible_pools_are_refused),
};
EK_TEST_MAIN(cases)
