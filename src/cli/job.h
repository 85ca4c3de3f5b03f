/* cli/job.h - the job that a command runs in: alone, joined, or started by it.
 *
 *   evenkeel train ...                      alone
 *   evenkeel train --ranks 4 ...            starts mpiexec with itself 4 times, speaks for them,
 * and waits (cli/launch.h) mpiexec -n 4 evenkeel train ...         joins; so do the 4 that --ranks
 * started
 *
 * Of a job, rank 0 alone shows progress and results.  A failure is reported by the lowest rank that
 * finds it, which then ends the others. */
#ifndef CLI_JOB_H
#define CLI_JOB_H

#include "evenkeel/job.h"

#include "cli/cli.h"

typedef struct {
    const char *command;
    ek_comm *world; /* NULL: this process alone */
    int rank, size; /* 0, 1: alone */
    int live;       /* there is a terminal to draw on, here or at the launcher's */
} cli_job;

/* Rows of the option table of a command that can run on several ranks. */
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

/* cli_catch(), and SIGUSR1, which is what a launcher sends.  Before cli_job_enter. */
void cli_job_catch(void (*stop)(int sig));

/* Reads the arguments of such a command and finds its job.  Returns -1 to go on; else an exit
 * status: of a mistake, of --help, or of the job that this process has started. */
int cli_job_enter(const ek_option_table *table, int argc, char **argv, ek_options **o,
                  cli_job *job);

/* --threads, or an even share of this host's cores.  Collective. */
EK_CHECKED ek_status cli_job_threads(const cli_job *job, const ek_options *o, int *threads);

/* Reports this thread's failure once for the whole job, and ends all of it; does not return when
 * there are others.  An interruption (EK_ECANCELED) is an end that all ranks have agreed on. */
int cli_job_fail(cli_job *job, ek_status st);

/* The same for a mistake in the arguments, which all ranks find: rank 0 reports it, and the others
 * give it seconds to end the job. */
int cli_job_fail_arguments(cli_job *job, ek_status st);

/* Leaves the job, all ranks together.  Before it, what was printed is on its way. */
void cli_job_leave(cli_job *job);

/* Whether this process is one of several of a job, by its environment alone. */
int cli_job_shared(void);

/* The number of the launcher that starts workers again (--elastic); 0: there is none. */
uint64_t cli_job_launcher(void);
/* How many of the last ranks are there for nothing but what they have of the run (--elastic). */
int cli_job_draining(void);

/* A word of rank 0's to a launcher that starts workers again (--elastic): how it gets on.  Without
 * such a launcher nothing. */
void cli_job_report(const cli_job *job, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Rank 0 enters a phase, and tells the same launcher.  When it is the phase in the file that
 * STOP_VARIABLE (cli/launch.h) names, rank 0 stops itself (SIGSTOP). */
void cli_job_enter_phase(const cli_job *job, const char *phase);

#endif
