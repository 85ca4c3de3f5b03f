/* Messages about hosts, the end of a generation, and the exit of the supervisor. */
#include "supervisor/report.h"

#include "base/command.h"
#include "base/count_text.h"
#include "store/checkpoint.h"
#include "supervisor/wait_report.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

/* --- hosts ------------------------------------------------------------------------------------ */

/* An unreadable list does not end the run: one warning until it can be read again. */
static void report_list_failed(ek_supervisor *x)
{
    if (!x->said.list_failed)
        fprintf(stderr, "evenkeel %s: %s; keeping the current hosts\n", x->config->command,
                ek_err_message());
    x->said.list_failed = 1;
}

static void report_cut(const ek_supervisor *x, int number)
{
    const ek_core_links *k = &x->core.links;
    int which = 0, n = 0;

    while (k->host[which] != number)
        which++;
    fprintf(stderr, "evenkeel %s: %s and ", x->config->command,
            ek_core_hosts_name(&x->core.hosts, number));
    for (int i = 0; i < k->n; i++)
        if (!k->out[i] && ek_core_links_cut(k, which, i))
            fprintf(stderr, "%s%s", n++ > 0 ? ", " : "",
                    ek_core_hosts_name(&x->core.hosts, k->host[i]));
    fprintf(stderr, "%s cannot reach each other\n", n > 0 ? "" : "others");
}

/* Why the host counts as lost. */
static void print_reason(const ek_host_health *a, FILE *f)
{
    char took[32];

    switch (a->answer) {
    case EK_RESULT_LATE:
        fprintf(f, " (timed out after %s)", ek_time_text(took, sizeof(took), a->took_s));
        break;
    case EK_RESULT_STUCK: fprintf(f, " (mpiexec cannot reach it)"); break;
    case EK_RESULT_KILLED: fprintf(f, " (mpiexec was killed)"); break;
    case EK_RESULT_NOT_STARTED: fprintf(f, " (mpiexec could not be started)"); break;
    default: fprintf(f, " (mpiexec: status %d)", a->answer); break;
    }
}

static int print_changed(const ek_core_hosts *h, ek_host_change change, FILE *f)
{
    int n = 0;

    for (int i = 0; i < h->n; i++) {
        const ek_core_host *x = &h->host[i];

        if (x->change != change)
            continue;
        fprintf(f, "%s%s", n++ > 0 ? ", " : "", x->host.name);
        if (change == EK_HOST_LOST)
            print_reason(&x->health, f);
    }
    return n;
}

/* "a (timed out after 1.50 s), b (mpiexec: status 255) do not respond; c joins; 4 ranks on 2 hosts,
 * 1 slot idle (...)". */
static void report_hosts(const ek_supervisor *x)
{
    static const struct {
        ek_host_change change;
        const char *one, *many;
    } what[] = {{EK_HOST_LOST, "does not respond", "do not respond"},
                {EK_HOST_EXCLUDED, "is excluded", "are excluded"},
                {EK_HOST_DRAINING, "hands over its state", "hand over their state"},
                {EK_HOST_RELEASED, "is released", "are released"},
                {EK_HOST_JOINED, "joins", "join"}};
    int hosts = ek_core_hosts_in_use(&x->core.hosts) - x->core.n_draining;

    fprintf(stderr, "evenkeel %s: ", x->config->command);
    for (size_t k = 0; k < sizeof(what) / sizeof(what[0]); k++) {
        int n = print_changed(&x->core.hosts, what[k].change, stderr);

        if (n > 0)
            fprintf(stderr, " %s; ", n > 1 ? what[k].many : what[k].one);
    }
    fprintf(stderr, "%d rank%s on %d host%s", x->core.ranks, x->core.ranks > 1 ? "s" : "", hosts,
            hosts > 1 ? "s" : "");
    if (x->core.idle > 0)
        fprintf(stderr, ", %d slot%s idle (no layout near the given one uses all)", x->core.idle,
                x->core.idle > 1 ? "s" : "");
    fprintf(stderr, "\n");
}

/* --- the end of a generation ------------------------------------------------------------------ */

/* First half of the message: "rank 1 on b (process 7) was killed ...", or what else ended the
 * generation. */
static void describe_end(ek_supervisor *x, FILE *f)
{
    const ek_core *c = &x->core;
    ek_job_output *t = &x->generation.output;
    int code = c->ending.code;
    char who[512], time[32];

    if (c->interrupts > 0) {
        fprintf(f, "interrupted, terminated without saving");
    } else if (c->ending.reason == EK_REASON_HUNG) {
        fprintf(f, "no progress for %s (%s",
                ek_time_text(time, sizeof(time), ek_job_progress_timeout_s(&c->progress)),
                ek_phase_name(c->progress.phase));
        if (c->reported.joined < c->reported.n)
            ek_wait_report_missing(x, c->reported.started == c->reported.n, f);
        fprintf(f, "), terminated");
    } else if (c->ending.reason == EK_REASON_SILENT) {
        fprintf(f, "rank %d on %s has not responded for %s, terminated", c->ending.silent,
                x->generation.job.workers[c->ending.silent].host,
                ek_time_text(time, sizeof(time), c->ending.silent_s));
    } else if (c->ending.reason == EK_REASON_UNREACHABLE) {
        fprintf(f, "mpiexec could not start workers on all hosts");
    } else if (ek_job_state_death(&x->generation.job, who, sizeof(who))) {
        if (x->generation.job.death.signal <= 0)
            ek_job_output_release(t); /* may contain the reason */
        fprintf(f, "%s", who);
    } else {
        ek_job_output_release(t);
        fprintf(f, "mpiexec terminated (%s %d) without an error report from a worker",
                code >= 0 ? "status" : "signal",
                code >= 0 ? code : WTERMSIG(x->generation.wait_status));
    }
}

/* Second half: steps completed and how to continue. */
static void describe_progress(const ek_supervisor *x, FILE *f)
{
    const ek_core *c = &x->core;
    int64_t done = c->history.written;
    ek_checkpoint_found found;

    if (done > 0)
        fprintf(f, " after step %lld", (long long)done);
    else
        fprintf(f, " before a step was completed");
    if (c->restart)
        fprintf(f, "; continuing from memory");
    else if (c->cfg.elastic && c->interrupts > 0 && ek_core_has_state(c))
        fprintf(f, "; the state is in shared memory: the same command continues from it");
    else if (c->cfg.elastic && c->history.failed > EK_CORE_FAILED_MAX)
        fprintf(f,
                "; giving up after %d consecutive starts that did not complete a step; the state "
                "may still be in shared memory: the same command continues from it",
                c->history.failed);
    else if (c->cfg.elastic && c->history.behind > EK_CORE_BEHIND_MAX)
        fprintf(f,
                "; giving up after %d consecutive starts that did not get beyond step %lld; the "
                "state may still be in shared memory: the same command continues from it",
                c->history.behind, (long long)c->history.furthest);
    else if ((done > 0 || x->config->resume) &&
             ek_checkpoint_latest(x->config->out, EK_CHECK_SIZES, &found) == EK_OK)
        fprintf(f, "; the checkpoint %s is complete, continue from it with --resume", found.path.s);
    else
        fprintf(f, "; there is no checkpoint yet, start over");
}

static void set_end_reason(ek_supervisor *x, const char *text)
{
    snprintf(x->said.end_reason, sizeof(x->said.end_reason), "%s", text);
}

/* A worker has reported its failure itself. */
static void report_failure(ek_supervisor *x, int host, double seconds)
{
    ek_job_output_drop(&x->generation.output);
    set_end_reason(x, host >= 0 ? "a host that had joined could not take part"
                                : "a rank lost its connection to another");
    if (x->core.restart && host >= 0)
        fprintf(stderr, "evenkeel %s: continuing from memory; %s is excluded for %.0f s\n",
                x->config->command, ek_core_hosts_name(&x->core.hosts, host), seconds);
    else if (x->core.restart)
        fprintf(stderr, "evenkeel %s: continuing from memory\n", x->config->command);
}

/* "without a, which did not respond in time, 21 completed steps would be repeated; waiting up to 12
 * s for a response". */
static void report_incomplete(ek_supervisor *x, double seconds)
{
    const ek_core *c = &x->core;
    long long n = c->least_step - c->reported.begins;
    int named = 0;

    ek_job_output_drop(&x->generation.output);
    for (int i = 0; i < c->hosts.n; i++)
        named += c->hosts.host[i].late;
    if (seconds <= 0 || named == 0) /* they may have left the list meanwhile */
        return;
    named = 0;
    fprintf(stderr, "evenkeel %s: without ", x->config->command);
    for (int i = 0; i < c->hosts.n; i++) {
        const ek_core_host *h = &c->hosts.host[i];

        if (h->late)
            fprintf(stderr, "%s%s", named++ > 0 ? ", " : "", h->host.name);
    }
    fprintf(stderr,
            ", which did not respond in time, %lld completed step%s would be repeated; waiting up "
            "to %.0f s for a response\n",
            n, n > 1 ? "s" : "", ceil(seconds));
}

/* Whether mpiexec ended by itself; SIGPIPE: as its proxies had ended. */
static int mpiexec_has_exited(const ek_supervisor *x)
{
    int status = x->generation.wait_status;

    return x->core.ending.code >= 0 || (WIFSIGNALED(status) && WTERMSIG(status) == SIGPIPE);
}

static void report_loss(ek_supervisor *x)
{
    FILE *f = fmemopen(x->said.end_reason, sizeof(x->said.end_reason), "w");

    ek_job_output_end_live_line(&x->generation.output);
    x->generation.job.death_unseen |= mpiexec_has_exited(x);
    x->generation.job.mpiexec_status = x->core.ending.code;
    if (f != NULL) {
        describe_end(x, f);
        fclose(f);
    }
    fprintf(stderr, "evenkeel %s: %s", x->config->command, x->said.end_reason);
    if (x->config->out != NULL)
        describe_progress(x, stderr);
    fputc('\n', stderr);
}

static void report_end(ek_supervisor *x)
{
    if (x->core.ending.code == 0) {
        ek_job_output_release(&x->generation.output);
        return;
    }
    ek_job_output_end_live_line(&x->generation.output);
    set_end_reason(x, x->core.ending.reason == EK_REASON_REGROUP ? "more hosts can take part"
                                                                 : "a host is released");
}

void ek_report(ek_supervisor *x, const ek_core_action *a)
{
    switch (a->report) {
    case EK_REPORT_LIST_FAILED: report_list_failed(x); break;
    case EK_REPORT_CUT: report_cut(x, a->host); break;
    case EK_REPORT_UNPROVEN:
        fprintf(stderr,
                "evenkeel %s: no step was completed with %s, which is excluded for %.0f s\n",
                x->config->command, ek_core_hosts_name(&x->core.hosts, a->host), a->seconds);
        break;
    case EK_REPORT_HOSTS: report_hosts(x); break;
    case EK_REPORT_FIRST_STEP: ek_report_resumption(x); break;
    case EK_REPORT_FAILURE: report_failure(x, a->host, a->seconds); break;
    case EK_REPORT_INCOMPLETE: report_incomplete(x, a->seconds); break;
    case EK_REPORT_LOSS: report_loss(x); break;
    case EK_REPORT_END: report_end(x); break;
    }
}

/* --- the exit --------------------------------------------------------------------------------- */

static ek_status exit_failure(const ek_supervisor *x, ek_core_exit why)
{
    const ek_core *c = &x->core;
    const char *source = x->config->discover != NULL ? "--discover" : x->config->hosts;

    switch (why) {
    case EK_CORE_EXIT_JOB: return EK_OK;
    case EK_CORE_EXIT_LIST: return x->list_status;
    case EK_CORE_EXIT_SLOTS:
        return EK_FAIL(EK_EINVAL,
                       "--ranks %d: the listed hosts have %lld slots; list more hosts, or more "
                       "slots per host (HOST:SLOTS)",
                       c->cfg.ranks, (long long)ek_core_hosts_listed_slots(&c->hosts));
    case EK_CORE_EXIT_UNIT:
        return EK_FAIL(EK_EINVAL, "--ranks %d: --pp, --tp and --etp need a multiple of %d",
                       c->cfg.ranks, c->cfg.unit);
    case EK_CORE_EXIT_NO_HOSTS:
        return EK_FAIL(EK_ECOMM,
                       "the hosts of %s that respond have %lld slots, and at least %d are needed; "
                       "the state may still be in shared memory of hosts that do not respond: the "
                       "same command continues from it when they do",
                       source, (long long)ek_core_hosts_slots(&c->hosts, c->seen), c->cfg.unit);
    case EK_CORE_EXIT_INTERRUPTED: break;
    }
    return EK_FAIL(EK_ECANCELED, "interrupted while no worker was running%s",
                   ek_core_has_state(c)
                       ? "; the state is in shared memory: the same command continues from it"
                       : "");
}

/* What losses and changes of hosts have cost this command: "resumed 3 times (2 losses of hosts):
 * 4.10 s of 2.31 h without a step, 0 completed steps repeated". */
static void report_resumptions(const ek_supervisor *x)
{
    const ek_core_history *h = &x->core.history;
    char lost[32], all[32];

    if (h->resumed == 0)
        return;
    fprintf(
        stderr,
        "evenkeel %s: resumed %lld time%s (%lld loss%s of hosts): %s of %s without a step, %lld "
        "completed step%s repeated\n",
        x->config->command, (long long)h->resumed, h->resumed > 1 ? "s" : "",
        (long long)h->lost_hosts, h->lost_hosts == 1 ? "" : "es",
        ek_time_text(lost, sizeof(lost), h->resumed_s),
        ek_time_text(all, sizeof(all), (double)(x->core.seen - h->began_at) / 1e9),
        (long long)h->repeated, h->repeated == 1 ? "" : "s");
}

int ek_report_exit(ek_supervisor *x, ek_core_exit why)
{
    ek_status st = exit_failure(x, why);

    report_resumptions(x);
    return st < 0 ? ek_command_fail(x->config->command, st) : x->core.status;
}
