/* train/command/simulate.h - `evenkeel simulate`: from its options to its report. */
#ifndef TRAIN_COMMAND_SIMULATE_H
#define TRAIN_COMMAND_SIMULATE_H

#include "base/options.h"

#include <stdio.h>

enum { EK_SIMULATE_OPTIONS = 48 };

/* Fills rows [EK_SIMULATE_OPTIONS] and a table that borrows them. */
void ek_simulate_table(ek_option *rows, ek_option_table *table);

/* Simulates as the options of that table say, and writes the report; errors of writing are left in
 * ferror(out).  Errors as of ek_simulate_and_report, and of the files. */
EK_CHECKED ek_status ek_simulate_command(const ek_options *o, FILE *out);

#endif
