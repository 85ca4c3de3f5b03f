/* The layouts that a search looks at (search/candidates.h). */
#include "evenkeel/err.h"

#include "ek_test.h"
#include "search/candidates.h"

/* 16 ranks on nodes of 4, a model of 6 layers with 2 key-value heads and 8 experts. */
static const ek_candidate_space plain = {
    .ranks = 16, .node_ranks = 4, .batch = 24, .layers = 6, .kv_heads = 2, .experts = 8};

static int64_t count(const ek_candidate_space *s)
{
    ek_layout *list;
    int64_t n;

    CHECK_INT(ek_candidates_list(s, &list, &n), EK_OK);
    free(list);
    return n;
}

static void every_candidate_divides_the_ranks_and_is_listed_once(void)
{
    ek_layout *list;
    int64_t n, seen_chunks = 0, seen_etp = 0;

    CHECK_INT(ek_candidates_list(&plain, &list, &n), EK_OK);
    CHECK(n > 1000);
    for (int64_t i = 0; i < n; i++) {
        const int64_t *v = list[i].value;
        int64_t stage = 16 / v[EK_CHOICE_PP], dp = stage / v[EK_CHOICE_TP];
        int64_t micro = v[EK_CHOICE_MICRO_BATCH];

        CHECK_INT(16 % v[EK_CHOICE_PP], 0);
        CHECK(v[EK_CHOICE_PP] * v[EK_CHOICE_CHUNKS] <= 6);
        CHECK(v[EK_CHOICE_PP] > 1 || v[EK_CHOICE_CHUNKS] == 1);
        CHECK_INT(stage % v[EK_CHOICE_TP], 0);
        CHECK_INT(stage % (v[EK_CHOICE_EP] * v[EK_CHOICE_ETP]), 0);
        CHECK(v[EK_CHOICE_TP] <= 2 && v[EK_CHOICE_EP] <= 8 && v[EK_CHOICE_ETP] <= 4);
        CHECK(v[EK_CHOICE_ZERO] >= 0 && v[EK_CHOICE_ZERO] <= 3);
        CHECK(micro >= dp && micro <= 24 && micro % dp == 0);
        for (micro /= dp; micro % 2 == 0;)
            micro /= 2;
        CHECK_INT(micro, 1);
        seen_chunks += v[EK_CHOICE_CHUNKS] == 2;
        seen_etp += v[EK_CHOICE_ETP] == 4;
        CHECK(i == 0 || memcmp(&list[i], &list[i - 1], sizeof(*list)) != 0);
        for (int64_t k = 0; k + 1 < i && i % 97 == 0; k++)
            CHECK(memcmp(&list[i], &list[k], sizeof(*list)) != 0);
    }
    CHECK(seen_chunks > 0 && seen_etp > 0);
    free(list);
}

static void fixed_choices_restrict_the_list(void)
{
    ek_candidate_space s = plain;
    ek_layout *list;
    int64_t n, two = 0;

    CHECK_INT(ek_candidates_fix(&s, "pp=2,zero=1,zero=3,recompute=full,micro-batch=24"), EK_OK);
    CHECK_INT(ek_candidates_list(&s, &list, &n), EK_OK);
    for (int64_t i = 0; i < n; i++) {
        const int64_t *v = list[i].value;

        CHECK_INT(v[EK_CHOICE_PP], 2);
        CHECK(v[EK_CHOICE_ZERO] == 1 || v[EK_CHOICE_ZERO] == 3);
        CHECK_INT(v[EK_CHOICE_RECOMPUTE], 2);
        CHECK_INT(v[EK_CHOICE_MICRO_BATCH], 24); /* not a power of two times dp */
        two += v[EK_CHOICE_ZERO] == 3;
    }
    CHECK(n > 0 && 2 * two == n && n < count(&plain) / 20);
    free(list);
    s = plain;
    CHECK_INT(ek_candidates_fix(&s, "tp=4,pp=1"), EK_OK); /* more than the key-value heads: asked */
    CHECK(count(&s) > 0);
}

static void a_stage_of_one_rank_shards_nothing(void)
{
    ek_candidate_space s = plain;
    ek_layout *list;
    int64_t n;

    s.ranks = 4;
    CHECK_INT(ek_candidates_fix(&s, "pp=4"), EK_OK);
    CHECK_INT(ek_candidates_list(&s, &list, &n), EK_OK);
    for (int64_t i = 0; i < n; i++)
        CHECK_INT(list[i].value[EK_CHOICE_ZERO], 0);
    free(list);
}

static void wrong_fixes_are_named(void)
{
    static const char *const wrong[][2] = {{"pq=1", "pq is none of pp"},
                                           {"pp", "pp needs a number of at least 1"},
                                           {"pp=", "pp needs"},
                                           {"pp=0", "pp needs"},
                                           {"pp=x", "pp needs"},
                                           {"pp=-1", "pp needs"},
                                           {"zero=4", "a number from 0 to 3"},
                                           {"recompute=some", "off, attention or full"},
                                           {"pp=1,,tp=2", "is none of pp"},
                                           {"=1", "is none of pp"}};

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        ek_candidate_space s = plain;

        CHECK_INT(ek_candidates_fix(&s, wrong[i][0]), EK_EINVAL);
        CHECK(strstr(ek_err_message(), wrong[i][1]) != NULL);
    }
}

static void an_empty_list_says_why(void)
{
    ek_candidate_space s = plain;
    ek_layout *list;
    int64_t n;

    CHECK_INT(ek_candidates_fix(&s, "pp=3"), EK_OK);
    CHECK_INT(ek_candidates_list(&s, &list, &n), EK_EINVAL);
    CHECK(strstr(ek_err_message(), "no layout of 16 ranks") != NULL);
    CHECK(list == NULL && n == 0);
    s = plain;
    s.batch = 1;
    s.layers = 1;
    CHECK_INT(ek_candidates_list(&s, &list, &n), EK_EINVAL);
}

static void words_leave_out_defaults(void)
{
    ek_layout c = {{1, 1, 1, 8, 1, 0, 64, 0}};
    char text[256];

    CHECK(strcmp(ek_layout_words(&c, NULL, text, sizeof(text)), "--ep 8 --micro-batch 64") == 0);
    c = (ek_layout){{4, 2, 2, 1, 2, 3, 8, 1}};
    CHECK(strcmp(ek_layout_words(&c, NULL, text, sizeof(text)),
                 "--pp 4 --pp-chunks 2 --tp 2 --etp 2 --zero 3 --micro-batch 8 --recompute "
                 "attention") == 0);
    CHECK(strlen(ek_layout_words(&c, NULL, text, 8)) < 8);
}

/* The rest of the layout is plain. */
static int survives(int pp, int tp, int ep, int ranks, const int *host_of)
{
    ek_layout l = {{pp, 1, tp, ep, 1, 0, 1, 0}};

    return ek_layout_survives(&l, ek_layout_ranks_left(ranks, host_of));
}

static void layouts_survive_without_any_host(void)
{
    static const int two[] = {0, 0, 1, 1}, mixed[] = {0, 1, 1, 0}, three[] = {0, 0, 1, 1, 2, 2};
    static const ek_layout thirds = {{1, 1, 1, 1, 3, 0, 1, 0}}; /* etp 3 */
    static const int one[] = {0, 0, 0, 0}, unlike[] = {0, 1, 0, 1, 1, 1};

    CHECK_INT(survives(1, 1, 4, 4, two), 1);
    CHECK_INT(survives(2, 1, 2, 4, two), 1); /* each stage is on one host: it has copies */
    CHECK_INT(survives(2, 1, 2, 4, mixed), 1);
    CHECK_INT(survives(4, 1, 1, 4, mixed), 0); /* two ranks are left of four that it needs */
    CHECK_INT(survives(1, 2, 1, 4, two), 1);
    CHECK_INT(survives(1, 4, 1, 4, two), 0);
    CHECK_INT(survives(1, 1, 1, 4, one), 0);
    CHECK_INT(survives(1, 2, 6, 6, three), 1);
    CHECK_INT(survives(2, 1, 1, 6, three), 1);
    CHECK_INT(survives(3, 1, 1, 6, three), 1);
    CHECK_INT(survives(3, 1, 1, 6, unlike), 0);
    CHECK_INT(survives(2, 2, 1, 4, mixed), 0); /* two ranks are left of four that it needs */
    CHECK_INT(ek_layout_stage_on_one_host(4, 2, 1, (const int[]){0, 1, 1, 1}), 1);
    CHECK_INT(ek_layout_stage_on_one_host(4, 1, 2, (const int[]){0, 1, 1, 1}), 0);
    CHECK_INT(ek_layout_stage_on_one_host(4, 2, 1, (const int[]){0, 1, 1, 0}), -1);
    CHECK_INT(ek_layout_ranks_left(6, unlike), 2);
    CHECK_INT(ek_layout_ranks_left(4, mixed), 2);
    CHECK_INT(ek_layout_ranks_left(6, three), 4);
    CHECK_INT(ek_layout_ranks_left(4, one), 0);
    CHECK_INT(survives(1, 1, 6, 6, unlike), 1);
    CHECK_INT(ek_layout_survives(&thirds, 2), 0); /* two are left of three it needs */
    CHECK_INT(ek_layout_survives(&thirds, 4), 1);
}

static const ek_case cases[] = {
    EK_CASE(layouts_survive_without_any_host),
    EK_CASE(every_candidate_divides_the_ranks_and_is_listed_once),
    EK_CASE(fixed_choices_restrict_the_list),
    EK_CASE(a_stage_of_one_rank_shards_nothing),
    EK_CASE(wrong_fixes_are_named),
    EK_CASE(an_empty_list_says_why),
    EK_CASE(words_leave_out_defaults),
};
EK_TEST_MAIN(cases)
