/* End of a start of workers: reports the reason and decides whether to restart. */
#include "supervisor/exit_policy.h"

#include "base/command.h"
#include "base/file.h"
#include "store/checkpoint.h"
#include "supervisor/supervisor_priv.h"
#include "supervisor/wait_report.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

enum { FAILED_STARTS_MAX = 4 }; /* consecutive starts that may be lost without a completed step */

int64_t ek_supervisor_steps_written(const char *out, time_t since)
{
    ek_path path;
    ek_file_map m;
    struct stat s;
    const char *text, *line;
    size_t n;
    json_t *last;
    int64_t done = 0;

    if (ek_path_set(&path, "%s/metrics.jsonl", out) < 0 || stat(path.s, &s) != 0 ||
        s.st_mtim.tv_sec < since || ek_file_map_open(path.s, &m) < 0)
        return 0;
    text = m.data;
    for (n = m.bytes; n > 0 && text[n - 1] != '\n';) /* an incomplete line */
        n--;
    line = n > 0 ? memrchr(text, '\n', n - 1) : NULL;
    line = line != NULL ? line + 1 : text;
    last = json_loadb(line, (size_t)(text + n - line), 0, NULL);
    if (json_is_integer(json_object_get(last, "step")))
        done = (int64_t)json_integer_value(json_object_get(last, "step")) + 1;
    json_decref(last);
    ek_file_map_close(&m);
    return done;
}

/* Steps completed, if this command has completed any; else 0. */
static int64_t steps_done(const ek_supervisor *x)
{
    return ek_supervisor_steps_written(x->config->out, x->begin - 1);
}

int ek_supervisor_has_state_in_memory(const ek_supervisor *x)
{
    return x->job.recovered || steps_done(x) > 0;
}

/* Updates the number of completed steps, which decreases if the run went back to an earlier
 * state. */
static void record_steps_done(ek_supervisor *x)
{
    int64_t written = steps_done(x), said = x->resumed ? x->job.steps : x->done;

    x->done = written > said ? written : said;
}

/* Counts a worker as started once it connects, even if it is killed before its "start" message
 * arrives through mpiexec, or once mpiexec reports its death by a signal. */
static int any_worker_started(const ek_supervisor *x)
{
    return x->job.death.signal > 0 || x->job.started > 0 || x->watch.watched > 0 ||
           x->watch.ended > 0;
}

/* Whether to restart: only if workers have ever started, and at most FAILED_STARTS_MAX times in a
 * row without a completed step. */
static int may_restart(ek_supervisor *x)
{
    int64_t done = steps_done(x);

    x->failed_starts = done > x->steps ? 0 : x->failed_starts + 1;
    x->steps = done; /* decreases after a restart from a checkpoint */
    return x->config->elastic && x->joined && x->interrupts == 0 &&
           x->failed_starts <= FAILED_STARTS_MAX;
}

/* Second half of the message about a lost start: steps completed and how to continue. */
static void describe_progress(const ek_supervisor *x, FILE *f)
{
    int64_t done = steps_done(x);
    ek_checkpoint_found found;

    if (done > 0)
        fprintf(f, " after step %lld", (long long)done);
    else
        fprintf(f, " before a step was completed");
    if (x->restart)
        fprintf(f, "; continuing from memory");
    else if (x->config->elastic && x->interrupts > 0 && ek_supervisor_has_state_in_memory(x))
        fprintf(f, "; the state is in shared memory: the same command continues from it");
    else if (x->config->elastic && x->failed_starts > FAILED_STARTS_MAX)
        fprintf(f,
                "; giving up after %d consecutive starts that did not complete a step; the state "
                "may still be in shared memory: the same command continues from it",
                x->failed_starts);
    else if ((done > 0 || x->config->resume) &&
             ek_checkpoint_latest(x->config->out, EK_CHECK_SIZES, &found) == EK_OK)
        fprintf(f, "; the checkpoint %s is complete, continue from it with --resume", found.path.s);
    else
        fprintf(f, "; there is no checkpoint yet, start over");
}

/* Whether the first reported failure may concern that rank's host only, while it holds no state of
 * the run yet. */
static int is_of_one_host(const ek_supervisor *x)
{
    return x->members != NULL && x->n_draining == 0 && x->interrupts == 0 && !x->job.lost &&
           x->job.reporter > 0 && x->progress.phase <= EK_PHASE_PLAN;
}

/* A worker has reported a failure: restarts without its host, or if it only lost another rank. */
static int decide_after_report(ek_supervisor *x)
{
    ek_job_state *t = &x->job;
    const char *left_out = NULL;
    double s = 0;

    ek_job_output_drop(&x->job_output);
    if (is_of_one_host(x))
        left_out = ek_membership_exclude(x->members, t->reporter, &s);
    x->restart = left_out != NULL || (t->lost && may_restart(x));
    snprintf(x->end_reason, sizeof(x->end_reason), "%s",
             left_out != NULL ? "a host that had joined could not take part"
                              : "a rank lost its connection to another");
    if (x->restart && left_out != NULL)
        fprintf(stderr, "evenkeel %s: continuing from memory; %s is excluded for %.0f s\n",
                x->config->command, left_out, s);
    else if (x->restart)
        fprintf(stderr, "evenkeel %s: continuing from memory\n", x->config->command);
    return t->status;
}

/* First half of the message: "rank 1 on b (process 7) was killed ...", or what else ended the
 * start. */
static void describe_end(ek_supervisor *x, int code, FILE *f)
{
    ek_job_state *t = &x->job;
    char who[512];

    if (x->interrupts > 0) {
        fprintf(f, "interrupted, terminated without saving");
    } else if (x->reason == EK_END_HUNG) {
        fprintf(f, "no progress for %.1f s (%s", ek_job_progress_timeout_s(&x->progress),
                ek_phase_name(x->progress.phase));
        if (t->ready < t->ranks)
            ek_wait_report_missing(x, t->started == t->ranks, f);
        fprintf(f, "), terminated");
    } else if (x->reason == EK_END_UNREACHABLE) {
        fprintf(f, "mpiexec could not start workers on all hosts");
    } else if (ek_job_state_death(t, who, sizeof(who))) {
        if (t->death.signal <= 0)
            ek_job_output_release(&x->job_output); /* may contain the reason */
        fprintf(f, "%s", who);
    } else {
        ek_job_output_release(&x->job_output);
        fprintf(f, "mpiexec terminated (%s %d) without an error report from a worker",
                code >= 0 ? "status" : "signal", code >= 0 ? code : WTERMSIG(x->wait_status));
    }
}

/* The start was lost without a report of a worker: prints one line, restarts if allowed. */
static int decide_after_loss(ek_supervisor *x, int code)
{
    FILE *f = fmemopen(x->end_reason, sizeof(x->end_reason), "w");

    x->restart = may_restart(x);
    if (f != NULL) {
        describe_end(x, code, f);
        fclose(f);
    }
    fprintf(stderr, "evenkeel %s: %s", x->config->command, x->end_reason);
    if (x->config->out != NULL)
        describe_progress(x, stderr);
    fputc('\n', stderr);
    return x->interrupts > 0 ? EK_EXIT_INTERRUPTED : EK_EXIT_FAILED;
}

/* The start was for draining hosts only, and has succeeded. */
static int is_drain_done(const ek_supervisor *x, int code)
{
    return x->n_draining > 0 && code == EK_EXIT_DONE;
}

int ek_exit_policy(ek_supervisor *x)
{
    int code = WIFEXITED(x->wait_status) ? WEXITSTATUS(x->wait_status) : -1;
    ek_job_state *t = &x->job;

    x->joined |= any_worker_started(x);
    if (x->config->elastic)
        record_steps_done(x);
    if (x->members != NULL && x->reason != EK_END_HAND_OVER && !is_drain_done(x, code)) {
        ek_membership_forget_notices(x->members); /* Open MPI sends SIGTERM when a rank dies */
        if (t->steps < 0 && (!t->reported || t->lost))
            ek_membership_suspect_new(x->members);
    }
    if (t->reported)
        return decide_after_report(x);
    t->death_unseen = t->death_unseen || code >= 0;
    if (code == EK_EXIT_DONE) {
        ek_job_output_release(&x->job_output);
        if (is_drain_done(x, code)) {
            ek_membership_drained(x->members);
            x->drain_incomplete |= t->state_incomplete;
            x->restart = 1;
        }
        return EK_EXIT_DONE;
    }
    ek_job_output_end_live_line(&x->job_output);
    if ((x->reason == EK_END_REGROUP || x->reason == EK_END_HAND_OVER) && x->interrupts == 0) {
        x->restart = 1; /* the interrupted step has not changed any state */
        x->skip_probe = x->reason == EK_END_REGROUP;
        x->failed_starts = x->skip_probe ? 0 : x->failed_starts; /* a step was completed */
        snprintf(x->end_reason, sizeof(x->end_reason), "%s",
                 x->reason == EK_END_REGROUP ? "more hosts can take part" : "a host is released");
        return EK_EXIT_FAILED;
    }
    return decide_after_loss(x, code);
}
