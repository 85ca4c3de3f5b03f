/* --elastic: chooses the hosts of each start, ends a start that hangs or whose hosts change, and
 * reports and records each restart (generations.jsonl).
 *
 * Hosts join between steps: when rank 0 reports a completed step, the workers are killed, which
 * loses only their part of the next step.  A host that will be reclaimed may hold state that no
 * other host has, so a start in between, which takes no step, lets it hand that state over.
 *
 * --out is locked by the launcher, not by a rank: a rank that hangs or is cut off would keep later
 * ones from taking the lock. */
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/random.h"
#include "cli/cli.h"
#include "cli/launch_priv.h"

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
static ek_status wait_ms_or_signal(launcher *x, int ms, launch_wait_reason reason)
{
    int64_t end = ek_clock_ns() + (int64_t)ms * 1000000, left = end;

    while (x->interrupts == 0 && (left = end - ek_clock_ns()) > 0) {
        struct pollfd p = {x->signals, POLLIN, 0};
        int nap = left < LOOK_MS * 1000000 ? (int)(left / 1000000 + 1) : LOOK_MS;

        if (poll(&p, 1, nap) > 0)
            launch_handle_signals(x);
        launch_wait_report(x, reason);
    }
    EK_REQUIRE(x->interrupts == 0, EK_ECANCELED, "interrupted while no worker was running%s",
               launch_has_state_in_memory(x)
                   ? "; the state is in shared memory: the same command continues from it"
                   : "");
    return EK_OK;
}

/* Number of ranks to start on `slots` slots: at most --ranks, and a multiple of the unit. */
static int ranks_of(const launcher *x, int64_t slots)
{
    int64_t n = x->l->ranks > 0 && x->l->ranks < slots ? x->l->ranks : slots;

    return (int)(n - n % x->l->unit);
}

/* Whether there were too few hosts for longer than --watchdog. */
static int has_waited_too_long(const launcher *x)
{
    return x->l->watchdog > 0 && (double)(ek_clock_ns() - x->wait.begin) / 1e9 > x->l->watchdog &&
           ranks_of(x, launch_membership_slots(x->members)) == 0;
}

/* Rejects --ranks that could not be met even if all listed hosts responded. */
static ek_status check_ranks(const launcher *x)
{
    int64_t slots = launch_membership_listed_slots(x->members);

    EK_REQUIRE(x->l->ranks <= slots, EK_EINVAL,
               "--ranks %d: the listed hosts have %lld slots; list more hosts, or more slots per "
               "host (HOST:SLOTS)",
               x->l->ranks, (long long)slots);
    EK_REQUIRE(x->l->ranks % x->l->unit == 0, EK_EINVAL,
               "--ranks %d: --pp, --tp and --etp need a multiple of %d", x->l->ranks, x->l->unit);
    return EK_OK;
}

/* Polls until done, or until the wait has exceeded --watchdog (not for --discover). */
static ek_status wait_until(launcher *x, ek_status (*look)(launch_membership *m, int *done),
                            launch_wait_reason reason)
{
    int done = 0;

    EK_TRY(look(x->members, &done));
    while (!done && (reason == LAUNCH_WAIT_DISCOVER || !has_waited_too_long(x))) {
        EK_TRY(wait_ms_or_signal(x, 2, reason));
        EK_TRY(look(x->members, &done));
    }
    return EK_OK;
}

ek_status launch_elastic_open(launcher *x)
{
    x->number = ek_random_bits((uint64_t)ek_clock_ns(), (uint64_t)time(NULL), (uint64_t)getpid());
    x->made_out = ek_file_kind_of(x->l->out) == EK_FILE_NONE;
    EK_TRY(ek_folder_make(NULL, x->l->out));
    EK_TRY(ek_folder_lock(x->l->out, &x->lock));
    x->done = launch_steps_written(x->l->out, 0);
    if (x->l->hosts == NULL && x->l->discover == NULL)
        return EK_OK;
    x->members = &x->members_space;
    EK_TRY(launch_membership_open(x->members, x->l, x->mpiexec, x->number));
    launch_wait_begin(&x->wait, x->l->quiet, ek_clock_ns());
    EK_TRY(wait_until(x, launch_membership_list_known, LAUNCH_WAIT_DISCOVER));
    return check_ranks(x);
}

/* Removes --out again if this launcher created it and it is empty. */
void launch_elastic_close(launcher *x, int status)
{
    if (x->members != NULL)
        launch_membership_close(x->members, x->interrupts > 0 ? close_soon_s : close_s);
    if (x->lock < 0)
        return;
    if (status != EK_EXIT_DONE && x->made_out)
        (void)!rmdir(x->l->out);
    close(x->lock);
}

/* --- choice of hosts -------------------------------------------------------------------------- */

static ek_status probe_hosts(launcher *x)
{
    EK_TRY(launch_membership_probe(x->members));
    return wait_until(x, launch_membership_probed, LAUNCH_WAIT_ANSWERS);
}

/* After a hang or two failed starts: hosts in use may not reach each other. */
static ek_status test_connectivity(launcher *x)
{
    EK_TRY(launch_membership_test_links(x->members));
    return wait_until(x, launch_membership_links_tested, LAUNCH_WAIT_CONNECTIVITY);
}

static ek_status find_hosts(launcher *x)
{
    const double *longest = x->progress.longest_s;
    int64_t slots = 0;

    x->members->start_s = longest[LAUNCH_LAUNCH] + longest[LAUNCH_CONNECT];
    for (int i = 0; i < TRIES_MAX && !has_waited_too_long(x); i++) {
        if (i > 0 || !x->skip_probe)
            EK_TRY(probe_hosts(x));
        if (i == 0 && (x->reason == LAUNCH_HUNG || x->failed_starts > 1))
            EK_TRY(test_connectivity(x));
        slots = launch_membership_slots(x->members);
        if (ranks_of(x, slots) > 0)
            return EK_OK;
        launch_membership_clear_suspicion(x->members);
        EK_TRY(wait_ms_or_signal(x, FIRST_WAIT_MS << i, LAUNCH_WAIT_HOSTS));
    }
    return EK_FAIL(EK_ECOMM,
                   "the hosts of %s that respond have %lld slots, and at least %d are needed; the "
                   "state may still be in shared memory of hosts that do not respond: the same "
                   "command continues from it when they do",
                   x->l->discover != NULL ? "--discover" : x->l->hosts, (long long)slots,
                   x->l->unit);
}

/* Exponential backoff after starts without a completed step. */
static ek_status back_off(launcher *x)
{
    return x->failed_starts > 0 ? wait_ms_or_signal(x, 50 << x->failed_starts, LAUNCH_WAIT_HOSTS)
                                : EK_OK;
}

static void report_hosts(const launcher *x, int hosts)
{
    if (x->members == NULL || !launch_membership_changed(x->members))
        return;
    fprintf(stderr, "evenkeel %s: ", x->l->command);
    launch_membership_report(x->members, stderr);
    fprintf(stderr, "%d rank%s on %d host%s\n", x->ranks, x->ranks > 1 ? "s" : "", hosts,
            hosts > 1 ? "s" : "");
}

/* Records the time until the last start had ended, or its whole duration if it drained hosts. */
static void record_end_time(launcher *x, int64_t now)
{
    if (x->n_draining > 0)
        x->drain_s += (double)(now - x->chosen_at) / 1e9;
    else
        x->ending_s = x->end_seen > 0 ? (double)(now - x->end_seen) / 1e9 : 0;
    x->chosen_at = now;
}

ek_status launch_elastic_choose(launcher *x, launch_hosts *out)
{
    int64_t begin = ek_clock_ns();

    record_end_time(x, begin);
    x->end_seen = 0;
    x->more_since = -1;
    x->leave_at = 0;
    x->stuck = 0;
    x->n_draining = 0;
    launch_wait_begin(&x->wait, x->l->quiet, begin);
    EK_TRY(back_off(x));
    if (x->members == NULL) {
        x->ranks = x->l->ranks > 0 ? x->l->ranks : 1;
    } else {
        EK_TRY(find_hosts(x));
        x->skip_probe = 0;
        x->ranks = ranks_of(x, launch_membership_slots(x->members));
        EK_TRY(launch_membership_assign(x->members, x->ranks, out, &x->n_draining));
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

static int hosts_used(const launcher *x)
{
    int n = 0;

    for (int i = 0; x->members != NULL && i < x->members->n; i++)
        n += x->members->member[i].used > 0;
    return x->members != NULL ? n : 1;
}

/* Number of completed steps that this start repeats. */
static int64_t steps_repeated(const launcher *x)
{
    return x->done > x->job_output.first_step ? x->done - x->job_output.first_step : 0;
}

/* Whether state in memory was found but incomplete, in this start or in one that drained hosts. */
static int is_state_incomplete(const launcher *x)
{
    return x->job_output.state_incomplete || x->drain_incomplete;
}

/* Warns if completed steps are repeated, with the reason. */
static void warn_of_loss(const launcher *x)
{
    const launch_job_output *t = &x->job_output;
    int64_t n = steps_repeated(x);

    if (n == 0)
        return;
    fprintf(stderr, "evenkeel %s: warning: %lld %s repeated, from ", x->l->command, (long long)n,
            n > 1 ? "completed steps are" : "completed step is");
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

static const char *source_of(const launcher *x)
{
    if (x->job_output.recovered && !x->drain_incomplete)
        return "memory";
    return x->job_output.first_step > 0 ? "checkpoint" : "start";
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
static void write_generation(const launcher *x, double total_s)
{
    const double *took = x->progress.took_s;
    const launch_job_output *t = &x->job_output;
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
                                        "launch_s", took[LAUNCH_LAUNCH], "connect_s",
                                        took[LAUNCH_CONNECT], "plan_s", took[LAUNCH_PLAN],
                                        "transfer_s", took[LAUNCH_TRANSFER], "first_step_s",
                                        x->progress.first_step_s));
    text = json_dumps(o, JSON_REAL_PRECISION(6 + 7));
    if (text != NULL && ek_path_set(&path, "%s/generations.jsonl", x->l->out) == EK_OK)
        append_line(path.s, text);
    free(text);
    json_decref(o);
}

/* After the first step of a start: records and prints the time since the loss, by phase. */
static void report_resumption(launcher *x, int64_t now)
{
    const double *took = x->progress.took_s;
    double total_s = (double)(now - x->seen_at) / 1e9;
    char giving[40] = "";

    x->resumed = 1;
    if (x->members != NULL)
        launch_membership_step_done(x->members);
    write_generation(x, x->seen_at > 0 ? total_s : 0);
    warn_of_loss(x);
    if (x->drain_s > 0)
        snprintf(giving, sizeof(giving), ", handing over %.2f", x->drain_s);
    if (x->seen_at > 0)
        fprintf(stderr,
                "evenkeel %s: resumed, step %lld completed after %.2f s: ending %.2f%s, probe "
                "%.2f, launch %.2f, "
                "connect %.2f, plan %.2f, transfer %.2f, step %.2f\n",
                x->l->command, (long long)x->job_output.first_step + 1, total_s, x->ending_s,
                giving, x->probe_s, took[LAUNCH_LAUNCH], took[LAUNCH_CONNECT], took[LAUNCH_PLAN],
                took[LAUNCH_TRANSFER], x->progress.first_step_s);
    x->seen_at = 0;
    x->drain_s = 0;
    x->drain_incomplete = 0;
}

/* --- while it runs ---------------------------------------------------------------------------- */

/* Records when the end of this start was detected. */
static void record_end_seen(launcher *x, int64_t now)
{
    if (x->end_seen != 0)
        return;
    x->end_seen = now;
    if (x->seen_at != 0)
        return; /* still pending from an earlier start */
    x->seen_at = now;
    x->seen_epoch = epoch();
}

static void end_start(launcher *x, launch_reason why, int64_t now)
{
    x->reason = why;
    x->kill_at = now;
}

/* Whether to restart with more hosts: their memory is preallocated, no further host is about to
 * respond, and a step has ended since. */
static int may_regroup(launcher *x)
{
    if (ranks_of(x, launch_membership_slots(x->members)) <= x->ranks ||
        launch_membership_prealloc(x->members)) {
        x->more_since = -1;
        return 0;
    }
    if (x->more_since < 0 || launch_membership_probe_pending(x->members))
        x->more_since = x->job_output.steps;
    return x->job_output.steps > x->more_since;
}

/* Whether mpiexec hangs because a host that responded to the probe cannot be reached any more (see
 * launch_subprocess.c). */
static int is_mpiexec_stuck(launcher *x)
{
    int others;

    x->stuck = x->job_output.ready < x->job_output.ranks &&
                       launch_has_failed_children(x->child, &others) > 0
                   ? x->stuck + 1
                   : 0;
    return x->stuck > 1;
}

/* Whether to drain a leaving host now: the others suffice to continue, and a step has ended since
 * its notice or takes too long. */
static int may_hand_over(launcher *x, int64_t now)
{
    if (!launch_membership_has_leaving(x->members) ||
        ranks_of(x, launch_membership_slots(x->members)) == 0) {
        x->leave_at = 0;
        return 0;
    }
    if (x->leave_at == 0) {
        x->leave_at = now;
        x->leave_since = x->job_output.steps;
    }
    return x->job_output.steps > x->leave_since ||
           (x->progress.phase == LAUNCH_STEP && now - x->leave_at > leave_timeout);
}

static void poll_members(launcher *x, int64_t now)
{
    if (now - x->tended_at >= tend_every) {
        if (x->n_draining == 0)
            launch_membership_poll(x->members);
        x->tended_at = now;
        if (is_mpiexec_stuck(x)) {
            end_start(x, LAUNCH_UNREACHABLE, now);
            return;
        }
    }
    if (x->n_draining > 0 || x->job_output.is_last)
        return;
    if (may_hand_over(x, now)) {
        launch_membership_ignore_notices(x->members);
        end_start(x, LAUNCH_HAND_OVER, now);
    } else if (x->leave_at == 0 && x->job_output.steps > 0 && may_regroup(x)) {
        end_start(x, LAUNCH_REGROUP, now);
    }
}

void launch_elastic_tick(launcher *x, int64_t now)
{
    if (!x->resumed && x->job_output.steps > 0)
        report_resumption(x, now);
    if (x->ended || x->job_output.reported || x->watch.ended > 0 || x->kill_at != 0) {
        record_end_seen(x, now);
        return;
    }
    if (launch_progress_hangs(&x->progress, now))
        end_start(x, LAUNCH_HUNG, now);
    else if (x->members != NULL && x->reason == LAUNCH_NOT_ENDED && x->interrupts == 0)
        poll_members(x, now);
    if (x->kill_at != 0)
        record_end_seen(x, now);
}
