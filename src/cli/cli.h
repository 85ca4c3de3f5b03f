/* cli/cli.h - shared by the subcommands: exit statuses, error messages, signals, number formats. */
#ifndef CLI_CLI_H
#define CLI_CLI_H

#include "evenkeel/err.h"

#include "base/file.h"
#include "base/options.h"
#include "base/printable.h"

#include <stdio.h>

/* Exit statuses of the command (README.md). */
enum { CLI_DONE = 0, CLI_FAILED = 1, CLI_USAGE = 2, CLI_BAD_INPUT = 3, CLI_INTERRUPTED = 130 };

int cli_exit_status(ek_status st);

/* The stream for messages and progress: stderr, unless another one was set. */
FILE *cli_err(void);
void cli_set_err(FILE *f);

/* Prints the last failure of this thread as one message on cli_err(); returns its exit status. */
int cli_fail(const char *command, ek_status st);

/* Parses the arguments of a command.  Returns -1 to continue, else an exit status (--help,
 * errors). */
int cli_parse(const ek_option_table *table, int argc, char **argv, ek_options **out);

/* Installs `stop` as handler of SIGINT, SIGTERM and SIGHUP; a SIGHUP that is ignored stays ignored
 * (nohup). */
void cli_catch(void (*stop)(int sig));

/* Handler for commands that have nothing to save: prints one line and exits with status 130. */
void cli_end_at_once(int sig);

/* Makes the next file write after such a signal fail with EK_ECANCELED, so that the writer cleans
 * up.  For commands that only write files. */
void cli_stop_writing_on_signals(void);

/* Whether SIGHUP is ignored. */
int cli_ignores_hangup(void);

/* Buffer for a path after cli_shown(). */
typedef struct {
    char s[EK_PRINTABLE_GROWTH * sizeof(ek_path)];
} cli_text;

/* Copies a path, or a name from a file, into buf with control characters escaped; returns buf. */
const char *cli_shown(cli_text *buf, const char *text);

/* "12.3 M", "4.56 G": a count with three significant digits; buf of at least 16 bytes. */
const char *cli_count(char *buf, size_t cap, double n);
/* "1:23:45" or "12:34". */
const char *cli_duration(char *buf, size_t cap, double seconds);

/* The user's cache folder, $XDG_CACHE_HOME/evenkeel or ~/.cache/evenkeel, in *p; NULL: none. */
const char *cli_cache_folder(ek_path *p);

/* The subcommands; argv[0] is the name of the subcommand.  Return an exit status. */
int cli_train(int argc, char **argv);
int cli_eval(int argc, char **argv);
int cli_generate(int argc, char **argv);
int cli_export(int argc, char **argv);
int cli_check(int argc, char **argv);
int cli_clean(int argc, char **argv);
int cli_reserve(int argc, char **argv);
int cli_links(int argc, char **argv);
int cli_guard(int argc, char **argv);
int cli_plan(int argc, char **argv);
int cli_workload(int argc, char **argv);
int cli_bench(int argc, char **argv);
int cli_info(int argc, char **argv);

#endif
