/* Heartbeats of workers: which of them is silent, and what the decision core does then. */
#include "supervisor_fixture.h"

enum { WORKERS = 3 };

static const int64_t ms = 1000000;

/* Heartbeats of all workers but `not` (-1: of all) at the usual interval, for `n` intervals, from
 * the one after *now on. */
static void beat(ek_heartbeats *h, int n, int not, int64_t *now)
{
    for (int i = 0; i < n; i++) {
        *now += EK_HEARTBEAT_MS * ms;
        for (int k = 0; k < h->n; k++)
            if (k != not )
                ek_heartbeats_hear(h, k, *now);
    }
}

static ek_heartbeats begin_heartbeats(int n, int64_t *now)
{
    ek_heartbeats h = {0};

    *now = 1000 * ms;
    CHECK_INT(ek_heartbeats_begin(&h, n), EK_OK);
    return h;
}

static void worker_that_is_not_heard_for_ten_intervals_is_silent(void)
{
    int64_t now;
    ek_heartbeats h = begin_heartbeats(WORKERS, &now);

    beat(&h, 5, -1, &now);
    beat(&h, 10, 1, &now);
    CHECK_INT(ek_heartbeats_silent(&h, ek_heartbeats_timeout_s(&h, 1)), -1);
    beat(&h, 1, 1, &now);
    CHECK_INT(ek_heartbeats_silent(&h, ek_heartbeats_timeout_s(&h, 1)), 1);
    CHECK_INT(ek_heartbeats_silent(&h, ek_heartbeats_timeout_s(&h, 2)), -1);
    ek_heartbeats_fini(&h);
}

static void worker_that_has_never_been_heard_or_has_left_is_not_silent(void)
{
    int64_t now;
    ek_heartbeats h = begin_heartbeats(WORKERS, &now);

    beat(&h, 50, 2, &now);
    CHECK_INT(ek_heartbeats_silent(&h, ek_heartbeats_timeout_s(&h, 1)), -1);
    ek_heartbeats_leave(&h, 1);
    ek_heartbeats_hear(&h, 1, now); /* sent before it left */
    beat(&h, 50, 1, &now);
    CHECK_INT(ek_heartbeats_silent(&h, ek_heartbeats_timeout_s(&h, 1)), -1);
    ek_heartbeats_hear(&h, WORKERS, now);
    ek_heartbeats_hear(&h, -1, now);
    ek_heartbeats_fini(&h);
}

static void time_in_which_no_worker_is_heard_does_not_count(void)
{
    int64_t now;
    ek_heartbeats h = begin_heartbeats(WORKERS, &now);

    beat(&h, 5, -1, &now);
    for (int i = 0; i < 3; i++) {
        now += 60000 * ms;
        ek_heartbeats_hear(&h, 0, now); /* the first of what has come meanwhile */
        CHECK_INT(ek_heartbeats_silent(&h, ek_heartbeats_timeout_s(&h, 1)), -1);
        beat(&h, 2, -1, &now);
    }
    CHECK(ek_heartbeats_timeout_s(&h, 1) < 2);
    ek_heartbeats_fini(&h);
}

static void worker_that_has_lagged_before_has_more_time(void)
{
    int64_t now;
    ek_heartbeats h = begin_heartbeats(WORKERS, &now);

    CHECK(ek_heartbeats_timeout_s(&h, 1) == 1);
    beat(&h, 5, -1, &now);
    beat(&h, 8, 1, &now);
    beat(&h, 1, -1, &now);
    CHECK(ek_heartbeats_timeout_s(&h, 1) > 3 && ek_heartbeats_timeout_s(&h, 1) < 4);
    CHECK_INT(ek_heartbeats_begin(&h, WORKERS), EK_OK);
    CHECK(ek_heartbeats_timeout_s(&h, 1) > 3);
    ek_heartbeats_fini(&h);
}

static void many_workers_send_heartbeats_more_rarely(void)
{
    int64_t now;
    ek_heartbeats h = begin_heartbeats(1000, &now);

    CHECK_INT(ek_heartbeat_ms(4), EK_HEARTBEAT_MS);
    CHECK_INT(ek_heartbeat_ms(1000), 1000);
    CHECK(ek_heartbeats_timeout_s(&h, 1) == 10);
    ek_heartbeats_fini(&h);
}

/* --- the decision core ------------------------------------------------------------------------ */

/* The workers of the generation but `not` send heartbeats for s seconds; rank 0 takes no step. */
static void pass_with_heartbeats(double s, int not )
{
    for (; s > 0.05; s -= 0.1) {
        pass(0.1);
        for (int i = 0; i < sup.core.ranks; i++)
            if (i != not )
                worker_event(EK_CORE_ALIVE, i);
    }
}

static void worker_that_stops_running_ends_the_generation(void)
{
    ek_core_config cfg = elastic_config();

    step_on(&cfg, "111", 8);
    pass_with_heartbeats(2, -1);
    CHECK_INT(did(EK_CORE_KILL), 0);
    take_step();
    pass_with_heartbeats(1.3, 2);
    CHECK_INT(did(EK_CORE_KILL), 1);
    CHECK_INT(sup.core.ending.reason, EK_REASON_SILENT);
    CHECK_INT(sup.core.ending.silent, 2);
    end_generation(-1);
    CHECK_INT(did_report(EK_REPORT_LOSS), 1);
    CHECK_INT(sup.core.search.test_links, 0); /* other links are not in doubt */
    resume();
    end_fixture();
}

static void worker_that_stops_running_while_others_start_ends_the_generation(void)
{
    ek_core_config cfg = elastic_config();

    start_on(&cfg, "11");
    join_all();
    enter_phase(EK_PHASE_TRANSFER);
    pass_with_heartbeats(1.3, 1);
    CHECK_INT(did(EK_CORE_KILL), 1);
    CHECK_INT(sup.core.ending.reason, EK_REASON_SILENT);
    end_fixture();
}

static void worker_that_leaves_does_not_end_the_generation(void)
{
    step_on_two();
    worker_event(EK_CORE_LEAVING, 1);
    pass_with_heartbeats(2.5, 1);
    CHECK_INT(did(EK_CORE_KILL), 0);
    end_fixture();
}

/* The generation ends as worker 2 is silent; the next one starts, and all its workers are heard. */
static void end_and_start_again(void)
{
    CHECK_INT(did(EK_CORE_KILL), 1);
    forget();
    end_generation(-1);
    while (sup.core.state == EK_CORE_BACKOFF)
        pass(0.1);
    answer_all(0);
    CHECK_INT(sup.core.state, EK_CORE_RUNNING);
    join_all();
    enter_phase(EK_PHASE_TRANSFER);
    pass_with_heartbeats(0.3, -1);
}

static void start_after_another_that_completed_no_step_has_twice_the_time(void)
{
    ek_core_config cfg = elastic_config();

    step_on(&cfg, "111", 8);
    pass_with_heartbeats(1.3, 2);
    end_and_start_again();
    pass_with_heartbeats(1.3, 2);
    end_and_start_again();
    pass_with_heartbeats(1.7, 2);
    CHECK_INT(did(EK_CORE_KILL), 0);
    pass_with_heartbeats(0.6, 2);
    CHECK_INT(did(EK_CORE_KILL), 1);
    end_fixture();
}

static const ek_case cases[] = {
    EK_CASE(worker_that_is_not_heard_for_ten_intervals_is_silent),
    EK_CASE(worker_that_has_never_been_heard_or_has_left_is_not_silent),
    EK_CASE(time_in_which_no_worker_is_heard_does_not_count),
    EK_CASE(worker_that_has_lagged_before_has_more_time),
    EK_CASE(many_workers_send_heartbeats_more_rarely),
    EK_CASE(worker_that_stops_running_ends_the_generation),
    EK_CASE(worker_that_stops_running_while_others_start_ends_the_generation),
    EK_CASE(worker_that_leaves_does_not_end_the_generation),
    EK_CASE(start_after_another_that_completed_no_step_has_twice_the_time),
};

EK_TEST_MAIN(cases)
