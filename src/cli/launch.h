/* cli/launch.h - starts the workers of a job through mpiexec, and speaks for them.
 *
 * The launcher runs mpiexec, passes on what workers print, line by line, and ends with the status
 * of the job.  SIGINT and SIGTERM become SIGUSR1 for the workers, the one signal that both MPICH
 * and Open MPI hand on without ending the job themselves; a second one ends it at once.
 *
 * So that what mpiexec has to say about a failed job does not bury what the failed worker said,
 * workers that see LAUNCH_VARIABLE ("RANKS", then " live", " elastic=NUMBER", " givers=RANKS")
 * begin each line on stderr with a byte that says what it is.  Other lines come from mpiexec and
 * MPI.  They wait a while, are dropped when the job fails and the reason is known, and are printed
 * otherwise. */
#ifndef CLI_LAUNCH_H
#define CLI_LAUNCH_H

#define LAUNCH_VARIABLE "EK_LAUNCHED"
/* For tests of recovery: names a file with a phase in it, at which rank 0 of a job with --elastic
 * stops itself, so that a test can kill a worker there whatever the speed of the machine. */
#define STOP_VARIABLE "EK_STOP_AT"

enum { LAUNCH_NOTE_CAP = 768 }; /* bytes of a note, its end included */

enum {
    LAUNCH_LINE = 0x1e, /* a line to print */
    LAUNCH_PART = 0x1d, /* a text to print without the newline */
    LAUNCH_NOTE = 0x1c  /* for the launcher: "start R pid P host H" at once, "rank R pid P host H"
                           when it is ready, "failed S rank R" before the report of a failure, S
                           the exit status, "failed S rank R lost" where it is one of another
                           rank's; of a job with --elastic also "phase NAME" and "step N of M" (of
                           rank 0; steps done), "recovered TAKEN COPIED RECEIVED SPARE" (it goes on
                           from memory; bytes, of all ranks), "lacking" (it does not, as too little
                           is there), "memory RUN PIECES" (what a host that joins can make ready),
                           and "notice R": the host of rank R is about to go */
};

typedef struct {
    const char *command;      /* "train" */
    int ranks;                /* 0: as many as there are slots */
    const char *hosts;        /* file; NULL: this host */
    const char *discover;     /* command that prints the hosts, instead; or NULL */
    const char *mpiexec_args; /* or NULL */
    const char *out;          /* folder of the run, to say how far it came; or NULL */
    int resume;               /* the run goes on with an earlier one */
    int elastic;              /* when workers are lost, others are started and go on; */
    int unit;                 /* then in multiples of so many ranks */
    double watchdog;          /* seconds without a sign of life, where nothing better is known */
    int live;                 /* standard error is a terminal to draw on */
    int quiet;                /* no progress is shown */
    int argc;
    char **argv; /* of the command, its name first */
} launch;

/* Runs the job; returns its exit status. */
int cli_launch(const launch *l);

/* A worker's words to a launcher on its own host, which so learns who dies first: at its start, and
 * when it leaves in good order (launch_worker_watch.c). */
void launch_worker_watch_join(int rank);
void launch_worker_watch_leave(void);

#endif
