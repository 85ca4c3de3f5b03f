/* The supervisor's decision core: jobs without a host list, and events that do not fit the state.
 */
#include "supervisor_fixture.h"

static ek_core_config plain_config(int ranks, int elastic)
{
    return (ek_core_config){.ranks = ranks, .unit = 1, .elastic = elastic, .watchdog_s = 10};
}

/* --- without a host list ---------------------------------------------------------------------- */

static void core_without_a_list_starts_at_once(void)
{
    ek_core_config cfg = plain_config(2, 1);

    begin(&cfg);
    CHECK_INT(sup.core.state, EK_CORE_RUNNING);
    CHECK_INT(did(EK_CORE_START), 1);
    CHECK_INT(sup.n, 1);
    CHECK_INT(sup.core.ranks, 2);
    cfg.ranks = 0;
    begin(&cfg);
    CHECK_INT(sup.core.ranks, 1);
}

static void core_without_a_list_restarts_after_a_loss(void)
{
    ek_core_config cfg = plain_config(2, 1);

    begin(&cfg);
    join_all();
    take_step();
    forget();
    lose_generation();
    CHECK_INT(did(EK_CORE_START), 1);
    CHECK_INT(did(EK_CORE_READ_LIST) + did(EK_CORE_RUN_TASK), 0);
    lose_generation();
    CHECK_INT(sup.core.state, EK_CORE_BACKOFF);
    pass(0.15);
    CHECK_INT(did(EK_CORE_START), 2);
}

static void job_without_elastic_is_never_restarted(void)
{
    ek_core_config cfg = plain_config(2, 0);

    begin(&cfg);
    join_all();
    take_step();
    worker_event(EK_CORE_WORKER_CLOSED, 1);
    pass(4.9);
    CHECK_INT(did(EK_CORE_KILL), 0); /* the others may still report */
    pass(0.2);
    CHECK_INT(did(EK_CORE_KILL), 1);
    end_generation(-1);
    CHECK_INT(did_exit(EK_CORE_EXIT_JOB), 1);
    CHECK_INT(did_report(EK_REPORT_LOSS), 1);
    CHECK_INT(did_report(EK_REPORT_FIRST_STEP), 0);
    CHECK_INT(sup.core.status, EK_EXIT_FAILED);
    CHECK_INT(did(EK_CORE_START), 1);
    begin(&cfg);
    join_all();
    fail_worker(1, EK_EXIT_BAD_INPUT, 1);
    end_generation(EK_EXIT_BAD_INPUT);
    CHECK_INT(sup.core.status, EK_EXIT_BAD_INPUT);
    CHECK_INT(did(EK_CORE_START), 1);
}

static void job_without_elastic_that_ends_well_exits_with_zero(void)
{
    ek_core_config cfg = plain_config(2, 0);

    begin(&cfg);
    join_all();
    end_generation(0);
    CHECK_INT(did_report(EK_REPORT_END), 1);
    CHECK_INT(did_exit(EK_CORE_EXIT_JOB), 1);
    CHECK_INT(sup.core.status, EK_EXIT_DONE);
    leap(0.1);
    CHECK_INT(sup.core.state, EK_CORE_DONE);
}

static void hang_without_elastic_counts_only_before_all_have_joined(void)
{
    ek_core_config cfg = plain_config(2, 0);

    begin(&cfg);
    worker_event(EK_CORE_WORKER_STARTED, 0);
    pass(9.9);
    CHECK_INT(did(EK_CORE_KILL), 0);
    pass(0.2);
    CHECK_INT(did(EK_CORE_KILL), 1);
    CHECK_INT(sup.core.ending.reason, EK_REASON_HUNG);
    begin(&cfg);
    join_all();
    pass(60);
    CHECK_INT(did(EK_CORE_KILL), 0);
}

/* --- events that do not fit the state --------------------------------------------------------- */

static void enter_listing(void)
{
    ek_core_config cfg = elastic_config();

    begin(&cfg);
}

static void enter_probing(void)
{
    ek_core_config cfg = elastic_config();

    begin_on(&cfg, "11");
    tell_list("11");
    end_task(1, 0, 0.1);
}

static void enter_retrying(void)
{
    ek_core_config cfg = elastic_config();

    begin_on(&cfg, "11");
    answer_all(255);
    answer_all(255);
}

static void enter_running(void)
{
    ek_core_config cfg = elastic_config();

    step_on(&cfg, "11", 1);
    pass(0.1);
    answer_all(0);
}

static void enter_backoff(void)
{
    enter_running();
    lose_generation();
    answer_all(0);
    lose_generation();
}

static void enter_linking(void)
{
    ek_core_config cfg = elastic_config();

    cfg.watchdog_s = 3;
    step_on(&cfg, "11", 1);
    pass(4);
    end_generation(-1);
    answer_all(0);
}

static void enter_freeing(void)
{
    enter_running();
    feed((ek_core_event){.kind = EK_CORE_SIZES, .result = 1});
    pass(1);
    tell_list("111");
    pass(0.2);
    end_task(2, 0, 0.1);
    end_generation(0);
}

static void enter_done(void)
{
    enter_listing();
    feed((ek_core_event){.kind = EK_CORE_LIST_FAILED});
}

static void (*const enter[EK_CORE_STATES])(void) = {
    [EK_CORE_LISTING] = enter_listing,   [EK_CORE_BACKOFF] = enter_backoff,
    [EK_CORE_PROBING] = enter_probing,   [EK_CORE_LINKING] = enter_linking,
    [EK_CORE_RETRYING] = enter_retrying, [EK_CORE_RUNNING] = enter_running,
    [EK_CORE_FREEING] = enter_freeing,   [EK_CORE_DONE] = enter_done};

/* Whether the event means something in this state. */
static int is_awaited(ek_core_state s, ek_core_event_kind kind)
{
    switch (kind) {
    case EK_CORE_LIST:
    case EK_CORE_LIST_FAILED: return s == EK_CORE_LISTING;
    case EK_CORE_TASK_ENDED: return s == EK_CORE_PROBING;
    case EK_CORE_LINK_JOB_ENDED: return s == EK_CORE_LINKING;
    case EK_CORE_ABANDON: return s < EK_CORE_FREEING;
    case EK_CORE_INTERRUPT: return s < EK_CORE_DONE;
    default:
        return s == EK_CORE_RUNNING && kind > EK_CORE_INTERRUPT && kind != EK_CORE_OUTPUT_ENDED;
    }
}

/* What must not change; actions and the time of the last event do. */
static ek_core core_as_seen(ek_core_host *hosts)
{
    ek_core c;

    memcpy(&c, &sup.core, sizeof(c));
    memset(&c.actions, 0, sizeof(c.actions));
    for (int i = 0; i < sup.core.hosts.n; i++)
        memcpy(&hosts[i], &sup.core.hosts.host[i], sizeof(*hosts));
    return c;
}

static void event_that_does_not_fit_the_state_changes_nothing(void)
{
    static ek_core before, after;
    static ek_core_host host[2][FIXTURE_HOSTS];

    for (int s = 0; s < EK_CORE_STATES; s++)
        for (int kind = 0; kind < EK_CORE_EVENTS; kind++) {
            if (is_awaited((ek_core_state)s, (ek_core_event_kind)kind))
                continue;
            enter[s]();
            CHECK_INT((int)sup.core.state, s);
            feed((ek_core_event){.kind = EK_CORE_TIME});
            memset(host, 0, sizeof(host));
            before = core_as_seen(host[0]);
            forget();
            feed((ek_core_event){.kind = (ek_core_event_kind)kind, .step = 1, .all = 2});
            after = core_as_seen(host[1]);
            if (sup.n > 0 || memcmp(&before, &after, sizeof(after)) != 0 ||
                memcmp(host[0], host[1], sizeof(host[0])) != 0)
                EK_T_FAIL("event %d changes state %d: %d actions", kind, s, sup.n);
        }
}

static void list_that_nobody_waits_for_changes_no_hosts(void)
{
    enter_running();
    tell_list("1");
    CHECK_INT(sup.core.hosts.n, 2);
    CHECK_INT(host_of(1).listed, 1);
}

static void answer_of_a_host_without_a_task_changes_nothing(void)
{
    enter_probing();
    feed((ek_core_event){.kind = EK_CORE_TASK_ENDED, .host = 1, .result = 255});
    feed((ek_core_event){.kind = EK_CORE_TASK_ENDED, .host = 99, .result = 0});
    CHECK_INT(host_of(1).health.answer, 0);
    CHECK_INT(sup.core.state, EK_CORE_PROBING);
}

static void core_that_is_done_does_nothing_more(void)
{
    enter_done();
    forget();
    pass(10);
    interrupt_once();
    CHECK_INT(sup.n, 0);
    CHECK_INT(sup.core.interrupts, 0);
    end_fixture();
}

static const ek_case cases[] = {
    EK_CASE(core_without_a_list_starts_at_once),
    EK_CASE(core_without_a_list_restarts_after_a_loss),
    EK_CASE(job_without_elastic_is_never_restarted),
    EK_CASE(job_without_elastic_that_ends_well_exits_with_zero),
    EK_CASE(hang_without_elastic_counts_only_before_all_have_joined),
    EK_CASE(event_that_does_not_fit_the_state_changes_nothing),
    EK_CASE(list_that_nobody_waits_for_changes_no_hosts),
    EK_CASE(answer_of_a_host_without_a_task_changes_nothing),
    EK_CASE(core_that_is_done_does_nothing_more),
};

EK_TEST_MAIN(cases)
