/* The supervisor's decision core: hosts that are probed, are silent, and join. */
#include "supervisor_fixture.h"

/* --- probing ---------------------------------------------------------------------------------- */

static void silent_host_before_the_first_generation_has_five_seconds(void)
{
    ek_core_config cfg = elastic_config();

    begin_on(&cfg, "111");
    tell_list("111");
    end_task(0, 0, 0.1);
    end_task(2, 0, 0.2);
    forget();
    pass(4.9);
    CHECK_INT(sup.n, 0);
    pass(0.2);
    CHECK_INT(did(EK_CORE_CANCEL_TASK), 1);
    CHECK_INT(sup.action[0].host, 1);
    CHECK_INT(did_report(EK_REPORT_HOSTS), 1);
    CHECK_INT(did(EK_CORE_START), 1);
    CHECK(changed_to(1, EK_HOST_LOST));
    CHECK_INT(host_of(1).health.answer, EK_RESULT_LATE);
    CHECK_INT(sup.core.history.lost_hosts, 0); /* it was never in use */
    CHECK_INT(sup.core.ranks, 2);
    CHECK_INT(host_of(2).first, 1);
}

static void silent_host_has_ten_times_as_long_as_the_slowest(void)
{
    ek_core_config cfg = elastic_config();

    begin_on(&cfg, "111");
    tell_list("111");
    end_task(0, 0, 0.3);
    end_task(2, 0, 0.8);
    pass(7.9);
    CHECK_INT(did(EK_CORE_START), 0);
    pass(0.2);
    CHECK_INT(did(EK_CORE_START), 1);
}

static void silent_host_later_has_one_and_a_half_seconds(void)
{
    ek_core_config cfg = elastic_config();

    step_on(&cfg, "11", 2);
    lose_generation();
    tell_list("11");
    end_task(0, 0, 0.1);
    forget();
    pass(1.4);
    CHECK_INT(sup.n, 0);
    pass(0.2);
    CHECK_INT(did(EK_CORE_START), 1);
    CHECK(changed_to(1, EK_HOST_LOST));
    CHECK_INT(sup.core.history.lost_hosts, 1);
    CHECK_INT(host_of(1).used, 0);
}

/* All ranks of two hosts are needed: nothing is assigned until it is back. */
static void lost_host_that_comes_back_counts_once(void)
{
    ek_core_config cfg = elastic_config();

    cfg.unit = 2;
    step_on(&cfg, "11", 2);
    lose_generation();
    tell_list("11");
    end_task(0, 0, 0.1);
    end_task(1, 255, 0.1);
    CHECK_INT(sup.core.state, EK_CORE_RETRYING);
    CHECK_INT(sup.core.history.lost_hosts, 1);
    pass(0.3);
    end_task(0, 0, 0.1);
    end_task(1, 255, 0.1);
    CHECK_INT(sup.core.state, EK_CORE_RETRYING);
    CHECK_INT(sup.core.history.lost_hosts, 1);
    pass(0.6);
    forget();
    answer_all(0);
    CHECK_INT(did(EK_CORE_START), 1);
    CHECK_INT(sup.core.history.lost_hosts, 1);
}

static void hosts_of_which_none_responds_have_fifteen_seconds(void)
{
    ek_core_config cfg = elastic_config();

    begin_on(&cfg, "11");
    tell_list("11");
    pass(14.9);
    CHECK_INT(sup.core.state, EK_CORE_PROBING);
    pass(0.2);
    CHECK_INT(did(EK_CORE_CANCEL_TASK), 2);
    CHECK_INT(sup.core.state, EK_CORE_RETRYING);
}

static void host_that_fails_its_first_probe_is_probed_once_more(void)
{
    ek_core_config cfg = elastic_config();

    begin_on(&cfg, "11");
    tell_list("11");
    end_task(0, 0, 0.1);
    forget();
    end_task(1, 255, 0.1);
    CHECK_INT(did_task(EK_TASK_PROBE), 1);
    CHECK_INT(sup.core.state, EK_CORE_PROBING);
    end_task(1, 255, 0.1);
    CHECK_INT(did_task(EK_TASK_PROBE), 1);
    CHECK_INT(did(EK_CORE_START), 1);
    CHECK(changed_to(1, EK_HOST_LOST));
}

static void host_that_fails_a_probe_later_is_not_probed_again(void)
{
    ek_core_config cfg = elastic_config();

    step_on(&cfg, "11", 2);
    lose_generation();
    tell_list("11");
    forget();
    end_task(1, 255, 0.1);
    end_task(0, 0, 0.1);
    CHECK_INT(did_task(EK_TASK_PROBE), 0);
    CHECK_INT(did(EK_CORE_START), 1);
}

static void host_listed_while_others_are_probed_is_probed_too(void)
{
    ek_core_config cfg = elastic_config();

    begin_on(&cfg, "1");
    forget();
    tell_list("11");
    CHECK_INT(did_task(EK_TASK_PROBE), 1);
    end_task(0, 0, 0.1);
    CHECK_INT(sup.core.state, EK_CORE_PROBING);
    end_task(1, 0, 0.1);
    CHECK_INT(sup.core.ranks, 2);
}

static void probe_without_a_response_waits_for_the_list(void)
{
    ek_core_config cfg = elastic_config();

    begin_on(&cfg, "1");
    end_task(0, 255, 0.1);
    end_task(0, 255, 0.1);
    CHECK_INT(sup.core.state, EK_CORE_PROBING);
    tell_list("-1");
    end_task(1, 0, 0.1);
    CHECK_INT(sup.core.state, EK_CORE_RUNNING);
}

/* Stalls of the supervisor. */
static void stall_does_not_count_against_a_host(void)
{
    ek_core_config cfg = elastic_config();

    begin_on(&cfg, "11");
    tell_list("11");
    end_task(0, 0, 0.1);
    pass(3);
    leap(100);
    CHECK_INT(sup.core.state, EK_CORE_PROBING);
    pass(1.9);
    CHECK_INT(sup.core.state, EK_CORE_PROBING);
    pass(0.2);
    CHECK_INT(sup.core.state, EK_CORE_RUNNING);
}

static void gap_that_is_no_stall_counts(void)
{
    ek_core_config cfg = elastic_config();

    begin_on(&cfg, "11");
    tell_list("11");
    end_task(0, 0, 0.1);
    for (int i = 0; i < 11; i++)
        leap(0.49);
    CHECK_INT(sup.core.state, EK_CORE_RUNNING);
}

static void stall_does_not_count_against_workers(void)
{
    ek_core_config cfg = elastic_config();

    cfg.watchdog_s = 5;
    step_on(&cfg, "11", 1);
    pass(2);
    leap(100);
    CHECK_INT(did(EK_CORE_KILL), 0);
    pass(0.7);
    CHECK_INT(did(EK_CORE_KILL), 0);
    pass(3);
    CHECK_INT(did(EK_CORE_KILL), 1);
}

/* --- too few hosts ---------------------------------------------------------------------------- */

static void waits_between_attempts_double_until_none_is_left(void)
{
    ek_core_config cfg = elastic_config();
    double wait_s = 0.25;

    cfg.watchdog_s = 0;
    begin_on(&cfg, "1");
    answer_all(255);
    for (int i = 0; i < 7; i++, wait_s *= 2) {
        answer_all(255);
        CHECK_INT(sup.core.state, EK_CORE_RETRYING);
        pass(wait_s - 0.01);
        CHECK_INT(sup.core.state, EK_CORE_RETRYING);
        CHECK_INT(did(EK_CORE_EXIT), 0);
        pass(0.02);
    }
    CHECK_INT(did_exit(EK_CORE_EXIT_NO_HOSTS), 1);
    CHECK_INT(did_task(EK_TASK_PROBE), 8); /* the first one twice */
}

static void waits_end_with_the_watchdog(void)
{
    ek_core_config cfg = elastic_config();

    cfg.watchdog_s = 1;
    begin_on(&cfg, "1");
    answer_all(255);
    for (int i = 0; i < 3; i++) {
        answer_all(255);
        pass(0.25 * (1 << i) + 0.01);
    }
    CHECK_INT(did_exit(EK_CORE_EXIT_NO_HOSTS), 1);
}

static void host_that_responds_later_is_used(void)
{
    ek_core_config cfg = elastic_config();

    begin_on(&cfg, "1");
    answer_all(255);
    answer_all(255);
    pass(0.3);
    CHECK_INT(sup.core.state, EK_CORE_PROBING);
    answer_all(0);
    CHECK_INT(did(EK_CORE_START), 1);
}

/* --- hosts that join -------------------------------------------------------------------------- */

static void new_host_in_a_generation_is_probed_every_two_seconds(void)
{
    list_third_host(0);
    forget();
    work(1.9);
    CHECK_INT(did_task(EK_TASK_PROBE), 0);
    work(0.3);
    CHECK_INT(did_task(EK_TASK_PROBE), 1);
    CHECK_INT(sup.task[2], EK_TASK_PROBE);
}

static void new_host_is_not_used_before_it_has_responded(void)
{
    ek_core_config cfg = elastic_config();

    step_on(&cfg, "11", 3);
    feed((ek_core_event){.kind = EK_CORE_SIZES, .result = 1});
    pass(1.1);
    forget();
    tell_list("111");
    CHECK_INT(did_task(EK_TASK_PREALLOC), 0);
    CHECK_INT(ek_core_hosts_slots(&sup.core.hosts, sup.now), 2);
    pass(0.2);
    CHECK_INT(did_task(EK_TASK_PROBE), 1);
}

static void host_listed_while_a_generation_ends_is_not_used_unprobed(void)
{
    ek_core_config cfg = elastic_config();

    list_third_host(0);
    pass(1); /* reads the list */
    take_step();
    take_step();
    CHECK_INT(sup.core.ending.reason, EK_REASON_REGROUP);
    CHECK_INT(sup.core.search.reading, 1);
    tell_list("1111");
    end_generation(-1);
    CHECK_INT(sup.core.state, EK_CORE_RUNNING);
    CHECK_INT(sup.core.ranks, 3);
    CHECK_INT(host_of(3).used, 0);
    /* the same while links are tested */
    cfg.watchdog_s = 3;
    step_on(&cfg, "11", 1);
    pass(4);
    end_generation(-1);
    for (int i = 0; i < 2; i++)
        end_task(i, 0, 0.1);
    CHECK_INT(sup.core.state, EK_CORE_LINKING);
    CHECK_INT(sup.core.search.reading, 1);
    tell_list("111");
    feed((ek_core_event){.kind = EK_CORE_LINK_JOB_ENDED});
    CHECK_INT(sup.core.ranks, 2);
}

static void new_host_preallocates_only_once_sizes_are_known(void)
{
    list_third_host(0);
    CHECK_INT(did_task(EK_TASK_PREALLOC), 0);
    list_third_host(1);
    CHECK_INT(did_task(EK_TASK_PREALLOC), 1);
}

static void new_host_that_is_not_wanted_does_not_preallocate(void)
{
    ek_core_config cfg = elastic_config();

    cfg.ranks = 2;
    step_on(&cfg, "11", 3);
    feed((ek_core_event){.kind = EK_CORE_SIZES, .result = 1});
    pass(1.1);
    tell_list("111");
    pass(0.2);
    end_task(2, 0, 0.1);
    take_step();
    take_step();
    CHECK_INT(did_task(EK_TASK_PREALLOC), 0);
    CHECK_INT(did(EK_CORE_KILL), 0);
}

static void generation_regroups_only_after_a_further_step(void)
{
    list_third_host(1);
    take_step();
    CHECK_INT(did(EK_CORE_KILL), 0); /* still preallocates */
    end_task(2, 0, 0.1);
    pass(1);
    CHECK_INT(did(EK_CORE_KILL), 0);
    take_step();
    CHECK_INT(did(EK_CORE_KILL), 1);
    CHECK_INT(sup.core.ending.reason, EK_REASON_REGROUP);
}

static void generation_does_not_regroup_in_the_last_step(void)
{
    list_third_host(0);
    feed((ek_core_event){.kind = EK_CORE_STEP, .step = 8, .all = 8});
    pass(1);
    CHECK_INT(did(EK_CORE_KILL), 0);
    list_third_host(0); /* the same, with a step left */
    feed((ek_core_event){.kind = EK_CORE_STEP, .step = 7, .all = 9});
    feed((ek_core_event){.kind = EK_CORE_STEP, .step = 8, .all = 9});
    CHECK_INT(did(EK_CORE_KILL), 1);
}

static void generation_does_not_regroup_while_another_host_may_respond(void)
{
    list_third_host(1);
    end_task(2, 0, 0.1);
    work(1);
    tell_list("1111");
    work(0.2); /* host3 is probed */
    take_step();
    CHECK_INT(did(EK_CORE_KILL), 0);
    work(1.5);           /* it does not respond soon, */
    end_task(2, 0, 0.1); /* but the other one does again */
    take_step();
    CHECK_INT(did(EK_CORE_KILL), 1);
}

static void generation_does_not_regroup_for_less_than_a_unit(void)
{
    ek_core_config cfg = elastic_config();

    cfg.unit = 2;
    step_on(&cfg, "11", 3);
    pass(1.1);
    tell_list("111");
    pass(0.2);
    end_task(2, 0, 0.1);
    take_step();
    take_step();
    CHECK_INT(did(EK_CORE_KILL), 0);
}

static void start_after_a_regroup_needs_no_probe(void)
{
    list_third_host(1);
    end_task(2, 0, 0.1);
    take_step();
    forget();
    end_generation(-1);
    CHECK_INT(did_report(EK_REPORT_END), 1);
    CHECK_INT(did_report(EK_REPORT_LOSS), 0);
    CHECK_INT(did(EK_CORE_RUN_TASK), 0);
    CHECK_INT(did(EK_CORE_START), 1);
    CHECK(changed_to(2, EK_HOST_JOINED));
    CHECK_INT(sup.core.ranks, 3);
    CHECK_INT(sup.core.history.failed, 0);
    resume();
    CHECK_INT(host_of(2).memory.held, 0);
    lose_generation();
    forget();
    feed((ek_core_event){.kind = EK_CORE_TIME});
    CHECK_INT(sup.core.state, EK_CORE_PROBING);
}

static void host_whose_preallocation_fails_is_probed_and_used_without(void)
{
    list_third_host(1);
    end_task(2, 1, 0.1);
    forget();
    pass(0.2);
    CHECK_INT(did_task(EK_TASK_PROBE), 1);
    end_task(2, 0, 0.1);
    take_step();
    CHECK_INT(did_task(EK_TASK_PREALLOC), 0);
    take_step();
    CHECK_INT(sup.core.ending.reason, EK_REASON_REGROUP);
}

/* A third host joins, and the generation ends before a step. */
static void lose_first_generation_of_third_host(void)
{
    list_third_host(0);
    take_step();
    take_step();
    end_generation(-1);
    CHECK_INT(sup.core.ranks, 3);
    forget();
    lose_generation();
    pass(0.15); /* backoff */
}

static void new_host_with_which_no_step_completes_is_excluded(void)
{
    lose_first_generation_of_third_host();
    answer_all(0);
    CHECK_INT(did_report(EK_REPORT_UNPROVEN), 1);
    CHECK_INT(report_of(EK_REPORT_UNPROVEN).host, 2);
    CHECK(report_of(EK_REPORT_UNPROVEN).seconds == 2);
    CHECK_INT(host_of(2).suspect, 1);
    CHECK_INT(sup.core.ranks, 2);
    join_all();
    forget();
    pass(3);
    CHECK_INT(did_task(EK_TASK_LINKS), 1); /* must reach those in use before it is used again */
    for (int i = 0; i < sup.n; i++)
        if (sup.action[i].kind == EK_CORE_RUN_TASK) {
            CHECK_INT(sup.action[i].n, 2);
            CHECK_INT(sup.hosts[i][0] + sup.hosts[i][1], 1);
        }
    end_task(2, 0, 0.1);
    CHECK_INT(host_of(2).suspect, 0);
}

static void new_host_is_kept_when_another_one_does_not_respond(void)
{
    lose_first_generation_of_third_host();
    tell_list(sup.listed);
    end_task(0, 0, 0.1);
    end_task(1, EK_RESULT_STUCK, 0.1);
    end_task(2, 0, 0.1);
    CHECK_INT(sup.core.state, EK_CORE_RUNNING);
    CHECK_INT(did_report(EK_REPORT_UNPROVEN), 0);
    CHECK_INT(sup.core.ranks, 2);
    CHECK_INT(host_of(1).used, 0);
    CHECK_INT(host_of(2).used, 1);
}

static void first_hosts_with_which_no_step_completes_are_kept(void)
{
    ek_core_config cfg = elastic_config();

    start_on(&cfg, "11");
    join_all();
    lose_generation();
    CHECK_INT(did_report(EK_REPORT_UNPROVEN), 0);
    CHECK_INT(host_of(0).used, 1);
    end_fixture();
}

static const ek_case cases[] = {
    EK_CASE(silent_host_before_the_first_generation_has_five_seconds),
    EK_CASE(silent_host_has_ten_times_as_long_as_the_slowest),
    EK_CASE(silent_host_later_has_one_and_a_half_seconds),
    EK_CASE(lost_host_that_comes_back_counts_once),
    EK_CASE(hosts_of_which_none_responds_have_fifteen_seconds),
    EK_CASE(host_that_fails_its_first_probe_is_probed_once_more),
    EK_CASE(host_that_fails_a_probe_later_is_not_probed_again),
    EK_CASE(host_listed_while_others_are_probed_is_probed_too),
    EK_CASE(probe_without_a_response_waits_for_the_list),
    EK_CASE(stall_does_not_count_against_a_host),
    EK_CASE(gap_that_is_no_stall_counts),
    EK_CASE(stall_does_not_count_against_workers),
    EK_CASE(waits_between_attempts_double_until_none_is_left),
    EK_CASE(waits_end_with_the_watchdog),
    EK_CASE(host_that_responds_later_is_used),
    EK_CASE(new_host_in_a_generation_is_probed_every_two_seconds),
    EK_CASE(new_host_is_not_used_before_it_has_responded),
    EK_CASE(host_listed_while_a_generation_ends_is_not_used_unprobed),
    EK_CASE(new_host_preallocates_only_once_sizes_are_known),
    EK_CASE(new_host_that_is_not_wanted_does_not_preallocate),
    EK_CASE(generation_regroups_only_after_a_further_step),
    EK_CASE(generation_does_not_regroup_in_the_last_step),
    EK_CASE(generation_does_not_regroup_while_another_host_may_respond),
    EK_CASE(generation_does_not_regroup_for_less_than_a_unit),
    EK_CASE(start_after_a_regroup_needs_no_probe),
    EK_CASE(host_whose_preallocation_fails_is_probed_and_used_without),
    EK_CASE(new_host_with_which_no_step_completes_is_excluded),
    EK_CASE(new_host_is_kept_when_another_one_does_not_respond),
    EK_CASE(first_hosts_with_which_no_step_completes_are_kept),
};

EK_TEST_MAIN(cases)
