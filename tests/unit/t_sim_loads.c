/* Loads of a simulated step (sim/loads.h): factors of traces by hand, under planners. */
#include "ek_test.h"
#include "sim/loads.h"
#include "toy_machine.h"

enum { EP = 4, EXPERTS = 8, LAYERS = 2, ITERATIONS = 6 };

static int64_t counts[ITERATIONS][LAYERS][EP][EXPERTS];

/* Layer 0: all rows go to expert 0, on rank 0; layer 1: even. */
static ek_trace hot_trace(void)
{
    for (int i = 0; i < ITERATIONS; i++)
        for (int r = 0; r < EP; r++)
            for (int e = 0; e < EXPERTS; e++) {
                counts[i][0][r][e] = e == 0 ? 8000 : 0;
                counts[i][1][r][e] = 1000;
            }
    return (ek_trace){.data = (const unsigned char *)counts,
                      .width = 8,
                      .iterations = ITERATIONS,
                      .layers = LAYERS,
                      .sources = EP,
                      .experts = EXPERTS};
}

static ek_cluster cluster;

/* A node of each rank, with links so quick that replicas pay. */
static ek_sim_loads_config config_of(const ek_trace *t, const ek_model_spec *spec,
                                     const ek_planner *planner)
{
    memset(&cluster, 0, sizeof(cluster));
    cluster.machine = toy_machine("fp32", 1e9, 1e12);
    cluster.n_levels = 1;
    cluster.level[0] =
        (ek_cluster_level){.name = "net", .ranks = 16, .bytes_s = 1e12, .latency_s = 1e-7};
    return (ek_sim_loads_config){.trace = t,
                                 .dtype = "fp32",
                                 .planner = planner,
                                 .spec = spec,
                                 .cluster = &cluster,
                                 .ep = EP,
                                 .etp = 1,
                                 .spare_slots = planner == &ek_planner_off ? 0 : 1,
                                 .rows = 8000,
                                 .horizon = 10,
                                 .batches = 1,
                                 .steps = 3};
}

/* Four layers, the second of them dense. */
static ek_model_spec small_spec(void)
{
    ek_model_spec s;

    ek_model_default(&s);
    s.layers = 4;
    s.dense[1] = 1;
    s.hidden = 64;
    s.ff = 64;
    s.experts = EXPERTS;
    s.top_k = 1;
    return s;
}

static const double *factors(const ek_sim_loads *l, ek_op_kind kind, int32_t layer)
{
    ek_op op = {.kind = kind, .layer = layer};

    return ek_sim_loads_factors(l, &op);
}

static void one_expert_with_all_rows_loads_its_rank(void)
{
    ek_trace t = hot_trace();
    ek_model_spec spec = small_spec();
    ek_sim_loads_config cfg = config_of(&t, &spec, &ek_planner_off);
    ek_sim_loads *l;

    CHECK_INT(ek_sim_loads_open(&cfg, &l), EK_OK);
    CHECK_INT(ek_sim_loads_steps(l), 3);
    for (int64_t s = 0; s < 3; s++) {
        const double *up, *sent, *even;

        ek_sim_loads_set(l, s);
        up = factors(l, EK_OP_EXPERT_UP, 0);
        sent = factors(l, EK_OP_DISPATCH_A2A, 0);
        CHECK(up[0] == 4 && up[1] == 0 && up[3] == 0);
        /* rank 0 gets 24,000 rows, the others send their 8,000; even: 6,000 */
        CHECK(sent[0] == 4 && fabs(sent[1] - 8000.0 / 6000) < 1e-12);
        CHECK(factors(l, EK_OP_REPLICAS, 0)[0] == 0);
        /* layers 0, 2 and 3 have experts: the first two have the trace's first layer */
        CHECK(factors(l, EK_OP_EXPERT_UP, 2)[0] == 4);
        even = factors(l, EK_OP_EXPERT_UP, 3);
        CHECK(even[0] == 1 && even[3] == 1);
    }
    CHECK(factors(l, EK_OP_EXPERT_UP, 1) == NULL); /* dense */
    CHECK(factors(l, EK_OP_ATTENTION, 0) == NULL);
    CHECK(fabs(ek_sim_loads_balance(l)->before - 2.5) < 1e-12); /* 4 and 1 */
    CHECK(fabs(ek_sim_loads_balance(l)->after - 2.5) < 1e-12);
    ek_sim_loads_close(&l);
}

/* Nodes of two ranks below the network. */
static void make_nodes(int64_t ranks)
{
    cluster.n_levels = 2;
    cluster.level[1] = cluster.level[0];
    cluster.level[1].ranks = ranks;
    cluster.level[0] = (ek_cluster_level){.name = "node", .ranks = 2, .bytes_s = 1e12};
}

/* Two ranks a node: rows for the node itself, and for the other. */
static void exchanges_are_known_by_level_and_direction(void)
{
    static const ek_op_kind to[] = {EK_OP_DISPATCH_A2A, EK_OP_COMBINE_A2A_BACKWARD};
    static const ek_op_kind back[] = {EK_OP_COMBINE_A2A, EK_OP_DISPATCH_A2A_BACKWARD};
    ek_trace t = hot_trace();
    ek_model_spec spec = small_spec();
    ek_sim_loads_config cfg = config_of(&t, &spec, &ek_planner_off);
    ek_op products = {.kind = EK_OP_EXPERT_UP}, dense = {.kind = EK_OP_DISPATCH_A2A, .layer = 1};
    ek_sim_loads *l;

    cfg.by_level = 1;
    make_nodes(16);
    CHECK_INT(ek_sim_loads_open(&cfg, &l), EK_OK);
    for (int i = 0; i < 2; i++) {
        ek_op there = {.kind = to[i]}, home = {.kind = back[i]};
        const ek_level_rows *x = ek_sim_loads_exchange(l, &there);
        const ek_level_rows *y = ek_sim_loads_exchange(l, &home);

        /* each rank has 2,000 rows for each other when loads are even, and 8,000 for rank 0 */
        CHECK(x[0].got[0] == 4 && x[0].got[1] == 4 && x[0].sent[0] == 0 && x[0].sent[1] == 0);
        CHECK(x[1].sent[0] == 4 && x[1].sent[1] == 0 && x[1].got[0] == 0);
        CHECK(x[2].sent[0] == 0 && x[2].sent[1] == 2 && x[3].got[1] == 0);
        CHECK(y[0].sent[1] == 4 && y[0].got[1] == 0 && y[3].got[1] == 2 && y[3].sent[1] == 0);
    }
    CHECK(ek_sim_loads_exchange(l, &products) == NULL);
    CHECK(ek_sim_loads_exchange(l, &dense) == NULL);
    ek_sim_loads_close(&l);
}

/* With two shards an expert fills a node: its rows pass inside between these alone. */
static void even_rows_are_even_on_all_levels_where_experts_are_sharded(void)
{
    ek_trace t = hot_trace();
    ek_model_spec spec = small_spec();
    ek_sim_loads_config cfg = config_of(&t, &spec, &ek_planner_off);
    ek_op even = {.kind = EK_OP_DISPATCH_A2A, .layer = 3}, hot = {.kind = EK_OP_DISPATCH_A2A};
    const ek_level_rows *x;
    ek_sim_loads *l;

    cfg.by_level = 1;
    cfg.etp = 2;
    make_nodes(8);
    CHECK_INT(ek_sim_loads_open(&cfg, &l), EK_OK);
    x = ek_sim_loads_exchange(l, &even);
    for (int r = 0; r < 4; r++)
        CHECK(x[r].sent[0] == 1 && x[r].got[0] == 1 && x[r].sent[1] == 1 && x[r].got[1] == 1);
    x = ek_sim_loads_exchange(l, &hot); /* all for the expert of rank 0 */
    CHECK(x[0].sent[0] == 4 && x[0].got[0] == 4 && x[0].sent[1] == 0 && x[0].got[1] == 4);
    CHECK(x[2].sent[0] == 0 && x[2].got[0] == 0 && fabs(x[2].sent[1] - 4.0 / 3) < 1e-12);
    ek_sim_loads_close(&l);
}

/* The expert of rank 0 gets a replica on each other rank: 0 -> 1 in the node, 1 -> 2 to the other,
 * 2 -> 3; gradients come back. */
static void replicas_are_passed_on_in_a_chain(void)
{
    ek_trace t = hot_trace();
    ek_model_spec spec = small_spec();
    ek_sim_loads_config cfg = config_of(&t, &spec, &ek_planner_exact);
    ek_op weights = {.kind = EK_OP_REPLICAS}, sums = {.kind = EK_OP_REPLICA_GRADIENTS};
    const ek_level_rows *x, *y;
    ek_sim_loads *l;

    cfg.by_level = 1;
    make_nodes(16);
    CHECK_INT(ek_sim_loads_open(&cfg, &l), EK_OK);
    x = ek_sim_loads_exchange(l, &weights);
    y = ek_sim_loads_exchange(l, &sums);
    /* a slot each, that could be of 3 other ranks' experts: 1 of them on the node */
    CHECK(fabs(x[0].sent[0] - 3) < 1e-12 && x[0].sent[1] == 0 && x[0].got[1] == 0);
    CHECK(fabs(x[1].sent[1] - 1.5) < 1e-12 && fabs(x[2].got[1] - 1.5) < 1e-12);
    CHECK(fabs(x[3].got[0] - 3) < 1e-12 && x[3].sent[0] == 0);
    CHECK(fabs(y[1].got[1] - 1.5) < 1e-12 && y[1].sent[1] == 0);
    sums.lane = EK_LANE_SUMS; /* persistent copies: sim/copy_sums.h */
    CHECK(ek_sim_loads_exchange(l, &sums) == NULL);
    ek_sim_loads_close(&l);
}

static void *no_memory(ek_arena *a, const ek_plan_limits *l)
{
    (void)a, (void)l;
    return NULL;
}

/* Replicas of expert 0, of rank 0, on ranks 1 and 2, and of rank 1's expert 2 on rank 0. */
static ek_status plan_three_replicas(void *memory, const ek_plan_limits *l, const int64_t *n,
                                     ek_plan *p)
{
    int32_t *spare = p->placement.expert_of + l->slots - 1;

    (void)memory;
    spare[0] = 2;
    spare[l->slots] = spare[2 * l->slots] = 0;
    memset(p->quota, 0, (size_t)(l->ranks * l->slots) * sizeof(*p->quota));
    for (int32_t i = 0; i < l->ranks * l->experts; i++)
        p->quota[p->placement.primary[i % l->experts]] += n[i];
    return EK_OK;
}

/* 0 -> 2 -> 1, as rank 1 sends expert 2: each sends one and gets one; 0 -> 1 -> 2 would let rank 1
 * send two. */
static void ranks_that_send_experts_of_their_own_come_last(void)
{
    const ek_planner planner = {
        .name = "three", .reserve = no_memory, .plan_transient = plan_three_replicas};
    ek_trace t = hot_trace();
    ek_model_spec spec = small_spec();
    ek_sim_loads_config cfg = config_of(&t, &spec, &planner);
    ek_op weights = {.kind = EK_OP_REPLICAS};
    const ek_level_rows *x;
    ek_sim_loads *l;

    cfg.by_level = 1;
    CHECK_INT(ek_sim_loads_open(&cfg, &l), EK_OK);
    x = ek_sim_loads_exchange(l, &weights);
    for (int r = 0; r < EP; r++)
        CHECK(fabs(x[r].sent[0] - (r < 3)) < 1e-12 && fabs(x[r].got[0] - (r < 3)) < 1e-12);
    ek_sim_loads_close(&l);
}

static void replicas_level_what_ranks_serve(void)
{
    ek_trace t = hot_trace();
    ek_model_spec spec = small_spec();
    ek_sim_loads_config cfg = config_of(&t, &spec, &ek_planner_exact);
    const double *up, *replicas;
    ek_sim_loads *l;

    CHECK_INT(ek_sim_loads_open(&cfg, &l), EK_OK);
    ek_sim_loads_set(l, 0);
    up = factors(l, EK_OP_EXPERT_DOWN, 0);
    replicas = factors(l, EK_OP_REPLICAS, 0);
    for (int r = 0; r < EP; r++)
        CHECK(fabs(up[r] - 1) < 1e-3);
    CHECK(replicas[0] == 1 && replicas[1] == 1 && replicas[3] == 1); /* gives; get */
    CHECK(factors(l, EK_OP_REPLICAS, 3)[1] == 0);
    CHECK(factors(l, EK_OP_LATE_REPLICAS, 0) == NULL);
    CHECK(ek_sim_loads_balance(l)->after < 1.001);
    CHECK(ek_sim_loads_balance(l)->replicas == 1.5); /* 3 and 0 */
    CHECK(ek_sim_loads_balance(l)->plan_s > 0);
    ek_sim_loads_close(&l);
}

/* Replicas of a layer on average, with `rows` of each rank, links of 1 MB/s, and so many ranks a
 * node. */
static double replicas_of(double rows, int64_t node)
{
    ek_trace t = hot_trace();
    ek_model_spec spec = small_spec();
    ek_sim_loads_config cfg = config_of(&t, &spec, &ek_planner_auto);
    ek_sim_loads *l;
    double n;

    cluster.level[0].bytes_s = 1e6;
    if (node > 1) {
        cluster.n_levels = 2;
        cluster.level[1] = cluster.level[0];
        cluster.level[0].ranks = node;
    }
    cfg.rows = rows;
    CHECK_INT(ek_sim_loads_open(&cfg, &l), EK_OK);
    n = ek_sim_loads_balance(l)->replicas;
    ek_sim_loads_close(&l);
    return n;
}

/* The trace has 8,000 assignments of each rank, of which 6,000 gain 0.4 s of products; a replica
 * takes 0.1 s. */
static void replicas_must_pay_in_a_micro_batch_of_the_run(void)
{
    CHECK(replicas_of(8000, 1) == 1.5);
    CHECK(replicas_of(8, 1) == 0);
}

/* A rank's part of a link is not shared once more with the ranks of its node. */
static void links_have_the_bandwidth_of_the_cluster_file(void)
{
    for (double rows = 8; rows < 8000; rows *= 1.3)
        CHECK(replicas_of(rows, 1) == replicas_of(rows, 2));
}

/* Sampled iterations have their own loads. */
static void steps_are_samples_of_the_trace(void)
{
    ek_trace t = hot_trace();
    ek_model_spec spec = small_spec();
    ek_sim_loads_config cfg = config_of(&t, &spec, &ek_planner_off);
    ek_sim_loads *l;

    for (int i = 0; i < ITERATIONS; i++)
        for (int r = 0; r < EP; r++)
            for (int e = 0; e < EXPERTS; e++)
                counts[i][0][r][e] = e == i ? 8000 : 0;
    CHECK_INT(ek_sim_loads_open(&cfg, &l), EK_OK);
    for (int64_t s = 0; s < 3; s++) { /* iterations 0, 2, 4: on ranks 0, 1, 2 */
        ek_sim_loads_set(l, s);
        CHECK(factors(l, EK_OP_SWIGLU, 0)[s] == 4);
    }
    ek_sim_loads_close(&l);
    cfg.steps = 100;
    CHECK_INT(ek_sim_loads_open(&cfg, &l), EK_OK);
    CHECK_INT(ek_sim_loads_steps(l), ITERATIONS);
    ek_sim_loads_close(&l);
    cfg.planner = &ek_planner_place; /* plans of the iteration before */
    CHECK_INT(ek_sim_loads_open(&cfg, &l), EK_OK);
    CHECK_INT(ek_sim_loads_steps(l), ITERATIONS - 1);
    ek_sim_loads_close(&l);
}

/* In the last iteration of hot_trace() it is 5, on rank 2. */
static void move_hot_expert(void)
{
    for (int r = 0; r < EP; r++)
        for (int e = 0; e < EXPERTS; e++)
            counts[ITERATIONS - 1][0][r][e] = e == 5 ? 8000 : 0;
}

/* Rows of the busiest rank in the last iteration, over the mean: the hot expert changes there. */
static double busiest_after_change(const ek_planner *planner, int64_t batches)
{
    ek_trace t = hot_trace();
    ek_model_spec spec = small_spec();
    ek_sim_loads_config cfg = config_of(&t, &spec, planner);
    const double *up;
    double most = 0;
    ek_sim_loads *l;

    move_hot_expert();
    cfg.batches = batches;
    cfg.steps = ITERATIONS;
    CHECK_INT(ek_sim_loads_open(&cfg, &l), EK_OK);
    ek_sim_loads_set(l, 0);
    up = factors(l, EK_OP_EXPERT_UP, 0);
    for (int r = 0; r < EP; r++)
        CHECK(fabs(up[r] - 1) < 1e-3); /* the hot expert is that of the plan */
    ek_sim_loads_set(l, ek_sim_loads_steps(l) - 1);
    up = factors(l, EK_OP_EXPERT_UP, 0);
    for (int r = 0; r < EP; r++)
        most = fmax(most, up[r]);
    ek_sim_loads_close(&l);
    return most;
}

static void a_planner_that_plans_ahead_serves_a_change_by_its_old_plan(void)
{
    CHECK(busiest_after_change(&ek_planner_prophet, 1) == 4);
    CHECK(busiest_after_change(&ek_planner_exact, 1) < 1.001);
    CHECK(busiest_after_change(&ek_planner_prophet, 2) < 1.001); /* the second micro-batch */
}

/* What transient replicas of layer 0 do in a micro-batch of the chosen sample: those sent before
 * the gate are of `expert`. */
static void check_sent(const ek_sim_loads *l, int32_t micro, int32_t expert, double late)
{
    ek_op sent = {.kind = EK_OP_EARLY_REPLICAS, .micro = micro};
    ek_op added = {.kind = EK_OP_LATE_REPLICAS, .micro = micro};
    ek_op all = {.kind = EK_OP_REPLICAS, .micro = micro};
    ek_op up = {.kind = EK_OP_EXPERT_UP, .micro = micro};

    for (int r = 0; r < EP; r++) {
        CHECK(ek_sim_loads_factors(l, &sent)[r] == 1);
        CHECK(ek_sim_loads_factors(l, &added)[r] == late);
        CHECK(ek_sim_loads_factors(l, &all)[r] == 1);
        CHECK(fabs(ek_sim_loads_factors(l, &up)[r] - 1) < 1e-3);
        CHECK((ek_sim_loads_exchange(l, &sent)[r].got[0] > 0) == (r != expert / 2));
    }
}

static double bytes_of(const ek_sim_loads *l, ek_op_kind kind)
{
    ek_op op = {.kind = kind, .work = {.kind = EK_WORK_NET, .net = {.bytes = 100}}};

    return ek_sim_loads_replica_bytes(l, &op);
}

/* Four samples.  The hot expert changes from 0, on rank 0, to 5, on rank 2, in the last one: its
 * first micro-batch has three replicas of 0 that were sent to no purpose, and waits for three of 5.
 */
static void check_forecasts(int64_t batches)
{
    ek_trace t = hot_trace();
    ek_model_spec spec = small_spec();
    ek_sim_loads_config cfg = config_of(&t, &spec, &ek_planner_auto);
    double first = 1.0 / (4.0 * (double)batches);
    ek_sim_loads *l;

    move_hot_expert();
    cfg.batches = batches;
    cfg.steps = ITERATIONS;
    cfg.by_level = 1;
    CHECK_INT(ek_sim_loads_open(&cfg, &l), EK_OK);
    CHECK_INT(ek_sim_loads_steps(l), 4);
    CHECK_INT(ek_sim_loads_first_differs(l), batches > 1);
    check_sent(l, 0, 0, 0);
    ek_sim_loads_set(l, 3);
    check_sent(l, 0, 0, 1);
    for (int32_t micro = 1; micro < batches; micro++)
        check_sent(l, micro, 5, 0);
    CHECK(ek_sim_loads_balance(l)->replicas == 1.5);
    /* two layers of the model have those of the trace's first one */
    CHECK(ek_sim_loads_balance(l)->step_replicas == 6 * (double)batches);
    CHECK(fabs(ek_sim_loads_balance(l)->step_ahead - 6 * (double)batches * (1 - first)) < 1e-9);
    CHECK(fabs(bytes_of(l, EK_OP_EARLY_REPLICAS) - 300) < 1e-9);
    CHECK(fabs(bytes_of(l, EK_OP_LATE_REPLICAS) - 300 * first) < 1e-9);
    CHECK(fabs(bytes_of(l, EK_OP_REPLICAS) - 300) < 1e-9);
    CHECK(fabs(bytes_of(l, EK_OP_REPLICA_GRADIENTS) - 300) < 1e-9);
    CHECK(bytes_of(l, EK_OP_DISPATCH_A2A) == 0);
    ek_sim_loads_close(&l);
}

static void auto_sends_replicas_of_the_micro_batch_before_and_adds_late_ones(void)
{
    check_forecasts(1);
    check_forecasts(2);
    check_forecasts(3);
}

/* The replicas of 5 are passed on from rank 2, those of 0 from rank 0; weights alone. */
static void early_and_late_replicas_have_links_of_their_own(void)
{
    ek_trace t = hot_trace();
    ek_model_spec spec = small_spec();
    ek_sim_loads_config cfg = config_of(&t, &spec, &ek_planner_auto);
    ek_op early = {.kind = EK_OP_EARLY_REPLICAS}, late = {.kind = EK_OP_LATE_REPLICAS};
    ek_op sums = {.kind = EK_OP_REPLICA_GRADIENTS};
    ek_sim_loads *l;

    move_hot_expert();
    cfg.by_level = 1;
    cfg.steps = ITERATIONS;
    CHECK_INT(ek_sim_loads_open(&cfg, &l), EK_OK);
    ek_sim_loads_set(l, ek_sim_loads_steps(l) - 1);
    CHECK(ek_sim_loads_exchange(l, &early)[0].got[0] == 0);
    CHECK(ek_sim_loads_exchange(l, &early)[2].got[0] == 1);
    CHECK(ek_sim_loads_exchange(l, &late)[0].got[0] == 1);
    CHECK(ek_sim_loads_exchange(l, &late)[2].got[0] == 0);
    CHECK(ek_sim_loads_exchange(l, &late)[2].sent[0] == 1);
    CHECK(ek_sim_loads_exchange(l, &sums)[2].got[0] == 1);
    CHECK(ek_sim_loads_exchange(l, &sums)[2].sent[0] == 0);
    ek_sim_loads_close(&l);
}

/* Gradients sent to sum those of copies that serve even rows, and the sums. */
static void count_sums(int64_t skip, double *to_sum, double *of_sum)
{
    ek_trace t = hot_trace();
    ek_model_spec spec = small_spec();
    ek_sim_loads_config cfg = config_of(&t, &spec, &ek_planner_replicate);
    ek_op sum = {.kind = EK_OP_REPLICA_GRADIENTS, .lane = EK_LANE_SUMS, .layer = 3};
    ek_op share = {.kind = EK_OP_SHARE_GRADIENTS, .layer = 3};
    double gradient;
    ek_sim_loads *l;

    cfg.spare_slots = 2;
    cfg.replicas_min = 2;
    cfg.steps = 1;
    cfg.skip = skip;
    CHECK_INT(ek_sim_loads_open(&cfg, &l), EK_OK);
    *to_sum = ek_sim_loads_copies(l, &sum, &gradient)->all.bytes[0];
    *of_sum = ek_sim_loads_copies(l, &share, &gradient)->all.bytes[0];
    ek_sim_loads_close(&l);
}

/* All copies serve the rows for which the policy makes them; once they are there the primaries
 * serve what is even without them. */
static void copies_that_are_there_leave_even_rows_to_the_primaries(void)
{
    double to_sum, of_sum;

    count_sums(0, &to_sum, &of_sum);
    CHECK(to_sum == EXPERTS && of_sum == EXPERTS);
    count_sums(1, &to_sum, &of_sum);
    CHECK(to_sum == 0 && of_sum == EXPERTS);
}

static void a_trace_of_other_experts_is_refused(void)
{
    ek_trace t = hot_trace();
    ek_model_spec spec = small_spec();
    ek_sim_loads_config cfg = config_of(&t, &spec, &ek_planner_off);
    ek_sim_loads *l;

    spec.experts = 16;
    CHECK_INT(ek_sim_loads_open(&cfg, &l), EK_EFORMAT);
    CHECK(strstr(ek_err_message(), "8 experts") != NULL);
    ek_sim_loads_close(&l);
}

/* Layer 0: every rank has 8,000 for expert 0.  An even share is 1,000: of 1,500 the rest is dropped
 * with factor 1.5, and the factors say so.  Layer 1 is even, and keeps all. */
static void rows_over_capacity_are_dropped(void)
{
    ek_trace t = hot_trace();
    ek_model_spec spec = small_spec();
    ek_sim_loads_config cfg = config_of(&t, &spec, &ek_planner_off);
    ek_sim_loads *l;
    const double *up;

    cfg.capacity_factor = -1.5; /* the sign is ignored */
    CHECK_INT(ek_sim_loads_open(&cfg, &l), EK_OK);
    up = factors(l, EK_OP_EXPERT_UP, 0);
    CHECK(up[0] == 0.75 && up[1] == 0); /* 4 x 1,500 of 8,000 */
    CHECK(factors(l, EK_OP_DISPATCH_A2A, 0)[0] == 0.75);
    CHECK(factors(l, EK_OP_DISPATCH_A2A, 0)[1] == 0.25);
    CHECK(factors(l, EK_OP_EXPERT_UP, 3)[2] == 1);
    ek_sim_loads_close(&l);
    cfg.capacity_factor = 8;
    CHECK_INT(ek_sim_loads_open(&cfg, &l), EK_OK);
    CHECK(factors(l, EK_OP_EXPERT_UP, 0)[0] == 4);
    ek_sim_loads_close(&l);
}

/* Experts have as many rows as their capacity, or as the most that any rank has for one. */
static void padded_experts_are_full(void)
{
    ek_trace t = hot_trace();
    ek_model_spec spec = small_spec();
    ek_sim_loads_config cfg = config_of(&t, &spec, &ek_planner_off);
    ek_sim_loads *l;

    cfg.padded = 1;
    cfg.capacity_factor = 1.5;
    CHECK_INT(ek_sim_loads_open(&cfg, &l), EK_OK);
    for (int r = 0; r < EP; r++)
        CHECK(factors(l, EK_OP_EXPERT_UP, 0)[r] == 1.5 &&
              factors(l, EK_OP_DISPATCH_A2A, 3)[r] == 1.5);
    ek_sim_loads_close(&l);
    cfg.capacity_factor = 0;
    CHECK_INT(ek_sim_loads_open(&cfg, &l), EK_OK);
    CHECK(factors(l, EK_OP_EXPERT_UP, 0)[1] == 8 && factors(l, EK_OP_EXPERT_UP, 3)[1] == 1);
    ek_sim_loads_close(&l);
}

/* Products take as long with one row as with a million. */
static void bound_by_weights(ek_machine *m)
{
    for (int p = 0; p < EK_COST_PRODUCTS; p++)
        m->rate[p] = (ek_cost_table){.n = 2, .x = {1, 1e6}, .y = {1e3, 1e9}};
}

static ek_op product_op(int32_t layer, double rows, double groups)
{
    ek_product p = {rows, groups, 128, 64, EK_PRODUCT_FORWARD};

    return (ek_op){.kind = EK_OP_EXPERT_UP, .layer = layer, .work = ek_work_of_product(p)};
}

static void experts_without_rows_take_no_time_in_products(void)
{
    ek_trace t = hot_trace();
    ek_model_spec spec = small_spec();
    ek_sim_loads_config cfg = config_of(&t, &spec, &ek_planner_off);
    ek_op hot = product_op(0, 8000, 2), even = product_op(3, 8000, 2);
    ek_op wave = product_op(0, 4000, 1), chunk = product_op(0, 2000, 2);
    ek_op router = {.kind = EK_OP_ROUTER, .work = hot.work}, swiglu = {.kind = EK_OP_SWIGLU};
    double f[EP], g[EP];
    ek_sim_loads *l;

    bound_by_weights(&cluster.machine);
    CHECK_INT(ek_sim_loads_open(&cfg, &l), EK_OK);
    CHECK(ek_sim_loads_is_product(l, &hot) && !ek_sim_loads_is_product(l, &router) &&
          !ek_sim_loads_is_product(l, &swiglu));
    /* rank 0 has one of its two experts' weights to read for four times the rows */
    CHECK_INT(ek_sim_loads_products(l, &hot, f, g), EK_OK);
    CHECK(fabs(f[0] - 0.5) < 1e-6 && f[1] == 0 && g[0] == f[0]);
    CHECK_INT(ek_sim_loads_products(l, &chunk, f, g), EK_OK);
    CHECK(fabs(f[0] - 0.5) < 1e-6 && f[1] == 0);
    CHECK_INT(ek_sim_loads_products(l, &wave, f, g), EK_OK);
    CHECK(fabs(f[0] - 0.5) < 1e-6 && f[1] == 0);
    CHECK_INT(ek_sim_loads_products(l, &even, f, g), EK_OK);
    CHECK(fabs(f[0] - 1) < 1e-6 && fabs(f[3] - 1) < 1e-6);
    ek_sim_loads_close(&l);
}

/* Two ranks a node, which compute twice as fast alone. */
static void ranks_that_finish_products_leave_cores_to_the_others(void)
{
    ek_trace t = hot_trace();
    ek_model_spec spec = small_spec();
    ek_sim_loads_config cfg = config_of(&t, &spec, &ek_planner_off);
    ek_op hot = product_op(0, 8000, 2);
    double f[EP], g[EP];
    ek_sim_loads *l;

    make_nodes(16);
    cluster.machine.rank_alone = 2;
    cluster.machine.node_alone = 1;
    cluster.machine.ranks = 2;
    cfg.ranks = EP;
    CHECK_INT(ek_sim_loads_open(&cfg, &l), EK_OK);
    CHECK_INT(ek_sim_loads_products(l, &hot, f, g), EK_OK);
    CHECK(fabs(f[0] - 4) < 1e-6 && fabs(g[0] - 2) < 1e-6 && f[1] == 0 && g[1] == 0);
    ek_sim_loads_close(&l);
}

/* Three ranks for eight experts, of which the first two have three each. */
static void ranks_with_more_experts_read_more_weights(void)
{
    ek_trace t = hot_trace();
    ek_model_spec spec = small_spec();
    ek_sim_loads_config cfg = config_of(&t, &spec, &ek_planner_off);
    ek_op even = product_op(3, 8000, 8.0 / 3);
    double f[EP], g[EP];
    ek_sim_loads *l;

    bound_by_weights(&cluster.machine);
    cfg.ep = 3;
    CHECK_INT(ek_sim_loads_open(&cfg, &l), EK_OK);
    CHECK_INT(ek_sim_loads_products(l, &even, f, g), EK_OK);
    CHECK(fabs(f[0] - 9.0 / 8) < 1e-6 && fabs(f[2] - 6.0 / 8) < 1e-6);
    ek_sim_loads_close(&l);
}

/* The rows of rank 0 in layer 0, whose experts 0 and 1 have half of all rows each, over even ones;
 * *steps: samples. */
static double two_hot_experts(int64_t horizon, int64_t batches, int64_t iterations, int64_t *steps)
{
    ek_trace t = hot_trace();
    ek_model_spec spec = small_spec();
    ek_sim_loads_config cfg = config_of(&t, &spec, &ek_planner_auto);
    double rows;
    ek_sim_loads *l;

    for (int i = 0; i < ITERATIONS; i++)
        for (int r = 0; r < EP; r++)
            counts[i][0][r][0] = counts[i][0][r][1] = 4000;
    t.iterations = iterations;
    cfg.spare_slots = 0;
    cfg.horizon = horizon;
    cfg.batches = batches;
    cfg.steps = ITERATIONS;
    CHECK_INT(ek_sim_loads_open(&cfg, &l), EK_OK);
    *steps = ek_sim_loads_steps(l);
    ek_sim_loads_set(l, 0);
    rows = factors(l, EK_OP_EXPERT_UP, 0)[0];
    ek_sim_loads_close(&l);
    return rows;
}

static void auto_places_experts_after_the_first_iteration(void)
{
    int64_t steps;

    CHECK(two_hot_experts(1000, 1, ITERATIONS, &steps) == 2 && steps == ITERATIONS - 2);
    CHECK(two_hot_experts(4000, 4, ITERATIONS, &steps) == 2 && steps == ITERATIONS - 2);
    CHECK(two_hot_experts(0, 1, ITERATIONS, &steps) == 4 && steps == ITERATIONS - 1);
    CHECK(two_hot_experts(1000, 1, 2, &steps) == 2 && steps == 1);
    CHECK(two_hot_experts(1000, 1, 1, &steps) == 4 && steps == 1);
}

/* A step has four micro-batches, and the horizon three steps; loads are even in the first one, and
 * then experts 0 and 1, both of rank 0, have all rows. */
static void auto_places_experts_anew_after_the_steps_of_a_horizon(void)
{
    ek_trace t = hot_trace();
    ek_model_spec spec = small_spec();
    ek_sim_loads_config cfg = config_of(&t, &spec, &ek_planner_auto);
    double most = 0;
    ek_sim_loads *l;

    for (int i = 0; i < ITERATIONS; i++)
        for (int r = 0; r < EP; r++)
            for (int e = 0; e < EXPERTS; e++)
                counts[i][0][r][e] = i == 0 ? 1000 : e < 2 ? 4000 : 0;
    cfg.spare_slots = 0;
    cfg.horizon = 12;
    cfg.batches = 4;
    cfg.steps = ITERATIONS;
    CHECK_INT(ek_sim_loads_open(&cfg, &l), EK_OK);
    ek_sim_loads_set(l, ek_sim_loads_steps(l) - 1);
    for (int r = 0; r < EP; r++)
        most = fmax(most, factors(l, EK_OP_EXPERT_UP, 0)[r]);
    CHECK(most == 2);
    ek_sim_loads_close(&l);
}

static const ek_case cases[] = {
    EK_CASE(one_expert_with_all_rows_loads_its_rank),
    EK_CASE(exchanges_are_known_by_level_and_direction),
    EK_CASE(even_rows_are_even_on_all_levels_where_experts_are_sharded),
    EK_CASE(replicas_are_passed_on_in_a_chain),
    EK_CASE(ranks_that_send_experts_of_their_own_come_last),
    EK_CASE(replicas_level_what_ranks_serve),
    EK_CASE(replicas_must_pay_in_a_micro_batch_of_the_run),
    EK_CASE(links_have_the_bandwidth_of_the_cluster_file),
    EK_CASE(steps_are_samples_of_the_trace),
    EK_CASE(a_planner_that_plans_ahead_serves_a_change_by_its_old_plan),
    EK_CASE(auto_sends_replicas_of_the_micro_batch_before_and_adds_late_ones),
    EK_CASE(early_and_late_replicas_have_links_of_their_own),
    EK_CASE(copies_that_are_there_leave_even_rows_to_the_primaries),
    EK_CASE(a_trace_of_other_experts_is_refused),
    EK_CASE(rows_over_capacity_are_dropped),
    EK_CASE(padded_experts_are_full),
    EK_CASE(experts_without_rows_take_no_time_in_products),
    EK_CASE(ranks_that_finish_products_leave_cores_to_the_others),
    EK_CASE(ranks_with_more_experts_read_more_weights),
    EK_CASE(auto_places_experts_after_the_first_iteration),
    EK_CASE(auto_places_experts_anew_after_the_steps_of_a_horizon),
};
EK_TEST_MAIN(cases)
