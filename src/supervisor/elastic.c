/* --elastic: chooses the hosts of each start, ends a start that hangs or whose hosts change, and
 * reports and records each restart (generations.jsonl).
 *
 * Hosts join between steps: when rank 0 reports a completed step, the workers are killed, which
 * loses only their part of the next step.  A host that will be reclaimed may hold state that no
 * other host has, so a start in between, which takes no step, lets it hand that state over.
 *
 * --out is locked by the supervisor, not by a rank: a rank that hangs or is cut off would keep
 * later ones from taking the lock. */
#include "supervisor/elastic.h"

#include "base/clock.h"
#include "base/command.h"
#include "base/file.h"
#include "base/json.h"
#include "base/random.h"
#include "supervisor/exit_policy.h"
#include "supervisor/membership.h"
#include "supervisor/mpiexec.h"
#include "supervisor/supervisor_priv.h"
#include "supervisor/wait_report.h"

#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* If no host responds: number of probes, and first wait between them, which doubles. */
enum { TRIES_MAX = 7, FIRST_WAIT_MS = 250, LOOK_MS = 200 };
/* Time for hosts to free preallocated memory, at the end and after an interrupt. */
static const double close_s = 5, close_soon_s = 0.5;

static const int64_t tend_every = 100000000; /* ns */
/* How long to wait for the end of a step: a host being reclaimed may be gone soon after. */
static const int64_t leave_timeout = 5000000000;

/* Waits, handling signals and printing "waiting for ..."; EK_ECANCELED when interrupted. */
static ek_status wait_ms_or_signal(ek_supervisor *x, int ms, ek_wait_reason reason)
{
    int64_t end = ek_clock_ns() + (int64_t)ms * 1000000, left = end;

    while (x->interrupts == 0 && (left = end - ek_clock_ns()) > 0) {
        struct pollfd p = {x->signals, POLLIN, 0};
        int nap = left < LOOK_MS * 1000000 ? (int)(left / 1000000 + 1) : LOOK_MS;

        if (poll(&p, 1, nap) > 0)
            ek_supervisor_handle_signals(x);
        ek_wait_report(x, reason);
    }
    EK_REQUIRE(x->interrupts == 0, EK_ECANCELED, "interrupted while no worker was running%s",
               ek_supervisor_has_state_in_memory(x)
                   ? "; the state is in shared memory: the same command continues from it"
                   : "");
    return EK_OK;
}

/* Number of ranks to start on `slots` slots: at most --ranks, and a multiple of the unit. */
static int ranks_of(const ek_supervisor *x, int64_t slots)
{
    int64_t n = x->config->ranks > 0 && x->config->ranks < slots ? x->config->ranks : slots;

    return (int)(n - n % x->config->unit);
}

/* Whether there were too few hosts for longer than --watchdog. */
static int has_waited_too_long(const ek_supervisor *x)
{
    return x->config->watchdog > 0 &&
           (double)(ek_clock_ns() - x->wait.begin) / 1e9 > x->config->watchdog &&
           ranks_of(x, ek_membership_slots(x->members)) == 0;
}

/* Rejects --ranks that could not be met even if all listed hosts responded. */
static ek_status check_ranks(const ek_supervisor *x)
{
    int64_t slots = ek_membership_listed_slots(x->members);

    EK_REQUIRE(x->config->ranks <= slots, EK_EINVAL,
               "--ranks %d: the listed hosts have %lld slots; list more hosts, or more slots per "
               "host (HOST:SLOTS)",
               x->config->ranks, (long long)slots);
    EK_REQUIRE(x->config->ranks % x->config->unit == 0, EK_EINVAL,
               "--ranks %d: --pp, --tp and --etp need a multiple of %d", x->config->ranks,
               x->config->unit);
    return EK_OK;
}

/* Polls until done, or until the wait has exceeded --watchdog (not for --discover). */
static ek_status wait_until(ek_supervisor *x, ek_status (*look)(ek_membership *m, int *done),
                            ek_wait_reason reason)
{
    int done = 0;

    EK_TRY(look(x->members, &done));
    while (!done && (reason == EK_WAIT_DISCOVER || !has_waited_too_long(x))) {
        EK_TRY(wait_ms_or_signal(x, 2, reason));
        EK_TRY(look(x->members, &done));
    }
    return EK_OK;
}

ek_status ek_elastic_open(ek_supervisor *x)
{
    x->number = ek_random_bits((uint64_t)ek_clock_ns(), (uint64_t)time(NULL), (uint64_t)getpid());
    x->made_out = ek_file_kind_of(x->config->out) == EK_FILE_NONE;
    EK_TRY(ek_folder_make(NULL, x->config->out));
    EK_TRY(ek_folder_lock(x->config->out, &x->lock));
    x->done = ek_supervisor_steps_written(x->config->out, 0);
    if (x->config->hosts == NULL && x->config->discover == NULL)
        return EK_OK;
    x->members = &x->members_space;
    EK_TRY(ek_membership_open(x->members, x->config, x->mpiexec, x->number));
    ek_wait_timer_begin(&x->wait, x->config->quiet, ek_clock_ns());
    EK_TRY(wait_until(x, ek_membership_list_known, EK_WAIT_DISCOVER));
    return check_ranks(x);
}

/* Removes --out again if this supervisor created it and it is empty. */
void ek_elastic_close(ek_supervisor *x, int status)
{
    if (x->members != NULL)
        ek_membership_close(x->members, x->interrupts > 0 ? close_soon_s : close_s);
    if (x->lock < 0)
        return;
    if (status != EK_EXIT_DONE && x->made_out)
        (void)!rmdir(x->config->out);
    close(x->lock);
}

/* --- choice of hosts -------------------------------------------------------------------------- */

static ek_status probe_hosts(ek_supervisor *x)
{
    EK_TRY(ek_membership_probe(x->members));
    return wait_until(x, ek_membership_probed, EK_WAIT_ANSWERS);
}

/* After a hang or two failed starts: hosts in use may not reach each other. */
static ek_status test_connectivity(ek_supervisor *x)
{
    EK_TRY(ek_membership_test_links(x->members));
    return wait_until(x, ek_membership_links_tested, EK_WAIT_CONNECTIVITY);
}

static ek_status find_hosts(ek_supervisor *x)
{
    const double *longest = x->progress.longest_s;
    int64_t slots = 0;

    x->members->start_s = longest[EK_PHASE_LAUNCH] + longest[EK_PHASE_CONNECT];
    for (int i = 0; i < TRIES_MAX && !has_waited_too_long(x); i++) {
        if (i > 0 || !x->skip_probe)
            EK_TRY(probe_hosts(x));
        if (i == 0 && (x->reason == EK_END_HUNG || x->failed_starts > 1))
            EK_TRY(test_connectivity(x));
        slots = ek_membership_slots(x->members);
        if (ranks_of(x, slots) > 0)
            return EK_OK;
        ek_membership_clear_suspicion(x->members);
        EK_TRY(wait_ms_or_signal(x, FIRST_WAIT_MS << i, EK_WAIT_HOSTS));
    }
    return EK_FAIL(EK_ECOMM,
                   "the hosts of %s that respond have %lld slots, and at least %d are needed; the "
                   "state may still be in shared memory of hosts that do not respond: the same "
                   "command continues from it when they do",
                   x->config->discover != NULL ? "--discover" : x->config->hosts, (long long)slots,
                   x->config->unit);
}

/* Exponential backoff after starts without a completed step. */
static ek_status back_off(ek_supervisor *x)
{
    return x->failed_starts > 0 ? wait_ms_or_signal(x, 50 << x->failed_starts, EK_WAIT_HOSTS)
                                : EK_OK;
}

static void report_hosts(const ek_supervisor *x, int hosts)
{
    if (x->members == NULL || !ek_membership_changed(x->members))
        return;
    fprintf(stderr, "evenkeel %s: ", x->config->command);
    ek_membership_report(x->members, stderr);
    fprintf(stderr, "%d rank%s on %d host%s\n", x->ranks, x->ranks > 1 ? "s" : "", hosts,
            hosts > 1 ? "s" : "");
}

/* Records the time until the last start had ended, or its whole duration if it drained hosts. */
static void record_end_time(ek_supervisor *x, int64_t now)
{
    if (x->n_draining > 0)
        x->drain_s += (double)(now - x->chosen_at) / 1e9;
    else
        x->ending_s = x->end_seen > 0 ? (double)(now - x->end_seen) / 1e9 : 0;
    x->chosen_at = now;
}

ek_status ek_elastic_choose(ek_supervisor *x, ek_host_list *out)
{
    int64_t begin = ek_clock_ns();

    record_end_time(x, begin);
    x->end_seen = 0;
    x->more_since = -1;
    x->leave_at = 0;
    x->stuck = 0;
    x->n_draining = 0;
    ek_wait_timer_begin(&x->wait, x->config->quiet, begin);
    EK_TRY(back_off(x));
    if (x->members == NULL) {
        x->ranks = x->config->ranks > 0 ? x->config->ranks : 1;
    } else {
        EK_TRY(find_hosts(x));
        x->skip_probe = 0;
        x->ranks = ranks_of(x, ek_membership_slots(x->members));
        EK_TRY(ek_membership_assign(x->members, x->ranks, out, &x->n_draining));
        report_hosts(x, out->n - x->n_draining);
    }
    x->probe_s = (double)(ek_clock_ns() - begin) / 1e9;
    return EK_OK;
}

/* --- the first step of a start ---------------------------------------------------------------- */

static double epoch(void)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int hosts_used(const ek_supervisor *x)
{
    int n = 0;

    for (int i = 0; x->members != NULL && i < x->members->n; i++)
        n += x->members->member[i].used > 0;
    return x->members != NULL ? n : 1;
}

/* Number of completed steps that this start repeats. */
static int64_t steps_repeated(const ek_supervisor *x)
{
    return x->done > x->job.first_step ? x->done - x->job.first_step : 0;
}

/* Whether state in memory was found but incomplete, in this start or in one that drained hosts. */
static int is_state_incomplete(const ek_supervisor *x)
{
    return x->job.state_incomplete || x->drain_incomplete;
}

/* Warns if completed steps are repeated, with the reason. */
static void warn_of_loss(const ek_supervisor *x)
{
    const ek_job_state *t = &x->job;
    int64_t n = steps_repeated(x);

    if (n == 0)
        return;
    fprintf(stderr, "evenkeel %s: warning: %lld %s repeated, from ", x->config->command,
            (long long)n, n > 1 ? "completed steps are" : "completed step is");
    if (t->recovered && !x->drain_incomplete)
        fprintf(stderr, "step %lld: no newer state is left in memory\n", (long long)t->first_step);
    else if (t->first_step > 0)
        fprintf(stderr, "the checkpoint of step %lld: %s is left in memory\n",
                (long long)t->first_step,
                is_state_incomplete(x) ? "only part of the state" : "no state of the run");
    else
        fprintf(stderr, "the beginning: %s is left in memory, and there is no checkpoint\n",
                is_state_incomplete(x) ? "only part of the state" : "no state of the run");
}

static const char *source_of(const ek_supervisor *x)
{
    if (x->job.recovered && !x->drain_incomplete)
        return "memory";
    return x->job.first_step > 0 ? "checkpoint" : "start";
}

/* Appends a complete line or nothing; text: its terminating NUL is replaced by a newline. */
static void append_line(const char *path, char *text)
{
    size_t bytes = strlen(text) + 1;
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    ssize_t done;

    if (fd < 0)
        return;
    text[bytes - 1] = '\n';
    done = write(fd, text, bytes);
    if (done > 0 && (size_t)done < bytes)
        (void)!ftruncate(fd, lseek(fd, 0, SEEK_END) - done);
    close(fd);
}

/* Appends a line to generations.jsonl; errors are ignored. */
static void write_generation(const ek_supervisor *x, double total_s)
{
    const double *took = x->progress.took_s;
    const ek_job_state *t = &x->job;
    json_t *o = json_pack("{s:I, s:f, s:i, s:i, s:I, s:s, s:I}", "generation",
                          (json_int_t)x->starts, "time", epoch(), "ranks", x->ranks, "hosts",
                          hosts_used(x), "first_step", (json_int_t)t->first_step, "from",
                          source_of(x), "steps_again", (json_int_t)steps_repeated(x));
    char *text;
    ek_path path;

    if (x->seen_at > 0)
        json_object_update_new(o, json_pack("{s:o, s:f, s:f, s:f, s:f}", "after",
                                            ek_json_text_of(x->end_reason), "seen", x->seen_epoch,
                                            "ending_s", x->ending_s, "hand_over_s", x->drain_s,
                                            "total_s", total_s));
    json_object_update_new(o, json_pack("{s:f, s:f, s:f, s:f}", "taken_mb", t->taken / 1e6,
                                        "copied_mb", t->copied / 1e6, "received_mb",
                                        t->received / 1e6, "prealloc_mb", t->prealloc / 1e6));
    json_object_update_new(o, json_pack("{s:f, s:f, s:f, s:f, s:f, s:f}", "probe_s", x->probe_s,
                                        "launch_s", took[EK_PHASE_LAUNCH], "connect_s",
                                        took[EK_PHASE_CONNECT], "plan_s", took[EK_PHASE_PLAN],
                                        "transfer_s", took[EK_PHASE_TRANSFER], "first_step_s",
                                        x->progress.first_step_s));
    text = json_dumps(o, JSON_REAL_PRECISION(6 + 7));
    if (text != NULL && ek_path_set(&path, "%s/generations.jsonl", x->config->out) == EK_OK)
        append_line(path.s, text);
    free(text);
    json_decref(o);
}

/* After the first step of a start: records and prints the time since the loss, by phase. */
static void report_resumption(ek_supervisor *x, int64_t now)
{
    const double *took = x->progress.took_s;
    double total_s = (double)(now - x->seen_at) / 1e9;
    char giving[40] = "";

    x->resumed = 1;
    if (x->members != NULL)
        ek_membership_step_done(x->members);
    write_generation(x, x->seen_at > 0 ? total_s : 0);
    warn_of_loss(x);
    if (x->drain_s > 0)
        snprintf(giving, sizeof(giving), ", handing over %.2f", x->drain_s);
    if (x->seen_at > 0)
        fprintf(stderr,
                "evenkeel %s: resumed, step %lld completed after %.2f s: ending %.2f%s, probe "
                "%.2f, launch %.2f, "
                "connect %.2f, plan %.2f, transfer %.2f, step %.2f\n",
                x->config->command, (long long)x->job.first_step + 1, total_s, x->ending_s, giving,
                x->probe_s, took[EK_PHASE_LAUNCH], took[EK_PHASE_CONNECT], took[EK_PHASE_PLAN],
                took[EK_PHASE_TRANSFER], x->progress.first_step_s);
    x->seen_at = 0;
    x->drain_s = 0;
    x->drain_incomplete = 0;
}

/* --- while it runs ---------------------------------------------------------------------------- */

/* Records when the end of this start was detected. */
static void record_end_seen(ek_supervisor *x, int64_t now)
{
    if (x->end_seen != 0)
        return;
    x->end_seen = now;
    if (x->seen_at != 0)
        return; /* still pending from an earlier start */
    x->seen_at = now;
    x->seen_epoch = epoch();
}

static void end_start(ek_supervisor *x, ek_end_reason why, int64_t now)
{
    x->reason = why;
    x->kill_at = now;
}

/* Whether to restart with more hosts: their memory is preallocated, no further host is about to
 * respond, and a step has ended since. */
static int may_regroup(ek_supervisor *x)
{
    if (ranks_of(x, ek_membership_slots(x->members)) <= x->ranks ||
        ek_membership_prealloc(x->members)) {
        x->more_since = -1;
        return 0;
    }
    if (x->more_since < 0 || ek_membership_probe_pending(x->members))
        x->more_since = x->job.steps;
    return x->job.steps > x->more_since;
}

/* Whether mpiexec hangs because a host that responded to the probe cannot be reached any more (see
 * mpiexec.h). */
static int is_mpiexec_stuck(ek_supervisor *x)
{
    x->stuck =
        x->job.ready < x->job.ranks && ek_mpiexec_has_failed_launcher(x->child) ? x->stuck + 1 : 0;
    return x->stuck > 1;
}

/* Whether to drain a leaving host now: the others suffice to continue, and a step has ended since
 * its notice or takes too long. */
static int may_hand_over(ek_supervisor *x, int64_t now)
{
    if (!ek_membership_has_leaving(x->members) ||
        ranks_of(x, ek_membership_slots(x->members)) == 0) {
        x->leave_at = 0;
        return 0;
    }
    if (x->leave_at == 0) {
        x->leave_at = now;
        x->leave_since = x->job.steps;
    }
    return x->job.steps > x->leave_since ||
           (x->progress.phase == EK_PHASE_STEP && now - x->leave_at > leave_timeout);
}

static void poll_members(ek_supervisor *x, int64_t now)
{
    if (now - x->tended_at >= tend_every) {
        if (x->n_draining == 0)
            ek_membership_poll(x->members);
        x->tended_at = now;
        if (is_mpiexec_stuck(x)) {
            end_start(x, EK_END_UNREACHABLE, now);
            return;
        }
    }
    if (x->n_draining > 0 || x->job.is_last)
        return;
    if (may_hand_over(x, now)) {
        ek_membership_ignore_notices(x->members);
        end_start(x, EK_END_HAND_OVER, now);
    } else if (x->leave_at == 0 && x->job.steps > 0 && may_regroup(x)) {
        end_start(x, EK_END_REGROUP, now);
    }
}

void ek_elastic_tick(ek_supervisor *x, int64_t now)
{
    if (!x->resumed && x->job.steps > 0)
        report_resumption(x, now);
    if (x->ended || x->job.reported || x->watch.ended > 0 || x->kill_at != 0) {
        record_end_seen(x, now);
        return;
    }
    if (ek_job_progress_hangs(&x->progress, now))
        end_start(x, EK_END_HUNG, now);
    else if (x->members != NULL && x->reason == EK_END_NONE && x->interrupts == 0)
        poll_members(x, now);
    if (x->kill_at != 0)
        record_end_seen(x, now);
}
