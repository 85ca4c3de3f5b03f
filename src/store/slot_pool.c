/* The account of a slot pool.  Victims are found by a scan of the slots: a scan of thousands takes
 * microseconds, and reading the expert that follows takes milliseconds. */
#include "store/slot_pool.h"

#include <stdlib.h>
#include <string.h>

enum {
    MARGIN = 16,  /* AUTO prefers LFU where it has a sixteenth more hits than LRU */
    HITS_FADE = 4 /* hits of shadows lose an eighth every so many uses for each slot */
};

/* Orders in which experts give way. */
typedef enum { BY_USE, BY_COUNT, BY_LONG_COUNT, SHADOWS, IN_PASS = SHADOWS } order;

/* Counts are halved every so many uses for each slot. */
enum { COUNTS = 2 };
static const int64_t count_fades[COUNTS] = {4, 32};

typedef struct {
    int32_t item; /* layer * experts + expert; -1: empty */
    int32_t pins;
    int64_t used; /* number of the last use */
} pool_slot;

/* The account of one eviction order. */
typedef struct {
    pool_slot *slots;
    int32_t *slot_of; /* [items], -1: none */
    int64_t hits;     /* fading, of a shadow */
} account;

struct ek_slot_pool {
    int32_t n, layers, experts;
    ek_eviction eviction;
    int64_t uses;
    uint32_t *count[COUNTS]; /* [items], uses of an expert, fading; of LFU, and of long times */
    unsigned char *kept;     /* [items], in a pass */
    account real;
    account shadow[SHADOWS]; /* AUTO: what each order alone would hold */
};

static ek_status account_create(const ek_slot_pool *p, account *a)
{
    int32_t items = p->layers * p->experts;

    a->slots = calloc((size_t)p->n, sizeof(*a->slots));
    a->slot_of = malloc((size_t)items * sizeof(*a->slot_of));
    EK_REQUIRE(a->slots != NULL && a->slot_of != NULL, EK_ENOMEM,
               "no memory for the account of %d experts", (int)items);
    for (int32_t i = 0; i < p->n; i++)
        a->slots[i].item = -1;
    for (int32_t i = 0; i < items; i++)
        a->slot_of[i] = -1;
    return EK_OK;
}

static void account_free(account *a)
{
    free(a->slots);
    free(a->slot_of);
}

ek_status ek_slot_pool_create(int32_t slots, int32_t layers, int32_t experts, ek_eviction eviction,
                              ek_slot_pool **out)
{
    ek_slot_pool *p = NULL;
    ek_status st;

    EK_REQUIRE(slots >= 1 && layers >= 1 && experts >= 1 && experts <= INT32_MAX / layers,
               EK_EINVAL, "no pool of %d slots for %d layers of %d experts", (int)slots,
               (int)layers, (int)experts);
    p = calloc(1, sizeof(*p));
    EK_REQUIRE(p != NULL, EK_ENOMEM, "no memory for a pool of slots");
    p->n = slots;
    p->layers = layers;
    p->experts = experts;
    p->eviction = eviction;
    for (int i = 0; i < COUNTS; i++) {
        p->count[i] = calloc((size_t)layers * (size_t)experts, sizeof(*p->count[i]));
        EK_REQUIRE_OUT(p->count[i] != NULL, EK_ENOMEM, "no memory for a pool of slots");
    }
    p->kept = calloc((size_t)layers * (size_t)experts, 1);
    EK_REQUIRE_OUT(p->kept != NULL, EK_ENOMEM, "no memory for a pool of slots");
    EK_TRY_OUT(account_create(p, &p->real));
    for (int i = 0; eviction == EK_EVICT_AUTO && i < SHADOWS; i++)
        EK_TRY_OUT(account_create(p, &p->shadow[i]));
    *out = p;
    p = NULL;
out:
    ek_slot_pool_destroy(&p);
    return st;
}

void ek_slot_pool_destroy(ek_slot_pool **pp)
{
    ek_slot_pool *p = *pp;

    if (p == NULL)
        return;
    account_free(&p->real);
    for (int i = 0; i < SHADOWS; i++)
        account_free(&p->shadow[i]);
    for (int i = 0; i < COUNTS; i++)
        free(p->count[i]);
    free(p->kept);
    free(p);
    *pp = NULL;
}

int32_t ek_slot_pool_find(const ek_slot_pool *p, int32_t layer, int32_t expert)
{
    return p->real.slot_of[layer * p->experts + expert];
}

/* Whether slot a gives way before slot b. */
static int before(const ek_slot_pool *p, const pool_slot *a, const pool_slot *b, order by)
{
    if (a->item < 0 || b->item < 0)
        return a->item < 0;
    if (by == IN_PASS && p->kept[a->item] != p->kept[b->item])
        return p->kept[b->item];
    if (by == BY_COUNT || by == BY_LONG_COUNT) {
        const uint32_t *count = p->count[by - BY_COUNT];

        if (count[a->item] != count[b->item])
            return count[a->item] < count[b->item];
    }
    return a->used < b->used;
}

/* An empty slot, or else the one that gives way; -1: all are pinned. */
static int32_t find_victim(const ek_slot_pool *p, const account *a, order by)
{
    int32_t victim = -1;

    for (int32_t i = 0; i < p->n; i++) {
        if (a->slots[i].pins > 0)
            continue;
        if (victim < 0 || before(p, &a->slots[i], &a->slots[victim], by))
            victim = i;
        if (a->slots[i].item < 0)
            break;
    }
    return victim;
}

static void set_item(const ek_slot_pool *p, account *a, int32_t slot, int32_t item)
{
    pool_slot *s = &a->slots[slot];

    if (s->item >= 0)
        a->slot_of[s->item] = -1;
    s->item = item;
    s->used = p->uses;
    if (item >= 0)
        a->slot_of[item] = slot;
}

/* A shadow takes every expert at once. */
static void shadow_use(const ek_slot_pool *p, account *a, int32_t item, order by)
{
    int32_t slot = a->slot_of[item];

    if (slot >= 0) {
        a->hits++;
        a->slots[slot].used = p->uses;
    } else {
        set_item(p, a, find_victim(p, a, by), item);
    }
}

/* What was long ago counts less. */
static void fade(ek_slot_pool *p)
{
    for (int c = 0; c < COUNTS; c++)
        for (int32_t i = 0; p->uses % (count_fades[c] * p->n) == 0 && i < p->layers * p->experts;
             i++)
            p->count[c][i] /= 2;
    for (int s = 0; p->uses % (HITS_FADE * (int64_t)p->n) == 0 && s < SHADOWS; s++)
        p->shadow[s].hits -= p->shadow[s].hits / 8;
}

int32_t ek_slot_pool_use(ek_slot_pool *p, int32_t layer, int32_t expert)
{
    int32_t item = layer * p->experts + expert, slot = p->real.slot_of[item];

    p->uses++;
    fade(p);
    for (int c = 0; c < COUNTS; c++)
        p->count[c][item] += 2; /* so that one use outlives a halving */
    for (int i = 0; p->eviction == EK_EVICT_AUTO && i < SHADOWS; i++)
        shadow_use(p, &p->shadow[i], item, (order)i);
    if (slot < 0)
        return -1;
    p->real.slots[slot].used = p->uses;
    p->real.slots[slot].pins++;
    return slot;
}

/* The order of the most hits, but LRU unless another has clearly more. */
static order order_of(const ek_slot_pool *p)
{
    int64_t lru = p->shadow[BY_USE].hits;
    order best = BY_USE;

    if (p->eviction != EK_EVICT_AUTO)
        return p->eviction == EK_EVICT_LRU ? BY_USE : BY_COUNT;
    for (int i = BY_COUNT; i < SHADOWS; i++)
        if (p->shadow[i].hits - lru > lru / MARGIN && p->shadow[i].hits > p->shadow[best].hits)
            best = (order)i;
    return best;
}

static int32_t take_slot(ek_slot_pool *p, int32_t layer, int32_t expert, order by)
{
    int32_t slot = find_victim(p, &p->real, by);

    if (slot < 0)
        return -1;
    set_item(p, &p->real, slot, layer * p->experts + expert);
    p->real.slots[slot].pins = 1;
    return slot;
}

int32_t ek_slot_pool_take(ek_slot_pool *p, int32_t layer, int32_t expert)
{
    return take_slot(p, layer, expert, order_of(p));
}

void ek_slot_pool_keep(ek_slot_pool *p, int32_t layer, int32_t expert)
{
    p->kept[layer * p->experts + expert] = 1;
}

int32_t ek_slot_pool_take_in_pass(ek_slot_pool *p, int32_t layer, int32_t expert)
{
    return take_slot(p, layer, expert, IN_PASS);
}

int32_t ek_slot_pool_take_empty(ek_slot_pool *p)
{
    int32_t slot = find_victim(p, &p->real, IN_PASS);

    if (slot >= 0) {
        set_item(p, &p->real, slot, -1);
        p->real.slots[slot].pins = 1;
    }
    return slot;
}

void ek_slot_pool_unpin(ek_slot_pool *p, int32_t slot)
{
    p->real.slots[slot].pins--;
}

void ek_slot_pool_drop(ek_slot_pool *p, int32_t slot)
{
    set_item(p, &p->real, slot, -1);
    p->real.slots[slot].pins = 0;
}
