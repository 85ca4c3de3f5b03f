/* evenkeel simulate: predicts the step time of a layout on a described cluster. */
#include "train/command/simulate.h"

#include "cli/cli.h"

static ek_status run_simulate(const ek_options *o)
{
    return ek_simulate_command(o, stdout);
}

int cli_simulate(int argc, char **argv)
{
    ek_option rows[EK_SIMULATE_OPTIONS];
    ek_option_table table;

    ek_simulate_table(rows, &table);
    return ek_command_run(&table, argc, argv, run_simulate);
}
