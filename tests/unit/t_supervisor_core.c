/* The supervisor's decision core: its beginning, and a generation from its start to its first step.
 */
#include "supervisor_fixture.h"

static ek_core_config ranks_config(int ranks, int unit)
{
    ek_core_config cfg = elastic_config();

    cfg.ranks = ranks;
    cfg.unit = unit;
    return cfg;
}

/* --- the number of ranks ---------------------------------------------------------------------- */

static void core_leaves_slots_idle_for_which_no_ep_fits(void)
{
    ek_core_config cfg = elastic_config();

    cfg.sizes.ep = 2;
    begin_on(&cfg, "98");
    answer_all(0);
    CHECK_INT(sup.core.state, EK_CORE_RUNNING);
    CHECK_INT(sup.core.ranks, 16);
    CHECK_INT(sup.core.idle, 1);
    CHECK_INT(host_of(1).used, 7);
    CHECK_INT(did_report(EK_REPORT_HOSTS), 1); /* though no host has changed */
    CHECK_INT(ek_core_ranks_on(&sup.core, 13), 13);
    sup.core.cfg.ranks = 14;
    CHECK_INT(ek_core_idle_on(&sup.core, 17), 0);
    sup.core.cfg.sizes.pp = sup.core.cfg.unit = 4;
    CHECK_INT(ek_core_idle_on(&sup.core, 17), 2);
}

static void core_goes_on_with_the_layout_in_use(void)
{
    ek_core_config cfg = elastic_config();

    cfg.sizes.ep = 4;
    step_on(&cfg, "1111", 2);
    CHECK_INT(sup.core.ranks, 4);
    feed((ek_core_event){.kind = EK_CORE_LAYOUT, .sizes = {2, 1, 1, 1}});
    CHECK_INT(sup.core.ranks, 4); /* of this generation */
    lose_generation();
    end_task(1, EK_RESULT_KILLED, 0.1);
    answer_all(0);
    CHECK_INT(sup.core.ranks, 2); /* of three */
    CHECK_INT(sup.core.idle, 1);
}

/* A third host has responded, and its memory could be preallocated. */
static void core_asks_whether_hosts_fit_the_layout_in_use(void)
{
    for (int changed = 0; changed < 2; changed++) {
        ek_core_config cfg = elastic_config();

        cfg.sizes.ep = 2;
        list_third_host_for(&cfg, changed ? (ek_mesh_sizes){2, 1, 1, 1} : cfg.sizes, 1);
        take_step();
        take_step();
        CHECK_INT(sup.core.ranks, 2);
        CHECK_INT(did_task(EK_TASK_PREALLOC), !changed); /* three ranks, but not with --pp 2 */
    }
}

/* --- the first list --------------------------------------------------------------------------- */

static void core_that_begins_reads_the_list(void)
{
    ek_core_config cfg = elastic_config();

    begin(&cfg);
    CHECK_INT(sup.core.state, EK_CORE_LISTING);
    CHECK_INT(did(EK_CORE_READ_LIST), 1);
    pass(100);
    CHECK_INT(sup.core.state, EK_CORE_LISTING);
    CHECK_INT(sup.n, 1);
}

static void core_whose_first_list_is_read_probes_all_hosts(void)
{
    ek_core_config cfg = elastic_config();

    begin_on(&cfg, "12");
    CHECK_INT(sup.core.state, EK_CORE_PROBING);
    CHECK_INT(did_task(EK_TASK_PROBE), 2);
    CHECK_INT(did(EK_CORE_READ_LIST), 2);
}

static void core_whose_first_list_fails_exits(void)
{
    ek_core_config cfg = elastic_config();

    begin(&cfg);
    feed((ek_core_event){.kind = EK_CORE_LIST_FAILED});
    CHECK_INT(did_exit(EK_CORE_EXIT_LIST), 1);
    CHECK_INT(did(EK_CORE_REPORT), 0);
    CHECK_INT(sup.core.state, EK_CORE_DONE);
}

static void core_whose_later_list_fails_reports_and_goes_on(void)
{
    ek_core_config cfg = elastic_config();

    begin_on(&cfg, "1");
    feed((ek_core_event){.kind = EK_CORE_LIST_FAILED});
    CHECK_INT(did_report(EK_REPORT_LIST_FAILED), 1);
    end_task(0, 0, 0.1);
    CHECK_INT(sup.core.state, EK_CORE_RUNNING);
    CHECK_INT(sup.core.ranks, 1);
}

static void core_with_too_few_slots_exits(void)
{
    ek_core_config cfg = ranks_config(4, 1);

    begin_on(&cfg, "12");
    CHECK_INT(did_exit(EK_CORE_EXIT_SLOTS), 1);
    CHECK_INT(did(EK_CORE_RUN_TASK), 0);
    CHECK_INT(sup.core.state, EK_CORE_DONE);
    begin_on(&cfg, "13");
    CHECK_INT(did(EK_CORE_EXIT), 0);
}

static void core_with_ranks_that_are_no_multiple_of_the_unit_exits(void)
{
    ek_core_config cfg = ranks_config(3, 2);

    begin_on(&cfg, "22");
    CHECK_INT(did_exit(EK_CORE_EXIT_UNIT), 1);
    CHECK_INT(did(EK_CORE_RUN_TASK), 0);
}

/* --- the start -------------------------------------------------------------------------------- */

static void start_on_hosts_that_respond_gives_each_its_ranks(void)
{
    ek_core_config cfg = elastic_config();

    start_on(&cfg, "213");
    CHECK_INT(did(EK_CORE_START), 1);
    CHECK_INT(did_report(EK_REPORT_HOSTS), 0);
    CHECK_INT(sup.core.ranks, 6);
    CHECK_INT(sup.core.n_draining, 0);
    CHECK_INT(host_of(0).used, 2);
    CHECK_INT(host_of(1).used, 1);
    CHECK_INT(host_of(2).used, 3);
    CHECK_INT(host_of(0).first, 0);
    CHECK_INT(host_of(1).first, 2);
    CHECK_INT(host_of(2).first, 3);
    CHECK_INT(ek_core_hosts_in_use(&sup.core.hosts), 3);
}

static void start_with_fewer_ranks_than_slots_fills_hosts_in_order(void)
{
    ek_core_config cfg = ranks_config(3, 1);

    start_on(&cfg, "222");
    CHECK_INT(sup.core.ranks, 3);
    CHECK_INT(host_of(0).used, 2);
    CHECK_INT(host_of(1).used, 1);
    CHECK_INT(host_of(2).used, 0);
}

static void start_takes_a_multiple_of_the_unit(void)
{
    ek_core_config cfg = ranks_config(0, 4);

    start_on(&cfg, "331");
    CHECK_INT(sup.core.ranks, 4);
    CHECK_INT(host_of(1).used, 1);
    CHECK_INT(host_of(2).used, 0);
}

static void start_with_a_host_listed_twice_adds_its_slots(void)
{
    ek_core_config cfg = elastic_config();
    ek_host twice[] = {
        {.name = "a", .slots = 1}, {.name = "b", .slots = 1}, {.name = "a", .slots = 2}};

    begin(&cfg);
    feed((ek_core_event){.kind = EK_CORE_LIST, .list = twice, .n_list = 3});
    CHECK_INT(did_task(EK_TASK_PROBE), 2);
    feed((ek_core_event){.kind = EK_CORE_LIST, .list = twice, .n_list = 3});
    end_task(0, 0, 0.1);
    end_task(1, 0, 0.1);
    CHECK_INT(sup.core.ranks, 4);
    CHECK_INT(host_of(0).used, 3);
    CHECK_INT(host_of(1).first, 3);
}

static void workers_that_start_and_join_enter_connect_and_plan(void)
{
    ek_core_config cfg = elastic_config();

    start_on(&cfg, "11");
    CHECK_INT(sup.core.progress.phase, EK_PHASE_LAUNCH);
    worker_event(EK_CORE_WORKER_STARTED, 0);
    worker_event(EK_CORE_WORKER_STARTED, 0);
    worker_event(EK_CORE_WORKER_STARTED, 2);
    worker_event(EK_CORE_WORKER_STARTED, -1);
    CHECK_INT(sup.core.progress.phase, EK_PHASE_LAUNCH);
    worker_event(EK_CORE_WORKER_STARTED, 1);
    CHECK_INT(sup.core.progress.phase, EK_PHASE_CONNECT);
    worker_event(EK_CORE_WORKER_JOINED, 0);
    worker_event(EK_CORE_WORKER_JOINED, 0);
    CHECK_INT(sup.core.progress.phase, EK_PHASE_CONNECT);
    worker_event(EK_CORE_WORKER_JOINED, 1);
    CHECK_INT(sup.core.progress.phase, EK_PHASE_PLAN);
    enter_phase(EK_PHASE_TRANSFER);
    CHECK_INT(sup.core.progress.phase, EK_PHASE_TRANSFER);
    enter_phase((ek_phase)-1);
    enter_phase(EK_PHASES);
    CHECK_INT(sup.core.progress.phase, EK_PHASE_TRANSFER);
}

static void worker_that_joins_without_having_started_counts_as_started(void)
{
    ek_core_config cfg = elastic_config();

    start_on(&cfg, "1");
    worker_event(EK_CORE_WORKER_JOINED, 0);
    CHECK_INT(sup.core.reported.started, 1);
    CHECK_INT(sup.core.progress.phase, EK_PHASE_PLAN);
}

/* --- the first step --------------------------------------------------------------------------- */

static void first_step_of_the_first_generation_reports_no_loss(void)
{
    ek_core_config cfg = elastic_config();

    step_on(&cfg, "11", 3);
    CHECK_INT(did_report(EK_REPORT_FIRST_STEP), 1);
    CHECK(sup.core.resumption.total_s == 0);
    CHECK_INT(sup.core.resumption.repeated, 0);
    CHECK_INT(sup.core.resumption.from_memory, 0);
    CHECK_INT(sup.core.reported.first_step, 0);
    CHECK_INT(host_of(0).stepped, 1);
}

static void first_step_after_a_loss_reports_the_time_since_it_and_its_parts(void)
{
    ek_core_config cfg = elastic_config();

    step_on(&cfg, "11", 3);
    worker_event(EK_CORE_WORKER_CLOSED, 1); /* seen here */
    pass(0.5);
    end_generation(-1);
    pass(0.25);
    forget();
    answer_all(0);
    join_all();
    enter_phase(EK_PHASE_STEP);
    feed((ek_core_event){.kind = EK_CORE_RECOVERED});
    pass(0.4);
    take_step();
    CHECK_INT(did_report(EK_REPORT_FIRST_STEP), 1);
    CHECK(fabs(sup.core.resumption.total_s - 1.25) < 1e-6);
    CHECK(fabs(sup.core.resumption.times.ending_s - 0.5) < 1e-6);
    CHECK(fabs(sup.core.resumption.times.probe_s - 0.25) < 1e-6);
    CHECK(sup.core.resumption.times.drain_s == 0);
    CHECK_INT(sup.core.resumption.from_memory, 1);
    CHECK_INT(sup.core.resumption.repeated, 0);
    CHECK_INT(sup.core.reported.first_step, 3);
    CHECK_INT(sup.core.history.resumed, 1);
    CHECK(sup.core.history.resumed_s == sup.core.resumption.total_s);
    CHECK_INT(sup.core.history.lost_hosts, 0); /* the worker's host has responded */
    CHECK(sup.core.history.began_at > 0);
    take_step();
    CHECK_INT(did_report(EK_REPORT_FIRST_STEP), 1);
    CHECK_INT(sup.core.history.resumed, 1);
}

static void first_step_after_an_older_state_reports_repeated_steps(void)
{
    ek_core_config cfg = elastic_config();

    step_on(&cfg, "11", 5);
    lose_generation();
    sup.step = 2;
    feed((ek_core_event){.kind = EK_CORE_TIME});
    answer_all(0);
    join_all();
    enter_phase(EK_PHASE_STEP);
    feed((ek_core_event){.kind = EK_CORE_INCOMPLETE});
    take_step();
    CHECK_INT(sup.core.resumption.repeated, 3);
    CHECK_INT(sup.core.resumption.incomplete, 1);
    CHECK_INT(sup.core.resumption.from_memory, 0);
    CHECK_INT(sup.core.reported.first_step, 2);
}

static void first_step_of_a_later_command_counts_steps_of_earlier_ones(void)
{
    ek_core_config cfg = elastic_config();

    cfg.steps = 7;
    start_on(&cfg, "1");
    join_all();
    sup.step = 4;
    take_step();
    CHECK_INT(sup.core.resumption.repeated, 3);
}

static void steps_done_are_those_written_or_reported_whichever_is_more(void)
{
    ek_core_config cfg = elastic_config();

    step_on(&cfg, "1", 3);
    sup.written = 5; /* metrics have more than rank 0 has said */
    lose_generation();
    CHECK_INT(sup.core.history.done, 5);
    CHECK_INT(sup.core.history.written, 5);
    step_on(&cfg, "1", 3);
    sup.written = 2;
    lose_generation();
    CHECK_INT(sup.core.history.done, 3);
    CHECK_INT(sup.core.history.generations, 1);
}

static void state_exists_once_steps_are_written_or_recovered(void)
{
    ek_core_config cfg = elastic_config();

    start_on(&cfg, "1");
    join_all();
    CHECK_INT(ek_core_has_state(&sup.core), 0);
    feed((ek_core_event){.kind = EK_CORE_RECOVERED});
    CHECK_INT(ek_core_has_state(&sup.core), 1);
    step_on(&cfg, "1", 1);
    lose_generation();
    CHECK_INT(ek_core_has_state(&sup.core), 1);
    end_fixture();
}

static const ek_case cases[] = {
    EK_CASE(core_leaves_slots_idle_for_which_no_ep_fits),
    EK_CASE(core_goes_on_with_the_layout_in_use),
    EK_CASE(core_asks_whether_hosts_fit_the_layout_in_use),
    EK_CASE(core_that_begins_reads_the_list),
    EK_CASE(core_whose_first_list_is_read_probes_all_hosts),
    EK_CASE(core_whose_first_list_fails_exits),
    EK_CASE(core_whose_later_list_fails_reports_and_goes_on),
    EK_CASE(core_with_too_few_slots_exits),
    EK_CASE(core_with_ranks_that_are_no_multiple_of_the_unit_exits),
    EK_CASE(start_on_hosts_that_respond_gives_each_its_ranks),
    EK_CASE(start_with_fewer_ranks_than_slots_fills_hosts_in_order),
    EK_CASE(start_takes_a_multiple_of_the_unit),
    EK_CASE(start_with_a_host_listed_twice_adds_its_slots),
    EK_CASE(workers_that_start_and_join_enter_connect_and_plan),
    EK_CASE(worker_that_joins_without_having_started_counts_as_started),
    EK_CASE(first_step_of_the_first_generation_reports_no_loss),
    EK_CASE(first_step_after_a_loss_reports_the_time_since_it_and_its_parts),
    EK_CASE(first_step_after_an_older_state_reports_repeated_steps),
    EK_CASE(first_step_of_a_later_command_counts_steps_of_earlier_ones),
    EK_CASE(steps_done_are_those_written_or_reported_whichever_is_more),
    EK_CASE(state_exists_once_steps_are_written_or_recovered),
};

EK_TEST_MAIN(cases)
