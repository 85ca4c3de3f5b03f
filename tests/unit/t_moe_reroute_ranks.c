/* Re-routing over ranks: swipe is the same in every layout; topology keeps its limit with nodes of
 * two ranks, and does not change near assignments. */
#include "moe_ranks.h"

static void tensor_parallel(scenario *s, const result *one, int i)
{
    static const int sizes[RANKS_MAX + 1][3] = {{1, 1, 1}, {1, 1, 1}, {2, 2, 1}, {3, 3, 1},
                                                {2, 4, 2}, {5, 5, 1}, {2, 3, 6}};

    s->sizes.tp = sizes[s->ranks][i % 3];
    s->cfg.degree = 1 + i % 3;
    s->cfg.a2a = (ek_a2a)(i % 3);
    s->recompute = i % 5 == 0;
    check(s, one);
    s->sizes.tp = 1;
}

static void swipe_does_not_depend_on_the_layout(void)
{
    scenario s = plain();
    result one;

    s.cfg.reroute = EK_REROUTE_SWIPE;
    each_layout(s, tensor_parallel);
    s.collapse = 1;
    run_alone(&s, &one);
    CHECK_INT(one.load[2], 9 * 2); /* ceil(2 * 3 / 5) in each sequence; it was every token's best */
    drop(&one);
    s.capacity_factor = 0.8;
    each_layout(s, tensor_parallel);
}

/* --- topology --------------------------------------------------------------------------------- */

/* The rank of each token, in the order of rows. */
static void sources(const scenario *s, int *at_of)
{
    int tp = s->sizes.tp, dp = s->ranks / tp;

    for (int i = 0; i < MICROS; i++)
        for (int at = 0; at < s->ranks; at++) {
            int64_t n =
                ek_range_length(ek_range_length(s->seqs[i], dp, at / tp) * s->seq, tp, at % tp);

            for (int64_t j = 0; j < n; j++)
                *at_of++ = at;
        }
}

static int is_near(const scenario *s, int at, int e)
{
    int run = s->sizes.ep * s->sizes.etp, server = at / run * run, near = 1;

    while (ek_range_first(s->spec.experts, s->sizes.ep, (server % run) / s->sizes.etp + 1) <= e)
        server += s->sizes.etp;
    for (int k = 0; k < s->sizes.etp; k++)
        near &= (server + k) / 2 == at / 2;
    return near;
}

static int has(const int32_t *ids, int64_t k, int e)
{
    for (int64_t j = 0; j < k; j++)
        if (ids[j] == e)
            return 1;
    return 0;
}

/* Whether a token's node has an expert that the token does not have. */
static int could_stay(const scenario *s, int at, const int32_t *ids)
{
    for (int e = 0; e < s->spec.experts; e++)
        if (is_near(s, at, e) && !has(ids, s->top_k, e))
            return 1;
    return 0;
}

/* chosen: the choice without re-routing.  Returns how many assignments were moved. */
static int64_t check_sequence(const scenario *s, const int *at_of, const int32_t *chosen,
                              const int32_t *ids)
{
    int64_t k = s->top_k, away = 0, moved = 0, wanted = 0;
    int64_t limit = (int64_t)floor(s->cfg.reroute_limit * (double)(k * s->seq));

    for (int64_t t = 0; t < s->seq; t++)
        for (int64_t j = 0; j < k; j++) {
            int e = ids[t * k + j], before = chosen[t * k + j], near = is_near(s, at_of[t], e);

            CHECK(!has(ids + t * k, j, e));
            CHECK(e == before || (near && !is_near(s, at_of[t], before)));
            wanted += !is_near(s, at_of[t], before);
            moved += e != before;
            away += !near && could_stay(s, at_of[t], ids + t * k);
        }
    CHECK(away <= limit);
    CHECK(moved <= (wanted > limit ? wanted - limit : 0));
    return moved;
}

static int64_t moved_in_all; /* over all layouts */

static void keeps_to_its_limit(scenario *s, const result *one, int i)
{
    static const int sizes[RANKS_MAX + 1][3] = {{1, 1, 1}, {1, 1, 1}, {2, 2, 1}, {3, 3, 1},
                                                {2, 4, 2}, {5, 5, 1}, {2, 3, 6}};
    const double limits[] = {0.2, 0, 0.5};
    int at_of[64];
    result many;

    s->sizes.tp = sizes[s->ranks][i % 3];
    s->cfg = (ek_moe_config){
        .reroute = EK_REROUTE_TOPOLOGY, .reroute_limit = limits[i % 3], .degree = 1 + i % 2};
    s->recompute = i % 2;
    sources(s, at_of);
    if (run_ranks(s, &many))
        for (int64_t row = 0; row < tokens_of(s); row += s->seq) {
            int64_t moved = check_sequence(s, at_of + row, one->ids + row * s->top_k,
                                           many.ids + row * s->top_k);

            CHECK(moved == 0 || s->ranks > 2);
            moved_in_all += moved;
        }
    drop(&many);
    s->sizes.tp = 1;
    s->cfg = (ek_moe_config){0};
}

static void topology_keeps_to_its_limit(void)
{
    scenario s = plain();

    s.seq = 5;
    moved_in_all = 0;
    each_layout(s, keeps_to_its_limit);
    CHECK(moved_in_all > 100);
}

/* With limit 1, or with all experts on all ranks, nothing changes. */
static void topology_without_a_limit(void)
{
    scenario s = plain();
    result one;

    run_alone(&s, &one);
    s.ranks = 6;
    s.cfg = (ek_moe_config){.reroute = EK_REROUTE_TOPOLOGY, .reroute_limit = 1};
    s.sizes.ep = 6;
    check(&s, &one);
    s.sizes.ep = 1;
    s.cfg.reroute_limit = 0;
    check(&s, &one);
    s.sizes = (ek_mesh_sizes){1, 3, 2, 1}; /* both ranks of a group are on one node */
    check(&s, &one);
    drop(&one);
}

static const ek_case cases[] = {
    EK_CASE(swipe_does_not_depend_on_the_layout),
    EK_CASE(topology_keeps_to_its_limit),
    EK_CASE(topology_without_a_limit),
};
EK_TEST_MAIN(cases)
