/* Runs under failures: closed forms of drawn failures, and records whose outcome is worked out by
 * hand. */
#include "ek_test.h"
#include "machine_fixture.h"
#include "sim/failures.h"

enum { NODES = 4 };

/* A world that uses all nodes from `least` on, at node_s / nodes seconds a step, or always at
 * node_s / NODES. */
typedef struct {
    double node_s;
    int32_t least, scales;
    int64_t save_every;
    const ek_replica_sets *parts;
} worlds;

static ek_status world_of(void *context, int32_t nodes, ek_failures_world *out)
{
    const worlds *w = context;

    *out = (ek_failures_world){.nodes = nodes >= w->least ? nodes : 0,
                               .step_s = w->node_s / (w->scales ? nodes : NODES),
                               .save_every = w->save_every,
                               .parts = w->parts};
    return EK_OK;
}

/* Every expert is on two neighbouring nodes: 0 1, 1 2, 2 3. */
static void pair_nodes(ek_arena *a, ek_replica_sets *sets)
{
    ek_arena_measure(a);
    ek_replica_sets_reserve(sets, a, NODES, NODES);
    CHECK(ek_arena_reserve(a, "sets") == EK_OK);
    ek_replica_sets_reserve(sets, a, NODES, NODES);
    for (int i = 0; i + 1 < NODES; i++)
        ek_replica_sets_add(sets, &(uint64_t){UINT64_C(3) << i});
}

/* No part is anywhere: nothing can be lost. */
static ek_replica_sets no_parts = {.domains = NODES, .words = 1};

static ek_failures_config config_of(worlds *w)
{
    return (ek_failures_config){.nodes = NODES,
                                .world = world_of,
                                .context = w,
                                .recover_s = 3,
                                .restart_s = 20,
                                .save_s = 2,
                                .seconds = 1000,
                                .runs = 1,
                                .seed = 7};
}

static ek_failures_result simulate(const ek_failures_config *c)
{
    ek_failures_result r;

    CHECK(ek_failures_simulate(c, &r) == EK_OK);
    return r;
}

/* --- drawn failures --------------------------------------------------------------------------- */

static void without_failures_all_time_is_useful(void)
{
    worlds w = {.node_s = 8, .least = 1, .parts = &no_parts};
    ek_failures_config c = config_of(&w);
    ek_failures_result r = simulate(&c);

    CHECK(r.steps == 500 && r.goodput == 1 && r.ettr == 1 && r.losses == 0 && r.saves == 0);
    CHECK_NEAR(r.node_s, 4000);
    w.save_every = 10; /* 20 s of steps and 2 of a save: 45 times, and 5 steps */
    r = simulate(&c);
    CHECK(r.saves == 45 && r.steps == 455);
    CHECK_NEAR(r.goodput, 0.91);
}

/* Losses at rate L end a step of s seconds, and the next begins after R: in the time between two
 * losses, exp(-L (R + i s)) is the probability that at least i steps are completed. */
static void recoveries_cost_what_they_take(void)
{
    worlds w = {.node_s = 40, .least = 1, .parts = &no_parts};
    ek_failures_config c = config_of(&w);
    double rate = NODES / 100.0, ettr = rate * 10 * exp(-rate * 3) / expm1(rate * 10);
    ek_failures_result r;

    c.mtbf_s = 100;
    c.seconds = 1e4;
    c.runs = 100;
    r = simulate(&c);
    CHECK(r.error > 0 && r.error < 0.01);
    if (!(fabs(r.ettr - ettr) < 4 * r.error))
        EK_T_FAIL("ETTR %g +- %g, expected %g", r.ettr, r.error, ettr);
    CHECK_NEAR(r.goodput, r.ettr);
    CHECK(fabs(r.losses / 400 - 1) < 0.02 && r.restarts == 0 && r.lost_steps == 0);
    CHECK(r.recoveries < r.losses); /* a loss in a recovery is no other one */
    CHECK(memcmp(&r, &(ek_failures_result[]){simulate(&c)}, sizeof(r)) == 0);
}

/* The same with 5 steps and a save in place of a step, all of which is lost. */
static void restarts_cost_what_was_not_saved(void)
{
    worlds w = {.node_s = 8, .least = 1, .save_every = 5};
    ek_failures_config c = config_of(&w);
    double rate = NODES / 200.0, ettr = rate * 10 * exp(-rate * 20) / expm1(rate * 12);
    ek_failures_result r;

    c.mtbf_s = 200;
    c.seconds = 2e4;
    c.runs = 100;
    r = simulate(&c);
    CHECK(r.error > 0 && r.error < 0.01);
    if (!(fabs(r.ettr - ettr) < 4 * r.error + 5 * 2 / c.seconds))
        EK_T_FAIL("ETTR %g +- %g, expected %g", r.ettr, r.error, ettr);
    CHECK(r.recoveries == 0 && r.lost_steps > 0);
}

/* A rack of two is lost at once, which takes the experts that are on both. */
static void racks_are_lost_together(void)
{
    ek_arena a = {0};
    ek_replica_sets pairs;
    worlds w = {.node_s = 8, .least = 1, .save_every = 5, .parts = &pairs};
    ek_failures_config c = config_of(&w);
    ek_failures_result alone, together;

    pair_nodes(&a, &pairs);
    c.mtbf_s = 4000;
    c.seconds = 1e5;
    c.runs = 20;
    alone = simulate(&c);
    c.rack_nodes = 2;
    c.rack_share = 1;
    together = simulate(&c);
    CHECK(alone.restarts < 0.02 * alone.losses && alone.restarts > 0); /* in a recovery */
    CHECK_NEAR(together.recoveries, 0);
    CHECK(together.restarts > 0.4 * together.losses && together.restarts < 0.51 * together.losses);
    c.rack_share = 0.5;
    together = simulate(&c);
    CHECK(together.restarts > 0.9 * together.recoveries);
    CHECK(together.restarts < 1.1 * together.recoveries);
    ek_arena_fini(&a);
}

/* --- records ---------------------------------------------------------------------------------- */

static ek_failures_result replay(worlds *w, const ek_failure_event *e, int64_t n, double seconds)
{
    ek_failures_config c = config_of(w);

    c.events = e;
    c.n_events = n;
    c.seconds = seconds;
    return simulate(&c);
}

/* Steps of 2 s, on three nodes 8/3: node 2 is lost in the 6th step, at 11; 3 s later three nodes
 * take steps from 14 on: 7 until 14 + 7 8/3 = 32.67, in the 7th of which node 2 is back, at 31.  3
 * s later all go on, from 35.67: 2 steps until 40. */
static void a_node_is_lost_and_returns(void)
{
    static const ek_failure_event e[] = {{11, 2, 0}, {31, 2, 1}};
    ek_arena a = {0};
    ek_replica_sets pairs;
    worlds w = {.node_s = 8, .least = 1, .scales = 1, .parts = &pairs};
    ek_failures_result r;

    pair_nodes(&a, &pairs);
    r = replay(&w, e, 2, 40);
    CHECK(r.steps == 5 + 7 + 2 && r.recoveries == 1 && r.joins == 1 && r.restarts == 0);
    CHECK(r.losses == 1 && r.lost_steps == 0);
    CHECK_NEAR(r.useful_s, 10 + 7 * 8 / 3.0 + 4);
    CHECK_NEAR(r.node_s, 4 * 40 - 20);
    CHECK_NEAR(r.goodput, 14 / 20.0);
    ek_arena_fini(&a);
}

/* Both neighbours at once: of 5 steps 4 are in the checkpoint (after 8 + 2 s), 20 s later two nodes
 * go on from there with steps of 4 s: from 33 on one until 38. */
static void experts_are_lost(void)
{
    static const ek_failure_event e[] = {{13, 1, 0}, {13, 2, 0}};
    ek_arena a = {0};
    ek_replica_sets pairs;
    worlds w = {.node_s = 8, .least = 1, .scales = 1, .save_every = 4, .parts = &pairs};
    ek_failures_result r;

    pair_nodes(&a, &pairs);
    r = replay(&w, e, 2, 38);
    CHECK(r.steps == 5 && r.restarts == 1 && r.recoveries == 0 && r.lost_steps == 1);
    CHECK(r.saves == 1 && r.losses == 2);
    CHECK_NEAR(r.useful_s, 8 + 4);
    /* the second one in the recovery from the first, and not after it */
    r = replay(&w, (ek_failure_event[]){{13, 1, 0}, {15, 2, 0}}, 2, 38);
    CHECK(r.restarts == 1 && r.recoveries == 1 && r.lost_steps == 1 && r.steps == 4);
    /* two of the three that went on after the first: neighbours, and not */
    r = replay(&w, (ek_failure_event[]){{13, 1, 0}, {17, 2, 0}, {17, 3, 0}}, 3, 38);
    CHECK(r.restarts == 1 && r.recoveries == 1);
    r = replay(&w, (ek_failure_event[]){{13, 1, 0}, {17, 0, 0}, {17, 3, 0}}, 3, 38);
    CHECK(r.restarts == 0 && r.recoveries == 2);
    ek_arena_fini(&a);
}

/* With fewer than three nodes it waits; the state is on those that are left. */
static void too_few_nodes(void)
{
    static const ek_failure_event e[] = {{10, 0, 0}, {10, 2, 0}, {50, 2, 1}, {60, 0, 1}};
    ek_arena a = {0};
    ek_replica_sets pairs;
    worlds w = {.node_s = 8, .least = 3, .parts = &pairs};
    ek_failures_result r;

    pair_nodes(&a, &pairs);
    r = replay(&w, e, 4, 70); /* 5 steps; waits from 13 to 50; 3 steps from 53 to 59, and to 61; */
    CHECK(r.restarts == 0 && r.recoveries == 1 && r.joins == 1); /* and then from 64: 3 */
    CHECK_NEAR(r.wait_s, 37);
    CHECK(r.steps == 5 + 4 + 3);
    /* with fewer than four, one that is back begins nothing: from 13 to 52.9, and on from 55.9 */
    w.least = 4;
    r = replay(&w, (ek_failure_event[]){{10, 0, 0}, {10, 2, 0}, {50, 2, 1}, {52.9, 0, 1}}, 4, 70);
    CHECK_NEAR(r.wait_s, 39.9);
    CHECK(r.steps == 5 + 7 && r.recoveries == 1 && r.joins == 0);
    /* and if one goes again before the run goes on, it waits again: from 56 on */
    r = replay(&w, (ek_failure_event[]){{10, 0, 0}, {50, 0, 1}, {52, 3, 0}}, 3, 70);
    CHECK_NEAR(r.wait_s, 37 + 15);
    ek_arena_fini(&a);
}

/* A run that never recovers takes nodes that are back after the next save. */
static void restarts_alone(void)
{
    static const ek_failure_event e[] = {{11, 3, 0}, {34, 3, 1}};
    worlds w = {.node_s = 8, .least = 1, .save_every = 4};
    ek_failures_result r = replay(&w, e, 2, 70);

    /* 4 steps and a save until 10; from 31 on 4 steps until 39 and a save until 41; from 61 on 4 */
    CHECK(r.restarts == 1 && r.joins == 1 && r.saves == 2 && r.lost_steps == 0);
    CHECK(r.steps == 12);
}

/* A node that is not in use may go. */
static void spare_node(void)
{
    static const ek_failure_event e[] = {{11, 3, 0}, {21, 3, 1}, {23.5, 3, 0}};
    ek_arena a = {0};
    ek_replica_sets pairs;
    worlds w = {.node_s = 8, .least = 1, .parts = &pairs};
    ek_failures_result r;

    pair_nodes(&a, &pairs);
    r = replay(&w, e, 2, 40); /* from 14 on steps until 22; joins; from 25 on 7 */
    CHECK(r.steps == 5 + 4 + 7 && r.joins == 1);
    r = replay(&w, e, 3, 40); /* lost as it joins: again, from 26.5 */
    CHECK(r.steps == 5 + 4 + 6 && r.joins == 1 && r.recoveries == 1);
    ek_arena_fini(&a);
}

static const ek_case cases[] = {
    EK_CASE(without_failures_all_time_is_useful),
    EK_CASE(recoveries_cost_what_they_take),
    EK_CASE(restarts_cost_what_was_not_saved),
    EK_CASE(racks_are_lost_together),
    EK_CASE(a_node_is_lost_and_returns),
    EK_CASE(experts_are_lost),
    EK_CASE(too_few_nodes),
    EK_CASE(restarts_alone),
    EK_CASE(spare_node),
};

EK_TEST_MAIN(cases)
