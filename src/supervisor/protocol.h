/* supervisor/protocol.h - what workers and supervisor tell each other.
 *
 * Output of mpiexec about a failed job must not hide the message of the worker that failed.  So
 * workers that find EK_LAUNCHED_VARIABLE in their environment ("RANKS", then " live", "
 * elastic=ID", " draining=RANKS") start each line on stderr with a byte that gives its type.  Lines
 * without such a byte come from mpiexec or MPI: they are held back, dropped when the job fails for
 * a known reason, and printed otherwise. */
#ifndef SUPERVISOR_PROTOCOL_H
#define SUPERVISOR_PROTOCOL_H

#define EK_LAUNCHED_VARIABLE "EK_LAUNCHED"
/* For tests of recovery: names a file with a phase in it, at which rank 0 of a job with --elastic
 * stops itself, so that a test can kill a worker there whatever the speed of the machine. */
#define EK_STOP_AT_VARIABLE "EK_STOP_AT"

enum { EK_MESSAGE_CAP = 768 }; /* bytes of a message, including the terminating NUL */

/* First byte of a line on a worker's stderr.  Messages to the launcher:
 *
 *   start R pid P host H      as early as possible
 *   rank R pid P host H       MPI is initialised
 *   failed S rank R [lost]    before a failure is printed; S: exit status; lost: caused by the loss
 *                             of another rank
 *
 * and with --elastic:
 *
 *   phase NAME                rank 0 enters a phase (progress.h)
 *   step N of M               rank 0; N steps are completed
 *   recovered TAKEN COPIED RECEIVED PREALLOCATED
 *                             continues from shared memory; bytes over all ranks
 *   lacking                   state in shared memory is incomplete
 *   memory RUN BLOCKS         sizes of a rank's state blocks, to preallocate on joining hosts
 *   notice R                  the host of rank R will be reclaimed */
enum {
    EK_LINE_TEXT = 0x1e,   /* a line to print */
    EK_LINE_PART = 0x1d,   /* text to print without a newline */
    EK_LINE_MESSAGE = 0x1c /* a message to the launcher */
};

#endif
