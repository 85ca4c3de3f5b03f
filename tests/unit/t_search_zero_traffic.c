/* How often the weights of a layer are gathered is what the graphs of training have
 * (search/zero_traffic.h), and what that takes is no longer than a step. */
#include "ek_test.h"
#include "search/zero_traffic.h"
#include "train/simulate.h"

enum { RANKS = 8, LAYERS = 4 };

static const int node_of[RANKS];

static ek_train_config run_of(int pp, int chunks, int micros)
{
    ek_train_config c = EK_TRAIN_CONFIG_INIT;

    c.model = "small"; /* of LAYERS layers */
    c.dtype = "fp64";  /* without packed forms, which are gathered beside the weights */
    c.ep = 1;
    c.pp = pp;
    c.chunks = chunks;
    c.zero = 3;
    c.batch = 32;
    c.micro_batch = 32 / micros;
    return c;
}

/* How often ops of the first stage's graph gather a layer: every bucket of it is as often. */
static int64_t gathers_of(const ek_graph *g)
{
    int64_t buckets[LAYERS] = {0}, ops[LAYERS] = {0}, sum = 0;
    uint64_t seen[LAYERS] = {0};

    for (int32_t i = 0; i < g->n_ops; i++) {
        const ek_op *op = ek_graph_op(g, i);

        if (op->kind != EK_OP_GATHER_WEIGHTS || op->layer < 0)
            continue;
        ops[op->layer]++;
        buckets[op->layer] += (seen[op->layer] >> (op->part % 64) & 1) == 0;
        seen[op->layer] |= (uint64_t)1 << (op->part % 64);
    }
    for (int l = 0; l < LAYERS; l++) {
        CHECK(buckets[l] == 0 || ops[l] % buckets[l] == 0);
        sum += buckets[l] > 0 ? ops[l] / buckets[l] : 0;
    }
    return sum;
}

static void gathers_are_those_of_the_graph(void)
{
    static const int cases[][3] = {{1, 1, 1}, {1, 1, 4}, {2, 1, 4}, {2, 2, 4},
                                   {2, 2, 2}, {4, 1, 8}, {2, 2, 1}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int pp = cases[i][0], chunks = cases[i][1], micros = cases[i][2];
        ek_train_config c = run_of(pp, chunks, micros);
        ek_imagined *x = NULL;
        int64_t gathers = 0, counted;

        CHECK_INT(ek_imagine(&c, &(ek_imagined_world){RANKS, node_of, NULL, NULL}, 0, &x), EK_OK);
        counted = gathers_of(ek_imagined_graphs(x)->classes[0].graph);
        CHECK_INT(ek_layer_gathers(&(ek_layer_uses){LAYERS, pp, chunks, micros}, &gathers), EK_OK);
        CHECK(gathers > 0);
        CHECK_INT(gathers, counted);
        ek_imagined_close(&x);
    }
}

/* A link so slow that nothing else takes time. */
static void traffic_is_most_of_a_step_on_a_slow_link(void)
{
    for (int zero = 2; zero <= 3; zero++) {
        ek_train_config c = run_of(1, 1, 8);
        ek_cluster slow = {
            .n_levels = 1,
            .level =
                {{.name = "node", .ranks = RANKS, .bytes_s = 1e6, .latency_s = 1e-9, .rails = 1}},
            .machine = {.dtype = "fp64", .ranks = 1, .nodes = 1, .threads = 1}};
        ek_simulation_config cfg = {.train = &c, .cluster = &slow, .ranks = RANKS};
        ek_imagined_rank *rank = NULL;
        ek_simulation *sim = NULL;
        ek_layer_traffic of;
        double seconds = 0, step;

        for (int p = 0; p < EK_COST_PRODUCTS; p++)
            slow.machine.rate[p] = (ek_cost_table){.n = 1, .x = {1}, .y = {1e15}};
        slow.machine.copy = 1e15;
        c.zero = zero;
        CHECK_INT(ek_imagined_rank_open(&c, &(ek_imagined_world){RANKS, node_of, &slow, NULL}, 0, 0,
                                        &rank),
                  EK_OK);
        CHECK_INT(ek_layer_traffic_of(rank, &slow, RANKS, &of), EK_OK);
        CHECK_INT(ek_zero_traffic_bound(&of, &(ek_layer_uses){LAYERS, 1, 1, 8}, zero, &seconds),
                  EK_OK);
        CHECK_INT(ek_simulate(&cfg, &sim), EK_OK);
        step = ek_simulation_result(sim)->step_s;
        CHECK(seconds <= step && seconds > 0.3 * step);
        ek_simulation_close(&sim);
        ek_imagined_rank_close(&rank);
    }
}

static const ek_case cases[] = {
    EK_CASE(gathers_are_those_of_the_graph),
    EK_CASE(traffic_is_most_of_a_step_on_a_slow_link),
};
EK_TEST_MAIN(cases)
