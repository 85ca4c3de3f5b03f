/* Shared by the subcommands: number and text formats. */
#include "cli/cli.h"

#include "base/clock.h"
#include "base/live_line.h"

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
