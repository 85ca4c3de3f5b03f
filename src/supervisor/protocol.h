/* supervisor/protocol.h - what workers and supervisor tell each other: the only place that writes
 * and reads it.
 *
 * supervisor -> worker   the environment variable EK_LAUNCHED_VARIABLE; SIGUSR1: save and exit
 * worker -> supervisor   lines on stderr, and the messages below
 *
 * Output of mpiexec about a failed job must not hide the message of the worker that failed.  So
 * workers that find the variable in their environment start each line on stderr with a byte that
 * gives its type.  Lines without such a byte come from mpiexec or MPI: they are held back, dropped
 * when the job fails for a known reason, and printed otherwise.
 *
 * Pure, but for the functions that take a FILE or set a variable. */
#ifndef SUPERVISOR_PROTOCOL_H
#define SUPERVISOR_PROTOCOL_H

#include "evenkeel/err.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* --- environment ------------------------------------------------------------------------------ */

/* "RANKS[ live][ elastic=ID][ draining=RANKS]", numbers in decimal, ID in hexadecimal. */
#define EK_LAUNCHED_VARIABLE "EK_LAUNCHED"
/* For tests of recovery: names a file with a phase in it, at which rank 0 of a job with --elastic
 * stops itself, so that a test can kill a worker there whatever the speed of the machine. */
#define EK_STOP_AT_VARIABLE "EK_STOP_AT"

typedef struct {
    int ranks;              /* of the job; 0: not started by a supervisor */
    int live;               /* the supervisor's stderr is a terminal */
    int elastic;            /* restarted after losses */
    uint64_t supervisor_id; /* with elastic; else 0 */
    int n_draining;         /* draining ranks, the last ones of the job */
} ek_launched;

/* Sets the variable for workers started from now on. */
EK_CHECKED ek_status ek_launched_set(const ek_launched *l);
/* Its value, read from text; ranks = 0 if text is NULL or malformed. */
ek_launched ek_launched_read(const char *text);

/* --- lines ------------------------------------------------------------------------------------ */

typedef enum {
    EK_LINE_FOREIGN, /* of mpiexec, MPI or a library */
    EK_LINE_TEXT,    /* a line to print */
    EK_LINE_PART,    /* text to print without a newline */
    EK_LINE_MESSAGE, /* a message to the supervisor */
    EK_LINE_KINDS
} ek_line_kind;

/* Kind of a line of n bytes, without its newline; *text, *bytes: without its first byte if that
 * gives the type. */
ek_line_kind ek_line_read(const char *line, size_t n, const char **text, size_t *bytes);
/* Writes a line of a worker, with its newline, to out [cap]; text that is too long is cut.  Text
 * that ek_message_write() has made stays a message, whatever the kind.  Returns the bytes
 * written. */
size_t ek_line_write(ek_line_kind kind, const char *text, size_t n, char *out, size_t cap);

/* --- messages --------------------------------------------------------------------------------- */

typedef enum {
    EK_MESSAGE_START,  /* a worker runs: as early as possible, as it may be killed while it joins */
    EK_MESSAGE_JOINED, /* MPI is initialised; host: as known to MPI */
    EK_MESSAGE_FAILED, /* before a failure is printed */
    EK_MESSAGE_PHASE,  /* the rest: with --elastic.  Rank 0 enters a phase (progress.h) */
    EK_MESSAGE_STEP,   /* rank 0: `done` steps of `total` are completed */
    EK_MESSAGE_RECOVERED, /* continues from shared memory; bytes over all ranks */
    EK_MESSAGE_LACKING,   /* state in shared memory is incomplete */
    EK_MESSAGE_MEMORY,    /* what joining hosts preallocate for a rank (elastic/prealloc.h) */
    EK_MESSAGE_NOTICE,    /* the host of a rank will be reclaimed */
    EK_MESSAGES
} ek_message_kind;

enum {
    EK_MESSAGE_CAP = 768, /* bytes of a line with a message, including newline and NUL */
    EK_MESSAGE_HOST_CAP = 256,
    EK_MESSAGE_PHASE_CAP = 32,
    EK_MESSAGE_RUN_CAP = 32,
    EK_MESSAGE_BLOCKS_CAP = 544
};

/* Numbers are not negative; texts are not empty, and are UTF-8 without blanks and
 * control characters. */
typedef struct {
    ek_message_kind kind;
    union {
        struct {
            int rank, pid;
            char host[EK_MESSAGE_HOST_CAP];
        } worker; /* EK_MESSAGE_START, _JOINED */
        struct {
            int status; /* exit status of the job */
            int rank;
            int lost; /* 1: caused by the loss of another rank */
        } failed;
        struct {
            char name[EK_MESSAGE_PHASE_CAP];
        } phase;
        struct {
            int64_t done, total;
        } step;
        struct {
            int64_t taken, copied, received; /* state of ranks, by its way to them */
            int64_t prealloc;                /* preallocated by hosts before they joined */
        } recovered;
        struct {
            char run[EK_MESSAGE_RUN_CAP];       /* id of the run, hexadecimal */
            char blocks[EK_MESSAGE_BLOCKS_CAP]; /* sizes of a rank's state blocks */
        } memory;
        struct {
            int rank;
        } notice;
    };
} ek_worker_message;

/* Writes the line of a message, with its type byte and newline, to line [EK_MESSAGE_CAP]; returns
 * its bytes, 0 (and an empty line) if the message is not valid. */
size_t ek_message_write(const ek_worker_message *m, char *line);
/* The same to f, which is flushed; a message that is not valid is not sent. */
void ek_message_send(const ek_worker_message *m, FILE *f);
/* Reads the text of a line of kind EK_LINE_MESSAGE; returns whether it is a valid message, else *m
 * is undefined. */
int ek_message_read(const char *text, size_t n, ek_worker_message *m);

#endif
