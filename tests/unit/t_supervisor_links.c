/* The supervisor's decision core: hosts that mpiexec or other hosts cannot reach, and hangs. */
#include "supervisor_fixture.h"

/* --- hosts that mpiexec cannot reach ---------------------------------------------------------- */

static void hosts_that_are_unreachable_twice_before_all_have_joined_end_the_generation(void)
{
    ek_core_config cfg = elastic_config();

    start_on(&cfg, "11");
    forget();
    feed((ek_core_event){.kind = EK_CORE_REACHED, .result = 1});
    feed((ek_core_event){.kind = EK_CORE_REACHED, .result = 0});
    feed((ek_core_event){.kind = EK_CORE_REACHED, .result = 1});
    CHECK_INT(did(EK_CORE_KILL), 0);
    feed((ek_core_event){.kind = EK_CORE_REACHED, .result = 1});
    CHECK_INT(did(EK_CORE_KILL), 1);
    CHECK_INT(sup.core.ending.reason, EK_REASON_UNREACHABLE);
}

static void hosts_that_are_unreachable_after_all_have_joined_do_not_count(void)
{
    step_on_two();
    for (int i = 0; i < 4; i++)
        feed((ek_core_event){.kind = EK_CORE_REACHED, .result = 1});
    CHECK_INT(did(EK_CORE_KILL), 0);
}

/* --- hangs and the test of links -------------------------------------------------------------- */

enum { LINK_HOSTS = 6 };

/* A generation on n hosts hangs and has ended; all respond, and their links are tested. */
static void hang_on(int n)
{
    ek_core_config cfg = elastic_config();
    char slots[LINK_HOSTS + 1];

    memset(slots, '1', LINK_HOSTS);
    slots[n] = '\0';
    start_on(&cfg, slots);
    pass(0.2);
    join_all();
    enter_phase(EK_PHASE_STEP);
    take_step();
    take_step();
    forget();
    pass(2.7);
    CHECK_INT(did(EK_CORE_KILL), 0);
    pass(0.2);
    CHECK_INT(did(EK_CORE_KILL), 1);
    CHECK_INT(sup.core.ending.reason, EK_REASON_HUNG);
    end_generation(-1);
    CHECK_INT(did_report(EK_REPORT_LOSS), 1);
    forget();
    answer_all(0);
    CHECK_INT(sup.core.state, EK_CORE_LINKING);
    CHECK_INT(did(EK_CORE_RUN_LINK_JOB), 1);
    CHECK_INT(sup.action[sup.n - 1].n, n);
    CHECK_INT(sup.hosts[sup.n - 1][n - 1], n - 1);
    forget();
}

static void end_link_job(int job, int result)
{
    feed((ek_core_event){.kind = EK_CORE_LINK_JOB_ENDED, .job = job, .result = result});
}

/* Forgets the first n actions. */
static void forget_first(int n)
{
    memmove(sup.action, sup.action + n, (size_t)(sup.n - n) * sizeof(sup.action[0]));
    memmove(sup.hosts, sup.hosts + n, (size_t)(sup.n - n) * sizeof(sup.hosts[0]));
    sup.n -= n;
}

/* Ends the jobs of a round, in which every host takes part once at most; those of this host fail.
 * Returns their number. */
static int end_round(int seen[LINK_HOSTS][LINK_HOSTS], int cut_host)
{
    int n = sup.n, in_round[LINK_HOSTS] = {0}, jobs = 0;

    for (int i = 0; i < n; i++) {
        int a = sup.hosts[i][0], b = sup.hosts[i][1];

        if (sup.action[i].kind != EK_CORE_RUN_LINK_JOB)
            continue;
        CHECK_INT(sup.action[i].n, 2);
        CHECK_INT(in_round[a]++, 0);
        CHECK_INT(in_round[b]++, 0);
        seen[a][b]++;
        seen[b][a]++;
        jobs++;
        end_link_job(sup.action[i].job, a == cut_host || b == cut_host);
    }
    forget_first(n);
    return jobs;
}

static void hang_whose_links_all_pass_starts_again_with_all_hosts(void)
{
    hang_on(3);
    end_link_job(0, 0);
    CHECK_INT(did(EK_CORE_START), 1);
    CHECK_INT(did_report(EK_REPORT_CUT), 0);
    CHECK_INT(sup.core.ranks, 3);
}

static void links_are_tested_in_rounds_each_pair_once(void)
{
    for (int n = 2; n <= LINK_HOSTS; n++) {
        int seen[LINK_HOSTS][LINK_HOSTS] = {{0}};

        hang_on(n);
        end_link_job(0, 1);
        while (sup.core.state == EK_CORE_LINKING && end_round(seen, -1) > 0)
            ;
        for (int a = 0; a < n; a++)
            for (int b = 0; b < n; b++)
                CHECK_INT(seen[a][b], a != b);
        CHECK_INT(sup.core.ranks, n);
        CHECK_INT(did_report(EK_REPORT_CUT), 0);
    }
}

static void host_that_reaches_no_other_is_excluded(void)
{
    for (int n = 3; n <= LINK_HOSTS; n++) {
        int seen[LINK_HOSTS][LINK_HOSTS] = {{0}}, tested = 0;

        hang_on(n);
        end_link_job(0, 1);
        while (sup.core.state == EK_CORE_LINKING && end_round(seen, 1) > 0)
            ;
        for (int i = 0; i < n; i++)
            tested += seen[1][i];
        CHECK_INT(tested, 2); /* enough is known then */
        CHECK_INT(did_report(EK_REPORT_CUT), 0);
        answer_all(0);
        CHECK_INT(did_report(EK_REPORT_CUT), 1);
        CHECK_INT(report_of(EK_REPORT_CUT).host, 1);
        CHECK_INT(host_of(1).change, EK_HOST_EXCLUDED);
        CHECK_INT(host_of(1).suspect, 1);
        CHECK_INT(sup.core.ranks, n - 1);
    }
}

static void pair_that_is_late_counts_as_cut(void)
{
    hang_on(2);
    end_link_job(0, 1);
    forget();
    pass(2.9);
    CHECK_INT(sup.core.state, EK_CORE_LINKING);
    leap(30); /* a stall does not count */
    CHECK_INT(sup.core.state, EK_CORE_LINKING);
    pass(0.2);
    CHECK_INT(did(EK_CORE_CANCEL_LINK_JOB), 1);
    CHECK_INT(sup.core.state, EK_CORE_PROBING);
    answer_all(0);
    CHECK_INT(report_of(EK_REPORT_CUT).host, 1); /* of equals the last one */
    CHECK_INT(sup.core.ranks, 1);
}

/* The other of the two goes on, which would have been excluded. */
static void host_that_is_lost_in_the_test_explains_it(void)
{
    hang_on(2);
    end_link_job(0, 1);
    end_link_job(0, 1);
    CHECK_INT(sup.core.state, EK_CORE_PROBING);
    CHECK_INT(did(EK_CORE_START), 0);
    end_task(1, 0, 0.1);
    end_task(0, 1, 0.1);
    CHECK_INT(sup.core.state, EK_CORE_RUNNING);
    CHECK_INT(did_report(EK_REPORT_CUT), 0);
    CHECK_INT(sup.core.ranks, 1);
    CHECK_INT(host_of(1).used, 1);
    CHECK_INT(host_of(0).used, 0);
}

/* Hosts whose numbers differ by one of these, modulo `hosts`, do not reach each other. */
static void end_all_rounds(int hosts, int near, int far)
{
    while (sup.core.state == EK_CORE_LINKING) {
        int n = sup.n, ended = 0;

        for (int i = 0; i < n; i++)
            if (sup.action[i].kind == EK_CORE_RUN_LINK_JOB) {
                int d = abs(sup.hosts[i][0] - sup.hosts[i][1]);

                d = d < hosts - d ? d : hosts - d;
                end_link_job(sup.action[i].job, d == near || d == far);
                ended++;
            }
        CHECK(ended > 0);
        if (ended == 0)
            return;
        forget_first(n);
    }
}

static void hosts_are_not_excluded_if_no_pair_passes(void)
{
    hang_on(3);
    end_link_job(0, 1);
    end_all_rounds(3, 1, 1);
    CHECK_INT(sup.core.links.good, 0);
    CHECK_INT(did_report(EK_REPORT_CUT), 0);
    CHECK_INT(sup.core.ranks, 3);
    hang_on(5);
    end_link_job(0, 1);
    end_all_rounds(5, 1, 2);
    CHECK_INT(sup.core.links.good, 0);
    CHECK_INT(did_report(EK_REPORT_CUT), 0);
    CHECK_INT(sup.core.ranks, 5);
}

/* In a circle of 5 hosts that do not reach their neighbours, 3 would have to go. */
static void hosts_are_not_excluded_if_they_are_more_than_half(void)
{
    hang_on(5);
    end_link_job(0, 1);
    end_all_rounds(5, 1, 1);
    CHECK(sup.core.links.good > 0);
    CHECK_INT(did_report(EK_REPORT_CUT), 0);
    CHECK_INT(sup.core.ranks, 5);
}

/* In a circle of 6, 3: those with the last numbers of equals. */
static void hosts_are_excluded_if_they_are_half(void)
{
    hang_on(6);
    end_link_job(0, 1);
    end_all_rounds(6, 1, 1);
    answer_all(0);
    CHECK_INT(did_report(EK_REPORT_CUT), 3);
    CHECK_INT(sup.core.ranks, 3);
}

static void links_of_which_nothing_is_known_have_twenty_seconds(void)
{
    CHECK(ek_core_links_limit_s(0) == 20);
    CHECK(ek_core_links_limit_s(0.2) == 3);
    CHECK(ek_core_links_limit_s(2) == 10);
}

static void links_are_not_tested_if_a_host_is_silent(void)
{
    step_on_two();
    pass(3);
    CHECK_INT(sup.core.ending.reason, EK_REASON_HUNG); /* a test would be due */
    end_generation(-1);
    tell_list("11");
    end_task(0, 0, 0.1);
    forget();
    pass(1.7);
    CHECK_INT(did(EK_CORE_RUN_LINK_JOB), 0);
    CHECK_INT(sup.core.ranks, 1);
}

static void links_are_tested_after_two_failed_generations(void)
{
    step_on_two();
    lose_generation();
    for (int i = 0; i < 2; i++) {
        answer_all(0);
        join_all();
        lose_generation();
        pass(0.3);
        CHECK_INT(did(EK_CORE_RUN_LINK_JOB), 0);
    }
    answer_all(0);
    CHECK_INT(did(EK_CORE_RUN_LINK_JOB), 1);
}

static void interrupt_while_links_are_tested_exits(void)
{
    hang_on(2);
    interrupt_once();
    CHECK_INT(did_exit(EK_CORE_EXIT_INTERRUPTED), 1);
    CHECK_INT(did(EK_CORE_CANCEL_LINK_JOB), 1);
    end_fixture();
}

static const ek_case cases[] = {
    EK_CASE(hosts_that_are_unreachable_twice_before_all_have_joined_end_the_generation),
    EK_CASE(hosts_that_are_unreachable_after_all_have_joined_do_not_count),
    EK_CASE(hang_whose_links_all_pass_starts_again_with_all_hosts),
    EK_CASE(links_are_tested_in_rounds_each_pair_once),
    EK_CASE(host_that_reaches_no_other_is_excluded),
    EK_CASE(pair_that_is_late_counts_as_cut),
    EK_CASE(host_that_is_lost_in_the_test_explains_it),
    EK_CASE(hosts_are_not_excluded_if_no_pair_passes),
    EK_CASE(hosts_are_not_excluded_if_they_are_more_than_half),
    EK_CASE(hosts_are_excluded_if_they_are_half),
    EK_CASE(links_of_which_nothing_is_known_have_twenty_seconds),
    EK_CASE(links_are_not_tested_if_a_host_is_silent),
    EK_CASE(links_are_tested_after_two_failed_generations),
    EK_CASE(interrupt_while_links_are_tested_exits),
};

EK_TEST_MAIN(cases)
