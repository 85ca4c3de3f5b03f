/* Linear assignment: against all permutations, and at sizes where the potentials prove optimality.
 */
#include "balance/assign.h"
#include "base/random.h"
#include "ek_test.h"

#include <string.h>

enum { SMALL = 7, LARGE = 200 };

typedef struct {
    ek_arena arena;
    ek_assign a;
} fixture;

static int64_t cost[LARGE * LARGE];

static void setup(fixture *f, int32_t most)
{
    ek_arena_measure(&f->arena);
    ek_assign_reserve(&f->a, &f->arena, most);
    CHECK(ek_arena_reserve(&f->arena, "an assignment") == EK_OK);
    ek_assign_reserve(&f->a, &f->arena, most);
}

static void teardown(fixture *f)
{
    ek_arena_fini(&f->arena);
}

/* Random costs of either sign, below 2^shift. */
static void draw(uint64_t seed, int32_t n, int shift)
{
    for (int32_t i = 0; i < n * n; i++)
        cost[i] =
            (int64_t)(ek_random_bits(seed, 1, (uint64_t)i) >> (63 - shift)) - (INT64_C(1) << shift);
}

/* The minimum over all permutations of rows from `row` on, columns in `used` being taken. */
static int64_t by_trying(int32_t n, int32_t row, unsigned used)
{
    int64_t best = INT64_MAX;

    if (row == n)
        return 0;
    for (int32_t j = 0; j < n; j++)
        if ((used >> j & 1) == 0) {
            int64_t c = cost[row * n + j] + by_trying(n, row + 1, used | 1U << j);

            best = c < best ? c : best;
        }
    return best;
}

/* Checks that each column is used once and that the sum is right. */
static void check(int32_t n, const int32_t *column_of, int64_t sum)
{
    unsigned char seen[LARGE] = {0};

    for (int32_t i = 0; i < n; i++) {
        CHECK(column_of[i] >= 0 && column_of[i] < n && !seen[column_of[i]]);
        seen[column_of[i]] = 1;
        sum -= cost[i * n + column_of[i]];
    }
    CHECK_INT(sum, 0);
}

static void matches_all_permutations(void)
{
    int32_t column_of[SMALL], again[SMALL];
    fixture f;

    setup(&f, SMALL);
    for (uint64_t n = 0; n < 600; n++) {
        int32_t size = 1 + (int32_t)(n % SMALL);
        int64_t sum;

        draw(n, size, n % 3 == 0 ? 1 : n % 3 == 1 ? 4 : 58); /* many equal, few, none */
        sum = ek_assign_rows(&f.a, size, cost, column_of);
        check(size, column_of, sum);
        CHECK_INT(sum, by_trying(size, 0, 0));
        CHECK_INT(ek_assign_rows(&f.a, size, cost, again), sum);
        CHECK(memcmp(column_of, again, (size_t)size * sizeof(*again)) == 0);
    }
    teardown(&f);
}

/* A greedy assignment leaves the last row with the worst column. */
static void turns_are_not_enough(void)
{
    static const int64_t dear[] = {0, 1, 2, 1, 3, 9, 2, 4, 90};
    int32_t column_of[3];
    fixture f;

    memcpy(cost, dear, sizeof(dear));
    setup(&f, 3);
    CHECK_INT(ek_assign_rows(&f.a, 3, cost, column_of), 7); /* greedy: 93 */
    check(3, column_of, 7);
    CHECK_INT(ek_assign_rows(&f.a, 0, cost, column_of), 0);
    teardown(&f);
}

/* u_i + v_j <= cost_ij everywhere and sum u + sum v = cost: optimal by duality. */
static void potentials_prove_it(void)
{
    int32_t column_of[LARGE];
    fixture f;

    setup(&f, LARGE);
    for (uint64_t n = 0; n < 4; n++) {
        int64_t sum, bound = 0;

        draw(n, LARGE, n % 2 == 0 ? 5 : 50);
        sum = ek_assign_rows(&f.a, LARGE, cost, column_of);
        check(LARGE, column_of, sum);
        for (int32_t i = 0; i < LARGE; i++) {
            bound += f.a.u[i] + f.a.v[i];
            for (int32_t j = 0; j < LARGE; j++)
                if (f.a.u[i] + f.a.v[j] > cost[i * LARGE + j]) {
                    EK_T_FAIL("row %d, column %d", (int)i, (int)j);
                    i = j = LARGE;
                }
        }
        CHECK_INT(bound, sum);
    }
    teardown(&f);
}

static const ek_case cases[] = {
    EK_CASE(matches_all_permutations),
    EK_CASE(turns_are_not_enough),
    EK_CASE(potentials_prove_it),
};
EK_TEST_MAIN(cases)
