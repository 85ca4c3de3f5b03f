/* supervisor/cleanup.h - the end of all descendants of the supervisor on this host, whatever ends
 * the supervisor.  Children are started by process.h. */
#ifndef SUPERVISOR_CLEANUP_H
#define SUPERVISOR_CLEANUP_H

#include "supervisor/protocol.h"

#include <sys/types.h>

/* Once per supervisor: marks children started from now on and starts the guard; stops the guard. */
void ek_cleanup_open(void);
void ek_cleanup_close(void);

/* The mark of children (ek_process.mark); NULL: they cannot be marked. */
const char *ek_cleanup_mark(void);

/* Kills all remaining descendants of a child on this host. */
void ek_cleanup_kill(pid_t child);

/* `evenkeel guard`, an internal command (internal_command.h): waits for the end of the supervisor,
 * and then kills what it has left; returns its exit status. */
int ek_cleanup_guard_command(const ek_internal_call *call);

#endif
