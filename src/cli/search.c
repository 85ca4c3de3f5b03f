/* evenkeel search: finds the layout with the shortest step on a described cluster. */
#include "cli/cli.h"
#include "search/command.h"

static ek_status run_search(const ek_options *o)
{
    return ek_search_command(o, stdout);
}

int cli_search(int argc, char **argv)
{
    ek_option rows[EK_SEARCH_OPTIONS];
    ek_option_table table;

    ek_search_table(rows, &table);
    return ek_command_run(&table, argc, argv, run_search);
}
