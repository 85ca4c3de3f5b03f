/* Byte pair encoding.  Each thread caches the ids of short words; a short word is merged by
 * scanning it, a long one with a heap of candidate pairs. */
#include "data/bpe.h"

#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

enum {
    CACHE_SLOTS = 1 << 15, /* 64 bytes each: 2 MiB a thread */
    CACHE_BYTES = 22,
    CACHE_IDS = 10,
    SCAN_MAX = 48 /* bytes; longer words use the heap */
};

struct ek_bpe_word {
    uint8_t n, n_ids; /* n 0: empty */
    unsigned char bytes[CACHE_BYTES];
    int32_t ids[CACHE_IDS];
};

/* A symbol of a long word: a doubly linked list, -1 at the ends. */
struct ek_bpe_symbol {
    uint32_t id;
    int64_t prev, next;
};

/* A candidate merge: the symbol at `at` with the next one. */
struct ek_bpe_entry {
    uint32_t rank, left, right, id;
    int64_t at;
};

static const uint32_t dead = UINT32_MAX; /* id of a symbol that was merged into its neighbour */

ek_status ek_ids_reserve(ek_ids *l, int64_t more)
{
    int64_t cap;
    int32_t *grown;

    if (l->cap - l->n >= more)
        return EK_OK;
    cap = l->cap + l->cap / 2 + more + 64;
    grown = realloc(l->ids, (size_t)cap * sizeof(*grown));
    EK_REQUIRE(grown != NULL, EK_ENOMEM, "no memory for %lld tokens", (long long)cap);
    l->ids = grown;
    l->cap = cap;
    return EK_OK;
}

ek_status ek_ids_push(ek_ids *l, uint32_t id)
{
    if (l->n == l->cap)
        EK_TRY(ek_ids_reserve(l, 1));
    l->ids[l->n++] = (int32_t)id;
    return EK_OK;
}

static size_t power_above(int64_t n)
{
    size_t p = 16;

    while (p < (size_t)n)
        p *= 2;
    return p;
}

ek_status ek_bpe_begin(ek_bpe *b, int64_t n_ids, int64_t n_tokens, int64_t n_merges)
{
    EK_REQUIRE(n_ids <= EK_IDS_MAX, EK_EFORMAT, "id %lld is beyond %d, the largest supported",
               (long long)n_ids - 1, EK_IDS_MAX - 1);
    memset(b, 0, sizeof(*b));
    b->n_ids = n_ids;
    b->n_merges = n_merges;
    b->n_slots = power_above(2 * n_tokens);
    b->merge_slots = power_above(2 * n_merges);
    b->tokens = calloc((size_t)n_ids + 1, sizeof(*b->tokens));
    b->slots = calloc(b->n_slots, sizeof(*b->slots));
    b->merges = calloc(b->merge_slots, sizeof(*b->merges));
    EK_REQUIRE(b->tokens != NULL && b->slots != NULL && b->merges != NULL, EK_ENOMEM,
               "no memory for a vocabulary of %lld tokens and %lld merges", (long long)n_tokens,
               (long long)n_merges);
    return EK_OK;
}

/* The slot of these bytes, or the empty one to insert them in. */
static size_t find_slot(const ek_bpe *b, const unsigned char *bytes, size_t n)
{
    size_t slot = XXH3_64bits(bytes, n) & (b->n_slots - 1);

    while (b->slots[slot] != 0) {
        const ek_token *t = &b->tokens[b->slots[slot] - 1];

        if (t->n == n && memcmp(b->blob + t->at, bytes, n) == 0)
            break;
        slot = (slot + 1) & (b->n_slots - 1);
    }
    return slot;
}

ek_status ek_bpe_add(ek_bpe *b, int64_t id, const unsigned char *bytes, size_t n, int added)
{
    ek_token *t = &b->tokens[id];

    if (b->blob_cap - b->blob_n < n + 1) {
        size_t cap = 2 * b->blob_cap + n + 4096;
        unsigned char *grown = realloc(b->blob, cap);

        EK_REQUIRE(grown != NULL, EK_ENOMEM, "no memory for %zu bytes of tokens", cap);
        b->blob = grown;
        b->blob_cap = cap;
    }
    *t = (ek_token){.at = b->blob_n, .n = (uint32_t)n, .used = 1, .added = (uint8_t)added};
    memcpy(b->blob + b->blob_n, bytes, n);
    b->blob_n += n;
    if (!added)
        b->slots[find_slot(b, bytes, n)] = (uint32_t)id + 1;
    return EK_OK;
}

int64_t ek_bpe_find(const ek_bpe *b, const unsigned char *bytes, size_t n)
{
    return (int64_t)b->slots[find_slot(b, bytes, n)] - 1;
}

static size_t merge_slot(const ek_bpe *b, uint64_t pair)
{
    size_t slot = (size_t)(pair * 0x9E3779B97F4A7C15u >> 20) & (b->merge_slots - 1);

    while (b->merges[slot].pair != 0 && b->merges[slot].pair != pair)
        slot = (slot + 1) & (b->merge_slots - 1);
    return slot;
}

/* The merge of two neighbours; its pair is 0 if they have none. */
static const ek_merge *find_merge(const ek_bpe *b, uint32_t left, uint32_t right)
{
    return &b->merges[merge_slot(b, ((uint64_t)left << 32 | right) + 1)];
}

void ek_bpe_merge(ek_bpe *b, uint32_t left, uint32_t right, uint32_t rank, uint32_t id)
{
    uint64_t pair = ((uint64_t)left << 32 | right) + 1;

    b->merges[merge_slot(b, pair)] = (ek_merge){.pair = pair, .rank = rank, .id = id};
}

ek_status ek_bpe_finish(ek_bpe *b, const char *name)
{
    for (unsigned v = 0; v < 256; v++) {
        unsigned char byte = (unsigned char)v;
        int64_t id = ek_bpe_find(b, &byte, 1);

        EK_REQUIRE(id >= 0, EK_EFORMAT,
                   "%s: the vocabulary has no token for byte 0x%02x; all 256 are needed, so that "
                   "any text can be encoded",
                   name, v);
        b->byte_id[v] = (uint32_t)id;
    }
    return EK_OK;
}

void ek_bpe_release(ek_bpe *b)
{
    free(b->tokens);
    free(b->blob);
    free(b->slots);
    free(b->merges);
    memset(b, 0, sizeof(*b));
}

void ek_bpe_work_release(ek_bpe_work *w)
{
    free(w->cache);
    free(w->symbols);
    free(w->heap);
    free(w->ids);
    memset(w, 0, sizeof(*w));
}

/* A short word: find the best pair, merge it, close the gap, until none is left. */
static ek_status encode_scan(const ek_bpe *b, uint32_t *ids, size_t n, ek_ids *out)
{
    const ek_merge *pairs[SCAN_MAX]; /* of ids[i] and ids[i + 1]; NULL: none */

    for (size_t i = 0; i + 1 < n; i++) {
        pairs[i] = find_merge(b, ids[i], ids[i + 1]);
        if (pairs[i]->pair == 0)
            pairs[i] = NULL;
    }
    for (;;) {
        const ek_merge *best = NULL;
        size_t at = 0;

        for (size_t i = 0; i + 1 < n; i++) {
            if (pairs[i] != NULL && (best == NULL || pairs[i]->rank < best->rank)) {
                best = pairs[i];
                at = i;
            }
        }
        if (best == NULL)
            break;
        ids[at] = best->id;
        n--;
        memmove(&ids[at + 1], &ids[at + 2], (n - at - 1) * sizeof(ids[0]));
        if (n > at + 1)
            memmove(&pairs[at], &pairs[at + 1], (n - at - 1) * sizeof(pairs[0]));
        for (size_t i = at == 0 ? 0 : at - 1; i <= at && i + 1 < n; i++) {
            pairs[i] = find_merge(b, ids[i], ids[i + 1]);
            if (pairs[i]->pair == 0)
                pairs[i] = NULL;
        }
    }
    EK_TRY(ek_ids_reserve(out, (int64_t)n));
    for (size_t i = 0; i < n; i++)
        out->ids[out->n++] = (int32_t)ids[i];
    return EK_OK;
}

static int is_before(const struct ek_bpe_entry *a, const struct ek_bpe_entry *b)
{
    return a->rank < b->rank || (a->rank == b->rank && a->at < b->at);
}

/* Pushes the pair at `at` if it can be merged.  The heap is large enough: n - 1 pairs at first, and
 * each of at most n - 1 merges pops one and pushes two. */
static void heap_push(const ek_bpe *b, ek_bpe_work *w, int64_t at)
{
    const struct ek_bpe_symbol *s = w->symbols;
    struct ek_bpe_entry e = {.at = at};
    const ek_merge *m;
    size_t i = w->heap_n;

    if (at < 0 || s[at].next < 0)
        return;
    e.left = s[at].id;
    e.right = s[s[at].next].id;
    m = find_merge(b, e.left, e.right);
    if (m->pair == 0)
        return;
    e.rank = m->rank;
    e.id = m->id;
    w->heap_n++;
    for (; i > 0 && is_before(&e, &w->heap[(i - 1) / 2]); i = (i - 1) / 2)
        w->heap[i] = w->heap[(i - 1) / 2];
    w->heap[i] = e;
}

static struct ek_bpe_entry heap_pop(ek_bpe_work *w)
{
    struct ek_bpe_entry top = w->heap[0], last = w->heap[--w->heap_n];
    size_t i = 0, child;

    for (; (child = 2 * i + 1) < w->heap_n; i = child) {
        if (child + 1 < w->heap_n && is_before(&w->heap[child + 1], &w->heap[child]))
            child++;
        if (!is_before(&w->heap[child], &last))
            break;
        w->heap[i] = w->heap[child];
    }
    w->heap[i] = last;
    return top;
}

static ek_status reserve_heap(ek_bpe_work *w, size_t n)
{
    if (n > w->symbols_cap) {
        free(w->symbols);
        free(w->heap);
        w->symbols_cap = 0;
        w->heap_cap = 0;
        w->symbols = malloc(n * sizeof(*w->symbols));
        w->heap = malloc(2 * n * sizeof(*w->heap));
        EK_REQUIRE(w->symbols != NULL && w->heap != NULL, EK_ENOMEM,
                   "no memory for encoding a word of %zu symbols", n);
        w->symbols_cap = n;
        w->heap_cap = 2 * n;
    }
    w->heap_n = 0;
    return EK_OK;
}

static ek_status encode_heap(const ek_bpe *b, ek_bpe_work *w, size_t n, ek_ids *out)
{
    struct ek_bpe_symbol *s;

    EK_TRY(reserve_heap(w, n));
    s = w->symbols;
    for (size_t i = 0; i < n; i++)
        s[i] = (struct ek_bpe_symbol){
            .id = w->ids[i], .prev = (int64_t)i - 1, .next = i + 1 < n ? (int64_t)i + 1 : -1};
    for (size_t i = 0; i + 1 < n; i++)
        heap_push(b, w, (int64_t)i);
    while (w->heap_n > 0) {
        struct ek_bpe_entry e = heap_pop(w);
        int64_t gone = s[e.at].next;

        if (s[e.at].id != e.left || gone < 0 || s[gone].id != e.right)
            continue; /* one of the two has been merged since */
        s[e.at].id = e.id;
        s[e.at].next = s[gone].next;
        if (s[gone].next >= 0)
            s[s[gone].next].prev = e.at;
        s[gone].id = dead;
        heap_push(b, w, s[e.at].prev);
        heap_push(b, w, e.at);
    }
    for (int64_t i = 0; i >= 0; i = s[i].next)
        EK_TRY(ek_ids_push(out, s[i].id));
    return EK_OK;
}

ek_status ek_bpe_reserve_symbols(ek_bpe_work *w, size_t n)
{
    size_t cap = 2 * n + 64;
    uint32_t *grown;

    if (n <= w->ids_cap)
        return EK_OK;
    grown = realloc(w->ids, cap * sizeof(*grown));
    EK_REQUIRE(grown != NULL, EK_ENOMEM, "no memory for encoding a word of %zu symbols", n);
    w->ids = grown;
    w->ids_cap = cap;
    return EK_OK;
}

/* The cache entry of a short word, NULL for a long one; *hit: the word was found, and its ids were
 * appended. */
static ek_status find_cached(ek_bpe_work *w, const unsigned char *word, size_t n, ek_ids *out,
                             struct ek_bpe_word **place, int *hit)
{
    struct ek_bpe_word *cached;

    *place = NULL;
    *hit = 0;
    if (n > CACHE_BYTES)
        return EK_OK;
    if (w->cache == NULL) {
        w->cache = calloc(CACHE_SLOTS, sizeof(*w->cache));
        EK_REQUIRE(w->cache != NULL, EK_ENOMEM, "no memory for a cache of words");
    }
    cached = *place = &w->cache[XXH3_64bits(word, n) & (CACHE_SLOTS - 1)];
    if (cached->n != n || memcmp(cached->bytes, word, n) != 0)
        return EK_OK;
    EK_TRY(ek_ids_reserve(out, CACHE_IDS));
    memcpy(out->ids + out->n, cached->ids, sizeof(cached->ids));
    out->n += cached->n_ids;
    *hit = 1;
    return EK_OK;
}

/* Caches the ids appended from `from` on. */
static void cache_ids(struct ek_bpe_word *place, const unsigned char *word, size_t n,
                      const ek_ids *out, int64_t from)
{
    if (place == NULL || out->n - from > CACHE_IDS)
        return;
    place->n = (uint8_t)n;
    place->n_ids = (uint8_t)(out->n - from);
    memcpy(place->bytes, word, n);
    memcpy(place->ids, out->ids + from, place->n_ids * sizeof(place->ids[0]));
}

static ek_status encode_ids(const ek_bpe *b, ek_bpe_work *w, size_t n, ek_ids *out)
{
    return n <= SCAN_MAX ? encode_scan(b, w->ids, n, out) : encode_heap(b, w, n, out);
}

ek_status ek_bpe_encode_symbols(const ek_bpe *b, ek_bpe_work *w, const unsigned char *word,
                                size_t n, size_t n_ids, ek_ids *out)
{
    struct ek_bpe_word *place;
    int64_t from = out->n;
    int hit;

    EK_TRY(find_cached(w, word, n, out, &place, &hit));
    if (hit)
        return EK_OK;
    EK_TRY(encode_ids(b, w, n_ids, out));
    cache_ids(place, word, n, out, from);
    return EK_OK;
}

ek_status ek_bpe_encode(const ek_bpe *b, ek_bpe_work *w, const unsigned char *word, size_t n,
                        ek_ids *out)
{
    struct ek_bpe_word *place;
    int64_t from = out->n, id;
    int hit;

    if (n == 0)
        return EK_OK;
    if (n == 1)
        return ek_ids_push(out, b->byte_id[word[0]]);
    EK_TRY(find_cached(w, word, n, out, &place, &hit));
    if (hit)
        return EK_OK;
    id = b->whole_words ? ek_bpe_find(b, word, n) : -1;
    if (id >= 0) {
        EK_TRY(ek_ids_push(out, (uint32_t)id));
    } else {
        EK_TRY(ek_bpe_reserve_symbols(w, n));
        for (size_t i = 0; i < n; i++)
            w->ids[i] = b->byte_id[word[i]];
        EK_TRY(encode_ids(b, w, n, out));
    }
    cache_ids(place, word, n, out, from);
    return EK_OK;
}
