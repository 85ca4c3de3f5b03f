/* base/command_list.h - the commands of evenkeel: help and manual page of the program, and which
 * command an argument names. */
#ifndef BASE_COMMAND_LIST_H
#define BASE_COMMAND_LIST_H

#include <stddef.h>

typedef struct {
    const char *name;
    int (*run)(int argc, char **argv); /* argv[0]: its name; returns an exit status */
    const char *summary;
} ek_command_row;

/* Runs what argv[1] asks for: one of n commands, in which signals end the program at once unless it
 * sees to them; --help or help (of a command: `help NAME`), --help=man, --help=commands for shell
 * completion, --version.  An unknown name is refused with the nearest one.  Returns the exit
 * status.
 */
int ek_command_list_run(const ek_command_row *rows, size_t n, int argc, char **argv);

/* Flushes stdout; a full disk or a closed pipe turns success into EK_EXIT_FAILED. */
int ek_command_flush(int status);

#endif
