/* Assignments are sorted by slot: a stable counting sort. */
#include "base/random.h"
#include "ek_test.h"
#include "tensor/kernels.h"
#include "tensor/ref/ref.h"

enum { TOKENS = 200, COLS = 4, SLOTS = 40 };

typedef struct {
    int32_t slot_of[SLOTS], slots; /* slot_of: by expert */
    int32_t ids[TOKENS * COLS], row_of[TOKENS * COLS], token_of[TOKENS * COLS];
    int64_t offset[SLOTS + 1];
    int64_t experts, n, cols, rows;
} fixture;

/* Experts in their order, in `slots` slots. */
static void setup(fixture *f, int32_t experts, int32_t slots, int64_t n, int64_t cols)
{
    memset(f, 0, sizeof(*f));
    for (int32_t e = 0; e < experts; e++)
        f->slot_of[e] = e;
    f->experts = experts;
    f->slots = slots;
    f->n = n;
    f->cols = cols;
}

static void dispatch(fixture *f)
{
    const ek_sorting by = {f->slot_of, f->experts, 0, f->slots};
    ek_kernels ref = {0};

    ek_kernels_ref(&ref, EK_MODE_FP32);
    memset(f->row_of, 0x55, sizeof(f->row_of));
    memset(f->token_of, 0x55, sizeof(f->token_of));
    memset(f->offset, 0x55, sizeof(f->offset));
    f->rows = ref.sort_choices(&by, f->n, f->cols, f->ids, f->row_of, f->token_of, f->offset);
}

/* Rows are a permutation of the assignments with an expert; within a slot they keep the order of
 * the assignments; offsets bound the slots. */
static void check_sorted(const fixture *f)
{
    char seen[TOKENS * COLS] = {0};
    int64_t last[SLOTS], assigned = 0;

    CHECK_INT(f->offset[0], 0);
    CHECK_INT(f->offset[f->slots], f->rows);
    for (int32_t s = 0; s < f->slots; s++) {
        CHECK(f->offset[s] <= f->offset[s + 1]);
        last[s] = f->offset[s] - 1;
    }
    for (int64_t i = 0; i < f->n * f->cols; i++) {
        int32_t e = f->ids[i], row = f->row_of[i], slot;

        if (e < 0) {
            CHECK_INT(row, -1);
            continue;
        }
        assigned++;
        slot = f->slot_of[e];
        if (row != last[slot] + 1 || row >= f->offset[slot + 1] || seen[row]) {
            EK_T_FAIL("assignment %d of expert %d is in row %d", (int)i, (int)e, (int)row);
            return;
        }
        last[slot] = row;
        seen[row] = 1;
        CHECK_INT(f->token_of[row], i / f->cols);
    }
    CHECK_INT(f->rows, assigned);
    for (int32_t s = 0; s < f->slots; s++)
        CHECK_INT(last[s] + 1, f->offset[s + 1]);
}

static void by_hand(void)
{
    const int32_t ids[] = {2, 0, 0, 2, -1, 2, 3, -4, 0, 3};
    const int32_t rows[] = {3, 0, 1, 4, -1, 5, 6, -1, 2, 7};
    const int32_t tokens[] = {0, 1, 4, 0, 1, 2, 3, 4};
    const int64_t offset[] = {0, 3, 3, 6, 8};
    fixture f;

    setup(&f, 4, 4, 5, 2);
    memcpy(f.ids, ids, sizeof(ids));
    dispatch(&f);
    CHECK_INT(f.rows, 8);
    CHECK(memcmp(f.row_of, rows, sizeof(rows)) == 0);
    CHECK(memcmp(f.token_of, tokens, sizeof(tokens)) == 0);
    CHECK(memcmp(f.offset, offset, sizeof(offset)) == 0);
    check_sorted(&f);
}

static void random_assignments(void)
{
    for (uint64_t seed = 0; seed < 300; seed++) {
        int32_t experts = 1 + (int32_t)(ek_random_bits(seed, 1, 0) % 36);
        int32_t slots = experts + (int32_t)(ek_random_bits(seed, 1, 1) % 4);
        int64_t n = (int64_t)(ek_random_bits(seed, 1, 2) % (TOKENS + 1));
        int64_t cols = 1 + (int64_t)(ek_random_bits(seed, 1, 3) % COLS);
        fixture f;

        setup(&f, experts, slots, n, cols);
        for (int64_t i = 0; i < n * cols;
             i++) /* some without expert, some dropped, few popular experts */
            f.ids[i] =
                (int32_t)(ek_random_bits(seed, 2, (uint64_t)i) % (uint64_t)(experts + 3)) - 3;
        dispatch(&f);
        check_sorted(&f);
    }
}

static void all_to_one_and_none(void)
{
    fixture f;

    setup(&f, 7, 9, TOKENS, 1);
    for (int i = 0; i < TOKENS; i++)
        f.ids[i] = 6;
    dispatch(&f);
    CHECK_INT(f.rows, TOKENS);
    check_sorted(&f);
    for (int i = 0; i < TOKENS; i++)
        f.ids[i] = -1;
    dispatch(&f);
    CHECK_INT(f.rows, 0);
    check_sorted(&f);
    f.n = 0;
    dispatch(&f);
    CHECK_INT(f.rows, 0);
}

/* Rows follow the slots of the placement, not the numbers of experts. */
static void a_permuted_placement(void)
{
    fixture f;

    setup(&f, 5, 6, TOKENS, COLS);
    for (int32_t e = 0; e < 5; e++)
        f.slot_of[e] = 5 - e;
    for (int i = 0; i < TOKENS * COLS; i++)
        f.ids[i] = (int32_t)(ek_random_bits(3, 3, (uint64_t)i) % 5);
    dispatch(&f);
    check_sorted(&f);
    CHECK_INT(f.offset[1], 0); /* slot 0 is empty */
}

static const ek_case cases[] = {
    EK_CASE(by_hand),
    EK_CASE(random_assignments),
    EK_CASE(all_to_one_and_none),
    EK_CASE(a_permuted_placement),
};
EK_TEST_MAIN(cases)
