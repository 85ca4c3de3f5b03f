/* "waiting for ..." messages of the supervisor. */
#include "supervisor/wait_report.h"

#include "base/clock.h"
#include "supervisor/supervisor_priv.h"

#include <stdio.h>

enum { NAMES_MAX = 6 };

/* Prints host n of a list, of which only the first NAMES_MAX are shown. */
static void print_host(const char *host, int n, FILE *f)
{
    if (n < NAMES_MAX)
        fprintf(f, "%s%s", n > 0 ? ", " : "", host);
    else if (n == NAMES_MAX)
        fprintf(f, ", ...");
}

int ek_wait_report_missing(const ek_supervisor *x, int joined, FILE *f)
{
    const ek_host_list *h = x->hosts;
    int first = 0, n = 0;

    for (int i = 0; h != NULL && i < h->n && first < x->job.ranks; i++) {
        int end = first + (int)h->host[i].slots, there = 0;

        for (int r = first; r < end && r < x->job.ranks; r++)
            there += joined ? x->job.workers[r].joined : x->job.workers[r].pid != 0;
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
static int describe_workers(const ek_supervisor *x, FILE *f)
{
    const ek_job_state *t = &x->job;

    if (x->workers_told)
        fprintf(f, "the workers to save and exit (interrupt again to terminate them at once)");
    else if (t->started < t->ranks && t->ready < t->ranks) {
        fprintf(f, "mpiexec to start workers");
        ek_wait_report_missing(x, 0, f);
        fprintf(f, ": %d of %d have started", t->started, t->ranks);
    } else if (t->ready < t->ranks) {
        fprintf(f, "workers");
        ek_wait_report_missing(x, 1, f);
        fprintf(f, " to connect: %d of %d are ready", t->ready, t->ranks);
    } else if (x->config->elastic && x->progress.phase == EK_PHASE_PLAN)
        fprintf(f, "the workers to read the data and plan the recovery");
    else if (x->config->elastic && x->progress.phase == EK_PHASE_TRANSFER)
        fprintf(f, "the workers to restore the state");
    else
        return 0;
    return 1;
}

/* Prints the hosts with a pending probe (asked), or those that do not respond or are suspect;
 * returns their number. */
static int print_members(const ek_membership *m, int asked, FILE *f)
{
    int n = 0;

    for (int i = 0; i < m->n; i++) {
        const ek_member *x = &m->member[i];

        if (asked ? x->subprocess.pid > 0 : x->listed && (x->answer != 0 || x->suspect))
            print_host(x->host.name, n++, f);
    }
    return n;
}

static int describe_reason(const ek_supervisor *x, ek_wait_reason reason, FILE *f)
{
    switch (reason) {
    case EK_WAIT_DISCOVER: fprintf(f, "--discover to name hosts"); return 1;
    case EK_WAIT_ANSWERS: fprintf(f, "a response from "); return print_members(x->members, 1, f);
    case EK_WAIT_CONNECTIVITY: fprintf(f, "a test of the connectivity between hosts"); return 1;
    case EK_WAIT_HOSTS:
        fprintf(f, "a host to continue on; none of these responds: ");
        return print_members(x->members, 0, f);
    default: return describe_workers(x, f);
    }
}

void ek_wait_report(ek_supervisor *x, ek_wait_reason reason)
{
    int64_t now = ek_clock_ns();
    char text[1024] = "";
    FILE *f;
    int any;

    if (now < x->wait.tell_at || (f = fmemopen(text, sizeof(text), "w")) == NULL)
        return;
    any = describe_reason(x, reason, f);
    fclose(f);
    if (!any || !ek_wait_timer_is_due(&x->wait, now))
        return;
    ek_job_output_end_live_line(&x->job_output);
    fprintf(stderr, "evenkeel %s: waiting for %s (%.0f s so far)\n", x->config->command, text,
            (double)(now - x->wait.begin) / 1e9);
}

/* Each phase of a start, and an interrupt, is a separate wait. */
void ek_wait_report_workers(ek_supervisor *x, int64_t now)
{
    int what = x->workers_told ? EK_PHASES : (int)x->progress.phase;

    if (what != x->wait_of) {
        ek_wait_timer_begin(&x->wait, x->config->quiet, now);
        x->wait_of = what;
    }
    ek_wait_report(x, EK_WAIT_WORKERS);
}
