/* Shared by the subcommands: number and text formats. */
#include "cli/cli.h"

#include "base/clock.h"
#include "base/live_line.h"
#include "supervisor/command_job.h"

#include <stdio.h>

const char *cli_shown(cli_text *buf, const char *text)
{
    return ek_printable(buf->s, sizeof(buf->s), text);
}

void cli_show_progress(void *context, const char *what, int64_t done, int64_t all)
{
    int64_t *last = context, now = ek_clock_ns();

    if (now - *last < 100000000)
        return;
    *last = now;
    ek_live_line_show("%s %3.0f %%", what, all > 0 ? 100.0 * (double)done / (double)all : 100.0);
}

void cli_log(void *job_or_null, ek_log_level level, const char *component, const char *message)
{
    const ek_command_job *job = job_or_null;
    char rank[32] = "";

    (void)component;
    if (job != NULL && job->rank > 0)
        snprintf(rank, sizeof(rank), "rank %d: ", job->rank);
    fprintf(ek_command_err(), "%s%s%s: %s\n", ek_live_line_end(), rank, ek_log_level_name(level),
            message);
}
