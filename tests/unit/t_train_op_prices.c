/* One price for ops that are alike (sim/replay_prices.c), which are kept once (ek_graph_pack):
 * steps of drawn layouts are bit for bit those with every op priced by itself, and with graphs that
 * are not packed. */
#include "base/random.h"
#include "ek_test.h"
#include "model_file.h"
#include "sim/flow.h"
#include "toy_machine.h"
#include "train/imagine.h"
#include "train/simulate.h"

#include <unistd.h>

enum { RANKS = 16, NODE = 4, DRAWS = 60, EP = 4 };

static int drawn(int draw, int what, int below)
{
    return (int)(ek_random_bits(91, (uint64_t)draw, (uint64_t)what) % (uint64_t)below);
}

static void open_cluster(ek_cluster *c)
{
    memset(c, 0, sizeof(*c));
    c->machine = toy_machine("bf16", 1e12, 1e11);
    c->n_levels = 2;
    c->level[0] = (ek_cluster_level){
        .name = "node", .ranks = NODE, .bytes_s = 1e10, .latency_s = 2e-6, .rails = 1};
    c->level[1] = (ek_cluster_level){
        .name = "net", .ranks = RANKS, .bytes_s = 1e9, .latency_s = 8e-6, .rails = 1};
}

static ek_train_config draw_layout(int draw, const char *model)
{
    static const char *const recompute[] = {"off", "attention", "full"};
    ek_train_config c = EK_TRAIN_CONFIG_INIT;

    c.model = model;
    c.pp = 1 << drawn(draw, 1, 3);
    c.chunks = c.pp > 1 ? 1 + drawn(draw, 2, 2) : 1;
    c.tp = 1 << drawn(draw, 3, 2);
    c.ep = 1 << drawn(draw, 4, 3);
    c.etp = 1;
    c.zero = drawn(draw, 5, 4);
    c.recompute = recompute[drawn(draw, 6, 3)];
    c.micro_batch = RANKS / c.pp / c.tp;
    c.batch = c.micro_batch * (1 + drawn(draw, 7, 6)) + drawn(draw, 8, 2) * c.micro_batch / 2;
    c.a2a = drawn(draw, 9, 2) ? "2dh" : "linear";
    c.pipeline_degree = 1 << drawn(draw, 50, 3);
    return c;
}

typedef struct {
    const ek_cluster *cluster;
    const ek_sim_graphs *graphs;
    int64_t *asked; /* prices */
    double factors[8][EP];
    double slow[RANKS]; /* some ranks; all 1: none is */
} toy;

static void price_op(const void *context, const ek_sim_class *c, const ek_op *op, ek_sim_price *out)
{
    const toy *t = context;

    ++*t->asked;
    ek_simulate_price(t->cluster, c, op, out);
}

/* Depends on where an op is, which its price may not. */
static int is_absent(const void *context, const ek_sim_class *c, int32_t op)
{
    (void)context;
    return ek_graph_op(c->graph, op)->kind == EK_OP_GATHER_WEIGHTS && op % 3 == 0;
}

/* Of experts' products, by layer. */
static const double *factors_of(const void *loads, const ek_op *op)
{
    const toy *t = loads;

    return op->kind == EK_OP_EXPERT_UP && op->layer >= 0 ? t->factors[op->layer] : NULL;
}

static ek_sim_result run(const toy *t, int flow, int loaded, int each)
{
    int32_t column_of[RANKS];
    ek_sim_config cfg = {.graphs = t->graphs,
                         .price = price_op,
                         .absent = is_absent,
                         .context = t,
                         .price_each = each,
                         .slow = t->slow,
                         .factors = loaded ? factors_of : NULL,
                         .loads = t,
                         .column_of = column_of,
                         .n_columns = EP};
    ek_sim_result r;

    for (int i = 0; i < RANKS; i++)
        column_of[i] = i % EP;
    *t->asked = 0;
    CHECK_INT(flow ? ek_sim_flow(&cfg, t->cluster, &r) : ek_sim_replay(&cfg, &r), EK_OK);
    return r;
}

static void check_same(const ek_sim_result *a, const ek_sim_result *b)
{
    CHECK(a->step_s > 0);
    CHECK(memcmp(&a->step_s, &b->step_s, sizeof(b->step_s)) == 0);
    CHECK(memcmp(&a->flops, &b->flops, sizeof(b->flops)) == 0);
    CHECK(memcmp(&a->parts, &b->parts, sizeof(b->parts)) == 0);
    CHECK(memcmp(a->of_class, b->of_class, (size_t)b->n_classes * sizeof(*b->of_class)) == 0);
}

/* Compares with the graphs as ranks have built them, which are not packed. */
static void compare_plain(const toy *t, const ek_train_config *cfg, const ek_imagined_world *w)
{
    const ek_sim_graphs *g = t->graphs;
    ek_sim_class classes[RANKS];
    ek_imagined_rank *rank[RANKS];
    ek_sim_graphs all = {g->ranks, g->n_classes, classes};
    toy plain = *t;

    plain.graphs = &all;
    for (int32_t k = 0; k < g->n_classes; k++) {
        classes[k] = g->classes[k];
        CHECK_INT(ek_imagined_rank_open(cfg, w, classes[k].ranks[0], 0, &rank[k]), EK_OK);
        CHECK_INT(ek_imagined_rank_step(rank[k], &classes[k].graph), EK_OK);
        CHECK(g->classes[k].graph->ops == NULL && classes[k].graph->ops != NULL);
        CHECK(ek_graph_digest(g->classes[k].graph) == ek_graph_digest(classes[k].graph));
    }
    for (int i = 0; i < 4; i++) {
        ek_sim_result a = run(t, i / 2, i % 2, 0), b = run(&plain, i / 2, i % 2, 0);

        check_same(&a, &b);
        ek_sim_free(&a);
        ek_sim_free(&b);
    }
    for (int32_t k = 0; k < g->n_classes; k++)
        ek_imagined_rank_close(&rank[k]);
}

/* Returns how many times fewer prices were asked. */
static double compare(const toy *t, int flow, int loaded)
{
    ek_sim_result alike = run(t, flow, loaded, 0);
    int64_t few = *t->asked;
    ek_sim_result each = run(t, flow, loaded, 1);

    check_same(&alike, &each);
    ek_sim_free(&alike);
    ek_sim_free(&each);
    return (double)*t->asked / (double)few;
}

static void steps_are_those_of_ops_priced_one_by_one(void)
{
    char path[] = "/tmp/ek-prices-XXXXXX";
    int node_of[RANKS], n = 0;
    ek_imagined_world w = {RANKS, node_of, NULL, NULL};
    double fewer = 0;
    int64_t asked;
    ek_cluster c;

    open_cluster(&c);
    w.cluster = &c;
    write_model(path);
    for (int r = 0; r < RANKS; r++)
        node_of[r] = r / NODE;
    for (int draw = 0; draw < DRAWS; draw++) {
        ek_train_config cfg = draw_layout(draw, path);
        ek_imagined *im = NULL;
        toy t = {.cluster = &c, .asked = &asked};

        for (int i = 0; i < RANKS; i++)
            t.slow[i] = drawn(draw, 51, 3) == 0 && drawn(draw, 52 + i, 8) == 0 ? 1.25 : 1;
        for (int i = 0; i < 8 * EP; i++)
            t.factors[i / EP][i % EP] = 1 + drawn(draw, 100 + i, 100) * 0.01;
        if (ek_imagine(&cfg, &w, 0, &im) == EK_OK) {
            t.graphs = ek_imagined_graphs(im);
            for (int i = 0; i < 4; i++)
                fewer += compare(&t, i / 2, i % 2);
            compare_plain(&t, &cfg, &w);
            n += 4;
        }
        ek_imagined_close(&im);
    }
    (void)unlink(path);
    CHECK(n > 4 * DRAWS / 2);
    CHECK(fewer / n > 3);
    printf("%d simulations, %.1f times fewer prices in the mean\n", n, fewer / n);
}

static const ek_case cases[] = {
    EK_CASE(steps_are_those_of_ops_priced_one_by_one),
};
EK_TEST_MAIN(cases)
