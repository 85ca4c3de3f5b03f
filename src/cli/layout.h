/* cli/layout.h - `evenkeel train --layout auto` or --layout-pool with --elastic: the command
 * chooses the layout before it starts workers, as it decides how many ranks there are after a loss.
 */
#ifndef CLI_LAYOUT_H
#define CLI_LAYOUT_H

#include "search/for_run.h"

/* A command line, with the options of the chosen layout at its end, where they count. */
typedef struct {
    int argc;
    char **argv, **own; /* own: the new argv; NULL: nothing was chosen */
    ek_run_layout layout;
    int (*stop)(void); /* asked during the search */
} cli_layout;

/* Outside a job, if the options ask for it: chooses among layouts that survive the loss of any
 * host. Returns -1 to continue, else an exit status. */
int cli_layout_choose(cli_layout *x);

#endif
