/* clang-format off */
/* cli/job.h - the MPI job of a command: none, started by it, or joined.
 *
 *   evenkeel train ...                  a single process
 *   evenkeel train --ranks 4 ...        launcher: runs mpiexec with 4 workers (cli/launch.h)
 *   mpiexec -n 4 evenkeel train ...     joins the job, as do the workers of --ranks
 *
 * Only rank 0 prints progress and results.  A failure is reported by the lowest rank that detects
 * it, which then aborts the job. */
/* clang-format on */
#ifndef CLI_JOB_H
#define CLI_JOB_H

#include "evenkeel/job.h"

#include "cli/cli.h"

typedef struct {
    const char *command;
    ek_comm *world; /* NULL: this process alone */
    int rank, size; /* 0, 1: alone */
    int live;       /* stderr, or the launcher's stderr, is a terminal */
} cli_job;

/* Option rows of commands that can run on several ranks. */
/* clang-format off */
#define CLI_JOB_OPTIONS                                                                            \
    {"ranks", EK_OPTION_INT, NULL, "1, or the slots of --hosts", "processes", "[1,1000000]", 0,    \
     "number of ranks, started through mpiexec; inside an MPI job: must match its size"},          \
    {"hosts", EK_OPTION_TEXT, NULL, NULL, "FILE", NULL, 0,                                         \
     "host file, one host per line: HOST, HOST:SLOTS or HOST slots=SLOTS, optionally followed by " \
     "rack=NAME"},                                                                                 \
    {"mpiexec-args", EK_OPTION_TEXT, NULL, NULL, "\"WORDS\"", NULL, 0,                             \
     "additional arguments for mpiexec, separated by spaces"}
/* clang-format on */

/* As ek_command_catch(), plus SIGUSR1, which a launcher sends.  Call before cli_job_enter(). */
void cli_job_catch(void (*stop)(int sig));

/* Parses the arguments and joins or starts the job.  Returns -1 to continue; else an exit status:
 * of an error, of --help, or of the job that this process launched.  Collective inside a job. */
int cli_job_enter(const ek_option_table *table, int argc, char **argv, ek_options **o,
                  cli_job *job);

/* --threads, or an even share of this host's cores among its ranks.  Collective. */
EK_CHECKED ek_status cli_job_threads(const cli_job *job, const ek_options *o, int *threads);

/* Reports this thread's failure once for the whole job and aborts the job; returns only if there is
 * a single rank, or for EK_ECANCELED, on which all ranks have agreed. */
int cli_job_fail(cli_job *job, ek_status st);

/* The same for an error in the arguments, which all ranks detect: rank 0 reports it, the others
 * wait for it to abort the job. */
int cli_job_fail_arguments(cli_job *job, ek_status st);

/* Flushes output and leaves the job.  Collective. */
void cli_job_leave(cli_job *job);

/* Whether this process is one of several ranks, by its environment. */
int cli_job_shared(void);

/* The id of the --elastic launcher; 0: none. */
uint64_t cli_job_launcher(void);
/* Number of draining ranks, the last ones of the job, which only hand over their state
 * (--elastic). */
int cli_job_draining(void);

/* Sends a message of rank 0 to the --elastic launcher (cli/launch.h); otherwise does nothing. */
void cli_job_report(const cli_job *job, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Rank 0 enters a phase, and tells the same launcher.  When it is the phase in the file that
 * STOP_VARIABLE (cli/launch.h) names, rank 0 stops itself (SIGSTOP). */
void cli_job_enter_phase(const cli_job *job, const char *phase);

#endif
