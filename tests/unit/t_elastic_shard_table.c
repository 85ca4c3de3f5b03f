/* Shards: state is copied completely from any layout to any other, from the same host if possible,
 * else evenly from other ranks; missing tensors are reported; an invalid table is refused. */
#include "base/random.h"
#include "ek_test.h"
#include "elastic/shard_table.h"

enum { TENSORS = 7, HOLDERS = 5, PARTS = 200, BODY = 1 << 16 };

static const int64_t shape[TENSORS][2] = {{1, 1},  {7, 1},  {16, 12}, {5, 9},
                                          {1, 30}, {24, 3}, {9, 9}};

/* One rank's memory: a shard table and its numbers. */
typedef struct {
    float body[BODY];
    unsigned char table[PARTS * sizeof(ek_state_shard) + 64];
    int64_t used; /* of the body, in numbers */
    int64_t n;
} memory;

static memory left_memory[HOLDERS], wants_memory[HOLDERS];

static float number(int32_t tensor, int64_t row, int64_t col, int array)
{
    return (float)(((tensor * 40 + row) * 40 + col) * 4 + array + 1);
}

static void begin(memory *m, ek_shard_owner *h, int32_t host, int32_t rank)
{
    memset(m, 0, sizeof(*m));
    ek_shard_table_create(m->table, PARTS, &h->shards);
    h->host = host;
    h->rank = rank;
}

static void add_part(memory *m, ek_shard_owner *h, int32_t tensor, const ek_tensor_slice *slice,
                     int fill)
{
    ek_state_shard *p = &h->shards.shard[m->n++];

    p->slice = *slice;
    p->ld = slice->cols + (int64_t)(m->n % 3);
    for (int j = 0; j < EK_STATE_ARRAYS; j++) {
        p->at[j] = m->used * (int64_t)sizeof(float);
        m->used += slice->rows * p->ld;
        for (int64_t r = 0; r < slice->rows && fill; r++)
            for (int64_t c = 0; c < slice->cols; c++)
                m->body[p->at[j] / 4 + r * p->ld + c] =
                    number(tensor, slice->row + r, slice->col + c, j);
    }
    atomic_store(&p->tensor, tensor);
    CHECK(m->n <= PARTS && m->used <= BODY);
}

/* Cuts a tensor into `down` by `across` slices; slice i goes to `copies` owners from `first + i`
 * on. */
static void lay(memory *m, ek_shard_owner *h, int32_t tensor, int down, int across, int first,
                int copies, int fill)
{
    for (int i = 0; i < down * across; i++) {
        int64_t rows = shape[tensor][0], cols = shape[tensor][1];
        ek_tensor_slice b = {rows * (i / across) / down, 0, cols * (i % across) / across, 0};

        b.rows = rows * (i / across + 1) / down - b.row;
        b.cols = cols * (i % across + 1) / across - b.col;
        for (int c = 0; c < copies && b.rows > 0 && b.cols > 0; c++) {
            int to = (first + i + c) % HOLDERS;

            add_part(&m[to], &h[to], tensor, &b, fill);
        }
    }
}

static void begin_all(ek_shard_owner *left, ek_shard_owner *wants)
{
    for (int i = 0; i < HOLDERS; i++) {
        begin(&left_memory[i], &left[i], i, i);
        begin(&wants_memory[i], &wants[i], i + 2, i); /* hosts 2, 3, 4 have stayed */
    }
}

static void apply(const ek_shard_owner *left, const ek_shard_owner *wants, const ek_state_copy *c)
{
    const ek_state_shard *from = &left[c->from].shards.shard[c->from_shard];
    const ek_state_shard *to = &wants[c->to].shards.shard[c->to_shard];

    for (int j = 0; j < EK_STATE_ARRAYS; j++) {
        int64_t a = ek_shard_at(from, j, &c->slice, 4) / 4,
                b = ek_shard_at(to, j, &c->slice, 4) / 4;

        for (int64_t r = 0; r < c->slice.rows; r++)
            for (int64_t k = 0; k < c->slice.cols; k++) {
                float *x = &wants_memory[c->to].body[b + r * to->ld + k];

                CHECK(*x == 0); /* nothing is copied twice */
                *x = left_memory[c->from].body[a + r * from->ld + k];
            }
    }
}

static void check_whole(const ek_shard_owner *wants)
{
    for (int i = 0; i < HOLDERS; i++)
        for (int64_t k = 0; k < wants_memory[i].n; k++) {
            const ek_state_shard *p = &wants[i].shards.shard[k];

            for (int64_t e = 0; e < EK_STATE_ARRAYS * p->slice.rows * p->slice.cols; e++) {
                int64_t j = e % 3, r = e / 3 / p->slice.cols, c = e / 3 % p->slice.cols;

                if (wants_memory[i].body[p->at[j] / 4 + r * p->ld + c] !=
                    number(p->tensor, p->slice.row + r, p->slice.col + c, (int)j)) {
                    CHECK(!"a number that is not there");
                    return;
                }
            }
        }
}

static void from_any_layout_to_any_other(void)
{
    ek_shard_owner left[HOLDERS], wants[HOLDERS];

    for (uint64_t trial = 0; trial < 300; trial++) {
        ek_state_copy *copies = NULL;
        int64_t n = 0;
        int32_t missing = 0;

        begin_all(left, wants);
        for (int32_t t = 0; t < TENSORS; t++) {
            int x[8];

            for (int i = 0; i < 8; i++)
                x[i] = (int)(ek_random_bits(trial, (uint64_t)t, (uint64_t)i) % 4);
            lay(left_memory, left, t, x[0] + 1, x[1] + 1, x[2], x[3] + 1, 1);
            lay(wants_memory, wants, t, x[4] + 1, x[5] + 1, x[6], x[7] + 1, 0);
        }
        CHECK_INT(ek_shard_copy_plan(left, HOLDERS, wants, HOLDERS, &copies, &n, &missing), EK_OK);
        CHECK_INT(missing, -1);
        for (int64_t i = 0; i < n; i++)
            apply(left, wants, &copies[i]);
        check_whole(wants);
        free(copies);
    }
}

static void from_the_own_host(void)
{
    ek_shard_owner left[HOLDERS], wants[HOLDERS];
    ek_state_copy *copies = NULL;
    int64_t n = 0, own = 0;
    int32_t missing = 0;

    begin_all(left, wants);
    lay(left_memory, left, 2, 1, 1, 0, HOLDERS, 1);
    lay(wants_memory, wants, 2, 1, 1, 0, HOLDERS, 0);
    CHECK_INT(ek_shard_copy_plan(left, HOLDERS, wants, HOLDERS, &copies, &n, &missing), EK_OK);
    CHECK_INT(n, HOLDERS);
    for (int64_t i = 0; i < n; i++)
        own += left[copies[i].from].host == wants[copies[i].to].host;
    CHECK_INT(own, 3); /* hosts 5 and 6 are new */
    CHECK(copies[3].from != copies[4].from);
    free(copies);
}

static void evenly_from_the_others(void)
{
    ek_shard_owner left[HOLDERS], wants[HOLDERS];
    ek_state_copy *copies = NULL;
    int64_t n = 0, sent[HOLDERS] = {0}, most = 0, least = INT64_MAX;
    int32_t missing = 0;

    begin_all(left, wants);
    for (int i = 0; i < 40;
         i++) { /* 40 slices of one size, with three owners each, to a new host */
        ek_tensor_slice b = {0, 2, 0, 4};

        for (int c = 0; c < 3; c++)
            add_part(&left_memory[(i * 7 + c) % HOLDERS], &left[(i * 7 + c) % HOLDERS], i, &b, 0);
        add_part(&wants_memory[4], &wants[4], i, &b, 0);
    }
    CHECK_INT(ek_shard_copy_plan(left, HOLDERS, wants, HOLDERS, &copies, &n, &missing), EK_OK);
    CHECK_INT(missing, -1);
    for (int64_t i = 0; i < n; i++)
        sent[copies[i].from] += copies[i].slice.rows * copies[i].slice.cols;
    for (int i = 0; i < HOLDERS; i++) {
        most = sent[i] > most ? sent[i] : most;
        least = sent[i] < least ? sent[i] : least;
    }
    CHECK(most - least <= 8 && most > 0);
    free(copies);
}

static void what_is_missing(void)
{
    ek_shard_owner left[HOLDERS], wants[HOLDERS];
    ek_state_copy *copies = NULL;
    int64_t n = 0;
    int32_t missing = -1;

    begin_all(left, wants);
    for (int32_t t = 0; t < TENSORS; t++) {
        lay(left_memory, left, t, 2, 1, 0, 1, 1);
        lay(wants_memory, wants, t, 1, 1, 0, 1, 0);
    }
    /* of tensor 3, the rows of its second half are being overwritten */
    for (int64_t k = 0; k < left_memory[1].n; k++)
        if (left[1].shards.shard[k].tensor == 3)
            atomic_store(&left[1].shards.shard[k].tensor, -1);
    CHECK_INT(ek_shard_copy_plan(left, HOLDERS, wants, HOLDERS, &copies, &n, &missing), EK_OK);
    CHECK_INT(missing, 3);
    free(copies);
    CHECK_INT(ek_shard_copy_plan(NULL, 0, wants, HOLDERS, &copies, &n, &missing), EK_OK);
    CHECK_INT(missing, 0);
    free(copies);
}

static void tables_that_lie(void)
{
    ek_shard_owner h;
    ek_shard_table found;
    memory *m = &left_memory[0];
    ek_tensor_slice b = {0, 4, 0, 5};
    ek_state_shard kept;

    begin(m, &h, 0, 0);
    add_part(m, &h, 1, &b, 1);
    kept = h.shards.shard[0];
    CHECK_INT(ek_shard_table_open(m->table, sizeof(m->table), sizeof(m->body), 4, &found), EK_OK);
    CHECK_INT(found.n, PARTS);
    h.shards.shard[0].at[1] = sizeof(m->body) - 8;
    CHECK_INT(ek_shard_table_open(m->table, sizeof(m->table), sizeof(m->body), 4, &found),
              EK_ECORRUPT);
    h.shards.shard[0] = kept;
    h.shards.shard[0].slice.rows = INT64_MAX / 2;
    CHECK_INT(ek_shard_table_open(m->table, sizeof(m->table), sizeof(m->body), 4, &found),
              EK_ECORRUPT);
    h.shards.shard[0] = kept;
    h.shards.shard[0].ld = -1;
    CHECK_INT(ek_shard_table_open(m->table, sizeof(m->table), sizeof(m->body), 4, &found),
              EK_ECORRUPT);
    h.shards.shard[0] = kept;
    CHECK_INT(ek_shard_table_open(m->table, 100, sizeof(m->body), 4, &found), EK_ECORRUPT);
    m->table[0] = 'x';
    CHECK_INT(ek_shard_table_open(m->table, sizeof(m->table), sizeof(m->body), 4, &found),
              EK_ECORRUPT);
}

static const ek_case cases[] = {
    EK_CASE(from_any_layout_to_any_other),
    EK_CASE(from_the_own_host),
    EK_CASE(evenly_from_the_others),
    EK_CASE(what_is_missing),
    EK_CASE(tables_that_lie),
};

EK_TEST_MAIN(cases)
