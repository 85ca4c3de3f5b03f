/* Tables of parts; and the plan of copies, tensor by tensor, from boxes that overlap. */
#include "elastic/shard_table.h"

#include <stdlib.h>
#include <string.h>

static const char magic[8] = "EKPARTS";

typedef struct {
    char magic[8];
    int64_t n;
} table_head;

enum { HEAD = 64 };

/* --- tables ------------------------------------------------------------------------------------
 */

size_t ek_shard_table_bytes(int64_t n)
{
    return HEAD + (((size_t)n * sizeof(ek_shard)) + 63) / 64 * 64;
}

static ek_shard *parts_of(void *memory)
{
    return (ek_shard *)(void *)((char *)memory + HEAD);
}

void ek_shard_table_create(void *memory, int64_t n, ek_shard_table *out)
{
    table_head *h = memory;

    *out = (ek_shard_table){parts_of(memory), n};
    memset(out->shard, 0, (size_t)n * sizeof(*out->shard));
    for (int64_t i = 0; i < n; i++)
        atomic_init(&out->shard[i].tensor, -1);
    h->n = n;
    memcpy(h->magic, magic, sizeof(magic));
}

int64_t ek_shard_at(const ek_shard *p, int array, const ek_tensor_slice *slice, int real_bytes)
{
    return p->at[array] +
           ((slice->row - p->slice.row) * p->ld + slice->col - p->slice.col) * real_bytes;
}

/* Whether a part's numbers lie in the body. */
static int lies_within(const ek_shard *p, size_t body_bytes, int real_bytes)
{
    int64_t room = (int64_t)body_bytes / real_bytes;
    const ek_tensor_slice *b = &p->slice;

    if (b->row < 0 || b->col < 0 || b->rows <= 0 || b->cols <= 0 || b->rows > room ||
        b->cols > p->ld || p->ld > room || b->row > INT64_MAX / 2 || b->col > INT64_MAX / 2 ||
        (b->rows - 1) > room / p->ld)
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

    EK_REQUIRE(bytes >= HEAD && memcmp(h->magic, magic, sizeof(magic)) == 0 && h->n >= 0 &&
                   (uint64_t)h->n <= (bytes - HEAD) / sizeof(ek_shard),
               EK_ECORRUPT, "there is no table of parts in the state of a rank");
    *out = (ek_shard_table){parts_of(memory), h->n};
    for (int64_t i = 0; i < h->n; i++)
        EK_REQUIRE(atomic_load(&out->shard[i].tensor) < 0 ||
                       lies_within(&out->shard[i], body_bytes, real_bytes),
                   EK_ECORRUPT, "part %lld of a rank's state lies outside of it", (long long)i);
    return EK_OK;
}

/* --- who gives what to whom --------------------------------------------------------------------
 */

/* A part of what is left. */
typedef struct {
    int32_t tensor, holder;
    int64_t shard;
    ek_tensor_slice slice;
} block;

static int compare(const void *a, const void *b)
{
    const block *x = a, *y = b;
    const int64_t keys[][2] = {{x->tensor, y->tensor},
                               {x->slice.row, y->slice.row},
                               {x->slice.col, y->slice.col},
                               {x->slice.rows, y->slice.rows},
                               {x->slice.cols, y->slice.cols},
                               {x->holder, y->holder},
                               {x->shard, y->shard}};

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        if (keys[i][0] != keys[i][1])
            return keys[i][0] < keys[i][1] ? -1 : 1;
    return 0;
}

typedef struct {
    const ek_shard_owner *left, *wants;
    block *block; /* what is left: by tensor, box, holder */
    int64_t blocks;
    int64_t *sent; /* by rank: numbers to send to other hosts so far */
    ek_state_copy *copy;
    int64_t n, room;
} plan;

static int64_t count(const ek_shard_owner *h, int32_t n)
{
    int64_t sum = 0;

    for (int32_t i = 0; i < n; i++)
        sum += h[i].shards.n;
    return sum;
}

static void list_pieces(plan *x, int32_t n_left)
{
    for (int32_t i = 0; i < n_left; i++)
        for (int64_t j = 0; j < x->left[i].shards.n; j++) {
            const ek_shard *p = &x->left[i].shards.shard[j];
            int32_t tensor = atomic_load_explicit(&p->tensor, memory_order_relaxed);

            if (tensor >= 0)
                x->block[x->blocks++] = (block){tensor, i, j, p->slice};
        }
    qsort(x->block, (size_t)x->blocks, sizeof(*x->block), compare);
}

/* The first piece of a tensor, or where it would stand. */
static int64_t find(const plan *x, int32_t tensor)
{
    int64_t low = 0, high = x->blocks;

    while (low < high) {
        int64_t mid = low + (high - low) / 2;

        if (x->block[mid].tensor < tensor)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static int is_same(const ek_tensor_slice *a, const ek_tensor_slice *b)
{
    return a->row == b->row && a->rows == b->rows && a->col == b->col && a->cols == b->cols;
}

/* What two boxes have in common; 0: nothing. */
static int meet(const ek_tensor_slice *a, const ek_tensor_slice *b, ek_tensor_slice *out)
{
    int64_t row = a->row > b->row ? a->row : b->row, col = a->col > b->col ? a->col : b->col;
    int64_t row_end = a->row + a->rows < b->row + b->rows ? a->row + a->rows : b->row + b->rows;
    int64_t col_end = a->col + a->cols < b->col + b->cols ? a->col + a->cols : b->col + b->cols;

    *out = (ek_tensor_slice){row, row_end - row, col, col_end - col};
    return out->rows > 0 && out->cols > 0;
}

/* Of pieces [first, end), replicas of each other, who gives: somebody on the host of who wants it,
 * or who has least to send. */
static int64_t choose(const plan *x, int64_t first, int64_t end, int32_t host)
{
    int64_t best = first;

    for (int64_t i = first; i < end; i++) {
        const ek_shard_owner *h = &x->left[x->block[i].holder];

        if (h->host == host)
            return i;
        if (x->sent[h->rank] < x->sent[x->left[x->block[best].holder].rank])
            best = i;
    }
    return best;
}

static ek_status add(plan *x, const ek_state_copy *c)
{
    if (x->n == x->room) {
        int64_t room = 2 * x->room + 64;
        ek_state_copy *more = realloc(x->copy, (size_t)room * sizeof(*more));

        EK_REQUIRE(more != NULL, EK_ENOMEM, "no memory for %lld copies", (long long)room);
        x->copy = more;
        x->room = room;
    }
    x->copy[x->n++] = *c;
    return EK_OK;
}

/* Copies for one part that is wanted; *there: the numbers of it that are left. */
static ek_status plan_part(plan *x, int32_t want, int64_t shard, int64_t *there)
{
    const ek_shard_owner *w = &x->wants[want];
    const ek_shard *p = &w->shards.shard[shard];
    int32_t tensor = atomic_load_explicit(&p->tensor, memory_order_relaxed);
    int64_t end;

    *there = 0;
    for (int64_t i = find(x, tensor); i < x->blocks && x->block[i].tensor == tensor; i = end) {
        ek_state_copy c = {.to = want, .to_shard = shard};
        const ek_shard_owner *from;
        int64_t given;

        for (end = i + 1; end < x->blocks && x->block[end].tensor == tensor &&
                          is_same(&x->block[end].slice, &x->block[i].slice);)
            end++;
        if (!meet(&x->block[i].slice, &p->slice, &c.slice))
            continue;
        given = choose(x, i, end, w->host);
        c.from = x->block[given].holder;
        c.from_shard = x->block[given].shard;
        from = &x->left[c.from];
        *there += c.slice.rows * c.slice.cols;
        if (from->host != w->host)
            x->sent[from->rank] += c.slice.rows * c.slice.cols;
        EK_TRY(add(x, &c));
    }
    return EK_OK;
}

static int32_t ranks_of(const ek_shard_owner *left, int32_t n)
{
    int32_t most = 0;

    for (int32_t i = 0; i < n; i++)
        most = left[i].rank > most ? left[i].rank : most;
    return most + 1;
}

ek_status ek_shard_copy_plan(const ek_shard_owner *left, int32_t n_left,
                             const ek_shard_owner *wants, int32_t n_wants, ek_state_copy **copies,
                             int64_t *n, int32_t *missing)
{
    plan x = {.left = left, .wants = wants};
    ek_status st = EK_OK;

    *missing = -1;
    x.block = malloc(((size_t)count(left, n_left) + 1) * sizeof(*x.block));
    x.sent = calloc((size_t)ranks_of(left, n_left), sizeof(*x.sent));
    EK_REQUIRE_OUT(x.block != NULL && x.sent != NULL, EK_ENOMEM, "no memory for %lld parts",
                   (long long)count(left, n_left));
    list_pieces(&x, n_left);
    for (int32_t i = 0; i < n_wants; i++)
        for (int64_t j = 0; j < wants[i].shards.n; j++) {
            const ek_shard *p = &wants[i].shards.shard[j];
            int32_t tensor = atomic_load_explicit(&p->tensor, memory_order_relaxed);
            int64_t there;

            if (tensor < 0)
                continue;
            EK_TRY_OUT(plan_part(&x, i, j, &there));
            if (there < p->slice.rows * p->slice.cols && *missing < 0)
                *missing = tensor;
        }
    *copies = x.copy;
    *n = x.n;
    x.copy = NULL;
out:
    free(x.block);
    free(x.sent);
    free(x.copy);
    return st;
}
