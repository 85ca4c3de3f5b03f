/* Output of a job: lines of workers are printed, those of mpiexec held back. */
#include "supervisor/job_output.h"

#include "base/clock.h"
#include "base/live_line.h"
#include "base/printable.h"
#include "supervisor/mpiexec.h"
#include "supervisor/protocol.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HELD_MAX = 1 << 16, LINE_CAP = 1024 };

ek_status ek_job_output_init(ek_job_output *t, ek_job_state *job)
{
    *t = (ek_job_output){.job = job, .held = malloc(HELD_MAX)};
    EK_REQUIRE(t->held != NULL, EK_ENOMEM, "no memory for the output of a job");
    return EK_OK;
}

void ek_job_output_fini(ek_job_output *t)
{
    free(t->held);
    t->held = NULL;
    ek_job_output_drop(t);
}

/* --- printing --------------------------------------------------------------------------------- */

void ek_job_output_end_live_line(ek_job_output *t)
{
    if (t->drawn)
        fputc('\n', stderr);
    t->drawn = 0;
}

static void print_stderr(ek_job_output *t, const char *text, size_t n)
{
    if (n > 0 && text[0] == '\r') {
        ek_live_line_draw(stderr, text + 1, n - 1);
        t->drawn = 0;
    } else {
        ek_job_output_end_live_line(t);
        fwrite(text, 1, n, stderr);
    }
}

/* --- lines ------------------------------------------------------------------------------------ */

/* Whether internal messages of mpiexec are shown: once all workers are ready, they only concern the
 * end of a worker. */
static int shows_internal(const ek_job_output *t)
{
    return !t->hide_mpiexec_reports && t->job->ready < t->job->ranks;
}

/* Holds back a line of mpiexec, a library or another program, with control characters escaped.
 * own: part of mpiexec's report of a worker's end. */
static void hold_line(ek_job_output *t, const char *line, size_t n, int own)
{
    ek_lost_peer lost;
    ek_mpiexec_line kind;
    char text[LINE_CAP];

    if (n > 0 && line[n - 1] == '\r') /* ssh ends its lines so */
        n--;
    ek_printable_bytes(text, sizeof(text), line, n, "\t");
    ek_mpiexec_read_death(text, &t->job->death);
    if (ek_mpiexec_read_lost_peer(text, &lost)) {
        ek_job_state_lost_peer(t->job, &lost);
        return;
    }
    kind = ek_mpiexec_classify(text);
    if (kind == EK_MPIEXEC_BOILERPLATE || (t->hide_mpiexec_reports && own) ||
        (kind == EK_MPIEXEC_INTERNAL && !shows_internal(t)))
        return;
    if (t->held_bytes + n + 2 > HELD_MAX)
        return;
    t->held_bytes +=
        ek_printable_bytes(t->held + t->held_bytes, HELD_MAX - 1 - t->held_bytes, line, n, "\t");
    t->held[t->held_bytes++] = '\n';
    if (t->held_since == 0)
        t->held_since = ek_clock_ns();
}

void ek_job_output_release(ek_job_output *t)
{
    if (t->held_bytes > 0)
        print_stderr(t, t->held, t->held_bytes);
    ek_job_output_drop(t);
}

void ek_job_output_drop(ek_job_output *t)
{
    t->held_bytes = 0;
    t->held_since = 0;
}

void ek_job_output_stdout(ek_job_output *t, const char *line, size_t n)
{
    if (n == 0 && !t->in_mpiexec_report) {
        t->blank++;
        return;
    }
    t->in_mpiexec_report = t->in_mpiexec_report || ek_mpiexec_begins_report(line, n);
    if (t->in_mpiexec_report || ek_mpiexec_is_ucx_error(line, n)) {
        hold_line(t, line, n, t->in_mpiexec_report);
        return;
    }
    for (; t->blank > 0; t->blank--)
        fputc('\n', stdout);
    fwrite(line, 1, n, stdout);
    fputc('\n', stdout);
    fflush(stdout);
}

/* Prints a line of a worker.  Only the first failure report is shown: a second worker may have
 * begun its own before the first one ended the job, even before a line of the first has arrived. */
static void print_worker_line(ek_job_output *t, const char *text, size_t n, int part)
{
    if (t->job->reported > 1 && t->explained)
        return;
    t->explained |= t->job->reported > 0 && n > 0 && !part;
    if (t->drawn && n == 0) { /* terminates the live line */
        fputc('\n', stderr);
        t->drawn = 0;
        return;
    }
    print_stderr(t, text, n);
    if (part)
        t->drawn = 1;
    else
        fputc('\n', stderr);
}

void ek_job_output_stderr(ek_job_output *t, const char *line, size_t n)
{
    ek_worker_message m;
    const char *text;
    size_t bytes;

    switch (ek_line_read(line, n, &text, &bytes)) {
    case EK_LINE_MESSAGE:
        if (ek_message_read(text, bytes, &m))
            ek_job_state_handle(t->job, &m);
        return;
    case EK_LINE_TEXT: print_worker_line(t, text, bytes, 0); return;
    case EK_LINE_PART: print_worker_line(t, text, bytes, 1); return;
    default: hold_line(t, line, n, 0); return;
    }
}
