/* The traffic of a distributed MoE layer, the order of its ops, and the memory it reserves. */
#include "moe_ranks.h"
#include "tensor/select/select.h"

/* Bytes that all ranks together send in a step: rows whose server is another rank four times, twice
 * of these with an R behind, and the gate statistics of every rank to all others. */
static int64_t bytes_expected(const scenario *s, const result *one)
{
    int tp = s->sizes.tp, dp = s->ranks / tp, run = s->sizes.ep * s->sizes.etp;
    int64_t experts = s->spec.experts, cols = ek_moe_cols(&s->spec), bytes, row = 0;

    bytes = MICROS * (1 + s->recompute) * (int64_t)s->ranks * (s->ranks - 1) *
            ek_gate_stats_words(experts, run > 1 && s->cfg.smart_group == 0 ? s->cfg.degree : 1) *
            8;
    for (int i = 0; i < MICROS; i++)
        for (int at = 0; at < s->ranks; at++) {
            int64_t n =
                ek_range_length(ek_range_length(s->seqs[i], dp, at / tp) * s->seq, tp, at % tp);

            for (int64_t j = 0; j < n * cols; j++, row++) {
                int server = at / run * run, e = one->ids[row];

                if (e < 0)
                    continue;
                while (ek_range_first(experts, s->sizes.ep, (server % run) / s->sizes.etp + 1) <= e)
                    server += s->sizes.etp;
                for (int k = 0; k < s->sizes.etp; k++)
                    bytes += server + k == at
                                 ? 0
                                 : 8 * ((4 + s->recompute) * s->spec.hidden + 2 + s->recompute);
            }
        }
    return bytes;
}

static void count_bytes(scenario *s, const result *one, int i)
{
    result many;
    char text[128];

    if (s->ranks == 1)
        return;
    s->cfg.degree = 1 + i % 2;
    s->cfg.smart_group = i % 3 == 2 ? 2 : 0;
    s->cfg.a2a = (ek_a2a)(i % 2); /* the hierarchical algorithm forwards rows */
    s->recompute = i % 5 == 1;
    describe(s, text, sizeof(text));
    if (run_ranks(s, &many) && many.bytes != bytes_expected(s, one))
        EK_T_FAIL("%s: %lld bytes were sent, expected %lld", text, (long long)many.bytes,
                  (long long)bytes_expected(s, one));
    drop(&many);
}

static void bytes_that_move(void)
{
    each_layout(plain(), count_bytes);
}

/* A layer on rank 0 of a mesh without communicators, to inspect graphs and memory. */
static void imagine(layer *l, rank *me, const ek_mesh *mesh)
{
    memset(l, 0, sizeof(*l));
    l->me = me;
    l->s = me->s;
    l->mesh = mesh;
    MUST(ek_arena_init(&l->arena, ARENA, "a layer"));
    MUST(ek_kernels_create(EK_MODE_FP64, EK_ISA_REF, 1, &l->k));
    ek_graph_init(&l->graph);
    take_weights(l);
    set_micros(l);
    take_state(l);
    MUST(ek_arena_check(&l->arena, "a layer"));
    l->step = (ek_moe_step){.training = 1, .top_k = me->s->top_k, .micro = l->micro};
}

static int waits_for(const ek_graph *g, const ek_op *op, int32_t dep)
{
    for (int32_t i = 0; i < op->n_deps; i++)
        if (g->deps[op->dep + i] == dep)
            return 1;
    return 0;
}

/* All-to-alls are serial: those of all dispatches come before the first combine. */
static void check_one_at_a_time(const ek_graph *g, ek_op_kind out, ek_op_kind back, int chunks)
{
    int32_t last = -1;
    int n = 0;

    for (int32_t i = 0; i < g->n_ops; i++) {
        const ek_op *op = &g->ops[i];

        if (op->kind != out && op->kind != back)
            continue;
        CHECK(op->kind == (n < chunks ? out : back));
        CHECK_INT(op->part, n % chunks);
        CHECK_INT(op->lane, EK_LANE_NET);
        CHECK(last < 0 || waits_for(g, op, last));
        CHECK(op->describe != NULL);
        last = i;
        n++;
    }
    CHECK_INT(n, 2 * chunks);
}

static void chunks_are_exchanged_serially(void)
{
    const ek_mesh mesh = {
        .size = 4, .pp = 1, .dp = 4, .tp = 1, .edp = 1, .ep = 4, .etp = 1, .stage_size = 4};
    scenario s = plain();
    rank me = {.s = &s};
    layer *l = malloc(sizeof(*l));

    s.cfg.degree = 3;
    imagine(l, &me, &mesh);
    ek_moe_build_forward(&l->m, &l->graph, 0, l->micro[0].n, 0, -1);
    check_one_at_a_time(&l->graph, EK_OP_DISPATCH_A2A, EK_OP_COMBINE_A2A, 3);
    ek_graph_reset(&l->graph);
    ek_moe_build_backward(&l->m, &l->graph, 0, l->micro[0].n, -1);
    check_one_at_a_time(&l->graph, EK_OP_COMBINE_A2A_BACKWARD, EK_OP_DISPATCH_A2A_BACKWARD, 3);
    close_layer(l);
    free(l);
    CHECK(!me.failed);
}

/* Data parallel ranks that hold all experts exchange gate statistics only; one rank alone exchanges
 * nothing. */
static void undistributed_layers_exchange_no_rows(void)
{
    const ek_mesh mesh = {
        .size = 4, .pp = 1, .dp = 4, .tp = 1, .edp = 4, .ep = 1, .etp = 1, .stage_size = 4};
    static const ek_op_kind alone[] = {EK_OP_ROUTER, EK_OP_PERMUTE,      EK_OP_EXPERT_UP,
                                       EK_OP_SWIGLU, EK_OP_EXPERT_DOWN,  EK_OP_UNPERMUTE,
                                       EK_OP_LAYOUT, EK_OP_GATHER_COUNTS};
    scenario s = plain();
    rank me = {.s = &s};
    layer *l = malloc(sizeof(*l));

    s.cfg.degree = 3;
    for (int ranks = 1; ranks <= 4; ranks += 3) {
        imagine(l, &me, ranks == 1 ? &ek_mesh_one : &mesh);
        ek_moe_build_forward(&l->m, &l->graph, 0, l->micro[0].n, 0, -1);
        CHECK_INT(l->graph.n_ops, ranks == 1 ? 6 : 8);
        for (int32_t i = 0; i < l->graph.n_ops; i++) {
            int known = 0;

            for (int j = 0; j < l->graph.n_ops; j++)
                known += l->graph.ops[i].kind == alone[j];
            CHECK_INT(known, 1);
        }
        ek_graph_reset(&l->graph);
        ek_moe_build_backward(&l->m, &l->graph, 0, l->micro[0].n, -1);
        CHECK_INT(l->graph.n_ops, 8);
        close_layer(l);
    }
    free(l);
    CHECK(!me.failed);
}

/* Memory is reserved for all rows on one rank, and counted for an even spread. */
static void memory_is_counted_for_an_even_spread(void)
{
    ek_mesh mesh = {
        .size = 4, .pp = 1, .dp = 4, .tp = 1, .edp = 1, .ep = 4, .etp = 1, .stage_size = 4};
    scenario s = plain();
    size_t alone;
    ek_moe_limits room = {10000, 10000, 40000, 0};
    ek_kernels *k = NULL;
    ek_arena a;
    ek_moe_scratch scratch = {0};

    s.spec.hidden = 64;
    s.spec.ff = 96;
    s.spec.experts = 8;
    CHECK(ek_kernels_create(EK_MODE_FP64, EK_ISA_REF, 1, &k) == EK_OK);
    ek_arena_measure(&a);
    ek_moe_reserve_scratch(&scratch, &a, k, &s.spec, &ek_mesh_one, &s.cfg,
                           &(ek_moe_limits){10000, 10000, 10000, 0}, 1);
    CHECK_INT(a.unused, 0);
    alone = a.used;
    ek_arena_measure(&a);
    ek_moe_reserve_scratch(&scratch, &a, k, &s.spec, &mesh, &s.cfg, &room, 1);
    /* as many rows as on one rank, plus send and recv buffers */
    CHECK_INT((int64_t)(ek_arena_expected(&a) - alone) / 100000, 2 * 20000 * 65 * 8 / 100000);
    /* the other three ranks' rows: d twice, the inner width, an R, and recv */
    CHECK_INT((int64_t)a.unused, 3 * 20000 * (2 * 64 + 96 + 1 + 65) * 8);
    room.total = INT32_MAX;
    CHECK_INT(ek_moe_check_limits(&s.spec, &mesh, &room), EK_EOVERFLOW);
    room.total = INT32_MAX / 2 - 1;
    CHECK_INT(ek_moe_check_limits(&s.spec, &mesh, &room), EK_OK);
    mesh.etp = 4;
    CHECK_INT(ek_moe_check_limits(&s.spec, &mesh, &room), EK_EOVERFLOW);
    ek_kernels_destroy(&k);
}

/* The busiest expert rank of 3, whose experts are 0 1, 2 3, 4. */
static void busiest_rank(void)
{
    scenario s = plain();
    result one, many;
    int64_t a, b, c, most;

    s.ranks = 6;
    s.sizes.ep = 3;
    s.sizes.etp = 2;
    run_alone(&s, &one);
    CHECK(one.rank_max == 1);
    a = one.load[0] + one.load[1];
    b = one.load[2] + one.load[3];
    c = one.load[4];
    most = a > b ? a : b;
    most = most > c ? most : c;
    if (run_ranks(&s, &many))
        CHECK(many.rank_max == (double)most * 3 / (double)(a + b + c));
    drop(&many);
    drop(&one);
}

static const ek_case cases[] = {
    EK_CASE(bytes_that_move),
    EK_CASE(chunks_are_exchanged_serially),
    EK_CASE(undistributed_layers_exchange_no_rows),
    EK_CASE(memory_is_counted_for_an_even_spread),
    EK_CASE(busiest_rank),
};
EK_TEST_MAIN(cases)
