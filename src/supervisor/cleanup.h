/* supervisor/cleanup.h - child processes of the supervisor, and the end of all their descendants on
 * this host, whatever ends the supervisor. */
#ifndef SUPERVISOR_CLEANUP_H
#define SUPERVISOR_CLEANUP_H

#include <signal.h>
#include <sys/types.h>

/* Once per launcher: marks children started from now on and starts the guard; stops the guard. */
void ek_cleanup_open(void);
void ek_cleanup_close(void);

/* A stdin for mpiexec that stays open and never has data; -1 on failure.  MPICH's mpiexec forwards
 * EOF of its stdin, and fails (status 255) if the worker has just ended. */
int ek_cleanup_child_stdin(void);

/* In the child, between fork and exec: dies with its parent, is marked, gets a process group of its
 * own and these descriptors as stdin, stdout and stderr; -1: /dev/null. */
void ek_cleanup_child_become(pid_t parent, const sigset_t *mask, int in, int out, int err);

/* Kills all remaining descendants of a child on this host. */
void ek_cleanup_kill(pid_t child);

/* `evenkeel guard`, an internal command (internal_command.h): waits for the end of the supervisor,
 * and then kills what it has left; returns its exit status. */
int ek_cleanup_guard_command(int argc, char **argv);

#endif
