/* Pieces are compared part by part, in the order of their tables. */
#include "elastic/adopt_blocks.h"

#include <stdlib.h>

/* The parts of each piece: list[first[k]] to list[first[k + 1] - 1]. */
typedef struct {
    int64_t *first, *list;
} contents;

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

static void free_contents(contents *c)
{
    free(c->first);
    free(c->list);
}

static ek_status look_into(const ek_state_blocks *p, contents *c)
{
    c->first = calloc((size_t)p->n + 2, sizeof(*c->first));
    c->list = calloc((size_t)p->shards->n + 1, sizeof(*c->list));
    EK_REQUIRE(c->first != NULL && c->list != NULL, EK_ENOMEM, "no memory for %lld parts",
               (long long)p->shards->n);
    for (int64_t i = 0; i < p->shards->n; i++)
        c->first[ek_state_block_of(p, p->shards->shard[i].at[0]) + 2]++;
    c->first[1] = 0; /* those of none */
    for (int64_t k = 1; k <= p->n; k++)
        c->first[k + 1] += c->first[k];
    for (int64_t i = 0; i < p->shards->n; i++) {
        int64_t k = ek_state_block_of(p, p->shards->shard[i].at[0]);

        if (k >= 0)
            c->list[c->first[k + 1]++] = i;
    }
    return EK_OK;
}

static int lie_alike(const ek_shard *a, uint64_t a_at, const ek_shard *b, uint64_t b_at)
{
    int alike = a->ld == b->ld && a->slice.row == b->slice.row && a->slice.col == b->slice.col &&
                a->slice.rows == b->slice.rows && a->slice.cols == b->slice.cols;

    for (int j = 0; j < EK_STATE_ARRAYS; j++)
        alike = alike && a->at[j] - (int64_t)a_at == b->at[j] - (int64_t)b_at;
    return alike;
}

/* A piece and what is in it. */
typedef struct {
    const ek_state_blocks *p;
    const contents *c;
    int64_t k;
} block;

static int64_t count_of(const block *x)
{
    return x->c->first[x->k + 1] - x->c->first[x->k];
}

static const ek_shard *part_of(const block *x, int64_t i)
{
    return &x->p->shards->shard[x->c->list[x->c->first[x->k] + i]];
}

static uint64_t bytes_of(const block *x)
{
    return x->p->at[x->k + 1] - x->p->at[x->k];
}

/* Whether anything is wanted in a piece. */
static int is_wanted(const block *x)
{
    for (int64_t i = 0; i < count_of(x); i++)
        if (part_of(x, i)->tensor >= 0)
            return 1;
    return 0;
}

/* Whether `left` can stand for `want`: has what that wants where it wants it. */
static int serves(const block *left, const block *want)
{
    int64_t n = count_of(want);

    if (bytes_of(left) != bytes_of(want) || count_of(left) != n || n == 0)
        return 0;
    for (int64_t i = 0; i < n; i++) {
        const ek_shard *a = part_of(want, i), *b = part_of(left, i);
        int32_t tensor = a->tensor;

        if ((tensor >= 0 && b->tensor != tensor) ||
            !lie_alike(a, want->p->at[want->k], b, left->p->at[left->k]))
            return 0;
    }
    return 1;
}

/* Looks for a piece that is not used yet, and takes it. */
static void find(const ek_state_blocks *left, const contents *in, int32_t n_left, const block *want,
                 unsigned char *const *used, ek_block_source *source)
{
    for (int32_t i = 0; i < n_left; i++)
        for (int64_t j = 0; j < left[i].n; j++) {
            block x = {&left[i], &in[i], j};

            if (used[i][j] || !serves(&x, want))
                continue;
            used[i][j] = 1;
            source->from = i;
            source->block = j;
            return;
        }
}

ek_status ek_adopt_plan(const ek_state_blocks *left, int32_t n_left, const ek_state_blocks *want,
                        ek_block_source *sources)
{
    contents *in = calloc((size_t)n_left + 1, sizeof(*in));
    unsigned char **used = calloc((size_t)n_left + 1, sizeof(*used));
    contents wanted = {0};
    ek_status st = EK_OK;

    EK_REQUIRE_OUT(in != NULL && used != NULL, EK_ENOMEM, "no memory for %d ranks", (int)n_left);
    EK_TRY_OUT(look_into(want, &wanted));
    for (int32_t i = 0; i < n_left; i++) {
        used[i] = calloc((size_t)left[i].n + 1, 1);
        EK_REQUIRE_OUT(used[i] != NULL, EK_ENOMEM, "no memory for pieces");
        EK_TRY_OUT(look_into(&left[i], &in[i]));
    }
    for (int whole = 1; whole >= 0; whole--)
        for (int64_t k = 0; k < want->n; k++) {
            block x = {want, &wanted, k};

            if (is_wanted(&x) != whole)
                continue;
            sources[k] = (ek_block_source){.from = -1, .whole = whole};
            find(left, in, n_left, &x, used, &sources[k]);
        }
out:
    for (int32_t i = 0; i < n_left; i++) {
        if (in != NULL)
            free_contents(&in[i]);
        if (used != NULL)
            free(used[i]);
    }
    free_contents(&wanted);
    free(in);
    free(used);
    return st;
}
