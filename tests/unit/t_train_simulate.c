/* Simulated steps of drawn layouts (train/simulate.h): every layout is replayed to its end, times
 * follow the costs as they must, and the first rank of a stage stands for the others. */
#include "base/random.h"
#include "ek_test.h"
#include "recover/supervised.h"
#include "sim/dialect.h"
#include "toy_machine.h"
#include "train/failure_parts.h"
#include "train/imagine.h"
#include "train/simulate.h"

enum { UNEVEN_LAYOUTS = 40, UNEVEN_ITERATIONS = 2, UNEVEN_LAYERS = 4 };
enum { FLOW_LAYOUTS = 60, CORES_LAYOUTS = 12, MESSAGE_LAYOUTS = 12, LAYOUTS = 60 };

static int64_t draw(uint64_t *state, int64_t n)
{
    *state += 1;
    return (int64_t)(ek_random_bits(7, 0, *state) % (uint64_t)n);
}

/* Nodes of 4 ranks; products at 1 TFLOP/s. */
static void set_cluster(ek_cluster *c, double speed, double link_speed)
{
    memset(c, 0, sizeof(*c));
    c->machine = toy_machine("bf16", 1e12 * speed, 1e11 * speed);
    c->n_levels = 2;
    c->level[0] = (ek_cluster_level){.name = "node",
                                     .ranks = 4,
                                     .bytes_s = 1e10 * link_speed,
                                     .latency_s = 2e-6 / link_speed,
                                     .rails = 1};
    c->level[1] = (ek_cluster_level){.name = "net",
                                     .ranks = 64,
                                     .bytes_s = 1e9 * link_speed,
                                     .latency_s = 8e-6 / link_speed,
                                     .rails = 1};
}

/* A layout of 1 to 32 ranks of the preset small; returns its ranks. */
static int draw_layout(uint64_t *state, ek_train_config *c)
{
    static const char *const recompute[] = {"off", "attention", "full"};
    static const char *const a2a[] = {"linear", "pairwise", "2dh"};
    static const char *const balance[] = {"off", "auto", "exact", "replicate"};
    int dp = 1 + (int)draw(state, 6);

    *c = (ek_train_config)EK_TRAIN_CONFIG_INIT;
    c->model = "small";
    c->pp = 1 << draw(state, 3);
    c->tp = 1 << draw(state, 2);
    c->chunks = c->pp == 2 ? 1 + (int)draw(state, 2) : 1;
    c->ep = 1 << draw(state, 3);
    while (dp * c->tp % c->ep != 0)
        dp++;
    c->zero = (int)draw(state, 4);
    c->recompute = recompute[draw(state, 3)];
    c->a2a = a2a[draw(state, 3)];
    c->balance = balance[draw(state, 4)];
    c->pipeline_degree = 1 << draw(state, 2);
    c->micro_batch = 8 + draw(state, 3);
    c->batch = c->micro_batch * (1 + draw(state, 6));
    return c->pp * c->tp * dp;
}

/* trace NULL: even loads. */
static double step_with(ek_engine engine, const ek_train_config *c, const ek_cluster *cluster,
                        int ranks, int every, const ek_trace *trace)
{
    ek_simulation_config cfg = {.train = c,
                                .cluster = cluster,
                                .ranks = ranks,
                                .every_rank = every,
                                .engine = engine,
                                .trace = trace,
                                .steps = 1};
    ek_simulation *s = NULL;
    double step = 0;

    if (ek_simulate(&cfg, &s) == EK_OK) {
        const ek_sim_result *r = ek_simulation_result(s);

        step = r->step_s;
        CHECK(fabs(ek_sim_parts_sum(&r->parts) - step) <= 1e-9 * step);
    } else {
        EK_T_FAIL("pp %d tp %d ep %d zero %d on %d ranks: %s", c->pp, c->tp, c->ep, c->zero, ranks,
                  ek_err_message());
    }
    ek_simulation_close(&s);
    return step;
}

static double step_by(ek_engine engine, const ek_train_config *c, const ek_cluster *cluster,
                      int ranks, int every)
{
    return step_with(engine, c, cluster, ranks, every, NULL);
}

static double step_of(const ek_train_config *c, const ek_cluster *cluster, int ranks, int every)
{
    return step_by(EK_ENGINE_REPLAY, c, cluster, ranks, every);
}

/* Where ranks share no links: with quick links, which flows seldom share, within 3 %; else longer,
 * as what begins later slows down what is in flight, and a rank receives several messages at once.
 */
static void flows_of_drawn_layouts_take_the_replays_time(void)
{
    ek_cluster quick, plain;
    uint64_t state = 7;

    set_cluster(&quick, 1, 10);
    set_cluster(&plain, 1, 1);
    plain.level[0] = plain.level[1];
    plain.n_levels = 1;
    for (int i = 0; i < FLOW_LAYOUTS; i++) {
        ek_train_config c;
        int ranks = draw_layout(&state, &c);
        double of_quick = step_by(EK_ENGINE_FLOW, &c, &quick, ranks, 0) /
                          step_by(EK_ENGINE_REPLAY, &c, &quick, ranks, 0);
        double of_plain = step_by(EK_ENGINE_FLOW, &c, &plain, ranks, 0) /
                          step_by(EK_ENGINE_REPLAY, &c, &plain, ranks, 0);

        CHECK(fabs(of_quick - 1) <= 0.03);
        CHECK(of_plain >= 1 - 1e-9 && of_plain <= 1.1);
    }
}

/* Loads of the 8 experts of preset small: a few get most rows. */
static void draw_counts(uint64_t *state, int64_t counts[UNEVEN_ITERATIONS * UNEVEN_LAYERS][8])
{
    for (int l = 0; l < UNEVEN_ITERATIONS * UNEVEN_LAYERS; l++)
        for (int e = 0; e < 8; e++)
            counts[l][e] = 50 + (draw(state, 3) == 0 ? 100 * draw(state, 10) : 0);
}

/* How far the step of a replay is from that of flows. */
static double replay_error(const ek_train_config *c, const ek_cluster *cluster, int ranks,
                           const ek_trace *t)
{
    return fabs(step_with(EK_ENGINE_REPLAY, c, cluster, ranks, 0, t) /
                    step_with(EK_ENGINE_FLOW, c, cluster, ranks, 0, t) -
                1);
}

/* Where nodes share no links; where their two ranks share an adapter, and no stage ends within a
 * node; and where they share cores, too, which stages do not give to one another. */
static void flows_of_uneven_loads_take_the_replays_time(void)
{
    static int64_t counts[UNEVEN_ITERATIONS * UNEVEN_LAYERS][8];
    ek_trace t = {.data = (const unsigned char *)counts,
                  .width = 8,
                  .iterations = UNEVEN_ITERATIONS,
                  .layers = UNEVEN_LAYERS,
                  .sources = 1,
                  .experts = 8};
    ek_cluster own, adapter, cores;
    uint64_t state = 11;
    int n_adapter = 0, n_cores = 0;

    set_cluster(&own, 1, 0.3);
    adapter = own;
    adapter.level[0].ranks = adapter.level[1].shared_by = 2;
    cores = adapter;
    cores.machine.rank_alone = 1.5;
    cores.machine.ranks = 2;
    for (int i = 0; i < UNEVEN_LAYOUTS; i++) {
        ek_train_config c;
        int ranks = draw_layout(&state, &c);

        draw_counts(&state, counts);
        CHECK(replay_error(&c, &own, ranks, &t) <= 0.08);
        if (ranks / c.pp % 2 != 0)
            continue;
        CHECK(replay_error(&c, &adapter, ranks, &t) <= 0.08);
        n_adapter++;
        if (c.pp > 1)
            continue;
        CHECK(replay_error(&c, &cores, ranks, &t) <= 0.08);
        n_cores++;
    }
    CHECK(n_adapter >= 10 && n_cores >= 5);
}

/* Bit for bit; and where ranks do share them, steps are shorter in the mean. */
static void ranks_that_share_no_cores_take_the_same_time(void)
{
    ek_cluster none, own, shared;
    uint64_t state = 7;
    double apart = 0, together = 0;

    set_cluster(&none, 1, 1);
    own = shared = none;
    own.machine.rank_alone = own.machine.node_alone = 1;
    shared.machine.rank_alone = 2;
    for (int i = 0; i < CORES_LAYOUTS; i++) {
        ek_train_config c;
        int ranks = draw_layout(&state, &c);
        double step = step_by(EK_ENGINE_FLOW, &c, &none, ranks, 0);

        CHECK(step_by(EK_ENGINE_FLOW, &c, &own, ranks, 0) == step);
        shared.machine.ranks = ranks;
        apart += step;
        together += step_by(EK_ENGINE_FLOW, &c, &shared, ranks, 0);
    }
    CHECK(together < apart);
}

/* Quick links: within 3 % of the flow engine.  Costs half as high take half the time. */
static void messages_of_drawn_layouts_take_the_flows_time(void)
{
    ek_cluster quick, plain, faster;
    uint64_t state = 7;

    set_cluster(&quick, 1, 10);
    set_cluster(&plain, 1, 1);
    set_cluster(&faster, 2, 2);
    for (int i = 0; i < MESSAGE_LAYOUTS; i++) {
        ek_train_config c;
        int ranks = draw_layout(&state, &c);
        double flow, messages, step, half;

        flow = step_by(EK_ENGINE_FLOW, &c, &quick, ranks, 0);
        messages = step_by(EK_ENGINE_MESSAGES, &c, &quick, ranks, 0);
        step = step_by(EK_ENGINE_MESSAGES, &c, &plain, ranks, 0);
        half = step_by(EK_ENGINE_MESSAGES, &c, &faster, ranks, 0);

        CHECK(fabs(messages / flow - 1) <= 0.03);
        CHECK(fabs(2 * half - step) <= 1e-9 * step);
        CHECK(messages <= step);
    }
}

/* Every expert is on two ranks at least, whose gradients are summed.  Quick links: nearly as long
 * as with flows; and copies make a step longer on slow ones. */
static void messages_with_copies_take_nearly_the_flows_time(void)
{
    ek_cluster quick, plain;
    uint64_t state = 23;

    set_cluster(&quick, 1, 10);
    set_cluster(&plain, 1, 1);
    for (int i = 0; i < MESSAGE_LAYOUTS;) {
        ek_train_config c;
        int ranks = draw_layout(&state, &c);
        double flow, messages, alone;

        if (c.ep < 2)
            continue;
        i++;
        c.balance = "replicate";
        c.replicas_min = 2;
        c.spare_slots = 8 / c.ep + (int)draw(&state, 2);
        flow = step_by(EK_ENGINE_FLOW, &c, &quick, ranks, 0);
        messages = step_by(EK_ENGINE_MESSAGES, &c, &quick, ranks, 0);
        CHECK(fabs(messages / flow - 1) <= 0.04);
        messages = step_by(EK_ENGINE_MESSAGES, &c, &plain, ranks, 0);
        c.balance = "off";
        c.replicas_min = c.spare_slots = 0;
        alone = step_by(EK_ENGINE_MESSAGES, &c, &plain, ranks, 0);
        CHECK(messages > alone);
    }
}

/* Pipelines of a rank a stage, whose messages take up to several times as long as the products
 * between, so that those of several micro-batches wait for one another.  A message of the other
 * engine waits for its receiver, too. */
static void pipelines_take_nearly_as_long_in_flows_as_by_messages(void)
{
    static const double speeds[] = {1, 0.2, 0.05};

    for (int i = 0; i < 3; i++)
        for (int stages = 2; stages <= 4; stages *= 2)
            for (int64_t micro = 1; micro <= 2; micro++) {
                ek_train_config c = EK_TRAIN_CONFIG_INIT;
                ek_cluster slow;
                double flow, messages;

                set_cluster(&slow, 1, speeds[i]);
                slow.level[0].ranks = 1 + i % 2;
                c.model = "tiny";
                c.pp = stages;
                c.micro_batch = micro;
                c.batch = 16;
                flow = step_by(EK_ENGINE_FLOW, &c, &slow, stages, 0);
                messages = step_by(EK_ENGINE_MESSAGES, &c, &slow, stages, 0);
                CHECK(fabs(flow / messages - 1) <= (i == 2 && stages == 4 ? 0.3 : 0.1));
            }
}

static void steps_of_drawn_layouts_follow_the_costs(void)
{
    ek_cluster plain, faster, quick_links;
    uint64_t state = 1;
    int exposed = 0;

    set_cluster(&plain, 1, 1);
    set_cluster(&faster, 2, 2);
    set_cluster(&quick_links, 1, 10);
    for (int i = 0; i < LAYOUTS; i++) {
        ek_train_config c;
        int ranks = draw_layout(&state, &c);
        double step = step_of(&c, &plain, ranks, 0), all = step_of(&c, &plain, ranks, 1);
        double half = step_of(&c, &faster, ranks, 0), quick = step_of(&c, &quick_links, ranks, 0);

        CHECK(step > 0);
        CHECK(fabs(2 * half - step) <= 1e-9 * step);
        CHECK(quick <= step);
        CHECK(all <= step * 1.002); /* no rank has more work than the first of a stage */
        CHECK(all >= step * 0.8);   /* and others not much less */
        exposed += quick < 0.9 * step;
    }
    CHECK(exposed > LAYOUTS / 4); /* links decided something */
}

/* A step of one rank is the sum of its ops, each with what the executor takes. */
static void every_op_that_computes_takes_the_executors_time_as_well(void)
{
    ek_train_config c = EK_TRAIN_CONFIG_INIT;
    ek_cluster plain, slower;
    double ops;

    set_cluster(&plain, 1, 1);
    set_cluster(&slower, 1, 1);
    slower.machine.op_s = 1e-3;
    c.model = "tiny";
    ops = (step_of(&c, &slower, 1, 0) - step_of(&c, &plain, 1, 0)) / 1e-3;
    CHECK(ops > 50 && fabs(ops - round(ops)) < 1e-6);
}

/* Products and attention serve the network while they compute: 1/4 longer for each op in flight. */
static void products_and_attention_serve_the_network(void)
{
    ek_train_config c = EK_TRAIN_CONFIG_INIT;
    ek_cluster polls;
    ek_simulation_config cfg = {.train = &c, .cluster = &polls, .ranks = 2};
    ek_simulation *s = NULL;
    const ek_sim_class *of;
    int counts[2] = {0};

    set_cluster(&polls, 1, 1);
    polls.machine.polling = 0.25;
    c.model = "tiny";
    CHECK_INT(ek_simulate(&cfg, &s), EK_OK);
    of = &ek_simulation_graphs(s)->classes[0];
    for (int32_t i = 0; i < of->graph->n_ops; i++) {
        const ek_op *op = ek_graph_op(of->graph, i);
        int serves = op->work.kind == EK_WORK_PRODUCTS || op->work.kind == EK_WORK_ATTENTION;
        ek_sim_price p;

        ek_simulate_price(&polls, of, op, &p);
        CHECK(p.polled == (serves ? 0.25 * p.seconds : 0));
        counts[serves]++;
    }
    CHECK(counts[0] > 10 && counts[1] > 10);
    ek_simulation_close(&s);
}

static void steps_take_longer_for_the_network_beside_them(void)
{
    ek_train_config c = EK_TRAIN_CONFIG_INIT;
    ek_cluster plain, polls, copies;
    double free_of_it;

    set_cluster(&plain, 1, 1);
    set_cluster(&polls, 1, 1);
    set_cluster(&copies, 1, 1);
    polls.machine.polling = 0.25;
    copies.level[0].byte_s = 1e-9;
    c.model = "tiny";
    free_of_it = step_of(&c, &plain, 1, 0);
    CHECK(step_of(&c, &polls, 1, 0) == free_of_it);
    CHECK(step_of(&c, &copies, 1, 0) == free_of_it);
    c.ep = 2;
    free_of_it = step_of(&c, &plain, 2, 0);
    CHECK(step_of(&c, &polls, 2, 0) > free_of_it);
    CHECK(step_of(&c, &copies, 2, 0) > free_of_it);
}

/* The step with nodes of so many ranks, and a slow or quick network between them. */
static double with_nodes(const ek_train_config *c, int ranks, int a_node, double net)
{
    ek_cluster cluster;

    set_cluster(&cluster, 1, 1);
    cluster.level[0].ranks = a_node;
    cluster.level[1].ranks = 10L * a_node;
    cluster.level[1].bytes_s *= net;
    return step_of(c, &cluster, ranks, 0);
}

static void groups_that_straddle_nodes_wait_for_the_network(void)
{
    ek_train_config c = EK_TRAIN_CONFIG_INIT;

    c.model = "small";
    c.tp = 4; /* of ranks 0 to 3, 4 to 7, 8 to 11 */
    CHECK(with_nodes(&c, 12, 12, 0.1) == with_nodes(&c, 12, 12, 10));
    CHECK(with_nodes(&c, 12, 6, 0.1) > 3 * with_nodes(&c, 12, 12, 0.1));
}

static void messages_between_stages_of_a_node_do_not_pass_the_network(void)
{
    ek_train_config c = EK_TRAIN_CONFIG_INIT;

    c.model = "small";
    c.pp = 2; /* two stages of 4 ranks on each node of 8, or on one each */
    c.micro_batch = 8;
    CHECK(with_nodes(&c, 8, 8, 0.01) == with_nodes(&c, 8, 8, 10));
    CHECK(with_nodes(&c, 8, 4, 0.01) > with_nodes(&c, 8, 4, 10));
    c.pp = 4; /* stages 0 and 1 are together, 1 and 2 are not */
    CHECK(with_nodes(&c, 16, 8, 0.01) > with_nodes(&c, 16, 8, 10));
}

static void a_slow_rank_makes_the_step_longer(void)
{
    ek_train_config c = EK_TRAIN_CONFIG_INIT;
    ek_cluster plain, slow;
    double even, uneven;

    set_cluster(&plain, 1, 100);
    set_cluster(&slow, 1, 100);
    slow.n_slow = 1;
    slow.slow[0] = 5;
    slow.slow_factor = 0.5;
    c.model = "small";
    c.ep = 4;
    even = step_of(&c, &plain, 8, 0);
    uneven = step_of(&c, &slow, 8, 0);
    CHECK(uneven > 1.5 * even && uneven < 2.01 * even);
}

/* Seconds of a rank's expert products in a step with these loads; NULL: even ones. */
static double products_of(int rank, const ek_trace *t)
{
    ek_train_config c = EK_TRAIN_CONFIG_INIT;
    ek_cluster plain;
    ek_simulation_config cfg = {.train = &c,
                                .cluster = &plain,
                                .ranks = 16,
                                .timeline = 1,
                                .timeline_rank = rank,
                                .trace = t};
    ek_simulation *s = NULL;
    double sum = 0;

    set_cluster(&plain, 1, 1);
    c.model = "small";
    c.pp = 2;
    c.ep = 4;
    c.balance = "off";
    CHECK_INT(ek_simulate(&cfg, &s), EK_OK);
    for (int32_t i = 0; i < ek_simulation_result(s)->records[0].n; i++) {
        const ek_sim_record *r = &ek_simulation_result(s)->records[0];

        if (ek_op_info_of(ek_graph_op(r->graph, i)->kind)->group == EK_OP_GROUP_EXPERTS)
            sum += r->spans[i].end - r->spans[i].start;
    }
    ek_simulation_close(&s);
    return sum;
}

static void loads_of_a_trace_are_those_of_the_ranks_of_a_group(void)
{
    static int64_t counts[4][4][8];
    ek_trace t = {.data = (const unsigned char *)counts,
                  .width = 8,
                  .iterations = 1,
                  .layers = 4,
                  .sources = 4,
                  .experts = 8};
    double even = products_of(0, NULL);

    for (int l = 0; l < 4; l++)
        for (int r = 0; r < 4; r++)
            counts[l][r][2 * l] = counts[l][r][2 * l + 1] = 500; /* the experts of rank l */
    CHECK(even > 0);
    for (int r = 0; r < 16; r++) { /* stage 0 has layers 0 and 1: each is half of its products */
        int serves = r % 4 / 2 == r / 8;

        CHECK(fabs(products_of(r, &t) - (serves ? 2 * even : 0)) <= 1e-9 * even);
    }
}

/* Nodes of one rank, two stages of 4: the nodes that hold parts of the stages with these loads. */
static void parts_of(const ek_trace *t, ek_arena *a, ek_replica_sets *sets)
{
    ek_train_config c = EK_TRAIN_CONFIG_INIT;
    ek_cluster cluster;
    ek_simulation_config cfg = {.train = &c, .cluster = &cluster, .ranks = 8};
    ek_simulation *s = NULL;

    set_cluster(&cluster, 1, 1);
    cluster.level[0].ranks = 1;
    c.model = "small";
    c.pp = 2;
    c.ep = 4;
    c.balance = "replicate";
    c.spare_slots = 6;
    c.replicas_min = 2;
    CHECK_INT(ek_simulate(&cfg, &s), EK_OK);
    CHECK_INT(
        ek_failure_parts(ek_simulation_layout(s), ek_simulation_graphs(s), &cluster, t, a, sets),
        EK_OK);
    ek_simulation_close(&s);
}

/* Whether each set of some nodes is in both. */
static int are_same(const ek_replica_sets *x, const ek_replica_sets *y, uint64_t nodes)
{
    uint64_t of[2][256] = {{0}};

    for (int64_t i = 0; i < x->n; i++)
        of[0][x->mask[i * x->words] & 255] |= (x->mask[i * x->words] & ~nodes) == 0;
    for (int64_t i = 0; i < y->n; i++)
        of[1][y->mask[i * y->words] & 255] |= (y->mask[i * y->words] & ~nodes) == 0;
    return memcmp(of[0], of[1], sizeof(of[0])) == 0;
}

/* Other loads of the second stage's layers change the second stage's parts alone. */
static void a_stage_has_the_parts_of_its_layers(void)
{
    static int64_t counts[2][4][4][8];
    ek_replica_sets sets[2];
    ek_arena a[2] = {{0}, {0}};

    for (int k = 0; k < 2; k++)
        for (int l = 0; l < 4; l++)
            for (int r = 0; r < 4; r++)
                for (int e = 0; e < 8; e++)
                    counts[k][l][r][e] = k > 0 && l > 1 ? 1 + 60 * e * e : 500;
    for (int k = 0; k < 2; k++)
        parts_of(&(ek_trace){.data = (const unsigned char *)counts[k],
                             .width = 8,
                             .iterations = 1,
                             .layers = 4,
                             .sources = 4,
                             .experts = 8},
                 &a[k], &sets[k]);
    CHECK(are_same(&sets[0], &sets[1], 0x0f));
    CHECK(!are_same(&sets[0], &sets[1], 0xf0));
    ek_arena_fini(&a[0]);
    ek_arena_fini(&a[1]);
}

static void more_ranks_than_the_cluster_has_are_refused(void)
{
    ek_train_config c = EK_TRAIN_CONFIG_INIT;
    ek_cluster plain;
    ek_simulation_config cfg = {.train = &c, .cluster = &plain, .ranks = 65};
    ek_simulation *s = NULL;

    set_cluster(&plain, 1, 1);
    CHECK_INT(ek_simulate(&cfg, &s), EK_EINVAL);
    CHECK(strstr(ek_err_message(), "--ranks 65") != NULL);
    ek_simulation_close(&s);
    cfg.ranks = 8;
    cfg.timeline = 1;
    cfg.timeline_rank = 8;
    CHECK_INT(ek_simulate(&cfg, &s), EK_EINVAL);
    CHECK(strstr(ek_err_message(), "ranks 0 to 7") != NULL);
    ek_simulation_close(&s);
}

static void messages_of_more_ranks_or_uneven_loads_are_refused(void)
{
    ek_train_config c = EK_TRAIN_CONFIG_INIT;
    ek_cluster plain;
    ek_trace t = {0};
    ek_simulation_config cfg = {
        .train = &c, .cluster = &plain, .ranks = 65, .engine = EK_ENGINE_MESSAGES};
    ek_simulation *s = NULL;

    set_cluster(&plain, 1, 1);
    plain.level[1].ranks = 128;
    CHECK_INT(ek_simulate(&cfg, &s), EK_EUNSUPPORTED);
    CHECK(strstr(ek_err_message(), "up to 64 ranks, not 65") != NULL);
    ek_simulation_close(&s);
    cfg.ranks = 8;
    cfg.trace = &t;
    CHECK_INT(ek_simulate(&cfg, &s), EK_EUNSUPPORTED);
    CHECK(strstr(ek_err_message(), "--trace") != NULL);
    ek_simulation_close(&s);
    cfg.trace = NULL;
    cfg.dialect = EK_DIALECT_RING_STEPS;
    CHECK_INT(ek_simulate(&cfg, &s), EK_EUNSUPPORTED);
    CHECK(strstr(ek_err_message(), "ring-steps") != NULL);
    ek_simulation_close(&s);
}

static void a_layout_that_does_not_fit_is_refused_as_training_does(void)
{
    ek_train_config c = EK_TRAIN_CONFIG_INIT;
    ek_cluster plain;
    ek_simulation_config cfg = {.train = &c, .cluster = &plain, .ranks = 8};
    ek_simulation *s = NULL;

    set_cluster(&plain, 1, 1);
    c.ep = 3;
    CHECK_INT(ek_simulate(&cfg, &s), EK_EINVAL);
    CHECK(strstr(ek_err_message(), "--ep 3") != NULL);
    ek_simulation_close(&s);
    c.ep = 1;
    c.offload = "experts";
    CHECK_INT(ek_simulate(&cfg, &s), EK_EUNSUPPORTED);
    ek_simulation_close(&s);
}

/* Memory that the process has. */
static volatile char *touch(size_t bytes)
{
    volatile char *p = malloc(bytes);

    for (size_t i = 0; p != NULL && i < bytes; i += 4096)
        p[i] = 1;
    return p;
}

/* By default: they lengthen a step by a tenth. */
static void copies_are_kept_where_losses_cost_more(void)
{
    ek_train_config c = EK_TRAIN_CONFIG_INIT;
    ek_cluster plain;
    ek_simulation_config cfg = {.train = &c, .cluster = &plain, .ranks = 8};
    ek_simulation *s = NULL;
    ek_supervised seen = {.lost_hosts = 30, .host_s = 3600};

    set_cluster(&plain, 1, 1);
    c.model = "small";
    c.ep = 8;
    c.batch = 320;
    c.elastic = EK_ELASTIC_BY_DEFAULT;
    for (int i = 0; i < 5; i++) {
        int kept = i >= 2;

        c.save_seconds = i > 0 && i < 4 ? 600 : 0;
        c.host_mtbf = i == 2 ? 1 : 24; /* of 2: 300 s of each 1,800 */
        c.supervised = i == 3 ? &seen : NULL;
        c.save_every = i == 4 ? 0 : -1; /* nothing is saved */
        c.steps = i == 4 ? 20000 : 100;
        CHECK_INT(ek_simulate(&cfg, &s), EK_OK);
        CHECK_INT(ek_simulation_layout(s)->replicas_min, kept ? 2 : 1);
        CHECK(kept ? ek_simulation_layout(s)->copies_lengthen == 0
                   : fabs(ek_simulation_layout(s)->copies_lengthen - 0.1) < 0.04);
        ek_simulation_close(&s);
    }
}

/* With `elastic`: on two nodes of which each has a rank of every kind. */
static void copies_are_chosen_as_in_training(void)
{
    ek_train_config c = EK_TRAIN_CONFIG_INIT;
    ek_cluster plain;
    ek_simulation_config cfg = {.train = &c, .cluster = &plain, .ranks = 8};
    ek_simulation *s = NULL;
    volatile char *own;
    double least, most;

    set_cluster(&plain, 1, 1);
    c.model = "small";
    c.ep = 8;
    c.elastic = EK_ELASTIC_BY_DEFAULT;
    CHECK_INT(ek_simulate(&cfg, &s), EK_OK); /* links are slow */
    CHECK_INT(ek_simulation_layout(s)->replicas_min, 1);
    CHECK(ek_simulation_layout(s)->copies_lengthen > 0.05);
    least = ek_simulation_graphs(s)->classes[0].memory;
    ek_simulation_close(&s);
    c.elastic = 1;
    CHECK_INT(ek_simulate(&cfg, &s), EK_OK);
    CHECK_INT(ek_simulation_layout(s)->replicas_min, 2);
    CHECK(ek_simulation_layout(s)->planner == &ek_planner_auto_replicas);
    most = ek_simulation_graphs(s)->classes[0].memory;
    CHECK(most > 1.2 * least);
    ek_simulation_close(&s);
    plain.memory = most * 1.1; /* of which the process that simulates takes nothing */
    own = touch((size_t)most / 4);
    CHECK_INT(ek_simulate(&cfg, &s), EK_OK);
    CHECK_INT(ek_simulation_layout(s)->replicas_min, 2);
    ek_simulation_close(&s);
    free((void *)own);
    plain.memory = least * 1.1; /* two do not fit */
    CHECK_INT(ek_simulate(&cfg, &s), EK_OK);
    CHECK_INT(ek_simulation_layout(s)->replicas_min, 1);
    CHECK(ek_simulation_layout(s)->copies_lengthen == 0);
    ek_simulation_close(&s);
}

/* A class a stage says the same as all ranks: each rank's partner is as far behind it. */
static void partners_of_a_stage_are_alike(void)
{
    ek_train_config c = EK_TRAIN_CONFIG_INIT;
    ek_cluster plain;
    double step[2], bytes[2];

    set_cluster(&plain, 1, 1);
    c.model = "small";
    c.elastic = 1;
    c.pp = 2;
    c.zero = 2;
    c.ep = 4;
    for (int every = 0; every < 2; every++) {
        ek_simulation_config cfg = {
            .train = &c, .cluster = &plain, .ranks = 32, .every_rank = every};
        ek_simulation *s = NULL;

        CHECK_INT(ek_simulate(&cfg, &s), EK_OK);
        step[every] = ek_simulation_result(s)->step_s;
        bytes[every] = ek_simulation_traffic(s).bytes[1];
        CHECK(ek_simulation_result(s)->parts.transfer[EK_COLLECTIVE_PARTNERS] > 0);
        ek_simulation_close(&s);
    }
    CHECK(fabs(step[1] / step[0] - 1) < 0.01);
    CHECK(fabs(bytes[1] / bytes[0] - 1) < 0.01);
}

static const ek_case cases[] = {
    EK_CASE(copies_are_kept_where_losses_cost_more),
    EK_CASE(copies_are_chosen_as_in_training),
    EK_CASE(partners_of_a_stage_are_alike),
    EK_CASE(steps_of_drawn_layouts_follow_the_costs),
    EK_CASE(flows_of_drawn_layouts_take_the_replays_time),
    EK_CASE(flows_of_uneven_loads_take_the_replays_time),
    EK_CASE(ranks_that_share_no_cores_take_the_same_time),
    EK_CASE(messages_of_drawn_layouts_take_the_flows_time),
    EK_CASE(messages_with_copies_take_nearly_the_flows_time),
    EK_CASE(pipelines_take_nearly_as_long_in_flows_as_by_messages),
    EK_CASE(every_op_that_computes_takes_the_executors_time_as_well),
    EK_CASE(products_and_attention_serve_the_network),
    EK_CASE(steps_take_longer_for_the_network_beside_them),
    EK_CASE(groups_that_straddle_nodes_wait_for_the_network),
    EK_CASE(messages_between_stages_of_a_node_do_not_pass_the_network),
    EK_CASE(a_slow_rank_makes_the_step_longer),
    EK_CASE(loads_of_a_trace_are_those_of_the_ranks_of_a_group),
    EK_CASE(a_stage_has_the_parts_of_its_layers),
    EK_CASE(more_ranks_than_the_cluster_has_are_refused),
    EK_CASE(messages_of_more_ranks_or_uneven_loads_are_refused),
    EK_CASE(a_layout_that_does_not_fit_is_refused_as_training_does),
};
EK_TEST_MAIN(cases)
