/* search/command.h - `evenkeel search`: its options, and from them to its answer. */
#ifndef SEARCH_COMMAND_H
#define SEARCH_COMMAND_H

#include "base/options.h"

#include <stdio.h>

enum { EK_SEARCH_OPTIONS = 32 };

/* Fills rows [EK_SEARCH_OPTIONS] and a table that borrows them. */
void ek_search_table(ek_option *rows, ek_option_table *table);

/* Searches as the options of that table say, and writes the answer; errors of writing are left in
 * ferror(out).  Errors as of ek_search_run, and of the files. */
EK_CHECKED ek_status ek_search_command(const ek_options *o, FILE *out);

#endif
