/* "waiting for ..." messages of the launcher: after 2 seconds (10 with --quiet), and again each
 * time the wait has become three times as long, at least once a minute. */
#include "base/clock.h"
#include "cli/launch_priv.h"

#include <stdio.h>

enum { NAMES_MAX = 6 };

static const double first_s = 2, first_quiet_s = 10, gap_max_s = 60;

static int64_t in_ns(double s)
{
    return (int64_t)(s * 1e9);
}

void launch_wait_begin(launch_wait *w, int quiet, int64_t now)
{
    w->begin = now;
    w->tell_at = now + in_ns(quiet ? first_quiet_s : first_s);
}

int launch_wait_is_due(launch_wait *w, int64_t now)
{
    int64_t gap = 2 * (now - w->begin);

    if (now < w->tell_at)
        return 0;
    w->tell_at = now + (gap < in_ns(gap_max_s) ? gap : in_ns(gap_max_s));
    return 1;
}

/* Prints host n of a list, of which only the first NAMES_MAX are shown. */
static void print_host(const char *host, int n, FILE *f)
{
    if (n < NAMES_MAX)
        fprintf(f, "%s%s", n > 0 ? ", " : "", host);
    else if (n == NAMES_MAX)
        fprintf(f, ", ...");
}

int launch_wait_missing(const launcher *x, int joined, FILE *f)
{
    const launch_hosts *h = x->hosts;
    int first = 0, n = 0;

    for (int i = 0; h != NULL && i < h->n && first < x->job_output.ranks; i++) {
        int end = first + (int)h->host[i].slots, there = 0;

        for (int r = first; r < end && r < x->job_output.ranks; r++)
            there += joined ? x->job_output.workers[r].joined : x->job_output.workers[r].pid != 0;
        if (there == 0) {
            if (n == 0)
                fprintf(f, " on ");
            print_host(h->host[i].name, n++, f);
        }
        first = end;
    }
    return n;
}

/* Describes what the workers are doing, by phase; returns 0 for phases that workers report
 * themselves. */
static int describe_workers(const launcher *x, FILE *f)
{
    const launch_job_output *t = &x->job_output;

    if (x->workers_told)
        fprintf(f, "the workers to save and exit (interrupt again to terminate them at once)");
    else if (t->started < t->ranks && t->ready < t->ranks) {
        fprintf(f, "mpiexec to start workers");
        launch_wait_missing(x, 0, f);
        fprintf(f, ": %d of %d have started", t->started, t->ranks);
    } else if (t->ready < t->ranks) {
        fprintf(f, "workers");
        launch_wait_missing(x, 1, f);
        fprintf(f, " to connect: %d of %d are ready", t->ready, t->ranks);
    } else if (x->l->elastic && x->progress.phase == LAUNCH_PLAN)
        fprintf(f, "the workers to read the data and plan the recovery");
    else if (x->l->elastic && x->progress.phase == LAUNCH_TRANSFER)
        fprintf(f, "the workers to restore the state");
    else
        return 0;
    return 1;
}

/* Prints the hosts with a pending probe (asked), or those that do not respond or are suspect;
 * returns their number. */
static int print_members(const launch_membership *m, int asked, FILE *f)
{
    int n = 0;

    for (int i = 0; i < m->n; i++) {
        const launch_member *x = &m->member[i];

        if (asked ? x->subprocess.pid > 0 : x->listed && (x->answer != 0 || x->suspect))
            print_host(x->host.name, n++, f);
    }
    return n;
}

static int describe_reason(const launcher *x, launch_wait_reason reason, FILE *f)
{
    switch (reason) {
    case LAUNCH_WAIT_DISCOVER: fprintf(f, "--discover to name hosts"); return 1;
    case LAUNCH_WAIT_ANSWERS:
        fprintf(f, "a response from ");
        return print_members(x->members, 1, f);
    case LAUNCH_WAIT_CONNECTIVITY: fprintf(f, "a test of the connectivity between hosts"); return 1;
    case LAUNCH_WAIT_HOSTS:
        fprintf(f, "a host to continue on; none of these responds: ");
        return print_members(x->members, 0, f);
    default: return describe_workers(x, f);
    }
}

void launch_wait_report(launcher *x, launch_wait_reason reason)
{
    int64_t now = ek_clock_ns();
    char text[1024] = "";
    FILE *f;
    int any;

    if (now < x->wait.tell_at || (f = fmemopen(text, sizeof(text), "w")) == NULL)
        return;
    any = describe_reason(x, reason, f);
    fclose(f);
    if (!any || !launch_wait_is_due(&x->wait, now))
        return;
    if (x->job_output.drawn)
        fputc('\n', stderr);
    x->job_output.drawn = 0;
    fprintf(stderr, "evenkeel %s: waiting for %s (%.0f s so far)\n", x->l->command, text,
            (double)(now - x->wait.begin) / 1e9);
}

/* Each phase of a start, and an interrupt, is a separate wait. */
void launch_wait_for_workers(launcher *x, int64_t now)
{
    int what = x->workers_told ? LAUNCH_PHASES : (int)x->progress.phase;

    if (what != x->wait_of) {
        launch_wait_begin(&x->wait, x->l->quiet, now);
        x->wait_of = what;
    }
    launch_wait_report(x, LAUNCH_WAIT_WORKERS);
}
