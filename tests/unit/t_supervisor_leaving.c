/* The supervisor's decision core: hosts that leave, and hosts off the list. */
#include "supervisor_fixture.h"

/* --- hosts that leave ------------------------------------------------------------------------- */

static void host_with_a_notice_hands_over_after_the_next_step(void)
{
    ek_core_config cfg = elastic_config();

    step_on(&cfg, "211", 3);
    forget();
    feed((ek_core_event){.kind = EK_CORE_NOTICE, .rank = 1});
    pass(1);
    CHECK_INT(did(EK_CORE_KILL), 0);
    take_step();
    CHECK_INT(did(EK_CORE_KILL), 1);
    CHECK_INT(sup.core.ending.reason, EK_REASON_HAND_OVER);
    feed((ek_core_event){.kind = EK_CORE_NOTICE, .rank = 2}); /* an effect of the kill */
    CHECK_INT(host_of(1).leaving, 0);
    end_generation(-1);
    CHECK_INT(did_report(EK_REPORT_END), 1);
    answer_all(0);
    CHECK(changed_to(0, EK_HOST_DRAINING));
    CHECK_INT(sup.core.ranks, 2);
    CHECK_INT(sup.core.n_draining, 1);
    CHECK_INT(host_of(1).first, 0);
    CHECK_INT(host_of(2).first, 1);
    CHECK_INT(host_of(0).first, 2);
    forget();
    join_all();
    pass(1.5);
    CHECK_INT(sup.n, 0); /* reads no list, probes no host */
    end_generation(0);
    CHECK_INT(did_report(EK_REPORT_END), 1);
    CHECK_INT(did(EK_CORE_EXIT), 0);
    answer_all(0);
    CHECK(changed_to(0, EK_HOST_RELEASED));
    CHECK_INT(host_of(0).used, 0);
    CHECK_INT(sup.core.n_draining, 0);
    CHECK_INT(sup.core.ranks, 2);
    resume();
    CHECK(sup.core.resumption.times.drain_s > 1.49);
    CHECK(host_of(0).back_at > sup.now + 50000000000);
}

static void host_with_a_notice_in_a_long_step_hands_over_after_five_seconds(void)
{
    ek_core_config cfg = elastic_config();

    step_on(&cfg, "11", 1);
    sup.core.progress.longest_s[EK_PHASE_STEP] = 10;
    feed((ek_core_event){.kind = EK_CORE_NOTICE, .rank = 1});
    for (int i = 0; i < 49; i++) {
        pass(0.1);
        enter_phase(EK_PHASE_STEP); /* shows that it is alive */
    }
    CHECK_INT(did(EK_CORE_KILL), 0);
    pass(0.3);
    CHECK_INT(did(EK_CORE_KILL), 1);
    CHECK_INT(sup.core.ending.reason, EK_REASON_HAND_OVER);
}

static void host_with_a_notice_stays_if_the_others_do_not_suffice(void)
{
    ek_core_config cfg = elastic_config();

    cfg.unit = 2;
    step_on(&cfg, "11", 1);
    feed((ek_core_event){.kind = EK_CORE_NOTICE, .rank = 1});
    take_step();
    take_step();
    CHECK_INT(did(EK_CORE_KILL), 0);
}

static void notice_of_a_generation_that_died_is_forgotten(void)
{
    ek_core_config cfg = elastic_config();

    step_on(&cfg, "11", 2);
    worker_event(EK_CORE_WORKER_CLOSED, 0);
    feed((ek_core_event){.kind = EK_CORE_NOTICE, .rank = 1});
    CHECK_INT(host_of(1).leaving, 1);
    lose_generation();
    CHECK_INT(host_of(1).leaving, 0);
    answer_all(0);
    CHECK_INT(sup.core.ranks, 2);
}

static void host_is_drained_twice_at_most(void)
{
    ek_core_config cfg = elastic_config();

    step_on(&cfg, "111", 2);
    feed((ek_core_event){.kind = EK_CORE_NOTICE, .rank = 2});
    take_step();
    end_generation(-1);
    for (int i = 0; i < 2; i++) {
        answer_all(0);
        CHECK_INT(sup.core.n_draining, 1);
        join_all();
        forget();
        lose_generation();
        CHECK_INT(host_of(2).leaving, 1);
        pass(1);
    }
    answer_all(0);
    if (sup.core.state == EK_CORE_LINKING)
        feed((ek_core_event){.kind = EK_CORE_LINK_JOB_ENDED});
    CHECK_INT(sup.core.state, EK_CORE_RUNNING);
    CHECK_INT(sup.core.n_draining, 0);
    CHECK(changed_to(2, EK_HOST_RELEASED));
}

/* --- hosts off the list ----------------------------------------------------------------------- */

static void host_in_use_off_the_list_is_drained_and_then_forgotten(void)
{
    ek_core_config cfg = elastic_config();

    step_on(&cfg, "11", 2);
    pass(1.1);
    tell_list("1");
    take_step();
    CHECK_INT(sup.core.ending.reason, EK_REASON_HAND_OVER);
    end_generation(-1);
    answer_all(0);
    CHECK_INT(sup.core.n_draining, 1);
    join_all();
    end_generation(0);
    answer_all(0);
    CHECK_INT(sup.core.hosts.n, 2);
    resume();
    pass(1.1);
    tell_list("1");
    CHECK_INT(sup.core.hosts.n, 1);
}

static void host_not_in_use_off_the_list_frees_its_memory_and_is_forgotten(void)
{
    list_third_host(1);
    end_task(2, 0, 0.1);
    pass(1);
    forget();
    tell_list("11");
    CHECK_INT(did_task(EK_TASK_FREE), 1);
    CHECK_INT(sup.core.hosts.n, 3);
    end_task(2, 0, 0.1);
    pass(1.1);
    tell_list("11");
    CHECK_INT(sup.core.hosts.n, 2);
    CHECK_INT(did_task(EK_TASK_FREE), 1);
}

static void host_not_in_use_off_the_list_without_memory_is_forgotten_at_once(void)
{
    list_third_host(0);
    work(2.5); /* a probe runs */
    CHECK_INT(sup.task[2], EK_TASK_PROBE);
    forget();
    tell_list("11");
    CHECK_INT(did(EK_CORE_CANCEL_TASK), 1);
    CHECK_INT(sup.core.hosts.n, 2);
    end_fixture();
}

static const ek_case cases[] = {
    EK_CASE(host_with_a_notice_hands_over_after_the_next_step),
    EK_CASE(host_with_a_notice_in_a_long_step_hands_over_after_five_seconds),
    EK_CASE(host_with_a_notice_stays_if_the_others_do_not_suffice),
    EK_CASE(notice_of_a_generation_that_died_is_forgotten),
    EK_CASE(host_is_drained_twice_at_most),
    EK_CASE(host_in_use_off_the_list_is_drained_and_then_forgotten),
    EK_CASE(host_not_in_use_off_the_list_frees_its_memory_and_is_forgotten),
    EK_CASE(host_not_in_use_off_the_list_without_memory_is_forgotten_at_once),
};

EK_TEST_MAIN(cases)
