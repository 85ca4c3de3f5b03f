/* cli/cli.h - shared by the subcommands: number and text formats; their entries. */
#ifndef CLI_CLI_H
#define CLI_CLI_H

#include "base/command.h"
#include "base/file.h"
#include "base/log.h"
#include "base/printable.h"

/* Buffer for a path after cli_shown(). */
typedef struct {
    char s[EK_PRINTABLE_GROWTH * sizeof(ek_path)];
} cli_text;

/* Copies a path, or a name from a file, into buf with control characters escaped; returns buf. */
const char *cli_shown(cli_text *buf, const char *text);

/* A progress function of evenkeel/lm.h: redraws "WHAT 37 %" on standard error, ten times a second
 * at most. context: int64_t, ek_clock_ns() at the start. */
void cli_show_progress(void *context, const char *what, int64_t done, int64_t all);

/* An ek_log_sink: on stderr, of ranks above 0 with the rank.  The context is an ek_command_job, or
 * NULL. */
void cli_log(void *job_or_null, ek_log_level level, const char *component, const char *message);

/* The user's cache folder, $XDG_CACHE_HOME/evenkeel or ~/.cache/evenkeel, in *p; NULL: none. */
const char *cli_cache_folder(ek_path *p);

/* The subcommands; argv[0] is the name of the subcommand.  Return an exit status. */
int cli_train(int argc, char **argv);
int cli_eval(int argc, char **argv);
int cli_generate(int argc, char **argv);
int cli_export(int argc, char **argv);
int cli_check(int argc, char **argv);
int cli_clean(int argc, char **argv);
int cli_plan(int argc, char **argv);
int cli_simulate(int argc, char **argv);
int cli_search(int argc, char **argv);
int cli_workload(int argc, char **argv);
int cli_fit(int argc, char **argv);
int cli_bench(int argc, char **argv);
int cli_info(int argc, char **argv);

#endif
