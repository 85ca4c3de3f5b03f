/* The supervisor's decision core: hosts that respond too late to a probe, and may hold state that
 * no other host has. */
#include "supervisor_fixture.h"

/* Steps of 0.1 s on three hosts; the generation is lost, and two of them respond at once. */
static void lose_third_host(int steps)
{
    ek_core_config cfg = elastic_config();

    step_on(&cfg, "111", steps);
    lose_generation();
    tell_list("111");
    for (int i = 0; i < 2; i++)
        end_task(i, 0, 0.1);
}

/* The third one is late. */
static void start_without_third_host(int steps)
{
    lose_third_host(steps);
    pass(1.6);
    CHECK_INT(host_of(2).health.answer, EK_RESULT_LATE);
    CHECK_INT(sup.core.state, EK_CORE_RUNNING);
    CHECK_INT(sup.core.ranks, 2);
    forget();
}

/* The generation would continue from this step, and fails if it may not. */
static void lack_state(int64_t step)
{
    join_all();
    feed((ek_core_event){.kind = EK_CORE_INCOMPLETE, .step = step});
    if (step >= sup.core.least_step)
        return;
    fail_worker(0, EK_EXIT_FAILED, 1);
    end_generation(EK_EXIT_FAILED);
}

/* The hosts in use respond again. */
static void wait_for_third_host(void)
{
    CHECK_INT(sup.core.state, EK_CORE_PROBING);
    tell_list("111");
    for (int i = 0; i < 2; i++)
        end_task(i, 0, 0.1);
    CHECK_INT(sup.core.state, EK_CORE_PROBING);
}

/* The time until a generation is started, while the third host does not respond. */
static double waited_s(void)
{
    double s = 0;

    while (sup.core.state != EK_CORE_RUNNING && s < 100) {
        leap(0.1);
        s += 0.1;
    }
    return s;
}

static void check_s(double s, double want)
{
    if (s < want - 0.25 || s > want + 0.25)
        EK_T_FAIL("%.2f s, expected: %.2f", s, want);
}

/* --- when a generation may not go back -------------------------------------------------------- */

static void generation_without_a_late_host_may_not_go_back(void)
{
    start_without_third_host(20);
    CHECK_INT(sup.core.least_step, 20);
    resume(); /* the others hold all of the state */
    CHECK_INT(sup.core.resumption.repeated, 0);
    lose_generation();
    answer_all(0);
    CHECK_INT(sup.core.state, EK_CORE_RUNNING);
    CHECK_INT(sup.core.least_step, 0);
}

static void generation_without_a_host_that_refuses_may_go_back(void)
{
    lose_third_host(20);
    end_task(2, 255, 0.1);
    CHECK_INT(sup.core.state, EK_CORE_RUNNING);
    CHECK_INT(sup.core.least_step, 0);
    lack_state(0);
    CHECK_INT(sup.core.state, EK_CORE_RUNNING);
}

static void generation_without_a_late_host_that_holds_nothing_may_go_back(void)
{
    ek_core_config cfg = elastic_config();

    list_third_host(0); /* it has not joined yet */
    lose_generation();
    tell_list("111");
    for (int i = 0; i < 2; i++)
        end_task(i, 0, 0.1);
    pass(1.6);
    CHECK_INT(sup.core.ranks, 2);
    CHECK_INT(host_of(2).health.answer, EK_RESULT_LATE);
    CHECK_INT(sup.core.least_step, 0);
    step_on(&cfg, "111", 20); /* steps were completed without it since */
    lose_generation();
    tell_list("111");
    for (int i = 0; i < 2; i++)
        end_task(i, 0, 0.1);
    pass(1.6);
    resume();
    lose_generation();
    tell_list("111");
    for (int i = 0; i < 2; i++)
        end_task(i, 0, 0.1);
    pass(1.6);
    CHECK_INT(sup.core.state, EK_CORE_RUNNING);
    CHECK_INT(sup.core.least_step, 0);
}

static void host_holds_state_before_a_step_is_completed_with_it(void)
{
    list_third_host(0);
    take_step();
    take_step();
    end_generation(-1);
    CHECK_INT(sup.core.ranks, 3);
    join_all();
    feed((ek_core_event){.kind = EK_CORE_RECOVERED});
    lose_generation();
    pass(0.15);
    tell_list("111");
    for (int i = 0; i < 2; i++)
        end_task(i, 0, 0.1);
    pass(1.6);
    CHECK_INT(sup.core.state, EK_CORE_RUNNING);
    CHECK_INT(sup.core.least_step, sup.step);
}

static void first_generation_of_a_command_may_not_go_back_without_a_late_host(void)
{
    ek_core_config cfg = elastic_config();

    for (int64_t steps = 0; steps < 60; steps += 50) {
        cfg.steps = steps;
        begin_on(&cfg, "11");
        end_task(0, 0, 0.1);
        pass(5.1);
        CHECK_INT(sup.core.state, EK_CORE_RUNNING);
        CHECK_INT(sup.core.least_step, steps);
    }
}

/* --- waiting ---------------------------------------------------------------------------------- */

static void late_host_is_waited_for_and_used_at_once(void)
{
    start_without_third_host(20);
    lack_state(0);
    CHECK_INT(did_report(EK_REPORT_INCOMPLETE), 1);
    CHECK_INT(did_report(EK_REPORT_FAILURE) + did_report(EK_REPORT_LOSS), 0);
    CHECK(report_of(EK_REPORT_INCOMPLETE).seconds == 5);
    wait_for_third_host();
    pass(1);
    CHECK_INT(sup.core.state, EK_CORE_PROBING);
    CHECK_INT(did(EK_CORE_START), 0);
    end_task(2, 0, 1);
    CHECK_INT(sup.core.state, EK_CORE_RUNNING); /* though it was lost less than 2 s ago */
    CHECK_INT(sup.core.ranks, 3);
    CHECK_INT(sup.core.least_step, 0);
    CHECK_INT(sup.core.history.failed, 0);
    join_all();
    take_step();
    CHECK_INT(sup.core.resumption.repeated, 0);
}

static void late_host_is_probed_again_with_twice_the_time(void)
{
    start_without_third_host(300);
    lack_state(0);
    wait_for_third_host();
    forget();
    pass(2.9);
    CHECK_INT(did_task(EK_TASK_PROBE), 0);
    pass(0.2); /* 1.5 s, doubled */
    CHECK_INT(did(EK_CORE_CANCEL_TASK), 1);
    CHECK_INT(did_task(EK_TASK_PROBE), 1);
    pass(5.8);
    CHECK_INT(did_task(EK_TASK_PROBE), 1);
    pass(0.2);
    CHECK_INT(did_task(EK_TASK_PROBE), 2);
    end_task(2, 255, 0.1); /* mpiexec cannot reach it yet */
    pass(1.9);
    CHECK_INT(did_task(EK_TASK_PROBE), 2);
    pass(0.2);
    CHECK_INT(did_task(EK_TASK_PROBE), 3);
    CHECK_INT(sup.core.state, EK_CORE_PROBING);
    end_task(2, 0, 0.1);
    CHECK_INT(sup.core.ranks, 3);
}

static void wait_ends_after_the_time_that_going_back_takes(void)
{
    static const struct {
        int steps;
        double watchdog_s, want_s;
    } cases[] = {{20, 60, 5}, {80, 60, 8}, {400, 60, 30}, {400, 12, 12}, {20, 0, 5}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        start_without_third_host(cases[i].steps);
        sup.core.cfg.watchdog_s = cases[i].watchdog_s;
        lack_state(0);
        wait_for_third_host();
        check_s(waited_s(), cases[i].want_s);
        CHECK_INT(sup.core.ranks, 2);
        CHECK_INT(sup.core.least_step, 0);
        lack_state(0); /* from the start */
        sup.step = sup.written = 0;
        enter_phase(EK_PHASE_STEP);
        take_step();
        CHECK_INT(sup.core.resumption.repeated, cases[i].steps);
    }
}

static void wait_goes_on_if_a_host_that_responds_lacks_the_state(void)
{
    ek_core_config cfg = elastic_config();

    step_on(&cfg, "1111", 80);
    lose_generation();
    tell_list("1111");
    for (int i = 0; i < 2; i++)
        end_task(i, 0, 0.1);
    pass(1.6);
    lack_state(0); /* without hosts 2 and 3: 8 s */
    tell_list("1111");
    for (int i = 0; i < 2; i++)
        end_task(i, 0, 0.1);
    pass(2);
    end_task(2, 0, 2);
    pass(0.1); /* host 3 has as long as any: that is over */
    CHECK_INT(sup.core.state, EK_CORE_RUNNING);
    CHECK_INT(sup.core.ranks, 3);
    CHECK_INT(sup.core.least_step, 80);
    forget();
    lack_state(0);
    CHECK(report_of(EK_REPORT_INCOMPLETE).seconds > 5.5 &&
          report_of(EK_REPORT_INCOMPLETE).seconds < 6);
    tell_list("1111");
    for (int i = 0; i < 3; i++)
        end_task(i, 0, 0.1);
    check_s(waited_s(), 5.9);
    CHECK_INT(sup.core.least_step, 0);
}

static void generation_that_lacks_state_does_not_count_as_failed(void)
{
    start_without_third_host(20);
    for (int i = 0; i < 2 * EK_CORE_FAILED_MAX; i++) {
        lack_state(0);
        CHECK_INT(sup.core.history.failed, 0);
        CHECK_INT(sup.core.search.unproven, 0);
        wait_for_third_host();
        end_task(2, 0, 0.1); /* then it does not respond again */
        sup.core.least_step = 20;
    }
    CHECK_INT(did(EK_CORE_EXIT), 0);
}

static void stall_while_late_hosts_are_waited_for_does_not_count(void)
{
    start_without_third_host(20);
    lack_state(0);
    wait_for_third_host();
    leap(100);
    CHECK_INT(sup.core.state, EK_CORE_PROBING);
    check_s(waited_s(), 5);
}

static void interrupt_ends_the_wait(void)
{
    start_without_third_host(20);
    lack_state(0);
    wait_for_third_host();
    interrupt_once();
    CHECK_INT(did_exit(EK_CORE_EXIT_INTERRUPTED), 1);
}

static void draining_host_keeps_its_tries(void)
{
    ek_core_config cfg = elastic_config();

    step_on(&cfg, "111", 20);
    worker_event(EK_CORE_NOTICE, 0);
    take_step();
    end_generation(-1);
    tell_list("111");
    for (int i = 0; i < 2; i++)
        end_task(i, 0, 0.1);
    pass(1.6);
    CHECK_INT(sup.core.n_draining, 1);
    CHECK_INT(host_of(0).drain_tries, 1);
    CHECK_INT(sup.core.least_step, 21);
    lack_state(0);
    CHECK_INT(host_of(0).drain_tries, 0);
    end_fixture();
}

static const ek_case cases[] = {
    EK_CASE(generation_without_a_late_host_may_not_go_back),
    EK_CASE(generation_without_a_host_that_refuses_may_go_back),
    EK_CASE(generation_without_a_late_host_that_holds_nothing_may_go_back),
    EK_CASE(host_holds_state_before_a_step_is_completed_with_it),
    EK_CASE(first_generation_of_a_command_may_not_go_back_without_a_late_host),
    EK_CASE(late_host_is_waited_for_and_used_at_once),
    EK_CASE(late_host_is_probed_again_with_twice_the_time),
    EK_CASE(wait_ends_after_the_time_that_going_back_takes),
    EK_CASE(wait_goes_on_if_a_host_that_responds_lacks_the_state),
    EK_CASE(generation_that_lacks_state_does_not_count_as_failed),
    EK_CASE(stall_while_late_hosts_are_waited_for_does_not_count),
    EK_CASE(interrupt_ends_the_wait),
    EK_CASE(draining_host_keeps_its_tries),
};

EK_TEST_MAIN(cases)
