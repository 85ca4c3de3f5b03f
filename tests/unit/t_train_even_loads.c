/* Even loads as a trace (train/even_loads.h): by hand, and as tokens that choose experts in turn.
 */
#include "base/random.h"
#include "ek_test.h"
#include "train/even_loads.h"

enum { EXPERTS = 5, DRAWS = 200 };

static ek_sim_layout layout_of(int edp, int ep, int etp, int tp)
{
    return (ek_sim_layout){.pp = 1,
                           .dp = edp * ep * etp / tp,
                           .tp = tp,
                           .edp = edp,
                           .ep = ep,
                           .etp = etp,
                           .spec = {.experts = EXPERTS},
                           .micro_batch = 1,
                           .batch = 1,
                           .micros = 1,
                           .seq = 10,
                           .top_k = 2};
}

/* One sequence, which the first of four ranks has: the second group has no tokens. */
static void only_the_first_rank_has_tokens(void)
{
    ek_sim_layout l = layout_of(2, 2, 1, 1);
    ek_trace t;

    CHECK_INT(ek_even_loads_tokens(&l, 1, 0), 10);
    CHECK_INT(ek_even_loads_tokens(&l, 1, 1), 0);
    CHECK(ek_even_loads_differ(&l));
    CHECK_INT(ek_even_loads_of_group(&l, 1, 0, &t), EK_OK);
    for (int64_t i = 0; i < t.iterations * t.sources * EXPERTS; i++)
        CHECK_INT(ek_trace_number(&t, i), i / EXPERTS % 2 == 0 ? 4 : 0);
    ek_trace_close(&t);
    l.micro_batch = l.batch = 4;
    CHECK(!ek_even_loads_differ(&l));
    CHECK_INT(ek_even_loads_tokens(&l, 4, 0), 20);
    l.batch = 6; /* of the last micro-batch two ranks have nothing */
    l.micros = 2;
    CHECK_INT(ek_even_loads_rest(&l), 2);
    CHECK(ek_even_loads_differ(&l));
}

static void ranks_have_as_many_as_each_other(void)
{
    ek_sim_layout l = layout_of(2, 2, 1, 1);
    ek_trace t;

    CHECK_INT(ek_even_loads_open(&l, &t), EK_OK);
    CHECK(t.iterations > 1 && t.sources == 2 && t.experts == EXPERTS);
    for (int64_t i = 0; i < t.iterations * t.sources * EXPERTS; i++)
        CHECK_INT(ek_trace_number(&t, i), 1);
    ek_trace_close(&t);
}

static int draw(uint64_t seed, int what, int n)
{
    return 1 + (int)(ek_random_uniform(11, seed, (uint64_t)what) * n);
}

/* The rank of the stage that has a token: whole sequences, split over tp ranks. */
static int rank_of_token(const ek_sim_layout *l, int64_t token)
{
    int64_t seq = token / l->seq, begun = 0;

    for (int dp = 0; dp < l->dp; dp++) {
        int64_t n = l->micro_batch / l->dp + (dp < l->micro_batch % l->dp), all = n * l->seq;

        if (seq < begun + n) {
            int64_t at = token - begun * l->seq, first = 0;

            for (int tp = 0; tp < l->tp; tp++) {
                first += all / l->tp + (tp < all % l->tp);
                if (at < first)
                    return dp * l->tp + tp;
            }
        }
        begun += n;
    }
    EK_T_FAIL("no rank has token %d", (int)token);
    return -1;
}

static void drawn_groups_choose_experts_in_turn(void)
{
    for (uint64_t seed = 0; seed < DRAWS; seed++) {
        int etp = draw(seed, 0, 2), ep = draw(seed, 1, 3), edp = draw(seed, 2, 3);
        int tp = etp == 2 ? draw(seed, 3, 2) : 1;
        ek_sim_layout l = layout_of(edp, ep, etp, tp);
        int64_t counts[9 * EXPERTS] = {0}, differ = 0;

        l.micro_batch = l.batch = draw(seed, 4, 9);
        l.top_k = draw(seed, 5, 3);
        for (int64_t a = 0; a < l.micro_batch * l.seq * l.top_k; a++)
            counts[rank_of_token(&l, a / l.top_k) / etp * EXPERTS + a % EXPERTS]++;
        for (int g = 0; g < edp; g++) {
            int64_t tokens = 0;
            ek_trace t;

            CHECK_INT(ek_even_loads_of_group(&l, l.batch, g, &t), EK_OK);
            for (int64_t i = 0; i < ep * EXPERTS; i++) {
                CHECK_INT(ek_trace_number(&t, i), counts[g * ep * EXPERTS + i]);
                tokens += counts[g * ep * EXPERTS + i];
            }
            CHECK_INT(ek_even_loads_tokens(&l, l.batch, g) * l.top_k, tokens);
            ek_trace_close(&t);
        }
        for (int r = 0; r < edp * ep; r++) {
            int64_t sum[2] = {0};

            for (int64_t e = 0; e < EXPERTS; e++) {
                sum[0] += counts[e];
                sum[1] += counts[r * EXPERTS + e];
            }
            differ |= sum[0] != sum[1];
        }
        CHECK_INT(ek_even_loads_differ(&l), differ);
    }
}

static const ek_case cases[] = {EK_CASE(only_the_first_rank_has_tokens),
                                EK_CASE(ranks_have_as_many_as_each_other),
                                EK_CASE(drawn_groups_choose_experts_in_turn)};
EK_TEST_MAIN(cases)
