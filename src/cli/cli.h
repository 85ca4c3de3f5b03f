/* cli/cli.h - what the subcommands share: exit statuses, failure messages, number formats. */
#ifndef CLI_CLI_H
#define CLI_CLI_H

#include "evenkeel/err.h"

#include "base/file.h"
#include "base/options.h"
#include "base/printable.h"

#include <stdio.h>

/* Exit statuses of the command (docs and contract). */
enum { CLI_DONE = 0, CLI_FAILED = 1, CLI_USAGE = 2, CLI_BAD_INPUT = 3, CLI_INTERRUPTED = 130 };

int cli_exit_status(ek_status st);

/* Where a command's own messages and progress go: stderr, unless another stream was set. */
FILE *cli_err(void);
void cli_set_err(FILE *f);

/* Prints this thread's failure, one message on stderr, and gives its exit status. */
int cli_fail(const char *command, ek_status st);

/* Reads the arguments of a command.  Returns -1 to go on, else an exit status (--help, errors). */
int cli_parse(const ek_option_table *table, int argc, char **argv, ek_options **out);

/* Lets `stop` be called by the signals that ask a command to end: SIGINT, SIGTERM and SIGHUP (its
 * terminal is gone).  A SIGHUP that was ignored at the start stays so (nohup). */
void cli_catch(void (*stop)(int sig));

/* The `stop` of commands that have nothing to save: one line on stderr, and status 130 at once. */
void cli_end_at_once(int sig);

/* From now on these signals make the next write to a file fail with EK_ECANCELED, so that whoever
 * writes it cleans up.  For commands that write all the time. */
void cli_stop_writing_on_signals(void);

/* Whether SIGHUP is ignored. */
int cli_ignores_hangup(void);

/* Room for a path as cli_shown() gives it. */
typedef struct {
    char s[EK_PRINTABLE_GROWTH * sizeof(ek_path)];
} cli_text;

/* A path or a name from a foreign file, with what a terminal would obey escaped; in buf. */
const char *cli_shown(cli_text *buf, const char *text);

/* "12.3 M", "4.56 G": a count with three digits; buf of at least 16 bytes. */
const char *cli_count(char *buf, size_t cap, double n);
/* "1:23:45" or "12:34". */
const char *cli_duration(char *buf, size_t cap, double seconds);

/* The user's folder for what can be made again, $XDG_CACHE_HOME/evenkeel or ~/.cache/evenkeel, in
 * *p; NULL where there is none. */
const char *cli_cache_folder(ek_path *p);

/* The subcommands; argv[0] is the command's own name. */
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
