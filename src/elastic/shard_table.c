/* Shard tables; and the copy plan, tensor by tensor, from the intersections of slices. */
#include "elastic/shard_table.h"

#include <stdlib.h>
#include <string.h>

static const char magic[8] = "EKPARTS";

typedef struct {
    char magic[8];
    int64_t n;
} table_head;

enum { HEAD_BYTES = 64 };

/* --- tables ----------------------------------------------------------------------------------- */

size_t ek_shard_table_bytes(int64_t n)
{
    return HEAD_BYTES + (((size_t)n * sizeof(ek_state_shard)) + 63) / 64 * 64;
}

static ek_state_shard *shards_in(void *memory)
{
    return (ek_state_shard *)(void *)((char *)memory + HEAD_BYTES);
}

void ek_shard_table_create(void *memory, int64_t n, ek_shard_table *out)
{
    table_head *h = memory;

    *out = (ek_shard_table){shards_in(memory), n};
    memset(out->shard, 0, (size_t)n * sizeof(*out->shard));
    for (int64_t i = 0; i < n; i++)
        atomic_init(&out->shard[i].tensor, -1);
    h->n = n;
    memcpy(h->magic, magic, sizeof(magic));
}

int64_t ek_shard_at(const ek_state_shard *p, int array, const ek_tensor_slice *slice,
                    int real_bytes)
{
    return p->at[array] +
           ((slice->row - p->slice.row) * p->ld + slice->col - p->slice.col) * real_bytes;
}

/* Whether all numbers of a shard lie in the body. */
static int shard_is_inside(const ek_state_shard *p, size_t body_bytes, int real_bytes)
{
    int64_t cap = (int64_t)body_bytes / real_bytes;
    const ek_tensor_slice *b = &p->slice;

    if (b->row < 0 || b->col < 0 || b->rows <= 0 || b->cols <= 0 || b->rows > cap ||
        b->cols > p->ld || p->ld > cap || b->row > INT64_MAX / 2 || b->col > INT64_MAX / 2 ||
        (b->rows - 1) > cap / p->ld)
        return 0;
    for (int j = 0; j < EK_STATE_ARRAYS; j++)
        if (p->at[j] < 0 || p->at[j] > (int64_t)body_bytes ||
            ((b->rows - 1) * p->ld + b->cols) * real_bytes > (int64_t)body_bytes - p->at[j])
            return 0;
    return 1;
}

ek_status ek_shard_table_open(void *memory, size_t bytes, size_t body_bytes, int real_bytes,
                              ek_shard_table *out)
{
    const table_head *h = memory;

    EK_REQUIRE(bytes >= HEAD_BYTES && memcmp(h->magic, magic, sizeof(magic)) == 0 && h->n >= 0 &&
                   (uint64_t)h->n <= (bytes - HEAD_BYTES) / sizeof(ek_state_shard),
               EK_ECORRUPT, "the state of a rank has no shard table");
    *out = (ek_shard_table){shards_in(memory), h->n};
    for (int64_t i = 0; i < h->n; i++)
        EK_REQUIRE(atomic_load(&out->shard[i].tensor) < 0 ||
                       shard_is_inside(&out->shard[i], body_bytes, real_bytes),
                   EK_ECORRUPT, "shard %lld of a rank's state lies outside of it", (long long)i);
    return EK_OK;
}

/* --- copy plan -------------------------------------------------------------------------------- */

/* A shard of a survivor. */
typedef struct {
    int32_t tensor, owner;
    int64_t shard;
    ek_tensor_slice slice;
} survivor_shard;

static int compare_survivor_shards(const void *a, const void *b)
{
    const survivor_shard *x = a, *y = b;
    const int64_t keys[][2] = {{x->tensor, y->tensor},
                               {x->slice.row, y->slice.row},
                               {x->slice.col, y->slice.col},
                               {x->slice.rows, y->slice.rows},
                               {x->slice.cols, y->slice.cols},
                               {x->owner, y->owner},
                               {x->shard, y->shard}};

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        if (keys[i][0] != keys[i][1])
            return keys[i][0] < keys[i][1] ? -1 : 1;
    return 0;
}

typedef struct {
    const ek_shard_owner *survivors, *wants;
    survivor_shard *shard; /* of all survivors, sorted by tensor, slice, owner */
    int64_t n_shards;
    int64_t *sent; /* [ranks]: numbers each sends to other hosts so far */
    ek_state_copy *copy;
    int64_t n, cap;
} copy_plan;

static int64_t count_shards(const ek_shard_owner *h, int32_t n)
{
    int64_t sum = 0;

    for (int32_t i = 0; i < n; i++)
        sum += h[i].shards.n;
    return sum;
}

static void list_survivor_shards(copy_plan *x, int32_t n_survivors)
{
    for (int32_t i = 0; i < n_survivors; i++)
        for (int64_t j = 0; j < x->survivors[i].shards.n; j++) {
            const ek_state_shard *p = &x->survivors[i].shards.shard[j];
            int32_t tensor = atomic_load_explicit(&p->tensor, memory_order_relaxed);

            if (tensor >= 0)
                x->shard[x->n_shards++] = (survivor_shard){tensor, i, j, p->slice};
        }
    qsort(x->shard, (size_t)x->n_shards, sizeof(*x->shard), compare_survivor_shards);
}

/* Index of the first shard of a tensor, or its insertion point. */
static int64_t find_tensor(const copy_plan *x, int32_t tensor)
{
    int64_t low = 0, high = x->n_shards;

    while (low < high) {
        int64_t mid = low + (high - low) / 2;

        if (x->shard[mid].tensor < tensor)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static int same_slice(const ek_tensor_slice *a, const ek_tensor_slice *b)
{
    return a->row == b->row && a->rows == b->rows && a->col == b->col && a->cols == b->cols;
}

/* The intersection of two slices; 0: it is empty. */
static int intersect_slices(const ek_tensor_slice *a, const ek_tensor_slice *b,
                            ek_tensor_slice *out)
{
    int64_t row = a->row > b->row ? a->row : b->row, col = a->col > b->col ? a->col : b->col;
    int64_t row_end = a->row + a->rows < b->row + b->rows ? a->row + a->rows : b->row + b->rows;
    int64_t col_end = a->col + a->cols < b->col + b->cols ? a->col + a->cols : b->col + b->cols;

    *out = (ek_tensor_slice){row, row_end - row, col, col_end - col};
    return out->rows > 0 && out->cols > 0;
}

/* The source among replicas [first, end): one on `host`, else the one whose rank sends least. */
static int64_t choose_source(const copy_plan *x, int64_t first, int64_t end, int32_t host)
{
    int64_t best = first;

    for (int64_t i = first; i < end; i++) {
        const ek_shard_owner *h = &x->survivors[x->shard[i].owner];

        if (h->host == host)
            return i;
        if (x->sent[h->rank] < x->sent[x->survivors[x->shard[best].owner].rank])
            best = i;
    }
    return best;
}

static ek_status append_copy(copy_plan *x, const ek_state_copy *c)
{
    if (x->n == x->cap) {
        int64_t cap = 2 * x->cap + 64;
        ek_state_copy *more = realloc(x->copy, (size_t)cap * sizeof(*more));

        EK_REQUIRE(more != NULL, EK_ENOMEM, "no memory for %lld copies", (long long)cap);
        x->copy = more;
        x->cap = cap;
    }
    x->copy[x->n++] = *c;
    return EK_OK;
}

/* Copies for one wanted shard; *available: how many of its numbers survivors hold. */
static ek_status plan_shard_copies(copy_plan *x, int32_t want, int64_t shard, int64_t *available)
{
    const ek_shard_owner *w = &x->wants[want];
    const ek_state_shard *p = &w->shards.shard[shard];
    int32_t tensor = atomic_load_explicit(&p->tensor, memory_order_relaxed);
    int64_t end;

    *available = 0;
    for (int64_t i = find_tensor(x, tensor); i < x->n_shards && x->shard[i].tensor == tensor;
         i = end) {
        ek_state_copy c = {.to = want, .to_shard = shard};
        const ek_shard_owner *from;
        int64_t source;

        for (end = i + 1; end < x->n_shards && x->shard[end].tensor == tensor &&
                          same_slice(&x->shard[end].slice, &x->shard[i].slice);)
            end++;
        if (!intersect_slices(&x->shard[i].slice, &p->slice, &c.slice))
            continue;
        source = choose_source(x, i, end, w->host);
        c.from = x->shard[source].owner;
        c.from_shard = x->shard[source].shard;
        from = &x->survivors[c.from];
        *available += c.slice.rows * c.slice.cols;
        if (from->host != w->host)
            x->sent[from->rank] += c.slice.rows * c.slice.cols;
        EK_TRY(append_copy(x, &c));
    }
    return EK_OK;
}

static int32_t count_ranks(const ek_shard_owner *survivors, int32_t n)
{
    int32_t most = 0;

    for (int32_t i = 0; i < n; i++)
        most = survivors[i].rank > most ? survivors[i].rank : most;
    return most + 1;
}

ek_status ek_shard_copy_plan(const ek_shard_owner *survivors, int32_t n_survivors,
                             const ek_shard_owner *wants, int32_t n_wants, ek_state_copy **copies,
                             int64_t *n, int32_t *missing)
{
    copy_plan x = {.survivors = survivors, .wants = wants};
    ek_status st = EK_OK;

    *missing = -1;
    x.shard = malloc(((size_t)count_shards(survivors, n_survivors) + 1) * sizeof(*x.shard));
    x.sent = calloc((size_t)count_ranks(survivors, n_survivors), sizeof(*x.sent));
    EK_REQUIRE_OUT(x.shard != NULL && x.sent != NULL, EK_ENOMEM, "no memory for %lld shards",
                   (long long)count_shards(survivors, n_survivors));
    list_survivor_shards(&x, n_survivors);
    for (int32_t i = 0; i < n_wants; i++)
        for (int64_t j = 0; j < wants[i].shards.n; j++) {
            const ek_state_shard *p = &wants[i].shards.shard[j];
            int32_t tensor = atomic_load_explicit(&p->tensor, memory_order_relaxed);
            int64_t available;

            if (tensor < 0)
                continue;
            EK_TRY_OUT(plan_shard_copies(&x, i, j, &available));
            if (available < p->slice.rows * p->slice.cols && *missing < 0)
                *missing = tensor;
        }
    *copies = x.copy;
    *n = x.n;
    x.copy = NULL;
out:
    free(x.shard);
    free(x.sent);
    free(x.copy);
    return st;
}
