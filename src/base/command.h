/* base/command.h - what every command of the program shares: exit statuses, messages on stderr,
 * arguments, signals.  For programs: the library itself neither prints nor exits. */
#ifndef BASE_COMMAND_H
#define BASE_COMMAND_H

#include "evenkeel/err.h"

#include "base/options.h"

#include <stdio.h>

/* Exit statuses of the command (README.md). */
enum {
    EK_EXIT_DONE = 0,
    EK_EXIT_FAILED = 1,
    EK_EXIT_USAGE = 2,
    EK_EXIT_BAD_INPUT = 3,
    EK_EXIT_INTERRUPTED = 130
};

int ek_command_status(ek_status st);

/* The stream for messages and progress: stderr, unless another one was set. */
FILE *ek_command_err(void);
void ek_command_set_err(FILE *f);

/* Prints the last failure of this thread as one message on ek_command_err(); returns its exit
 * status. */
int ek_command_fail(const char *command, ek_status st);

/* Parses the arguments of a command.  Returns -1 to continue, else an exit status (--help,
 * errors). */
int ek_command_parse(const ek_option_table *table, int argc, char **argv, ek_options **out);

/* A whole command that is this process alone: parses its arguments, runs it and reports its
 * failure.  Returns its exit status. */
int ek_command_run(const ek_option_table *table, int argc, char **argv,
                   ek_status (*run)(const ek_options *o));

/* Installs `stop` as handler of SIGINT, SIGTERM and SIGHUP; a SIGHUP that is ignored stays ignored
 * (nohup). */
void ek_command_catch(void (*stop)(int sig));

/* Handler for commands that have nothing to save: prints one line and exits with status 130. */
void ek_command_end_at_once(int sig);

/* Makes the next file write after such a signal fail with EK_ECANCELED, so that the writer cleans
 * up.  For commands that only write files. */
void ek_command_stop_writing(void);

/* Whether SIGHUP is ignored. */
int ek_command_ignores_hangup(void);

/* Makes `NAME ... --help` of `help NAME ...`, in place; argv[0] is the program. */
void ek_command_ask_for_help(int argc, char **argv);

#endif
