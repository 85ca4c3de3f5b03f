/* The order in which ranks pass experts on, and what each link then carries. */
#include "ek_test.h"
#include "placement/passing.h"
#include "placement/placement.h"

enum { RANKS = 3, SLOTS = 2, FIRST = 12 };

/* Experts that each rank sends and gets when they are passed on in this order. */
static void count(const int32_t *expert_of, const int32_t *primary, const int32_t *order,
                  int32_t *sends, int32_t *gets)
{
    for (int32_t e = 0; e < RANKS; e++) {
        int32_t last = (primary[e] - FIRST) / SLOTS;

        for (int32_t i = 0; i < RANKS; i++)
            if (order[i] != (primary[e] - FIRST) / SLOTS &&
                ek_slot_find(expert_of + order[i] * SLOTS, SLOTS, e) >= 0) {
                sends[last]++;
                gets[order[i]]++;
                last = order[i];
            }
    }
}

/* Each rank's own expert, that of rank 0 on the others, too, and that of rank 1 on rank 0: with
 * ascending ranks rank 1 would send two and get one. */
static void no_link_carries_three(void)
{
    static const int32_t expert_of[] = {0, 1, 1, 0, 2, 0}, primary[] = {12, 14, 16};
    int32_t order[2 * RANKS], sends[RANKS] = {0}, gets[RANKS] = {0};

    ek_passing_order(expert_of, primary, RANKS, SLOTS, FIRST, order);
    CHECK(order[0] == 2 && order[1] == 0 && order[2] == 1);
    count(expert_of, primary, order, sends, gets);
    for (int r = 0; r < RANKS; r++)
        CHECK(sends[r] == 1 && gets[r] == 1);
}

static void ranks_ascend_where_none_or_all_send(void)
{
    static const int32_t none[] = {0, -1, 1, -1, 2, -1}, all[] = {0, 1, 1, 2, 2, 0};
    static const int32_t primary[] = {12, 14, 16};
    const int32_t *held[] = {none, all};

    for (int i = 0; i < 2; i++) {
        int32_t order[2 * RANKS];

        ek_passing_order(held[i], primary, RANKS, SLOTS, FIRST, order);
        for (int r = 0; r < RANKS; r++)
            CHECK_INT(order[r], r);
    }
}

static const ek_case cases[] = {
    EK_CASE(no_link_carries_three),
    EK_CASE(ranks_ascend_where_none_or_all_send),
};
EK_TEST_MAIN(cases)
