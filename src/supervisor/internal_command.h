/* supervisor/internal_command.h - commands that the supervisor runs itself, through mpiexec or as a
 * process of its own: the program that supervises must serve them. */
#ifndef SUPERVISOR_INTERNAL_COMMAND_H
#define SUPERVISOR_INTERNAL_COMMAND_H

/* Runs argv[1] if it is such a command: returns whether it is, and its exit status.  Call first in
 * main(). */
int ek_internal_command(int argc, char **argv, int *status);

#endif
