/* supervisor/generation.h - one start of workers as the operating system sees it: mpiexec as a
 * child process, its output, the connections of workers. */
#ifndef SUPERVISOR_GENERATION_H
#define SUPERVISOR_GENERATION_H

#include "evenkeel/err.h"

#include "supervisor/host_list.h"
#include "supervisor/job_output.h"
#include "supervisor/protocol.h"
#include "supervisor/worker_watch.h"

#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* stdout or stderr of the job, split into lines. */
typedef struct {
    int fd; /* -1: end of file */
    size_t n;
    char *text;
    void (*line)(ek_job_output *t, const char *line, size_t n);
} ek_output_stream;

typedef struct {
    pid_t child;                /* mpiexec; 0: no generation runs */
    int ended, wait_status;     /* it has ended; as of waitpid() */
    int64_t drain_until;        /* then its output is read no longer, ek_clock_ns() */
    ek_output_stream stream[2]; /* stdout, stderr */
    ek_job_state job;
    ek_job_output output;
    ek_worker_watch watch;
    ek_host_list hosts; /* of its ranks, in their order; n = 0: this host */
    int open;           /* watch is in use */
} ek_generation;

/* Once: memory for the output. */
EK_CHECKED ek_status ek_generation_init(ek_generation *g);
void ek_generation_fini(ek_generation *g);

/* Starts mpiexec with argv; mask: signal mask of its process.  on_message: see job_state.h.  hosts
 * is taken over, also on failure.  After a failure ek_generation_close() is called, too. */
EK_CHECKED ek_status ek_generation_start(ek_generation *g, const char *command,
                                         const ek_launched *launched, char **argv,
                                         const sigset_t *mask, ek_host_list *hosts,
                                         ek_message_listener on_message);
/* Kills mpiexec if it still runs, and frees what belongs to this generation. */
void ek_generation_close(ek_generation *g);

void ek_generation_signal(ek_generation *g, int sig);
/* After SIGCHLD: whether mpiexec has just ended; the caller then sets drain_until. */
int ek_generation_has_ended(ek_generation *g);
/* Whether mpiexec and its output have ended. */
int ek_generation_is_over(const ek_generation *g, int64_t now);
/* Reads what has come on a stream (0: stdout, 1: stderr) and passes on complete lines; flush: what
 * is left of both. */
void ek_generation_read(ek_generation *g, int stream);
void ek_generation_flush(ek_generation *g);

#endif
