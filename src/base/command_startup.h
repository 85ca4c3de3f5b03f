/* base/command_startup.h - what a command settles before main() goes on.  Stack sizes and OpenMP
 * settings are read when a process starts: to change them the program executes itself again, with
 * the same arguments, argv[0] included. */
#ifndef BASE_COMMAND_STARTUP_H
#define BASE_COMMAND_STARTUP_H

/* Raises a soft stack limit that is too small, for the main thread and the default of others.
 * Returns false, after a message, if the hard limit is too small. */
int ek_command_ensure_stack(char **argv);

/* Idle OpenMP threads spin for milliseconds by default, which on shared cores costs far more than
 * the wake-up it saves; where several ranks share the cores (has_peers), any spinning slows the
 * others.  Sets how long they spin, before MPI is loaded and with the environment of the MPI
 * launcher.  Settings of the user are kept; the value for a single process is replaced, as it may
 * be inherited from our own launcher. */
void ek_command_set_openmp(char **argv, int has_peers);

#endif
