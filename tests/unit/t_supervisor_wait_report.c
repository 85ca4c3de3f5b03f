/* "waiting for ..." messages: when, and what they name. */
#include "report_fixture.h"
#include "supervisor/wait_report.h"

enum { S = 1000000000 };

static void check_wait(double at_s, const char *want)
{
    listen_stderr();
    ek_wait_report(&sup, (int64_t)(at_s * S));
    check_stderr(want);
}

/* A wait in this state that began at 0. */
static void begin_in(ek_core_state state)
{
    begin();
    sup.core.state = state;
    sup.said.wait_of = -1;
    check_wait(0, "");
}

/* The message of a wait of 2 seconds. */
static void check_text(const char *text)
{
    char want[512];

    snprintf(want, sizeof(want), "evenkeel train: waiting for %s (2 s so far)\n", text);
    sup.said.wait_of = -1;
    check_wait(0, "");
    check_wait(2, want);
}

static void wait_is_reported_after_2_6_18_and_54_seconds_and_then_each_minute(void)
{
    static const double due[] = {2, 6, 18, 54, 114, 174};

    begin_in(EK_CORE_LINKING);
    for (size_t i = 0; i < sizeof(due) / sizeof(due[0]); i++) {
        char want[128];

        check_wait(due[i] - 0.01, "");
        snprintf(want, sizeof(want),
                 "evenkeel train: waiting for a test of the connectivity between hosts (%.0f s so "
                 "far)\n",
                 due[i]);
        check_wait(due[i], want);
        check_wait(due[i] + 0.01, "");
    }
}

static void quiet_wait_is_reported_after_10_seconds(void)
{
    begin();
    config.quiet = 1;
    sup.core.state = EK_CORE_LINKING;
    sup.said.wait_of = -1;
    check_wait(0, "");
    check_wait(9.9, "");
    check_wait(10, "evenkeel train: waiting for a test of the connectivity between hosts (10 s so "
                   "far)\n");
}

static void another_wait_begins_anew(void)
{
    begin_in(EK_CORE_LISTING);
    sup.core.state = EK_CORE_LINKING;
    check_wait(2, "");
    check_wait(3.9, "");
    check_wait(4, "evenkeel train: waiting for a test of the connectivity between hosts (2 s so "
                  "far)\n");
}

static void wait_for_hosts_names_them(void)
{
    begin_in(EK_CORE_LISTING);
    check_text("--discover to name hosts");
    sup.core.state = EK_CORE_PROBING;
    host[1].health.task = host[3].health.task = EK_TASK_PROBE;
    check_text("a response from b, d");
    sup.core.state = EK_CORE_RETRYING;
    host[0].listed = host[1].listed = host[2].listed = 1;
    host[0].health.answer = 255;
    host[2].suspect = 1;
    host[3].health.answer = 255; /* not listed */
    check_text("a host to continue on; none of these responds: a, c");
}

static void wait_for_no_host_is_not_reported(void)
{
    begin_in(EK_CORE_PROBING);
    check_wait(2, "");
    sup.core.state = EK_CORE_FREEING;
    check_wait(100, "");
}

static void only_six_hosts_are_named(void)
{
    ek_core_host many[9] = {0};

    begin_in(EK_CORE_PROBING);
    sup.core.hosts.host = many;
    sup.core.hosts.n = 9;
    for (int i = 0; i < 9; i++) {
        many[i].host.name[0] = (char)('a' + i);
        many[i].health.task = EK_TASK_PROBE;
    }
    check_text("a response from a, b, c, d, e, f, ...");
}

static void wait_for_workers_names_hosts_without_any(void)
{
    unsigned char worker[] = {EK_WORKER_STARTED, 0, 0};
    ek_host list[] = {{.name = "a", .slots = 2}, {.name = "b", .slots = 1}};

    begin_in(EK_CORE_RUNNING);
    sup.generation.hosts = (ek_host_list){list, 2};
    sup.core.reported = (ek_core_reported){.worker = worker, .n = 3, .started = 1};
    check_text("mpiexec to start workers on b: 1 of 3 have started");
    worker[1] = EK_WORKER_STARTED | EK_WORKER_JOINED;
    worker[2] = EK_WORKER_STARTED;
    sup.core.reported.started = 3;
    sup.core.reported.joined = 1;
    sup.core.progress.phase = EK_PHASE_CONNECT;
    check_text("workers on b to connect: 1 of 3 are ready");
}

static void phases_in_which_workers_report_nothing_themselves_are_named(void)
{
    begin_in(EK_CORE_RUNNING);
    sup.core.progress.phase = EK_PHASE_PLAN;
    check_wait(0, "");
    check_wait(2, "");
    sup.core.cfg.elastic = 1;
    check_text("the workers to read the data and plan the recovery");
    sup.core.progress.phase = EK_PHASE_TRANSFER;
    check_text("the workers to restore the state");
    sup.core.ending.forwarded = 1;
    check_text("the workers to save and exit (interrupt again to terminate them at once)");
    sup.core.ending.forwarded = 0;
    sup.core.progress.phase = EK_PHASE_STEP;
    sup.said.wait_of = -1;
    check_wait(0, "");
    check_wait(100, "");
}

static const ek_case cases[] = {
    EK_CASE(wait_is_reported_after_2_6_18_and_54_seconds_and_then_each_minute),
    EK_CASE(quiet_wait_is_reported_after_10_seconds),
    EK_CASE(another_wait_begins_anew),
    EK_CASE(wait_for_hosts_names_them),
    EK_CASE(wait_for_no_host_is_not_reported),
    EK_CASE(only_six_hosts_are_named),
    EK_CASE(wait_for_workers_names_hosts_without_any),
    EK_CASE(phases_in_which_workers_report_nothing_themselves_are_named),
};

EK_TEST_MAIN(cases)
