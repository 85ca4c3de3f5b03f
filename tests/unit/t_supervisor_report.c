/* Texts of the supervisor about hosts, losses, resumptions and its exit. */
#include "base/command.h"
#include "base/file.h"
#include "report_fixture.h"
#include "supervisor/report.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void check_report(const ek_core_action *a, const char *want)
{
    listen_stderr();
    ek_report(&sup, a);
    check_stderr(want);
}

/* --- hosts ------------------------------------------------------------------------------------ */

static void check_hosts(const char *want)
{
    check_report(&(ek_core_action){.report = EK_REPORT_HOSTS, .host = -1}, want);
}

static void hosts_in_use_are_counted(void)
{
    begin();
    sup.core.ranks = 1;
    host[0].used = 1;
    check_hosts("evenkeel train: 1 rank on 1 host\n");
    sup.core.ranks = 3;
    host[3].used = 2;
    check_hosts("evenkeel train: 3 ranks on 2 hosts\n");
    sup.core.idle = 1;
    check_hosts("evenkeel train: 3 ranks on 2 hosts, 1 slot idle (no layout near the given one "
                "uses all)\n");
}

static void draining_host_is_not_counted(void)
{
    begin();
    sup.core.ranks = 2;
    sup.core.n_draining = 1;
    host[0].used = 2;
    host[1].used = 1;
    host[1].change = EK_HOST_DRAINING;
    check_hosts("evenkeel train: b hands over its state; 2 ranks on 1 host\n");
}

static void changes_of_hosts_are_named_by_kind(void)
{
    begin();
    sup.core.ranks = 2;
    host[3].used = 2;
    for (int i = 0; i < HOSTS; i++)
        host[i].change = (ek_host_change[]){EK_HOST_RELEASED, EK_HOST_EXCLUDED, EK_HOST_RELEASED,
                                            EK_HOST_JOINED}[i];
    check_hosts("evenkeel train: b is excluded; a, c are released; d joins; 2 ranks on 1 host\n");
}

static void lost_host_is_named_with_its_reason(void)
{
    static const struct {
        int answer;
        const char *reason;
    } reasons[] = {{EK_RESULT_LATE, "timed out after 1.50 s"},
                   {EK_RESULT_STUCK, "mpiexec cannot reach it"},
                   {EK_RESULT_KILLED, "mpiexec was killed"},
                   {EK_RESULT_NOT_STARTED, "mpiexec could not be started"},
                   {255, "mpiexec: status 255"}};

    for (size_t i = 0; i < sizeof(reasons) / sizeof(reasons[0]); i++) {
        char want[128];

        begin();
        sup.core.ranks = 2;
        host[0].used = 2;
        host[1].change = EK_HOST_LOST;
        host[1].health = (ek_host_health){.answer = reasons[i].answer, .took_s = 1.5};
        snprintf(want, sizeof(want), "evenkeel train: b (%s) does not respond; 2 ranks on 1 host\n",
                 reasons[i].reason);
        check_hosts(want);
    }
}

static void cut_host_is_named_with_those_it_cannot_reach(void)
{
    int number[] = {10, 11, 12};
    unsigned char cut[] = {0, 1, 1, 1, 0, 0, 1, 0, 0}, out[] = {0, 0, 0};
    ek_core_action a = {.report = EK_REPORT_CUT, .host = 10};

    begin();
    sup.core.links = (ek_core_links){.host = number, .n = 3, .cut = cut, .out = out};
    check_report(&a, "evenkeel train: a and b, c cannot reach each other\n");
    out[1] = 1;
    check_report(&a, "evenkeel train: a and c cannot reach each other\n");
    out[2] = 1;
    check_report(&a, "evenkeel train: a and others cannot reach each other\n");
}

static void unproven_host_is_excluded(void)
{
    begin();
    check_report(&(ek_core_action){.report = EK_REPORT_UNPROVEN, .host = 12, .seconds = 2},
                 "evenkeel train: no step was completed with c, which is excluded for 2 s\n");
}

static void unreadable_list_is_reported_once(void)
{
    ek_core_action a = {.report = EK_REPORT_LIST_FAILED, .host = -1};

    begin();
    (void)!EK_FAIL(EK_EFORMAT, "hosts contains no hosts");
    check_report(&a, "evenkeel train: hosts contains no hosts; keeping the current hosts\n");
    check_report(&a, "");
    sup.said.list_failed = 0; /* it was read */
    check_report(&a, "evenkeel train: hosts contains no hosts; keeping the current hosts\n");
}

/* --- the end of a generation ------------------------------------------------------------------ */

static void late_hosts_are_named_while_they_are_waited_for(void)
{
    ek_core_action a = {.report = EK_REPORT_INCOMPLETE, .host = -1, .seconds = 11.2};

    begin();
    sup.core.least_step = 40;
    sup.core.reported.begins = 39;
    host[1].late = 1;
    check_report(&a, "evenkeel train: without b, which did not respond in time, 1 completed step "
                     "would be repeated; waiting up to 12 s for a response\n");
    sup.core.reported.begins = 0;
    host[3].late = 1;
    check_report(&a, "evenkeel train: without b, d, which did not respond in time, 40 completed "
                     "steps would be repeated; waiting up to 12 s for a response\n");
    a.seconds = 0; /* the time is over */
    check_report(&a, "");
}

static void check_loss(const char *want)
{
    char line[512];

    snprintf(line, sizeof(line), "evenkeel train: %s\n", want);
    check_report(&(ek_core_action){.report = EK_REPORT_LOSS, .host = -1}, line);
}

static void loss_without_a_report_of_a_worker_names_the_status_of_mpiexec(void)
{
    begin();
    sup.core.ending.code = 7;
    check_loss("mpiexec terminated (status 7) without an error report from a worker");
    sup.core.ending.code = -1;
    sup.generation.wait_status = 9;
    check_loss("mpiexec terminated (signal 9) without an error report from a worker");
}

/* mpiexec writes to a proxy that has ended. */
static void loss_that_mpiexec_did_not_survive_names_the_worker(void)
{
    ek_worker_state workers[] = {{.pid = 70, .host = "a"}};
    ek_worker_watch watch = {.watched = 1};

    begin();
    sup.core.ending.code = -1;
    sup.generation.job.ranks = 1;
    sup.generation.job.workers = workers;
    sup.generation.job.watch = &watch;
    sup.generation.wait_status = SIGKILL;
    check_loss("mpiexec terminated (signal 9) without an error report from a worker");
    sup.generation.wait_status = SIGPIPE;
    check_loss("rank 0 on a (process 70) exited without an error report, unnoticed by mpiexec,");
}

static void loss_of_a_worker_names_it(void)
{
    ek_worker_state workers[] = {{.pid = 70, .host = "a"}, {.pid = 71, .host = "b"}};

    begin();
    sup.core.ending.code = -1;
    sup.generation.job.ranks = 2;
    sup.generation.job.workers = workers;
    sup.generation.job.death = (ek_worker_death){.rank = 1, .pid = -1, .code = -1, .signal = 9};
    check_loss("rank 1 on b (process 71) was killed by signal 9 (Killed)");
    sup.generation.job.death = (ek_worker_death){.rank = 1, .pid = -1, .code = 3, .signal = -1};
    check_loss("rank 1 on b (process 71) exited without an error report (status 3)");
}

static void hang_names_the_phase_and_hosts_without_workers(void)
{
    unsigned char worker[] = {EK_WORKER_STARTED | EK_WORKER_JOINED, EK_WORKER_STARTED};
    ek_host list[] = {{.name = "a", .slots = 1}, {.name = "b", .slots = 1}};

    begin();
    sup.core.ending.reason = EK_REASON_HUNG;
    sup.core.progress.watchdog_s = 60;
    sup.core.progress.phase = EK_PHASE_TRANSFER;
    check_loss("no progress for 60.0 s (transfer), terminated");
    sup.core.progress.phase = EK_PHASE_CONNECT;
    sup.core.reported = (ek_core_reported){.worker = worker, .n = 2, .started = 2, .joined = 1};
    sup.generation.hosts = (ek_host_list){list, 2};
    check_loss("no progress for 60.0 s (connect on b), terminated");
}

static void silent_worker_is_named_with_its_host(void)
{
    ek_worker_state workers[] = {{.pid = 70, .host = "a"}, {.pid = 71, .host = "b"}};

    begin();
    sup.core.ending.reason = EK_REASON_SILENT;
    sup.core.ending.silent = 1;
    sup.core.ending.silent_s = 2;
    sup.generation.job.workers = workers;
    check_loss("rank 1 on b has not responded for 2.00 s, terminated");
}

static void other_ends_are_named(void)
{
    begin();
    sup.core.ending.reason = EK_REASON_UNREACHABLE;
    check_loss("mpiexec could not start workers on all hosts");
    sup.core.interrupts = 1;
    check_loss("interrupted, terminated without saving");
}

/* What follows the reason: with --out. */
static void loss_says_how_to_continue(void)
{
    char out[] = "/tmp/ek_report_XXXXXX";

    begin();
    CHECK(mkdtemp(out) != NULL);
    config.out = out;
    sup.core.interrupts = 1;
    check_loss("interrupted, terminated without saving before a step was completed; there is no "
               "checkpoint yet, start over");
    sup.core.history.written = 1;
    check_loss("interrupted, terminated without saving after step 1; there is no checkpoint yet, "
               "start over");
    sup.core.history.written = 3;
    sup.core.cfg.elastic = 1;
    check_loss("interrupted, terminated without saving after step 3; the state is in shared "
               "memory: the same command continues from it");
    sup.core.history.failed = EK_CORE_FAILED_MAX + 1;
    sup.core.interrupts = 0;
    sup.core.ending.reason = EK_REASON_UNREACHABLE;
    check_loss("mpiexec could not start workers on all hosts after step 3; giving up after 5 "
               "consecutive starts that did not complete a step; the state may still be in shared "
               "memory: the same command continues from it");
    sup.core.history.failed = 0;
    sup.core.history.behind = EK_CORE_BEHIND_MAX + 1;
    sup.core.history.furthest = 9;
    check_loss("mpiexec could not start workers on all hosts after step 3; giving up after 21 "
               "consecutive starts that did not get beyond step 9; the state may still be in "
               "shared memory: the same command continues from it");
    sup.core.restart = 1;
    check_loss("mpiexec could not start workers on all hosts after step 3; continuing from memory");
    CHECK(strcmp(sup.said.end_reason, "mpiexec could not start workers on all hosts") == 0);
    rmdir(out);
}

static void failure_that_a_worker_reported_is_not_repeated(void)
{
    ek_core_action a = {.report = EK_REPORT_FAILURE, .host = -1};

    begin();
    check_report(&a, "");
    sup.core.restart = 1;
    check_report(&a, "evenkeel train: continuing from memory\n");
    CHECK(strcmp(sup.said.end_reason, "a rank lost its connection to another") == 0);
    a.host = 11;
    a.seconds = 30;
    check_report(&a, "evenkeel train: continuing from memory; b is excluded for 30 s\n");
    CHECK(strcmp(sup.said.end_reason, "a host that had joined could not take part") == 0);
}

static void wanted_end_is_silent(void)
{
    ek_core_action a = {.report = EK_REPORT_END, .host = -1};

    begin();
    check_report(&a, "");
    CHECK(sup.said.end_reason[0] == '\0');
    sup.core.ending.code = -1;
    sup.core.ending.reason = EK_REASON_REGROUP;
    check_report(&a, "");
    CHECK(strcmp(sup.said.end_reason, "more hosts can take part") == 0);
    sup.core.ending.reason = EK_REASON_HAND_OVER;
    check_report(&a, "");
    CHECK(strcmp(sup.said.end_reason, "a host is released") == 0);
}

/* --- the first step of a generation ----------------------------------------------------------- */

static void check_resumption(const char *want)
{
    check_report(&(ek_core_action){.report = EK_REPORT_FIRST_STEP, .host = -1}, want);
}

static void repeated_steps_are_warned_of_with_the_reason(void)
{
    begin();
    config.out = "/nowhere";
    check_resumption("");
    sup.core.resumption.repeated = 1;
    check_resumption("evenkeel train: warning: 1 completed step is repeated, from the beginning: "
                     "no state of the run is left in memory, and there is no checkpoint\n");
    sup.core.resumption.repeated = 3;
    sup.core.resumption.incomplete = 1;
    sup.core.reported.first_step = 20;
    check_resumption("evenkeel train: warning: 3 completed steps are repeated, from the checkpoint "
                     "of step 20: only part of the state is left in memory\n");
    sup.core.resumption.from_memory = 1;
    check_resumption("evenkeel train: warning: 3 completed steps are repeated, from step 20: no "
                     "newer state is left in memory\n");
}

static void resumption_after_a_loss_is_timed_by_phase(void)
{
    begin();
    config.out = "/nowhere";
    sup.core.reported.first_step = 7;
    sup.core.resumption = (ek_core_resumption){
        .times = {.seen_at = 1, .ending_s = 0.25, .probe_s = 0.5}, .total_s = 4};
    for (int k = 0; k < EK_PHASES; k++)
        sup.core.progress.took_s[k] = k + 1;
    sup.core.progress.first_step_s = 0.75;
    check_resumption("evenkeel train: resumed, step 8 completed after 4.00 s: ending 250 ms, probe "
                     "500 ms, launch 1.00 s, connect 2.00 s, plan 3.00 s, transfer 4.00 s, step "
                     "750 ms\n");
    sup.core.resumption.times.drain_s = 1.5;
    check_resumption("evenkeel train: resumed, step 8 completed after 4.00 s: ending 250 ms, "
                     "handing over 1.50 s, probe 500 ms, launch 1.00 s, connect 2.00 s, plan 3.00 "
                     "s, transfer 4.00 s, step 750 ms\n");
}

/* The rest of the line is times; without a loss, there is no "after". */
static void generation_is_recorded_in_one_line(void)
{
    static const char want[] =
        "\"ranks\": 2, \"hosts\": 1, \"first_step\": 7, \"from\": \"memory\", "
        "\"steps_again\": 0, \"after\": \"because\", ";
    char out[] = "/tmp/ek_report_XXXXXX", *text = NULL;
    size_t bytes;
    ek_path file;

    begin();
    CHECK(mkdtemp(out) != NULL && ek_path_set(&file, "%s/generations.jsonl", out) == EK_OK);
    config.out = out;
    sup.core.ranks = 2;
    sup.core.reported.first_step = 7;
    sup.core.resumption.from_memory = 1;
    check_resumption("");
    CHECK(ek_file_read(file.s, 4096, &text, &bytes) == EK_OK);
    CHECK(text != NULL && strstr(text, "after") == NULL && strchr(text, '\n') == text + bytes - 1);
    CHECK(text != NULL && strncmp(text, "{\"generation\": 0, ", 18) == 0);
    free(text);
    unlink(file.s);
    snprintf(sup.said.end_reason, sizeof(sup.said.end_reason), "because");
    sup.core.resumption.times.seen_at = 1;
    listen_stderr();
    ek_report_resumption(&sup);
    fclose(stderr);
    stderr = terminal;
    free(said);
    CHECK(ek_file_read(file.s, 4096, &text, &bytes) == EK_OK);
    CHECK(text != NULL && strstr(text, want) != NULL);
    free(text);
    unlink(file.s);
    rmdir(out);
}

/* --- the exit --------------------------------------------------------------------------------- */

static void check_exit(ek_core_exit why, int status, const char *want)
{
    listen_stderr();
    CHECK_INT(ek_report_exit(&sup, why), status);
    check_stderr(want);
}

static void exit_after_a_job_is_silent(void)
{
    begin();
    sup.core.status = 3;
    check_exit(EK_CORE_EXIT_JOB, 3, "");
}

static void exit_tells_what_losses_have_cost(void)
{
    begin();
    sup.core.seen = (int64_t)91e9;
    sup.core.history = (ek_core_history){.began_at = (int64_t)1e9};
    check_exit(EK_CORE_EXIT_JOB, 0, "");
    sup.core.history.resumed = sup.core.history.lost_hosts = sup.core.history.repeated = 1;
    sup.core.history.resumed_s = 1.25;
    check_exit(EK_CORE_EXIT_JOB, 0,
               "evenkeel train: resumed 1 time (1 loss of hosts): 1.25 s of 90.0 s without a step, "
               "1 completed step repeated\n");
    sup.core.history.resumed = 3;
    sup.core.history.lost_hosts = 2;
    sup.core.history.repeated = 0;
    check_exit(EK_CORE_EXIT_JOB, 0,
               "evenkeel train: resumed 3 times (2 losses of hosts): 1.25 s of 90.0 s without a "
               "step, 0 completed steps repeated\n");
}

static void exit_names_the_reason(void)
{
    begin();
    config.hosts = "hosts.txt";
    sup.core.cfg.ranks = 7;
    sup.core.cfg.unit = 2;
    for (int i = 0; i < HOSTS; i++) {
        host[i].listed = i < 2;
        host[i].host.slots = 1 + i;
        host[i].health.answer = i < 1 ? 0 : 1;
    }
    check_exit(EK_CORE_EXIT_SLOTS, EK_EXIT_USAGE,
               "evenkeel train: --ranks 7: the listed hosts have 3 slots; list more hosts, or more "
               "slots per host (HOST:SLOTS)\n");
    check_exit(EK_CORE_EXIT_UNIT, EK_EXIT_USAGE,
               "evenkeel train: --ranks 7: --pp, --tp and --etp need a multiple of 2\n");
    check_exit(EK_CORE_EXIT_NO_HOSTS, EK_EXIT_FAILED,
               "evenkeel train: the hosts of hosts.txt that respond have 1 slots, and at least 2 "
               "are needed; the state may still be in shared memory of hosts that do not respond: "
               "the same command continues from it when they do\n");
    check_exit(EK_CORE_EXIT_INTERRUPTED, EK_EXIT_INTERRUPTED,
               "evenkeel train: interrupted while no worker was running\n");
    sup.core.history.written = 1;
    check_exit(EK_CORE_EXIT_INTERRUPTED, EK_EXIT_INTERRUPTED,
               "evenkeel train: interrupted while no worker was running; the state is in shared "
               "memory: the same command continues from it\n");
    sup.list_status = EK_FAIL(EK_EFORMAT, "hosts.txt contains no hosts");
    check_exit(EK_CORE_EXIT_LIST, EK_EXIT_BAD_INPUT,
               "evenkeel train: hosts.txt contains no hosts\n");
}

static const ek_case cases[] = {
    EK_CASE(hosts_in_use_are_counted),
    EK_CASE(draining_host_is_not_counted),
    EK_CASE(changes_of_hosts_are_named_by_kind),
    EK_CASE(lost_host_is_named_with_its_reason),
    EK_CASE(cut_host_is_named_with_those_it_cannot_reach),
    EK_CASE(unproven_host_is_excluded),
    EK_CASE(unreadable_list_is_reported_once),
    EK_CASE(late_hosts_are_named_while_they_are_waited_for),
    EK_CASE(loss_without_a_report_of_a_worker_names_the_status_of_mpiexec),
    EK_CASE(loss_that_mpiexec_did_not_survive_names_the_worker),
    EK_CASE(loss_of_a_worker_names_it),
    EK_CASE(hang_names_the_phase_and_hosts_without_workers),
    EK_CASE(silent_worker_is_named_with_its_host),
    EK_CASE(other_ends_are_named),
    EK_CASE(loss_says_how_to_continue),
    EK_CASE(failure_that_a_worker_reported_is_not_repeated),
    EK_CASE(wanted_end_is_silent),
    EK_CASE(repeated_steps_are_warned_of_with_the_reason),
    EK_CASE(resumption_after_a_loss_is_timed_by_phase),
    EK_CASE(generation_is_recorded_in_one_line),
    EK_CASE(exit_after_a_job_is_silent),
    EK_CASE(exit_tells_what_losses_have_cost),
    EK_CASE(exit_names_the_reason),
};

EK_TEST_MAIN(cases)
