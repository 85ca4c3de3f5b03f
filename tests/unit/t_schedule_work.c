/* FLOPs, bytes and hashes of the work of ops. */
#include "ek_test.h"
#include "schedule/work.h"

static ek_work of_ranks(ek_collective collective, int32_t n, double bytes)
{
    return (ek_work){.kind = EK_WORK_NET,
                     .net = {.collective = collective,
                             .group = {.first = 2, .stride = 3, .n = n},
                             .span = n,
                             .peer = -1,
                             .element = 4,
                             .bytes = bytes}};
}

/* A ring sends n - 1 of n parts of a vector, and an all-reduce does so twice. */
static void bytes_are_those_that_a_rank_sends(void)
{
    ek_work gather = of_ranks(EK_COLLECTIVE_ALL_GATHER, 4, 1000);
    ek_work scatter = of_ranks(EK_COLLECTIVE_REDUCE_SCATTER, 4, 1000);
    ek_work sum = of_ranks(EK_COLLECTIVE_ALL_REDUCE, 4, 1000);
    ek_work message = of_ranks(EK_COLLECTIVE_SEND, 4, 1000);
    ek_work rows = ek_work_of_rows(10, 10);

    CHECK(ek_work_net_bytes(&gather) == 750 && ek_work_net_bytes(&scatter) == 750);
    CHECK(ek_work_net_bytes(&sum) == 1500);
    CHECK(ek_work_net_bytes(&message) == 1000);
    CHECK(ek_work_net_bytes(&rows) == 0);
    CHECK_INT(ek_ranks_at(sum.net.group, 3), 11);
}

/* 18 hidden ff FLOPs a row of an expert: three matrices, two FLOPs each, in three passes. */
static void flops_follow_from_shapes(void)
{
    const int32_t all = EK_PRODUCT_FORWARD | EK_PRODUCT_INPUT | EK_PRODUCT_WEIGHT;
    ek_work expert =
        ek_work_of_products(ek_product_of(7, 2 * 5, 3, all), ek_product_of(7, 3, 5, all));
    ek_work weight = ek_work_of_product(ek_product_of(7, 10, 3, EK_PRODUCT_WEIGHT));
    ek_attention_work heads = {.heads = 6, .kv_heads = 2, .head_dim = 8, .queries = 4, .pairs = 10};
    ek_work forward = ek_work_of_attention(&heads), backward, rows = ek_work_of_rows(10, 10);

    heads.backward = 1;
    backward = ek_work_of_attention(&heads);
    CHECK(ek_work_flops(&expert) == 18 * 3 * 5 * 7);
    CHECK(ek_work_flops(&weight) == 2 * 7 * 10 * 3);
    CHECK(ek_work_flops(&forward) == 4 * 6 * 8 * 10);
    CHECK(ek_work_flops(&backward) == 8 * 6 * 8 * 10);
    CHECK(ek_work_flops(&rows) == 0);
}

static void every_number_changes_the_hash(void)
{
    ek_work works[24];
    int n = 0;

    works[n++] = (ek_work){0};
    works[n++] = (ek_work){.kind = EK_WORK_DISK};
    works[n++] = ek_work_of_rows(10, 12);
    works[n++] = ek_work_of_rows(12, 10);
    for (int i = 0; i < 6; i++) {
        works[n] = of_ranks(EK_COLLECTIVE_ALL_GATHER, 4, 1000);
        works[n].net.collective += i == 1;
        works[n].net.group.stride += i == 2;
        works[n].net.span -= i == 3;
        works[n].net.peer += i == 4;
        works[n++].net.element += i == 5;
    }
    works[n++] = of_ranks(EK_COLLECTIVE_ALL_GATHER, 5, 1000);
    works[n++] = of_ranks(EK_COLLECTIVE_ALL_GATHER, 4, 1001);
    for (int i = 0; i < 4; i++) {
        works[n] = ek_work_of_product(ek_product_of(5 + (i == 1), 6 + (i == 2), 7, 1 + (i == 3)));
        n++;
    }
    works[n] = works[n - 4];
    works[n++].products.product[0].groups = 2;
    for (int i = 0; i < 5; i++)
        works[n++] = ek_work_of_attention(
            &(ek_attention_work){2, 2, 8 + (i == 1), i == 2, 10 + (i == 3), 55 + (i == 4), 0, 0});
    CHECK_INT(n, 22);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++)
            CHECK((ek_work_digest(1, &works[i]) == ek_work_digest(1, &works[j])) == (i == j));
    CHECK(ek_work_digest(1, &works[0]) != ek_work_digest(2, &works[0]));
}

static void work_of_neighbouring_groups_has_one_hash(void)
{
    ek_work a = of_ranks(EK_COLLECTIVE_ALL_GATHER, 4, 1000), b = a;

    b.net.group.first += 4;
    CHECK(ek_work_digest(1, &a) == ek_work_digest(1, &b));
}

static void collectives_have_names(void)
{
    for (int i = 0; i < EK_COLLECTIVES; i++)
        CHECK(ek_collective_name((ek_collective)i) != NULL);
    CHECK(strcmp(ek_collective_name(EK_COLLECTIVE_A2A_2DH), "2dh all-to-all") == 0);
}

static const ek_case cases[] = {
    EK_CASE(bytes_are_those_that_a_rank_sends),
    EK_CASE(flops_follow_from_shapes),
    EK_CASE(every_number_changes_the_hash),
    EK_CASE(work_of_neighbouring_groups_has_one_hash),
    EK_CASE(collectives_have_names),
};
EK_TEST_MAIN(cases)
