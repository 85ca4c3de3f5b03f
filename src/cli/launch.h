/* cli/launch.h - starts the workers of a job through mpiexec and supervises them.
 *
 * The launcher runs mpiexec, forwards the workers' output line by line, and exits with the status
 * of the job.  SIGINT and SIGTERM are forwarded as SIGUSR1, the one signal that both MPICH and Open
 * MPI pass on to the workers without ending the job themselves; a second one kills the job.
 *
 * Output of mpiexec about a failed job must not hide the message of the worker that failed.  So
 * workers that find LAUNCH_VARIABLE in their environment ("RANKS", then " live", " elastic=ID",
 * " draining=RANKS") start each line on stderr with a byte that gives its type.  Lines without such
 * a byte come from mpiexec or MPI: they are held back, dropped when the job fails for a known
 * reason, and printed otherwise. */
#ifndef CLI_LAUNCH_H
#define CLI_LAUNCH_H

#define LAUNCH_VARIABLE "EK_LAUNCHED"
/* For tests of recovery: names a file with a phase in it, at which rank 0 of a job with --elastic
 * stops itself, so that a test can kill a worker there whatever the speed of the machine. */
#define STOP_VARIABLE "EK_STOP_AT"

enum { LAUNCH_MESSAGE_CAP = 768 }; /* bytes of a message, including the terminating NUL */

/* First byte of a line on a worker's stderr.  Messages to the launcher:
 *
 *   start R pid P host H      as early as possible
 *   rank R pid P host H       MPI is initialised
 *   failed S rank R [lost]    before a failure is printed; S: exit status; lost: caused by the loss
 *                             of another rank
 *
 * and with --elastic:
 *
 *   phase NAME                rank 0 enters a phase (launch_progress.c)
 *   step N of M               rank 0; N steps are completed
 *   recovered TAKEN COPIED RECEIVED PREALLOCATED
 *                             continues from shared memory; bytes over all ranks
 *   lacking                   state in shared memory is incomplete
 *   memory RUN BLOCKS         sizes of a rank's state blocks, to preallocate on joining hosts
 *   notice R                  the host of rank R will be reclaimed */
enum {
    LAUNCH_LINE = 0x1e,   /* a line to print */
    LAUNCH_PART = 0x1d,   /* text to print without a newline */
    LAUNCH_MESSAGE = 0x1c /* a message to the launcher */
};

typedef struct {
    const char *command;      /* "train" */
    int ranks;                /* 0: as many as there are slots */
    const char *hosts;        /* host file; NULL: this host */
    const char *discover;     /* command that prints the hosts, instead of a file; or NULL */
    const char *mpiexec_args; /* or NULL */
    const char *out;          /* folder of the run, from which progress is read; or NULL */
    int resume;               /* the run continues an earlier one */
    int elastic;              /* restart after losses, with a multiple of `unit` ranks */
    int unit;
    double watchdog; /* timeout in seconds where no better estimate is known */
    int live;        /* stderr is a terminal */
    int quiet;       /* no progress output */
    int argc;
    char **argv; /* of the command, its name first */
} launch;

/* Runs the job; returns its exit status. */
int cli_launch(const launch *l);

/* In a worker on the launcher's host: connects to the launcher, which detects by the closed
 * connection which worker died first; and announces a regular exit (launch_worker_watch.c). */
void launch_worker_watch_join(int rank);
void launch_worker_watch_leave(void);

#endif
