/* "waiting for ..." messages of the supervisor. */
#include "supervisor/wait_report.h"

#include <stdio.h>

enum { NAMES_MAX = 6 };

/* Waits of the supervisor: states of the core before a generation; then phases, behind them; and an
 * interrupt that was forwarded. */
enum { FIRST_PHASE = EK_CORE_STATES, FORWARDED = EK_CORE_STATES + EK_PHASES };

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
    const ek_host_list *h = &x->generation.hosts;
    const ek_core_reported *r = &x->core.reported;
    int first = 0, n = 0;

    for (int i = 0; i < h->n && first < r->n; i++) {
        int end = first + (int)h->host[i].slots, there = 0;

        for (int k = first; k < end && k < r->n; k++)
            there += joined ? (r->worker[k] & EK_WORKER_JOINED) != 0 : r->worker[k] != 0;
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
    const ek_core_reported *r = &x->core.reported;
    ek_phase phase = x->core.progress.phase;

    if (x->core.ending.forwarded)
        fprintf(f, "the workers to save and exit (interrupt again to terminate them at once)");
    else if (r->started < r->n && r->joined < r->n) {
        fprintf(f, "mpiexec to start workers");
        ek_wait_report_missing(x, 0, f);
        fprintf(f, ": %d of %d have started", r->started, r->n);
    } else if (r->joined < r->n) {
        fprintf(f, "workers");
        ek_wait_report_missing(x, 1, f);
        fprintf(f, " to connect: %d of %d are ready", r->joined, r->n);
    } else if (x->core.cfg.elastic && phase == EK_PHASE_PLAN)
        fprintf(f, "the workers to read the data and plan the recovery");
    else if (x->core.cfg.elastic && phase == EK_PHASE_TRANSFER)
        fprintf(f, "the workers to restore the state");
    else
        return 0;
    return 1;
}

/* Prints the hosts with a pending probe (asked), or those that do not respond or are suspect;
 * returns their number. */
static int print_hosts(const ek_core_hosts *h, int asked, FILE *f)
{
    int n = 0;

    for (int i = 0; i < h->n; i++) {
        const ek_core_host *x = &h->host[i];
        int missing = x->listed && (x->health.answer != 0 || x->suspect);

        if (asked ? x->health.task != EK_TASK_NONE : missing)
            print_host(x->host.name, n++, f);
    }
    return n;
}

/* Returns 0 if there is nothing to say. */
static int describe(const ek_supervisor *x, FILE *f)
{
    switch (x->core.state) {
    case EK_CORE_LISTING: fprintf(f, "--discover to name hosts"); return 1;
    case EK_CORE_PROBING: fprintf(f, "a response from "); return print_hosts(&x->core.hosts, 1, f);
    case EK_CORE_LINKING: fprintf(f, "a test of the connectivity between hosts"); return 1;
    case EK_CORE_BACKOFF:
    case EK_CORE_RETRYING:
        fprintf(f, "a host to continue on; none of these responds: ");
        return print_hosts(&x->core.hosts, 0, f);
    case EK_CORE_RUNNING: return describe_workers(x, f);
    default: return 0;
    }
}

/* Each phase of a generation, an interrupt, and finding hosts is a separate wait. */
static int wait_of(const ek_core *c)
{
    if (c->state != EK_CORE_RUNNING)
        return c->state == EK_CORE_LISTING ? EK_CORE_LISTING : EK_CORE_PROBING;
    return c->ending.forwarded ? FORWARDED : FIRST_PHASE + (int)c->progress.phase;
}

void ek_wait_report(ek_supervisor *x, int64_t now)
{
    int what = wait_of(&x->core), any;
    char text[1024] = "";
    FILE *f;

    if (what != x->said.wait_of) {
        ek_wait_timer_begin(&x->said.wait, x->config->quiet, now);
        x->said.wait_of = what;
    }
    if (now < x->said.wait.tell_at || (f = fmemopen(text, sizeof(text), "w")) == NULL)
        return;
    any = describe(x, f);
    fclose(f);
    if (!any || !ek_wait_timer_is_due(&x->said.wait, now))
        return;
    ek_job_output_end_live_line(&x->generation.output);
    fprintf(stderr, "evenkeel %s: waiting for %s (%.0f s so far)\n", x->config->command, text,
            (double)(now - x->said.wait.begin) / 1e9);
}
