/* The supervisor's decision core: how a generation ends, what follows it, and the exit. */
#include "supervisor_fixture.h"

/* --- losses ----------------------------------------------------------------------------------- */

static void generation_whose_worker_dies_is_killed_after_a_quarter_second(void)
{
    step_on_two();
    worker_event(EK_CORE_WORKER_CLOSED, 1);
    pass(0.2);
    CHECK_INT(sup.n, 0);
    pass(0.1);
    CHECK_INT(did(EK_CORE_KILL), 1);
    pass(5);
    CHECK_INT(did(EK_CORE_KILL), 1);
    end_mpiexec(-1);
    pass(1);
    CHECK_INT(sup.core.state, EK_CORE_RUNNING);
    feed((ek_core_event){.kind = EK_CORE_OUTPUT_ENDED, .step = 2});
    CHECK_INT(did_report(EK_REPORT_LOSS), 1);
    CHECK_INT(sup.core.state, EK_CORE_PROBING);
    CHECK_INT(did_task(EK_TASK_PROBE), 2);
    CHECK_INT(did(EK_CORE_READ_LIST), 1);
}

static void generation_whose_worker_exits_regularly_is_killed_after_a_minute(void)
{
    step_on_two();
    worker_event(EK_CORE_WORKER_CLOSED, -1);
    pass(59);
    CHECK_INT(did(EK_CORE_KILL), 0);
    pass(2);
    CHECK_INT(did(EK_CORE_KILL), 1);
}

static void death_after_a_regular_exit_kills_after_a_quarter_second(void)
{
    step_on_two();
    worker_event(EK_CORE_WORKER_CLOSED, -1);
    pass(2);
    CHECK_INT(did(EK_CORE_KILL), 0);
    worker_event(EK_CORE_WORKER_CLOSED, 1);
    pass(0.2);
    CHECK_INT(did(EK_CORE_KILL), 0);
    pass(0.1);
    CHECK_INT(did(EK_CORE_KILL), 1);
}

static void generation_that_ends_by_itself_is_not_killed(void)
{
    step_on_two();
    worker_event(EK_CORE_WORKER_CLOSED, 1);
    end_mpiexec(1);
    pass(1);
    CHECK_INT(did(EK_CORE_KILL), 0);
}

static void output_that_ends_before_mpiexec_does_not_end_the_generation(void)
{
    step_on_two();
    feed((ek_core_event){.kind = EK_CORE_OUTPUT_ENDED, .step = 2});
    CHECK_INT(sup.core.state, EK_CORE_RUNNING);
    CHECK_INT(sup.n, 0);
}

static void generations_without_a_step_back_off_and_give_up_after_five(void)
{
    double s = 0.1;

    step_on_two();
    lose_generation();
    for (int i = 0; i < 5; i++, s *= 2) {
        answer_all(0);
        if (sup.core.state == EK_CORE_LINKING)
            feed((ek_core_event){.kind = EK_CORE_LINK_JOB_ENDED});
        CHECK_INT(sup.core.state, EK_CORE_RUNNING);
        CHECK_INT(did(EK_CORE_EXIT), 0);
        join_all();
        lose_generation();
        if (i == 4)
            break;
        CHECK_INT(sup.core.state, EK_CORE_BACKOFF);
        pass(s - 0.01);
        CHECK_INT(sup.core.state, EK_CORE_BACKOFF);
        pass(0.02);
        CHECK_INT(sup.core.state, EK_CORE_PROBING);
    }
    CHECK_INT(did_exit(EK_CORE_EXIT_JOB), 1);
    CHECK_INT(sup.core.status, EK_EXIT_FAILED);
    CHECK_INT(sup.core.history.failed, EK_CORE_FAILED_MAX + 1);
}

static void generation_with_a_step_ends_the_backoff(void)
{
    step_on_two();
    for (int i = 0; i < 8; i++) {
        lose_generation();
        pass(0.15);
        if (sup.core.state == EK_CORE_PROBING)
            resume();
        CHECK_INT(sup.core.history.failed, 0);
    }
    CHECK_INT(did(EK_CORE_EXIT), 0);
}

/* A run that has gone back completes steps whose numbers were reached before. */
static void repeated_steps_end_the_backoff(void)
{
    ek_core_config cfg = elastic_config();

    step_on(&cfg, "11", 20);
    lose_generation();
    for (int i = 0; i < 3; i++) {
        pass(1);
        answer_all(0);
        if (sup.core.state == EK_CORE_LINKING)
            feed((ek_core_event){.kind = EK_CORE_LINK_JOB_ENDED});
        join_all();
        lose_generation();
    }
    CHECK_INT(sup.core.history.failed, 3);
    pass(1);
    sup.step = 0;
    answer_all(0);
    if (sup.core.state == EK_CORE_LINKING)
        feed((ek_core_event){.kind = EK_CORE_LINK_JOB_ENDED});
    CHECK_INT(sup.core.state, EK_CORE_RUNNING);
    join_all();
    enter_phase(EK_PHASE_STEP);
    take_step();
    take_step();
    lose_generation();
    CHECK_INT(sup.core.history.failed, 0);
    CHECK_INT(did(EK_CORE_EXIT), 0);
}

/* One that goes back each time, and fails at the same step again. */
static void run_that_gets_no_further_is_given_up_after_21_losses(void)
{
    ek_core_config cfg = elastic_config();

    step_on(&cfg, "11", 20);
    lose_generation();
    for (int i = 0; i <= EK_CORE_BEHIND_MAX; i++) {
        CHECK_INT(did(EK_CORE_EXIT), 0);
        pass(1);
        answer_all(0);
        if (sup.core.state == EK_CORE_LINKING)
            feed((ek_core_event){.kind = EK_CORE_LINK_JOB_ENDED});
        CHECK_INT(sup.core.state, EK_CORE_RUNNING);
        join_all();
        enter_phase(EK_PHASE_STEP);
        sup.step = 18;
        take_step();
        take_step();
        lose_generation();
        CHECK_INT(sup.core.history.failed, 0);
    }
    CHECK_INT(did_exit(EK_CORE_EXIT_JOB), 1);
    CHECK_INT(sup.core.status, EK_EXIT_FAILED);
}

static void job_of_which_no_worker_has_started_is_not_restarted(void)
{
    ek_core_config cfg = elastic_config();

    start_on(&cfg, "11");
    end_generation(1);
    CHECK_INT(did_exit(EK_CORE_EXIT_JOB), 1);
    CHECK_INT(did(EK_CORE_START), 1);
    for (int kind = 0; kind < 4; kind++) { /* each shows that one has */
        static const ek_core_event_kind shows[] = {EK_CORE_WORKER_WATCHED, EK_CORE_WORKER_CLOSED,
                                                   EK_CORE_WORKER_STARTED, EK_CORE_DEATH};

        start_on(&cfg, "11");
        worker_event(shows[kind], 0);
        end_generation(1);
        CHECK_INT(did(EK_CORE_EXIT), 0);
        CHECK_INT(sup.core.state, EK_CORE_BACKOFF);
    }
}

static void job_that_ends_well_exits_with_zero(void)
{
    step_on_two();
    end_generation(0);
    CHECK_INT(did_report(EK_REPORT_END), 1);
    CHECK_INT(did_exit(EK_CORE_EXIT_JOB), 1);
    CHECK_INT(sup.core.status, EK_EXIT_DONE);
}

/* --- reported failures ------------------------------------------------------------------------ */

static void failure_of_a_rank_itself_ends_the_job_with_its_status(void)
{
    step_on_two();
    fail_worker(1, EK_EXIT_BAD_INPUT, 0);
    fail_worker(0, EK_EXIT_FAILED, 1);
    pass(0.3);
    CHECK_INT(did(EK_CORE_KILL), 1);
    end_generation(EK_EXIT_FAILED);
    CHECK_INT(did_report(EK_REPORT_FAILURE), 1);
    CHECK_INT(report_of(EK_REPORT_FAILURE).host, -1);
    CHECK_INT(did_exit(EK_CORE_EXIT_JOB), 1);
    CHECK_INT(sup.core.status, EK_EXIT_BAD_INPUT);
}

static void failure_by_the_loss_of_another_rank_restarts(void)
{
    step_on_two();
    fail_worker(1, EK_EXIT_FAILED, 1);
    end_generation(EK_EXIT_FAILED);
    CHECK_INT(report_of(EK_REPORT_FAILURE).host, -1);
    CHECK_INT(did(EK_CORE_EXIT), 0);
    CHECK_INT(sup.core.restart, 1);
    CHECK_INT(sup.core.state, EK_CORE_PROBING);
}

/* A third host has joined, and its generation plans. */
static void join_third_host(void)
{
    step_on_two();
    pass(1.1);
    tell_list("111");
    pass(0.2);
    end_task(2, 0, 0.1);
    take_step();
    take_step();
    end_generation(-1);
    CHECK_INT(sup.core.ranks, 3);
    forget();
}

static void failure_of_a_new_host_excludes_it_for_a_minute(void)
{
    join_third_host();
    join_all();
    fail_worker(2, EK_EXIT_FAILED, 0);
    end_generation(EK_EXIT_FAILED);
    CHECK_INT(did_report(EK_REPORT_FAILURE), 1);
    CHECK_INT(report_of(EK_REPORT_FAILURE).host, 2);
    CHECK(report_of(EK_REPORT_FAILURE).seconds == 60);
    CHECK_INT(did_report(EK_REPORT_UNPROVEN), 0);
    CHECK_INT(did(EK_CORE_EXIT), 0);
    answer_all(0);
    CHECK_INT(sup.core.ranks, 2);
    CHECK_INT(host_of(2).used, 0);
    CHECK(host_of(2).back_at > sup.now + 59000000000);
    CHECK(host_of(2).back_at < sup.now + 61000000000);
}

static void failure_of_a_new_host_after_the_plan_ends_the_job(void)
{
    join_third_host();
    join_all();
    enter_phase(EK_PHASE_TRANSFER);
    fail_worker(2, EK_EXIT_FAILED, 0);
    end_generation(EK_EXIT_FAILED);
    CHECK_INT(did_exit(EK_CORE_EXIT_JOB), 1);
}

static void failure_of_an_old_host_ends_the_job(void)
{
    join_third_host();
    join_all();
    fail_worker(1, EK_EXIT_FAILED, 0);
    end_generation(EK_EXIT_FAILED);
    CHECK_INT(did_exit(EK_CORE_EXIT_JOB), 1);
    CHECK_INT(report_of(EK_REPORT_FAILURE).host, -1);
}

static void failure_of_the_first_hosts_ends_the_job(void)
{
    ek_core_config cfg = elastic_config();

    start_on(&cfg, "11");
    join_all();
    fail_worker(1, EK_EXIT_FAILED, 0);
    end_generation(EK_EXIT_FAILED);
    CHECK_INT(did_exit(EK_CORE_EXIT_JOB), 1);
}

/* --- interrupts ------------------------------------------------------------------------------- */

static void interrupt_before_the_start_exits(void)
{
    ek_core_config cfg = elastic_config();

    begin(&cfg);
    interrupt_once();
    CHECK_INT(did_exit(EK_CORE_EXIT_INTERRUPTED), 1);
    CHECK_INT(sup.core.state, EK_CORE_DONE);
    begin_on(&cfg, "11");
    interrupt_once(); /* probing */
    CHECK_INT(did_exit(EK_CORE_EXIT_INTERRUPTED), 1);
    CHECK_INT(did(EK_CORE_CANCEL_TASK), 2);
    begin_on(&cfg, "1");
    answer_all(255);
    answer_all(255);
    interrupt_once(); /* retrying */
    CHECK_INT(did_exit(EK_CORE_EXIT_INTERRUPTED), 1);
    start_on(&cfg, "11");
    join_all();
    lose_generation();
    CHECK_INT(sup.core.state, EK_CORE_BACKOFF);
    interrupt_once();
    CHECK_INT(did_exit(EK_CORE_EXIT_INTERRUPTED), 1);
    CHECK_INT(sup.core.state, EK_CORE_DONE);
}

static void interrupt_before_all_have_joined_kills_at_once(void)
{
    ek_core_config cfg = elastic_config();

    start_on(&cfg, "11");
    worker_event(EK_CORE_WORKER_JOINED, 0);
    interrupt_once();
    CHECK_INT(did(EK_CORE_KILL), 1);
    CHECK_INT(did(EK_CORE_FORWARD_INTERRUPT), 0);
    end_generation(-1);
    CHECK_INT(did_exit(EK_CORE_EXIT_JOB), 1);
    CHECK_INT(sup.core.status, EK_EXIT_INTERRUPTED);
}

static void interrupt_before_the_first_step_kills_after_three_quarters(void)
{
    ek_core_config cfg = elastic_config();

    start_on(&cfg, "11");
    join_all();
    interrupt_once();
    CHECK_INT(did(EK_CORE_FORWARD_INTERRUPT), 1);
    pass(0.7);
    CHECK_INT(did(EK_CORE_KILL), 0);
    pass(0.1);
    CHECK_INT(did(EK_CORE_KILL), 1);
    CHECK_INT(did(EK_CORE_FORWARD_INTERRUPT), 1);
}

static void interrupt_before_the_first_step_kills_nothing_once_it_comes(void)
{
    ek_core_config cfg = elastic_config();

    start_on(&cfg, "11");
    join_all();
    interrupt_once();
    pass(0.5);
    enter_phase(EK_PHASE_STEP);
    pass(3);
    CHECK_INT(did(EK_CORE_KILL), 0);
    end_generation(EK_EXIT_INTERRUPTED);
    CHECK_INT(sup.core.status, EK_EXIT_INTERRUPTED);
    CHECK_INT(did(EK_CORE_START), 1);
}

static void interrupt_in_steps_is_forwarded_and_a_second_one_kills(void)
{
    step_on_two();
    interrupt_once();
    CHECK_INT(did(EK_CORE_FORWARD_INTERRUPT), 1);
    pass(2);
    CHECK_INT(did(EK_CORE_KILL), 0);
    interrupt_once();
    CHECK_INT(did(EK_CORE_KILL), 1);
    CHECK_INT(did(EK_CORE_FORWARD_INTERRUPT), 1);
}

static void interrupt_reported_by_the_workers_exits_with_their_status(void)
{
    step_on_two();
    interrupt_once();
    fail_worker(0, EK_EXIT_INTERRUPTED, 0);
    pass(1);
    CHECK_INT(did(EK_CORE_KILL), 0); /* they have time to save */
    end_generation(EK_EXIT_INTERRUPTED);
    CHECK_INT(sup.core.status, EK_EXIT_INTERRUPTED);
    CHECK_INT(did_exit(EK_CORE_EXIT_JOB), 1);
}

static void interrupt_while_hosts_change_ends_the_job(void)
{
    step_on_two();
    feed((ek_core_event){.kind = EK_CORE_NOTICE, .rank = 1});
    take_step();
    interrupt_once();
    end_generation(-1);
    CHECK_INT(did_exit(EK_CORE_EXIT_JOB), 1);
    CHECK_INT(sup.core.status, EK_EXIT_INTERRUPTED);
    CHECK_INT(did(EK_CORE_START), 0);
}

static void interrupt_while_a_host_is_drained_exits_before_the_next_generation(void)
{
    step_on_two();
    feed((ek_core_event){.kind = EK_CORE_NOTICE, .rank = 1});
    take_step();
    end_generation(-1);
    answer_all(0);
    CHECK_INT(sup.core.n_draining, 1);
    join_all();
    interrupt_once();
    forget();
    end_generation(0); /* the state was handed over all the same */
    CHECK_INT(did_exit(EK_CORE_EXIT_INTERRUPTED), 1);
    CHECK_INT(did(EK_CORE_RUN_TASK), 0);
}

/* --- the exit --------------------------------------------------------------------------------- */

/* A third host has preallocated memory, and runs nothing. */
static void hold_memory(void)
{
    step_on_two();
    feed((ek_core_event){.kind = EK_CORE_SIZES, .result = 1});
    pass(1.1);
    tell_list("111");
    pass(0.2);
    end_task(2, 0, 0.1);
    CHECK_INT(sup.task[2], EK_TASK_PREALLOC);
    end_task(2, 0, 0.1);
    forget();
}

static void exit_frees_memory_that_hosts_hold(void)
{
    hold_memory();
    end_generation(0);
    CHECK_INT(did_exit(EK_CORE_EXIT_JOB), 1);
    CHECK_INT(did_task(EK_TASK_FREE), 1);
    CHECK_INT(sup.core.state, EK_CORE_FREEING);
    end_task(2, 0, 0.1);
    CHECK_INT(sup.core.state, EK_CORE_DONE);
}

static void exit_waits_five_seconds_for_hosts_to_free_memory(void)
{
    hold_memory();
    end_generation(0);
    pass(4.9);
    CHECK_INT(sup.core.state, EK_CORE_FREEING);
    pass(0.2);
    CHECK_INT(did(EK_CORE_CANCEL_TASK), 1);
    CHECK_INT(sup.core.state, EK_CORE_DONE);
}

static void exit_after_an_interrupt_waits_half_a_second(void)
{
    hold_memory();
    interrupt_once();
    end_generation(EK_EXIT_INTERRUPTED);
    CHECK_INT(did_task(EK_TASK_FREE), 1);
    pass(0.4);
    CHECK_INT(sup.core.state, EK_CORE_FREEING);
    pass(0.2);
    CHECK_INT(sup.core.state, EK_CORE_DONE);
}

static void exit_that_is_interrupted_waits_no_longer(void)
{
    hold_memory();
    end_generation(0);
    interrupt_once();
    CHECK_INT(did(EK_CORE_CANCEL_TASK), 1);
    CHECK_INT(sup.core.state, EK_CORE_DONE);
}

static void core_that_is_abandoned_frees_memory_and_says_nothing(void)
{
    hold_memory();
    feed((ek_core_event){.kind = EK_CORE_ABANDON});
    CHECK_INT(did(EK_CORE_EXIT), 0);
    CHECK_INT(did_task(EK_TASK_FREE), 1);
    end_task(2, 0, 0.1);
    CHECK_INT(sup.core.state, EK_CORE_DONE);
    end_fixture();
}

static const ek_case cases[] = {
    EK_CASE(generation_whose_worker_dies_is_killed_after_a_quarter_second),
    EK_CASE(generation_whose_worker_exits_regularly_is_killed_after_a_minute),
    EK_CASE(death_after_a_regular_exit_kills_after_a_quarter_second),
    EK_CASE(generation_that_ends_by_itself_is_not_killed),
    EK_CASE(output_that_ends_before_mpiexec_does_not_end_the_generation),
    EK_CASE(generations_without_a_step_back_off_and_give_up_after_five),
    EK_CASE(generation_with_a_step_ends_the_backoff),
    EK_CASE(repeated_steps_end_the_backoff),
    EK_CASE(run_that_gets_no_further_is_given_up_after_21_losses),
    EK_CASE(job_of_which_no_worker_has_started_is_not_restarted),
    EK_CASE(job_that_ends_well_exits_with_zero),
    EK_CASE(failure_of_a_rank_itself_ends_the_job_with_its_status),
    EK_CASE(failure_by_the_loss_of_another_rank_restarts),
    EK_CASE(failure_of_a_new_host_excludes_it_for_a_minute),
    EK_CASE(failure_of_a_new_host_after_the_plan_ends_the_job),
    EK_CASE(failure_of_an_old_host_ends_the_job),
    EK_CASE(failure_of_the_first_hosts_ends_the_job),
    EK_CASE(interrupt_before_the_start_exits),
    EK_CASE(interrupt_before_all_have_joined_kills_at_once),
    EK_CASE(interrupt_before_the_first_step_kills_after_three_quarters),
    EK_CASE(interrupt_before_the_first_step_kills_nothing_once_it_comes),
    EK_CASE(interrupt_in_steps_is_forwarded_and_a_second_one_kills),
    EK_CASE(interrupt_reported_by_the_workers_exits_with_their_status),
    EK_CASE(interrupt_while_hosts_change_ends_the_job),
    EK_CASE(interrupt_while_a_host_is_drained_exits_before_the_next_generation),
    EK_CASE(exit_frees_memory_that_hosts_hold),
    EK_CASE(exit_waits_five_seconds_for_hosts_to_free_memory),
    EK_CASE(exit_after_an_interrupt_waits_half_a_second),
    EK_CASE(exit_that_is_interrupted_waits_no_longer),
    EK_CASE(core_that_is_abandoned_frees_memory_and_says_nothing),
};

EK_TEST_MAIN(cases)
