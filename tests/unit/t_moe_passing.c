/* Lists of the ranks that pass an expert's weights on: those that send experts of their own come
 * last, and outputs and gradients are those of one rank. */
#include "moe/replica_weights.h"
#include "moe_ranks.h"
#include "random_planner.h"

/* Replicas of expert 0, of rank 0, on ranks 1 and 2, and of rank 1's expert 2 on rank 0. */
static ek_status plan_three(void *memory, const ek_plan_limits *l, const int64_t *counts,
                            ek_plan *p)
{
    static const int32_t expert[] = {2, 0, 0};
    int64_t *total = ((ek_random_planner *)memory)->total;

    ek_plan_totals(l, counts, total);
    ek_plan_primaries_only(l, total, p);
    for (int32_t r = 0; r < l->ranks; r++) {
        int32_t s = ek_plan_free_slot(&p->placement, r), e = expert[r];

        p->placement.expert_of[s] = e;
        p->quota[s] = total[e] / 3;
        p->quota[p->placement.primary[e]] -= p->quota[s];
    }
    return EK_OK;
}

/* A rank's last messages are those of its replica. */
static void check_list(const layer *l, int turn)
{
    static const int of_rank[3][3] = {{1, 0}, {0, 2, 1}, {0, 2, 1}};
    int at = l->mesh->ep_rank;

    (void)turn;
    for (int i = 0; i < (at == 0 ? 2 : 3); i++)
        CHECK_INT(l->scratch.replicas->ranks[i], of_rank[at][i]);
}

static void ranks_that_send_experts_of_their_own_come_last(void)
{
    static const ek_planner three = {
        .name = "three", .reserve = random_take, .plan_transient = plan_three};
    scenario s = plain();
    result one, many;

    run_alone(&s, &one);
    s.ranks = s.sizes.ep = 3;
    s.spare_slots = 1;
    s.cfg = (ek_moe_config){.degree = 1, .planner = &three};
    s.look = check_list;
    if (run_ranks(&s, &many))
        compare(&s, &one, &many);
    CHECK(many.replicas > 0);
    drop(&many);
    drop(&one);
}

static const ek_case cases[] = {
    EK_CASE(ranks_that_send_experts_of_their_own_come_last),
};
EK_TEST_MAIN(cases)
