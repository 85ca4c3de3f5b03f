/* Adopting blocks: a block is adopted if and only if it holds the wanted shards at the wanted
 * offsets; free blocks reuse the memory of unwanted ones; no block is used twice. */
#include "base/random.h"
#include "ek_test.h"
#include "elastic/adopt_blocks.h"

enum { PIECES = 12, IN_PIECE = 3, PARTS = PIECES * IN_PIECE, HOLDERS = 3 };

/* A body of equal blocks behind a front of 64 bytes, each with shards of the same slices. */
typedef struct {
    unsigned char table[PARTS * sizeof(ek_state_shard) + 64];
    uint64_t at[PIECES + 1];
    ek_shard_table shards;
    ek_state_blocks blocks;
} holder;

static holder left_holder[HOLDERS], want_holder;

/* content[k]: the first tensor of block k; -1: nothing. */
static ek_state_blocks lay(holder *h, const int32_t *content, int64_t n, int64_t block_bytes)
{
    memset(h, 0, sizeof(*h));
    ek_shard_table_create(h->table, n * IN_PIECE, &h->shards);
    for (int64_t k = 0; k <= n; k++)
        h->at[k] = (uint64_t)(64 + k * block_bytes);
    for (int64_t i = 0; i < n * IN_PIECE; i++) {
        ek_state_shard *p = &h->shards.shard[i];
        int64_t k = i / IN_PIECE;

        p->slice = (ek_tensor_slice){0, 4, 0, 2 + i % IN_PIECE};
        p->ld = 8;
        for (int j = 0; j < EK_STATE_ARRAYS; j++)
            p->at[j] = (int64_t)h->at[k] + (i % IN_PIECE * EK_STATE_ARRAYS + j) * 16;
        atomic_store(&p->tensor, content[k] < 0 ? -1 : content[k] + (int32_t)(i % IN_PIECE));
    }
    h->blocks = (ek_state_blocks){.shards = &h->shards, .at = h->at, .n = n};
    return h->blocks;
}

static void pieces_of_bytes(void)
{
    static const int32_t content[] = {0, 3, 6};
    ek_state_blocks p = lay(&want_holder, content, 3, 1000);

    CHECK_INT(ek_state_block_of(&p, 63), -1);
    CHECK_INT(ek_state_block_of(&p, 64), 0);
    CHECK_INT(ek_state_block_of(&p, 1063), 0);
    CHECK_INT(ek_state_block_of(&p, 1064), 1);
    CHECK_INT(ek_state_block_of(&p, 3063), 2);
    CHECK_INT(ek_state_block_of(&p, 3064), -1);
    p.n = 0;
    CHECK_INT(ek_state_block_of(&p, 64), -1);
}

static void same_ranks(void)
{
    static const int32_t content[] = {0, 3, -1, 9};
    ek_state_blocks left = lay(&left_holder[0], content, 4, 1000),
                    want = lay(&want_holder, content, 4, 1000);
    ek_block_source s[4];

    CHECK_INT(ek_adopt_plan(&left, 1, &want, s), EK_OK);
    for (int k = 0; k < 4; k++)
        CHECK(s[k].from == 0 && s[k].block == k && s[k].whole == (k != 2));
}

/* Of two plans from the same survivor the second has what the first has left. */
static void taken_blocks(void)
{
    static const int32_t content[] = {0, 3, 0, -1}, one[] = {0, 3}, two[] = {0, -1};
    unsigned char taken[4] = {0};
    ek_state_blocks left = lay(&left_holder[0], content, 4, 1000), want;
    ek_block_source s[2];

    left.taken = taken;
    want = lay(&want_holder, one, 2, 1000);
    CHECK_INT(ek_adopt_plan(&left, 1, &want, s), EK_OK);
    CHECK(s[0].block == 0 && s[1].block == 1);
    taken[0] = taken[1] = 1;
    want = lay(&want_holder, two, 2, 1000);
    CHECK_INT(ek_adopt_plan(&left, 1, &want, s), EK_OK);
    CHECK(s[0].from == 0 && s[0].block == 2 && s[0].whole);
    CHECK(s[1].from == 0 && s[1].block == 3 && !s[1].whole);
    taken[2] = 1;
    want = lay(&want_holder, one, 2, 1000);
    CHECK_INT(ek_adopt_plan(&left, 1, &want, s), EK_OK);
    CHECK(s[0].from == -1 && s[1].from == -1);
}

/* Experts of a lost rank, of a surviving one, and a free slot. */
static void other_places(void)
{
    static const int32_t one[] = {0, 3, 6}, two[] = {0, 12, 9}, wants[] = {0, -1, 9, 15, 3};
    ek_state_blocks left[] = {lay(&left_holder[0], one, 3, 1000),
                              lay(&left_holder[1], two, 3, 1000)};
    ek_state_blocks want = lay(&want_holder, wants, 5, 1000);
    ek_block_source s[5];

    CHECK_INT(ek_adopt_plan(left, 2, &want, s), EK_OK);
    CHECK(s[0].from == 0 && s[0].block == 0 && s[0].whole);
    CHECK(s[1].from == 0 && s[1].block == 2 && !s[1].whole); /* the first unused one */
    CHECK(s[2].from == 1 && s[2].block == 2 && s[2].whole);
    CHECK_INT(s[3].from, -1);
    CHECK(s[4].from == 0 && s[4].block == 1 && s[4].whole);
}

static int takes(const ek_state_blocks *left, const ek_state_blocks *want)
{
    ek_block_source s[1];

    CHECK_INT(ek_adopt_plan(left, 1, want, s), EK_OK);
    return s[0].from == 0;
}

static void what_does_not_fit(void)
{
    static const int32_t content[] = {3}, none[] = {-1};
    ek_state_blocks left = lay(&left_holder[0], content, 1, 1000),
                    want = lay(&want_holder, content, 1, 1000);
    ek_state_shard *p = &left_holder[0].shards.shard[1];

    CHECK(takes(&left, &want));
    p->at[2]++;
    CHECK(!takes(&left, &want));
    p->at[2]--;
    p->ld++;
    CHECK(!takes(&left, &want));
    p->ld--;
    p->slice.row++;
    CHECK(!takes(&left, &want));
    p->slice.row--;
    p->slice.cols++;
    CHECK(!takes(&left, &want));
    p->slice.cols--;
    atomic_store(&p->tensor, -1); /* about to be overwritten */
    CHECK(!takes(&left, &want));
    want = lay(&want_holder, none, 1, 1000);
    CHECK(takes(&left, &want)); /* as memory */
    p->at[0]++;
    CHECK(!takes(&left, &want));
    p->at[0]--;
    want = lay(&want_holder, none, 1, 1001);
    CHECK(!takes(&left, &want));
    want = lay(&want_holder, none, 1, 1000);
    want_holder.shards.n = 0; /* a tensor that the table lacks */
    CHECK(!takes(&left, &want));
}

/* Random cases: all matching blocks are adopted, none twice, with the right contents. */
static void at_random(void)
{
    for (uint64_t seed = 0; seed < 300; seed++) {
        int32_t content[PIECES], held[HOLDERS][PIECES];
        ek_state_blocks left[HOLDERS], want;
        ek_block_source s[PIECES];
        unsigned char used[HOLDERS][PIECES] = {{0}};
        uint64_t draw = 0;

        for (int i = 0; i < HOLDERS; i++) {
            for (int k = 0; k < PIECES; k++)
                held[i][k] = (int32_t)(ek_random_bits(seed, 1, draw++) % 14) * 3 - 3;
            left[i] = lay(&left_holder[i], held[i], PIECES, 1000);
        }
        for (int k = 0; k < PIECES; k++) /* no expert twice on one rank */
            content[k] = ek_random_bits(seed, 2, draw++) % 3 == 0 ? -1 : 3 * k;
        want = lay(&want_holder, content, PIECES, 1000);
        CHECK_INT(ek_adopt_plan(left, HOLDERS, &want, s), EK_OK);
        for (int k = 0; k < PIECES; k++) {
            int there = 0;

            for (int i = 0; i < HOLDERS * PIECES; i++)
                there = there || held[i / PIECES][i % PIECES] == content[k];
            CHECK_INT(s[k].whole, content[k] >= 0);
            if (content[k] >= 0)
                CHECK_INT(s[k].from >= 0, there);
            if (s[k].from < 0)
                continue;
            CHECK(!used[s[k].from][s[k].block]++);
            if (content[k] >= 0)
                CHECK_INT(held[s[k].from][s[k].block], content[k]);
        }
    }
}

static const ek_case cases[] = {
    EK_CASE(pieces_of_bytes), EK_CASE(same_ranks),        EK_CASE(taken_blocks),
    EK_CASE(other_places),    EK_CASE(what_does_not_fit), EK_CASE(at_random),
};

EK_TEST_MAIN(cases)
