/* supervisor/process.h - the one way in which the supervisor starts another process. */
#ifndef SUPERVISOR_PROCESS_H
#define SUPERVISOR_PROCESS_H

#include "evenkeel/err.h"

#include <signal.h>
#include <sys/types.h>

/* In place of a descriptor.  QUIET: a stdin that stays open and never has data; MPICH's mpiexec
 * forwards EOF of its stdin, and fails (status 255) if the worker has just ended. */
enum { EK_PROCESS_NULL = -1, EK_PROCESS_QUIET = -2 };

/* Exit status of a process that could not execute its command. */
enum { EK_PROCESS_NOT_STARTED = 127 };

typedef enum {
    EK_PROCESS_CHILD, /* dies with its parent; in a process group of its own, so that signals of the
                         terminal reach only the parent */
    EK_PROCESS_DETACHED /* outlives its parent, in a session of its own */
} ek_process_kind;

typedef struct {
    const char *path;  /* what is executed, searched in PATH; NULL: argv[0] */
    char *const *argv; /* NULL-terminated */
    ek_process_kind kind;
    int in, out, err;     /* stdin, stdout, stderr: a descriptor, EK_PROCESS_NULL or, in, QUIET */
    const sigset_t *mask; /* of signals; NULL: none is blocked */
    const char *mark;     /* ID in EK_PROCESS_MARK_VARIABLE (protocol.h); NULL: not marked */
    const char *failed;   /* printed on its stderr when the command cannot be executed, with the
                             reason and a newline behind it; NULL: nothing */
} ek_process;

/* EK_EIO: no process could be created.  A command that cannot be executed is not seen here: the
 * process ends with status EK_PROCESS_NOT_STARTED. */
EK_CHECKED ek_status ek_process_start(const ek_process *p, pid_t *pid);

#endif
