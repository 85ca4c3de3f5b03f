/* The step graph as data: ids, dependencies, growth, errors, reuse of memory. */
#include "ek_test.h"
#include "schedule/graph.h"

static ek_status nothing(void *self, const ek_op *op)
{
    (void)self;
    (void)op;
    return EK_OK;
}

static ek_op op_of(int32_t part)
{
    return (ek_op){.kind = EK_OP_NORM,
                   .run = nothing,
                   .lane = EK_LANE_COMPUTE,
                   .layer = -1,
                   .micro = -1,
                   .part = part,
                   .flops = 2.0 * part};
}

static void ids_count_up_and_ops_are_copied(void)
{
    ek_graph g;
    ek_op op = op_of(0);

    ek_graph_init(&g);
    for (int32_t i = 0; i < 5; i++) {
        op.part = i;
        CHECK_INT(ek_graph_after(&g, &op, i - 1), i);
    }
    op.part = 99;
    CHECK_INT(g.n_ops, 5);
    for (int32_t i = 0; i < 5; i++) {
        CHECK_INT(g.ops[i].part, i);
        CHECK_INT(g.ops[i].n_deps, i > 0);
        if (i > 0)
            CHECK_INT(g.deps[g.ops[i].dep], i - 1);
    }
    CHECK(ek_graph_check(&g) == EK_OK);
    ek_graph_fini(&g);
}

static void negative_dependencies_are_none(void)
{
    const int32_t deps[] = {-1, 1, -7, 0, -1};
    ek_graph g;
    ek_op op = op_of(0);

    ek_graph_init(&g);
    ek_graph_after(&g, &op, -1);
    ek_graph_after(&g, &op, -1);
    CHECK_INT(ek_graph_add(&g, &op, deps, 5), 2);
    CHECK_INT(g.ops[2].n_deps, 2);
    CHECK_INT(g.deps[g.ops[2].dep], 1);
    CHECK_INT(g.deps[g.ops[2].dep + 1], 0);
    CHECK_INT(g.ops[0].n_deps, 0);
    CHECK(ek_graph_check(&g) == EK_OK);
    ek_graph_fini(&g);
}

static void waiting_for_later_ops_is_refused(void)
{
    ek_graph g;
    ek_op op = op_of(0);

    ek_graph_init(&g);
    CHECK_INT(ek_graph_after(&g, &op, -1), 0);
    CHECK_INT(ek_graph_after(&g, &op, 1), -1); /* itself */
    CHECK_INT(ek_graph_check(&g), EK_EINTERNAL);
    ek_graph_after(&g, &op, 0);
    CHECK_INT(ek_graph_check(&g), EK_EINTERNAL); /* sticky */
    ek_graph_reset(&g);
    CHECK(ek_graph_check(&g) == EK_OK);
    CHECK_INT(ek_graph_after(&g, &op, -1), 0);
    CHECK(ek_graph_check(&g) == EK_OK);
    ek_graph_fini(&g);
}

/* Op i depends on i - 1, i / 2 and i / 3. */
static void build_large(ek_graph *g, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        const int32_t deps[] = {i - 1, i > 0 ? i / 2 : -1, i > 0 ? i / 3 : -1};
        ek_op op = op_of(i);

        if (ek_graph_add(g, &op, deps, 3) != i)
            EK_T_FAIL("op %d was not added", (int)i);
    }
}

static void large_graphs_keep_their_contents(void)
{
    enum { N = 20000 };
    ek_graph g;

    ek_graph_init(&g);
    build_large(&g, N);
    CHECK(ek_graph_check(&g) == EK_OK);
    CHECK_INT(g.n_ops, N);
    CHECK_INT(g.n_deps, 3 * (N - 1));
    for (int32_t i = 1; i < N; i++) {
        const int32_t *d = g.deps + g.ops[i].dep;

        if (g.ops[i].part != i || d[0] != i - 1 || d[1] != i / 2 || d[2] != i / 3)
            EK_T_FAIL("op %d has changed", (int)i);
    }
    ek_graph_fini(&g);
    CHECK(g.ops == NULL && g.deps == NULL);
}

static void a_copy_outlives_the_graph(void)
{
    ek_graph g, copy;
    uint64_t digest;

    ek_graph_init(&g);
    ek_graph_init(&copy);
    build_large(&g, 1000);
    digest = ek_graph_digest(&g);
    CHECK_INT(ek_graph_copy(&copy, &g), EK_OK);
    ek_graph_fini(&g);
    CHECK(ek_graph_digest(&copy) == digest);
    CHECK_INT(ek_graph_check(&copy), EK_OK);
    ek_graph_fini(&copy);
}

/* An op of micro-batch i / 10, of which there are 10, and after all of them one of none. */
static void build_micros(ek_graph *g, int32_t n)
{
    int64_t busy;

    for (int32_t i = 0; i < n; i++) {
        const int32_t deps[] = {i - 1, i - 3};
        ek_op op = op_of(i % 10);

        op.micro = i < n - 1 ? i / 10 : -1;
        op.self = &op;
        op.busy_ns = &busy;
        op.work = ek_work_of_rows(i % 10, 8);
        if (i == n / 2)
            op.work = ek_work_of_rows(1e6, 8);
        ek_graph_add(g, &op, deps, 2);
    }
}

static void packed_graphs_have_the_same_ops(void)
{
    enum { N = 10001 };
    ek_graph g, packed, copy;

    ek_graph_init(&g);
    ek_graph_init(&packed);
    ek_graph_init(&copy);
    build_micros(&g, N);
    CHECK_INT(ek_graph_pack(&packed, &g), EK_OK);
    CHECK_INT(packed.n_ops, N);
    CHECK_INT(packed.n_alike, 12);
    CHECK(packed.ops == NULL);
    CHECK(ek_graph_digest(&packed) == ek_graph_digest(&g));
    CHECK_INT(ek_graph_copy(&copy, &packed), EK_OK);
    CHECK(ek_graph_digest(&copy) == ek_graph_digest(&g));
    for (int32_t i = 0; i < N; i++) {
        const ek_op *a = ek_graph_op(&g, i), *b = ek_graph_op(&packed, i);
        int32_t n, m;
        const int32_t *d = ek_graph_deps_of(&g, i, &n), *e = ek_graph_deps_of(&packed, i, &m);

        if (b->self != NULL || b->run != NULL || b->busy_ns != NULL || b->n_deps != 0)
            EK_T_FAIL("op %d could be run", (int)i);
        if (a->part != b->part || (a->micro < 0) != (b->micro < 0) ||
            ek_graph_micro(&packed, i) != a->micro || copy.ops[i].micro != a->micro ||
            memcmp(&a->work, &b->work, sizeof(a->work)) != 0)
            EK_T_FAIL("op %d has changed", (int)i);
        if (n != m || (n > 0 && memcmp(d, e, (size_t)n * sizeof(*d)) != 0))
            EK_T_FAIL("op %d waits for others", (int)i);
    }
    ek_graph_fini(&g);
    ek_graph_fini(&packed);
    ek_graph_fini(&copy);
    CHECK(packed.place == NULL && packed.alike == NULL);
}

static void empty_graphs_are_packed(void)
{
    ek_graph g, packed, copy;

    ek_graph_init(&g);
    ek_graph_init(&packed);
    ek_graph_init(&copy);
    CHECK_INT(ek_graph_pack(&packed, &g), EK_OK);
    CHECK_INT(ek_graph_copy(&copy, &packed), EK_OK);
    CHECK_INT(packed.n_ops + copy.n_ops, 0);
    CHECK(ek_graph_digest(&packed) == ek_graph_digest(&g));
    ek_graph_fini(&packed);
    ek_graph_fini(&copy);
}

static void building_again_takes_no_memory(void)
{
    ek_graph g;
    const ek_op *ops;
    const int32_t *deps;

    ek_graph_init(&g);
    build_large(&g, 3000);
    ops = g.ops;
    deps = g.deps;
    for (int i = 0; i < 3; i++) {
        ek_graph_reset(&g);
        CHECK_INT(g.n_ops, 0);
        build_large(&g, 3000);
        CHECK(g.ops == ops && g.deps == deps);
    }
    ek_graph_fini(&g);
}

static void lanes_have_different_names(void)
{
    for (int i = 0; i < EK_LANE_COUNT; i++)
        for (int j = 0; j < i; j++)
            CHECK(strcmp(ek_lane_name((ek_lane)i), ek_lane_name((ek_lane)j)) != 0);
    CHECK(strcmp(ek_lane_name(EK_LANE_COMPUTE), "compute") == 0);
    CHECK(strcmp(ek_lane_name(EK_LANE_NET), "net") == 0);
}

static const ek_case cases[] = {
    EK_CASE(ids_count_up_and_ops_are_copied),  EK_CASE(negative_dependencies_are_none),
    EK_CASE(waiting_for_later_ops_is_refused), EK_CASE(large_graphs_keep_their_contents),
    EK_CASE(a_copy_outlives_the_graph),        EK_CASE(building_again_takes_no_memory),
    EK_CASE(packed_graphs_have_the_same_ops),  EK_CASE(empty_graphs_are_packed),
    EK_CASE(lanes_have_different_names),
};
EK_TEST_MAIN(cases)
