/* Slot pools on the routing of trained models (tests/golden/routing), against Belady's algorithm,
 * which knows all later uses: AUTO never misses clearly more than LRU, and comes nearer to Belady.
 */
#include "ek_test.h"
#include "store/slot_pool.h"

enum { ITEMS_MAX = 6 * 64, NEVER = INT32_MAX };

typedef struct {
    int32_t layers, experts, n;
    int32_t *item; /* [n], layer * experts + expert */
} trace;

static void read_trace(int32_t layers, int32_t experts, int32_t top_k, trace *t)
{
    char path[256];
    FILE *f;
    int c;

    *t = (trace){.layers = layers, .experts = experts};
    snprintf(path, sizeof(path), EK_TEST_DATA "/golden/routing/%d_layers_%d_experts_top_%d.bin",
             (int)layers, (int)experts, (int)top_k);
    f = fopen(path, "rb");
    CHECK(f != NULL);
    if (f == NULL)
        return;
    t->item = calloc(1 << 16, sizeof(*t->item));
    for (; t->item != NULL && t->n < 1 << 16 && (c = fgetc(f)) != EOF; t->n++)
        t->item[t->n] = t->n / top_k % layers * experts + c;
    fclose(f);
}

static int32_t misses_of(const trace *t, int32_t slots, ek_eviction eviction)
{
    ek_slot_pool *p = NULL;
    int32_t misses = 0;

    CHECK(ek_slot_pool_create(slots, t->layers, t->experts, eviction, &p) == EK_OK);
    for (int32_t i = 0; i < t->n; i++) {
        int32_t l = t->item[i] / t->experts, e = t->item[i] % t->experts;
        int32_t slot = ek_slot_pool_use(p, l, e);

        misses += slot < 0;
        if (slot < 0)
            slot = ek_slot_pool_take(p, l, e);
        ek_slot_pool_unpin(p, slot);
    }
    ek_slot_pool_destroy(&p);
    return misses;
}

/* The fewest misses that are possible: the expert whose next use is farthest gives way. */
static int32_t fewest_misses(const trace *t, int32_t slots)
{
    int32_t *next = calloc((size_t)t->n + 1, sizeof(*next)), misses = 0, held = 0;
    int32_t next_of[ITEMS_MAX], until[ITEMS_MAX]; /* held experts: their next use; 0: not held */

    for (int32_t i = 0; i < ITEMS_MAX; i++) {
        next_of[i] = NEVER;
        until[i] = 0;
    }
    for (int32_t i = t->n - 1; next != NULL && i >= 0; i--) {
        next[i] = next_of[t->item[i]];
        next_of[t->item[i]] = i;
    }
    for (int32_t i = 0; next != NULL && i < t->n; i++) {
        int32_t victim = -1;

        if (until[t->item[i]] == 0) {
            misses++;
            for (int32_t k = 0; held == slots && k < t->layers * t->experts; k++)
                if (until[k] != 0 && (victim < 0 || until[k] > until[victim]))
                    victim = k;
            if (victim >= 0)
                until[victim] = 0;
            held += victim < 0;
        }
        until[t->item[i]] = next[i];
    }
    free(next);
    return misses;
}

/* least_gain: of AUTO over LRU, in hundredths of what Belady gains. */
static void compare(int32_t layers, int32_t experts, int32_t top_k, int32_t least_gain)
{
    trace t;

    read_trace(layers, experts, top_k, &t);
    CHECK(t.n > 5000);
    for (int32_t part = 8; part >= 2 && t.n > 0; part /= 2) {
        int32_t slots = layers * experts / part, lru = misses_of(&t, slots, EK_EVICT_LRU);
        int32_t lfu = misses_of(&t, slots, EK_EVICT_LFU), best = fewest_misses(&t, slots);
        int32_t adaptive = misses_of(&t, slots, EK_EVICT_AUTO);

        printf("%d experts, %d slots, misses: lru %.1f %%, lfu %.1f, auto %.1f, belady %.1f; auto "
               "gains %.2f of what belady does\n",
               (int)(layers * experts), (int)slots, 100.0 * lru / t.n, 100.0 * lfu / t.n,
               100.0 * adaptive / t.n, 100.0 * best / t.n,
               (double)(lru - adaptive) / (double)(lru - best));
        CHECK(best < lru && best < lfu && best < adaptive);
        CHECK(adaptive <= lru + t.n / 100);
        CHECK(100 * (lru - adaptive) >= least_gain * (lru - best));
    }
    free(t.item);
}

static void auto_gains_on_trained_models(void)
{
    compare(6, 32, 4, 15);
    compare(6, 64, 8, 15);
    compare(4, 16, 2, 15);
}

/* A known case: with two slots, A B C A B C misses A, B, C, and then B or C once. */
static void belady_is_the_optimum(void)
{
    int32_t item[] = {0, 1, 2, 0, 1, 2};
    trace t = {.layers = 1, .experts = 3, .n = 6, .item = item};

    CHECK_INT(fewest_misses(&t, 2), 4);
    CHECK_INT(fewest_misses(&t, 3), 3);
    CHECK_INT(fewest_misses(&t, 1), 6);
    CHECK_INT(misses_of(&t, 2, EK_EVICT_LRU), 6);
}

static const ek_case cases[] = {
    EK_CASE(belady_is_the_optimum),
    EK_CASE(auto_gains_on_trained_models),
};
EK_TEST_MAIN(cases)
