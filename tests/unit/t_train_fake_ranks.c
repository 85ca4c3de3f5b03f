/* Any rank of any layout can be laid out and its step built without the other ranks (comm/fake.h):
 * the graph is the one that it executes among them, op for op, and it needs the same memory.  Ranks
 * that execute are threads; layouts are drawn by seed. */
#include "base/threads.h"
#include "fake_ranks.h"

/* Executes the first step on all ranks, and builds it for each alone. */
static void check_layout(const equal_layout *l)
{
    equal_leg leg = {.to = 1, .save_at = -1};
    static equal_result of_rank[EQUAL_RANKS_MAX];

    equal_compare_leg_into(l, &leg, of_rank);
    for (int r = 0; r < l->ranks; r++) {
        equal_result alone = {0};

        if (fake_build(l, r, equal_keep_graph, &alone) < 0)
            EK_T_FAIL("%s: rank %d: %s", equal_text(l), r, ek_err_text());
        else if (alone.graph != of_rank[r].graph || alone.memory != of_rank[r].memory)
            EK_T_FAIL("%s: rank %d executes %lld ops (digest %llx) in %zu bytes; built alone they "
                      "are %lld (%llx) in %zu",
                      equal_text(l), r, (long long)of_rank[r].ops,
                      (unsigned long long)of_rank[r].graph, of_rank[r].memory, (long long)alone.ops,
                      (unsigned long long)alone.graph, alone.memory);
    }
}

static void check_ranks(int ranks)
{
    int count = EK_T_SLOW ? 4 : equal_number("EK_TEST_ALL", 0) ? 72 : 12;

    if (EK_T_SLOW && ranks % 3 != 2)
        return;
    for (int i = 0; i < count; i++) {
        equal_layout l = fake_draw(ranks, i);

        check_layout(&l);
    }
}

static void two_ranks(void)
{
    check_ranks(2);
}

static void three_ranks(void)
{
    check_ranks(3);
}

static void four_ranks(void)
{
    check_ranks(4);
}

static void five_ranks(void)
{
    check_ranks(5);
}

static void six_ranks(void)
{
    check_ranks(6);
}

static void seven_ranks(void)
{
    check_ranks(7);
}

static void eight_ranks(void)
{
    check_ranks(8);
}

/* A stage of 128 ranks on 16 nodes, 64 layers of 256 experts: 625 G parameters. */
static void rank_777_of_2048_is_built_without_its_memory(void)
{
    ek_mesh_sizes sizes = {.pp = 16, .ep = 64};
    ek_trainer_config cfg = {.batch = 128 * 60,
                             .seq = 4096,
                             .micro_batch = 128,
                             .moe = {.degree = 2},
                             .optimizer = {.lr = 1e-4, .steps = 10, .clip = 1}};
    ek_model_config config = {.trained = 1, .zero = 1, .never_touched = 1};
    int64_t before = ek_rss_bytes();
    int node_of[2048];
    ek_model_spec spec;
    ek_comm *world;
    ek_kernels *k;
    ek_mesh *mesh;
    ek_model *m;
    ek_trainer *tr;
    ek_graph *g;

    ek_model_default(&spec);
    spec.vocab = 32000;
    spec.hidden = 6144;
    spec.layers = 64;
    spec.heads = 48;
    spec.kv_heads = 8;
    spec.head_dim = 128;
    spec.experts = 256;
    spec.top_k = 8;
    spec.ff = 2048;
    spec.max_positions = 4096;
    for (int i = 0; i < 2048; i++)
        node_of[i] = i / 8;
    CHECK(ek_kernels_create(EK_MODE_BF16, ek_cpu_isa(), 1, &k) == EK_OK);
    CHECK(ek_fake_open(777, 2048, &world) == EK_OK);
    ek_comm_set_nodes(world, node_of);
    CHECK(ek_mesh_open(world, &sizes, &mesh) == EK_OK);
    CHECK_INT(mesh->pp_rank, 6);
    CHECK_INT(ek_comm_node(mesh->stage, mesh->at), 1);
    config.mesh = mesh;
    CHECK(ek_model_create(&spec, k, &config, &m) == EK_OK);
    CHECK(ek_trainer_create(m, &cfg, &tr) == EK_OK);
    CHECK(ek_trainer_build_step(tr, &g) == EK_OK);
    CHECK(g->n_ops > 10000);
    CHECK((double)m->arena.bytes + (double)m->state.bytes > 10e9);
    CHECK((double)(ek_rss_bytes() - before) < 1e8);
    ek_trainer_destroy(&tr);
    ek_model_destroy(&m);
    ek_mesh_close(&mesh);
    ek_comm_close(&world);
    ek_kernels_destroy(&k);
}

/* Whoever tries to train in a fake world is told. */
static void operations_fail(void)
{
    double x = 1;
    ek_comm *world;
    ek_coll *op;
    ek_status st;

    CHECK(ek_fake_open(2, 2, &world) == EK_EINVAL);
    CHECK(ek_fake_open(1, 2, &world) == EK_OK);
    st = ek_comm_all_reduce(world, &x, 1, EK_SUM_F64, &op);
    if (st == EK_OK)
        st = ek_coll_wait(&op);
    CHECK_INT(st, EK_EINTERNAL);
    ek_comm_close(&world);
}

static const ek_case cases[] = {
    EK_CASE(two_ranks),       EK_CASE(three_ranks),
    EK_CASE(four_ranks),      EK_CASE(five_ranks),
    EK_CASE(six_ranks),       EK_CASE(seven_ranks),
    EK_CASE(eight_ranks),     EK_CASE(rank_777_of_2048_is_built_without_its_memory),
    EK_CASE(operations_fail),
};
EK_TEST_MAIN(cases)
