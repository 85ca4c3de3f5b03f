/* The replay (sim/replay.h) against closed forms: graphs by hand, prices by the ops' own numbers.
 */
#include "ek_test.h"
#include "schedule/pipeline.h"
#include "sim/flow.h"
#include "sim/replay.h"
#include "sim_world.h"

static ek_sim_result replay_of(const world *w, const factors *f, const double *slow)
{
    ek_sim_config cfg = {.graphs = &w->all, .price = price_by_bytes, .context = f, .slow = slow};
    ek_sim_result r;

    CHECK_INT(ek_sim_replay(&cfg, &r), EK_OK);
    CHECK(fabs(ek_sim_parts_sum(&r.parts) - r.step_s) <= 1e-12 * r.step_s);
    return r;
}

static double step_of(const world *w, const factors *f, const double *slow)
{
    return take_step(replay_of(w, f, slow));
}

/* --- one class -------------------------------------------------------------------------------- */

static void one_rank_takes_the_sum_of_its_ops(void)
{
    world w;
    int32_t a;
    ek_sim_result r;

    open_world(&w, 1, 1);
    a = compute(&w.graph[0], 2, -1);
    a = compute(&w.graph[0], 3, a);
    compute(&w.graph[0], 5, -1);
    r = replay_of(&w, &plain, NULL);
    CHECK_SECONDS(r.step_s, 10);
    CHECK_SECONDS(r.parts.compute[EK_OP_GROUP_EXPERTS], 10);
    CHECK_SECONDS(r.flops, 100);
    ek_sim_free(&r);
    close_world(&w);
}

/* Compute 2, all-reduce 5 beside compute 3, then an op that waits for both. */
static void build_overlap(ek_graph *g, ek_ranks group)
{
    int32_t a = compute(g, 2, -1), n = all_reduce(g, group, 5, a);

    compute(g, 3, a);
    compute(g, 1, n);
}

static void a_collective_is_exposed_where_compute_does_not_cover_it(void)
{
    const factors late = {1, 1, 0.5, 0}, busy = {1, 1, 0, 0.25};
    world w;
    ek_sim_result r;

    open_world(&w, 1, 4);
    build_overlap(&w.graph[0], (ek_ranks){0, 1, 4});
    r = replay_of(&w, &plain, NULL);
    CHECK_SECONDS(r.step_s, 8);
    CHECK_SECONDS(r.parts.transfer[EK_COLLECTIVE_ALL_REDUCE], 2);
    CHECK_SECONDS(r.parts.skew, 0);
    ek_sim_free(&r);
    CHECK_SECONDS(step_of(&w, &late, NULL), 8.5);
    r = replay_of(&w, &busy, NULL);
    CHECK_SECONDS(r.step_s, 8);
    CHECK_SECONDS(r.parts.overhead, 0.25);
    CHECK_SECONDS(r.parts.transfer[EK_COLLECTIVE_ALL_REDUCE], 1.75);
    ek_sim_free(&r);
    close_world(&w);
}

/* Half as long again for each op in flight. */
static void price_polling(const void *context, const ek_sim_class *c, const ek_op *op,
                          ek_sim_price *out)
{
    price_by_bytes(context, c, op, out);
    out->polled = out->seconds / 2;
}

static void ops_that_poll_take_longer_for_each_op_in_flight(void)
{
    const ek_cluster own = {.n_levels = 1,
                            .level = {{.name = "net", .ranks = RANKS_MOST, .bytes_s = 1}}};
    const int32_t recorded[] = {0};
    world w;
    ek_sim_config cfg = {.graphs = &w.all,
                         .price = price_polling,
                         .context = &plain,
                         .recorded = recorded,
                         .n_recorded = 1};
    ek_sim_result r;
    ek_ranks all = {0, 1, 2};
    int32_t a, b;

    open_world(&w, 1, 2);
    a = compute(&w.graph[0], 2, -1);
    (void)all_reduce(&w.graph[0], all, 5, a);
    b = compute(&w.graph[0], 2, a); /* 3 with one in flight: ends at 5 */
    (void)all_reduce(&w.graph[0], all, 3.5, b);
    b = compute(&w.graph[0], 3, b); /* 6 with two, of which the second begins at 5 */
    compute(&w.graph[0], 1, b);     /* all bytes have moved at 10.5: alone */
    for (int engine = 0; engine < 2; engine++) {
        CHECK_INT(engine == 0 ? ek_sim_replay(&cfg, &r) : ek_sim_flow(&cfg, &own, &r), EK_OK);
        CHECK_SECONDS(r.records[0].spans[2].start, 2);
        CHECK_SECONDS(r.records[0].spans[2].end, 5);
        CHECK_SECONDS(r.records[0].spans[4].start, 5);
        CHECK_SECONDS(r.records[0].spans[4].end, 11);
        CHECK_SECONDS(r.step_s, 12);
        CHECK_SECONDS(ek_sim_parts_sum(&r.parts), r.step_s);
        ek_sim_free(&r);
    }
    close_world(&w);
}

static void a_slow_rank_delays_its_own_group_alone(void)
{
    double slow[8] = {1, 1, 1, 1, 1, 2, 1, 1};
    world w;
    ek_sim_result r;
    int32_t a;

    open_world(&w, 1, 8);
    a = compute(&w.graph[0], 4, -1);
    all_reduce(&w.graph[0], (ek_ranks){0, 1, 4}, 1, a);
    r = replay_of(&w, &plain, slow);
    CHECK_SECONDS(r.step_s, 9); /* ranks 4 to 7 end at 9, ranks 0 to 3 at 5 */
    ek_sim_free(&r);
    a = all_reduce(&w.graph[0], (ek_ranks){0, 4, 2}, 1, a + 1);
    compute(&w.graph[0], 1, a);
    r = replay_of(&w, &plain, slow);
    CHECK_SECONDS(r.step_s, 12); /* rank 5 computes another 2 after 10 */
    ek_sim_free(&r);
    close_world(&w);
}

static void ranks_of_another_span_are_not_waited_for(void)
{
    double slow[8] = {3, 1, 1, 1, 1, 1, 1, 1};
    world w;
    ek_sim_result r;

    open_world(&w, 1, 8);
    all_reduce(&w.graph[0], (ek_ranks){0, 1, 8}, 1, compute(&w.graph[0], 4, -1));
    w.graph[0].ops[1].work.net.span = 4;
    compute(&w.graph[0], 2, 1);
    r = replay_of(&w, &plain, slow);
    CHECK_SECONDS(r.step_s, 12 + 1 + 6);
    CHECK_SECONDS(r.parts.skew, 3 * 8 / 8.0); /* ranks 1 to 3 wait for rank 0, 4 to 7 for nobody */
    ek_sim_free(&r);
    close_world(&w);
}

static void collectives_of_a_rank_share_its_link(void)
{
    world w;
    ek_sim_result r;
    ek_sim_config cfg = {.graphs = &w.all,
                         .price = price_by_bytes,
                         .context = &plain,
                         .recorded = (const int32_t[]){0},
                         .n_recorded = 1};
    ek_ranks all = {0, 1, 2};

    open_world(&w, 1, 2);
    all_reduce(&w.graph[0], all, 6, -1);
    all_reduce(&w.graph[0], all, 2,
               compute(&w.graph[0], 1, -1)); /* at 1: 5 are left of the first */
    all_reduce(&w.graph[0], all, 4,
               compute(&w.graph[0], 2, 1)); /* at 3: 4 of it, 1 of the second */
    compute(&w.graph[0], 1, 4);
    CHECK_INT(ek_sim_replay(&cfg, &r), EK_OK);
    CHECK_SECONDS(r.records[0].spans[0].end, 6);
    CHECK_SECONDS(r.records[0].spans[2].end, 1 + 2 + 2);
    CHECK_SECONDS(r.records[0].spans[4].end, 3 + 4 + 4 + 1); /* all bytes: 12 */
    CHECK_SECONDS(r.step_s, 13);
    ek_sim_free(&r);
    close_world(&w);
}

/* As many as ZeRO 3 has buckets of a layer with many experts. */
static void many_collectives_share_a_link(void)
{
    enum { MANY = 100 };
    world w;
    ek_ranks all = {0, 1, 2};

    open_world(&w, 1, 2);
    for (int i = 0; i < MANY; i++)
        all_reduce(&w.graph[0], all, 2, -1);
    CHECK_SECONDS(step_of(&w, &plain, NULL), 2 * MANY);
    close_world(&w);
    open_world(&w, 1, 2);
    for (int i = 0; i < MANY; i++) /* of so many sizes that not all are told apart */
        all_reduce(&w.graph[0], all, 1 + i, -1);
    CHECK_SECONDS(step_of(&w, &plain, NULL), MANY * (MANY + 1) / 2);
    close_world(&w);
}

static void price_by_lane(const void *context, const ek_sim_class *c, const ek_op *op,
                          ek_sim_price *out)
{
    price_by_bytes(context, c, op, out);
    out->outside = op->layer == 1;
}

static void what_leaves_a_node_has_a_link_of_its_own(void)
{
    ek_sim_config cfg = {.price = price_by_lane,
                         .context = &plain,
                         .recorded = (const int32_t[]){0},
                         .n_recorded = 1};
    ek_ranks all = {0, 1, 2};

    for (int outside = 0; outside < 2; outside++) {
        ek_sim_result r;
        world w;

        open_world(&w, 1, 2);
        cfg.graphs = &w.all;
        all_reduce(&w.graph[0], all, 6, -1);
        w.graph[0].ops[0].layer = outside;
        all_reduce(&w.graph[0], all, 2, compute(&w.graph[0], 1, -1));
        CHECK_INT(ek_sim_replay(&cfg, &r), EK_OK);
        CHECK_SECONDS(r.records[0].spans[2].end, outside ? 1 + 2 : 1 + 2 + 2);
        ek_sim_free(&r);
        close_world(&w);
    }
}

static void ranks_alike_and_ranks_one_by_one_agree(void)
{
    double slow[8] = {1, 1, 1, 1, 1, 1, 1, 1 + 1e-13};
    world w;

    open_world(&w, 2, 4);
    for (int i = 0; i < 2; i++) {
        build_overlap(&w.graph[i], (ek_ranks){0, 1, 4});
        build_overlap(&w.graph[i], (ek_ranks){0, 2, 2});
        all_reduce(&w.graph[i], (ek_ranks){0, 4, 2}, 1 + i, -1);
        all_reduce(&w.graph[i], (ek_ranks){0, 1, 8}, 1, -1);
        compute(&w.graph[i], 1 + i, w.graph[i].n_ops - 1);
    }
    CHECK_SECONDS(step_of(&w, &plain, slow), step_of(&w, &plain, NULL));
    close_world(&w);
}

/* Loads: ranks of even number do 1.5 times as much, the others half. */
static const double *uneven(const void *loads, const ek_op *op)
{
    return op->work.kind == EK_WORK_NET && op->bytes > 4 ? (const double *)loads + 2 : loads;
}

static void loads_of_ranks_stretch_their_ops(void)
{
    static const double factors_of[] = {1.5, 0.5, 0, 0};
    static const factors busy = {1, 1, 0, 0.25};
    static const int32_t column_of[] = {0, 1, 0, 1};
    world w;
    ek_sim_config cfg = {.graphs = &w.all,
                         .price = price_by_bytes,
                         .context = &plain,
                         .recorded = (const int32_t[]){1},
                         .n_recorded = 1,
                         .factors = uneven,
                         .loads = factors_of,
                         .column_of = column_of,
                         .n_columns = 2};
    ek_sim_result r;
    int32_t a;

    open_world(&w, 1, 4);
    a = compute(&w.graph[0], 4, -1);
    a = all_reduce(&w.graph[0], (ek_ranks){0, 1, 2}, 2, a);
    a = all_reduce(&w.graph[0], (ek_ranks){0, 1, 2}, 8, a); /* silent */
    compute(&w.graph[0], 2, a);
    CHECK_INT(ek_sim_replay(&cfg, &r), EK_OK);
    CHECK_SECONDS(r.step_s, 6 + 3 + 3);
    CHECK_SECONDS(r.records[0].spans[0].end, 2);
    CHECK_SECONDS(r.records[0].spans[1].end, 9);
    CHECK_SECONDS(r.records[0].spans[2].end, 9);
    CHECK_SECONDS(r.records[0].spans[3].end, 10);
    CHECK_SECONDS(r.parts.skew, 2); /* half of the ranks wait from 2 to 6 */
    ek_sim_free(&r);
    cfg.context = &busy;
    CHECK_INT(ek_sim_replay(&cfg, &r), EK_OK);
    CHECK_SECONDS(r.parts.overhead,
                  0.25); /* of one op: 1.5 and 0.5 times; none of the silent one */
    ek_sim_free(&r);
    close_world(&w);
}

/* Three times as much in the first micro-batch. */
static const double *more_at_first(const void *loads, const ek_op *op)
{
    return (const double *)loads + (op->micro == 0);
}

/* Also where ops that micro-batches repeat are kept once. */
static void a_first_micro_batch_may_have_loads_of_its_own(void)
{
    static const double factors_of[] = {1, 3};
    static const int32_t column_of[] = {0, 0, 0, 0};
    world w;
    ek_sim_config cfg = {.graphs = &w.all,
                         .price = price_by_bytes,
                         .context = &plain,
                         .factors = more_at_first,
                         .first_differs = 1,
                         .loads = factors_of,
                         .column_of = column_of,
                         .n_columns = 1};
    ek_graph packed = {0};
    ek_sim_result r;

    open_world(&w, 1, 4);
    for (int32_t i = 0; i < 4; i++) {
        (void)compute(&w.graph[0], 2, i - 1);
        w.graph[0].ops[i].micro = i;
    }
    CHECK_INT(ek_sim_replay(&cfg, &r), EK_OK);
    CHECK_SECONDS(take_step(r), 6 + 3 * 2);
    CHECK_INT(ek_graph_pack(&packed, &w.graph[0]), EK_OK);
    ek_graph_fini(&w.graph[0]);
    w.graph[0] = packed;
    CHECK_INT(w.graph[0].n_alike, 1);
    CHECK_INT(ek_sim_replay(&cfg, &r), EK_OK);
    CHECK_SECONDS(take_step(r), 6 + 3 * 2);
    close_world(&w);
}

/* --- pipelines -------------------------------------------------------------------------------- */

static const double forward_s = 2, backward_s = 4;

/* One stage of 1F1B: what of ek_pipe_order a step would do. */
static void build_stage(ek_graph *g, int stages, int stage, int micros, double message)
{
    ek_pipe_item items[256];
    int64_t n = ek_pipe_order(stages, 1, micros, stage, 1, items);
    ek_ranks pipe = {0, 1, stages};

    for (int64_t i = 0; i < n; i++) {
        int back = items[i].backward, from = back ? stage + 1 : stage - 1;
        int to = back ? stage - 1 : stage + 1;
        int32_t dep = -1;

        if (from >= 0 && from < stages)
            dep = net(g, back ? EK_OP_RECEIVE_GRADIENT : EK_OP_RECEIVE, EK_COLLECTIVE_RECEIVE, pipe,
                      from, message, -1);
        dep = compute(g, back ? backward_s : forward_s, dep);
        if (to >= 0 && to < stages)
            net(g, back ? EK_OP_SEND_GRADIENT : EK_OP_SEND, EK_COLLECTIVE_SEND, pipe, to, message,
                dep);
    }
}

static void a_pipeline_has_the_bubble_of_1f1b(void)
{
    for (int stages = 1; stages <= 8; stages *= 2)
        for (int micros = stages; micros <= 4 * stages; micros += stages) {
            world w;
            ek_sim_result r;

            open_world(&w, stages, 1);
            for (int i = 0; i < stages; i++)
                build_stage(&w.graph[i], stages, i, micros, 0);
            r = replay_of(&w, &plain, NULL);
            CHECK_SECONDS(r.step_s, (micros + stages - 1) * (forward_s + backward_s));
            CHECK_SECONDS(r.parts.bubble + r.parts.end, (stages - 1) * (forward_s + backward_s));
            ek_sim_free(&r);
            close_world(&w);
        }
}

static void build_pipeline(world *w, double message)
{
    open_world(w, 4, 1);
    for (int i = 0; i < 4; i++)
        build_stage(&w->graph[i], 4, i, 8, message);
}

static void a_slower_link_speeds_nothing_up(void)
{
    double before = 0;

    for (double wire = 0; wire < 8; wire += 0.5) {
        factors f = {1, wire, wire / 4, 0};
        double step;
        world w;

        build_pipeline(&w, 1);
        step = step_of(&w, &f, NULL);
        CHECK(step >= before);
        before = step;
        close_world(&w);
    }
    CHECK(before > 1.5 * 11 * (forward_s + backward_s)); /* links were at work */
}

static void all_costs_doubled_double_the_step(void)
{
    const factors one = {1, 1, 0.25, 0.125}, two = {2, 2, 0.5, 0.25};
    world w;

    build_pipeline(&w, 1);
    CHECK_SECONDS(step_of(&w, &two, NULL), 2 * step_of(&w, &one, NULL));
    close_world(&w);
}

/* --- faults ----------------------------------------------------------------------------------- */

static void ranks_that_wait_for_each_other_are_named(void)
{
    world w;
    ek_sim_config cfg = {
        .graphs = &w.all, .price = price_by_bytes, .context = &plain, .slow = NULL};
    ek_sim_result r;

    open_world(&w, 2, 1);
    net(&w.graph[0], EK_OP_RECEIVE, EK_COLLECTIVE_RECEIVE, (ek_ranks){0, 1, 2}, 1, 1, -1);
    all_reduce(&w.graph[1], (ek_ranks){0, 1, 2}, 1, -1);
    CHECK_INT(ek_sim_replay(&cfg, &r), EK_EINTERNAL);
    CHECK(strstr(ek_err_message(), "wait for one another") != NULL);
    ek_sim_free(&r);
    close_world(&w);
}

/* Of a collective bytes move when the slow rank has started it, too. */
static void ranks_are_recorded_in_the_order_that_is_asked_for(void)
{
    static const double slow[] = {1, 2, 1, 1};
    world w;
    ek_sim_config cfg = {.graphs = &w.all,
                         .price = price_by_bytes,
                         .context = &plain,
                         .slow = slow,
                         .recorded = (const int32_t[]){3, 1},
                         .n_recorded = 2};
    ek_sim_result r, sum = {0};
    int32_t at;

    open_world(&w, 1, 4);
    at = compute(&w.graph[0], 3, -1);
    all_reduce(&w.graph[0], (ek_ranks){0, 1, 4}, 5, at);
    CHECK_INT(ek_sim_replay(&cfg, &r), EK_OK);
    CHECK_INT(ek_sim_add(&sum, &r, 1), EK_OK);
    CHECK(r.records == NULL && sum.n_records == 2);
    CHECK_INT(sum.records[0].rank, 3);
    CHECK_INT(sum.records[1].rank, 1);
    CHECK_SECONDS(sum.records[0].spans[1].start, 3);
    CHECK_SECONDS(sum.records[0].spans[1].begun, 6);
    CHECK_SECONDS(sum.records[0].spans[1].end, 11);
    CHECK_SECONDS(sum.records[1].spans[0].end, 6);
    CHECK_SECONDS(sum.records[1].spans[1].start, 6);
    ek_sim_free(&r);
    ek_sim_free(&sum);
    close_world(&w);
}

static void a_recorded_rank_has_the_times_of_its_ops(void)
{
    world w;
    ek_sim_config cfg = {.graphs = &w.all,
                         .price = price_by_bytes,
                         .context = &plain,
                         .slow = NULL,
                         .recorded = (const int32_t[]){2},
                         .n_recorded = 1};
    ek_sim_result r;

    open_world(&w, 1, 4);
    build_overlap(&w.graph[0], (ek_ranks){0, 1, 4});
    CHECK_INT(ek_sim_replay(&cfg, &r), EK_OK);
    CHECK_INT(r.records[0].n, 4);
    CHECK_SECONDS(r.records[0].spans[1].start, 2);
    CHECK_SECONDS(r.records[0].spans[1].end, 7);
    CHECK_SECONDS(r.records[0].spans[2].start, 2);
    CHECK_SECONDS(r.records[0].spans[2].end, 5);
    CHECK_SECONDS(r.records[0].spans[3].start, 7);
    ek_sim_free(&r);
    close_world(&w);
}

static const ek_case cases[] = {
    EK_CASE(one_rank_takes_the_sum_of_its_ops),
    EK_CASE(a_collective_is_exposed_where_compute_does_not_cover_it),
    EK_CASE(ops_that_poll_take_longer_for_each_op_in_flight),
    EK_CASE(a_slow_rank_delays_its_own_group_alone),
    EK_CASE(ranks_of_another_span_are_not_waited_for),
    EK_CASE(collectives_of_a_rank_share_its_link),
    EK_CASE(many_collectives_share_a_link),
    EK_CASE(what_leaves_a_node_has_a_link_of_its_own),
    EK_CASE(ranks_alike_and_ranks_one_by_one_agree),
    EK_CASE(loads_of_ranks_stretch_their_ops),
    EK_CASE(a_first_micro_batch_may_have_loads_of_its_own),
    EK_CASE(a_pipeline_has_the_bubble_of_1f1b),
    EK_CASE(a_slower_link_speeds_nothing_up),
    EK_CASE(all_costs_doubled_double_the_step),
    EK_CASE(ranks_that_wait_for_each_other_are_named),
    EK_CASE(a_recorded_rank_has_the_times_of_its_ops),
    EK_CASE(ranks_are_recorded_in_the_order_that_is_asked_for),
};
EK_TEST_MAIN(cases)
