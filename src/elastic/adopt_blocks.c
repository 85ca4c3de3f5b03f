/* Blocks are compared shard by shard, in the order of their tables. */
#include "elastic/adopt_blocks.h"

#include <stdlib.h>
#include <string.h>

/* The shards of each block k: list[first[k]] to list[first[k + 1] - 1]. */
typedef struct {
    int64_t *first, *list;
} block_index;

int64_t ek_state_block_of(const ek_state_blocks *p, int64_t byte)
{
    int64_t low = 0, high = p->n;

    if (p->n == 0 || byte < (int64_t)p->at[0] || byte >= (int64_t)p->at[p->n])
        return -1;
    while (high - low > 1) {
        int64_t middle = (low + high) / 2;

        if ((int64_t)p->at[middle] <= byte)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static void free_block_index(block_index *c)
{
    free(c->first);
    free(c->list);
}

static ek_status build_block_index(const ek_state_blocks *p, block_index *c)
{
    c->first = calloc((size_t)p->n + 2, sizeof(*c->first));
    c->list = calloc((size_t)p->shards->n + 1, sizeof(*c->list));
    EK_REQUIRE(c->first != NULL && c->list != NULL, EK_ENOMEM, "no memory for %lld shards",
               (long long)p->shards->n);
    for (int64_t i = 0; i < p->shards->n; i++)
        c->first[ek_state_block_of(p, p->shards->shard[i].at[0]) + 2]++;
    c->first[1] = 0; /* shards outside of all blocks */
    for (int64_t k = 1; k <= p->n; k++)
        c->first[k + 1] += c->first[k];
    for (int64_t i = 0; i < p->shards->n; i++) {
        int64_t k = ek_state_block_of(p, p->shards->shard[i].at[0]);

        if (k >= 0)
            c->list[c->first[k + 1]++] = i;
    }
    return EK_OK;
}

static int same_layout(const ek_state_shard *a, uint64_t a_at, const ek_state_shard *b,
                       uint64_t b_at)
{
    int alike = a->ld == b->ld && a->slice.row == b->slice.row && a->slice.col == b->slice.col &&
                a->slice.rows == b->slice.rows && a->slice.cols == b->slice.cols;

    for (int j = 0; j < EK_STATE_ARRAYS; j++)
        alike = alike && a->at[j] - (int64_t)a_at == b->at[j] - (int64_t)b_at;
    return alike;
}

/* A block of one rank's state. */
typedef struct {
    const ek_state_blocks *p;
    const block_index *c;
    int64_t k;
} block_ref;

static int64_t block_shard_count(const block_ref *x)
{
    return x->c->first[x->k + 1] - x->c->first[x->k];
}

static const ek_state_shard *block_shard(const block_ref *x, int64_t i)
{
    return &x->p->shards->shard[x->c->list[x->c->first[x->k] + i]];
}

static uint64_t block_bytes(const block_ref *x)
{
    return x->p->at[x->k + 1] - x->p->at[x->k];
}

static int holds_wanted_shard(const block_ref *x)
{
    for (int64_t i = 0; i < block_shard_count(x); i++)
        if (block_shard(x, i)->tensor >= 0)
            return 1;
    return 0;
}

/* Whether `survivor` holds the shards that `want` wants, at the same offsets. */
static int block_matches(const block_ref *survivor, const block_ref *want)
{
    int64_t n = block_shard_count(want);

    if (block_bytes(survivor) != block_bytes(want) || block_shard_count(survivor) != n || n == 0)
        return 0;
    for (int64_t i = 0; i < n; i++) {
        const ek_state_shard *a = block_shard(want, i), *b = block_shard(survivor, i);
        int32_t tensor = a->tensor;

        if ((tensor >= 0 && b->tensor != tensor) ||
            !same_layout(a, want->p->at[want->k], b, survivor->p->at[survivor->k]))
            return 0;
    }
    return 1;
}

/* Finds a matching block that is not used yet, and marks it used. */
static void find_unused_block(const ek_state_blocks *survivors, const block_index *in,
                              int32_t n_survivors, const block_ref *want,
                              unsigned char *const *used, ek_block_source *source)
{
    for (int32_t i = 0; i < n_survivors; i++)
        for (int64_t j = 0; j < survivors[i].n; j++) {
            block_ref x = {&survivors[i], &in[i], j};

            if (used[i][j] || !block_matches(&x, want))
                continue;
            used[i][j] = 1;
            source->from = i;
            source->block = j;
            return;
        }
}

ek_status ek_adopt_plan(const ek_state_blocks *survivors, int32_t n_survivors,
                        const ek_state_blocks *want, ek_block_source *sources)
{
    block_index *in = calloc((size_t)n_survivors + 1, sizeof(*in));
    unsigned char **used = calloc((size_t)n_survivors + 1, sizeof(*used));
    block_index wanted = {0};
    ek_status st = EK_OK;

    EK_REQUIRE_OUT(in != NULL && used != NULL, EK_ENOMEM, "no memory for %d ranks",
                   (int)n_survivors);
    EK_TRY_OUT(build_block_index(want, &wanted));
    for (int32_t i = 0; i < n_survivors; i++) {
        used[i] = calloc((size_t)survivors[i].n + 1, 1);
        EK_REQUIRE_OUT(used[i] != NULL, EK_ENOMEM, "no memory for %lld state blocks",
                       (long long)survivors[i].n);
        if (survivors[i].taken != NULL)
            memcpy(used[i], survivors[i].taken, (size_t)survivors[i].n);
        EK_TRY_OUT(build_block_index(&survivors[i], &in[i]));
    }
    for (int whole = 1; whole >= 0; whole--)
        for (int64_t k = 0; k < want->n; k++) {
            block_ref x = {want, &wanted, k};

            if (holds_wanted_shard(&x) != whole)
                continue;
            sources[k] = (ek_block_source){.from = -1, .whole = whole};
            find_unused_block(survivors, in, n_survivors, &x, used, &sources[k]);
        }
out:
    for (int32_t i = 0; i < n_survivors; i++) {
        if (in != NULL)
            free_block_index(&in[i]);
        if (used != NULL)
            free(used[i]);
    }
    free_block_index(&wanted);
    free(in);
    free(used);
    return st;
}
