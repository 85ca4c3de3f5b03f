/* supervisor/protocol.h - what the supervisor, its workers and its other processes tell each other:
 * the only place that writes and reads it.  Readers reject what the writer cannot have written.
 *
 * supervisor -> worker     environment variables; SIGUSR1: save and exit
 * worker -> supervisor     lines on stderr, the messages below, and words on a connection
 * supervisor -> commands   the arguments of internal commands (internal_command.h)
 * supervisor -> its guard  the mark in the environment of all that it starts
 *
 * Output of mpiexec about a failed job must not hide the message of the worker that failed.  So
 * workers that find EK_LAUNCHED_VARIABLE in their environment start each line on stderr with a byte
 * that gives its type.  Lines without such a byte come from mpiexec or MPI: they are held back,
 * dropped when the job fails for a known reason, and printed otherwise.
 *
 * Pure, but for the functions that take a FILE, or set or get a variable. */
#ifndef SUPERVISOR_PROTOCOL_H
#define SUPERVISOR_PROTOCOL_H

#include "evenkeel/train.h"

#include "base/file.h"
#include "base/random_name.h"
#include "elastic/prealloc.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* --- environment ------------------------------------------------------------------------------ */

/* "RANKS[ live][ elastic=ID[ default][ draining=RANKS][ least=STEP]
 * [ lost=HOSTS after=SECONDS]]", numbers in decimal, ID: 16 hexadecimal digits. */
#define EK_LAUNCHED_VARIABLE "EK_LAUNCHED"
/* "SLOTS:RACK,SLOTS:RACK,...": of each host, in the order in which mpiexec assigns ranks to hosts.
 * RACK: the index of the first host in the same rack. */
#define EK_RACKS_VARIABLE "EK_RACKS"
/* The abstract socket of the supervisor, and the machine on which its name is valid. */
#define EK_WORKER_LINK_NAME    "EK_LAUNCHED_BY"
#define EK_WORKER_LINK_MACHINE "EK_LAUNCHED_ON"
/* Marks a process and its descendants: "ID.PID", ID of the supervisor that has started it, and its
 * own PID. */
#define EK_PROCESS_MARK_VARIABLE "EK_LAUNCH_CHILD"
/* For tests of recovery: names a file with a phase in it, at which rank 0 of a job with --elastic
 * stops itself, so that a test can kill a worker there whatever the speed of the machine. */
#define EK_STOP_AT_VARIABLE "EK_STOP_AT"

typedef struct {
    int ranks;              /* of the job; 0: not started by a supervisor */
    int live;               /* the supervisor's stderr is a terminal */
    int elastic;            /* restarted after losses: as in ek_train_config */
    uint64_t supervisor_id; /* with elastic; else 0 */
    int n_draining;         /* with elastic: draining ranks, the last ones of the job */
    int64_t least_step;     /* with elastic: the job fails if it would continue from an earlier
                               step; 0: it does not */
    int64_t lost_hosts; /* with elastic: losses of hosts since the first step of this command, */
    int64_t host_s;     /* and seconds of all hosts together; at least 1 with lost_hosts */
} ek_launched;

/* Sets the variable for workers started from now on. */
EK_CHECKED ek_status ek_launched_set(const ek_launched *l);
/* Its value, read from text; ranks = 0 if text is NULL or malformed. */
ek_launched ek_launched_read(const char *text);

/* A host and its rack. */
typedef struct {
    int slots; /* at least 1 */
    int rack;  /* index of the first host in the same rack */
} ek_rack_slots;

/* host [n]; n = 0, racks are not known: no variable. */
EK_CHECKED ek_status ek_racks_set(const ek_rack_slots *host, int n);
/* Its value, read from text: *host [*n], to be freed by the caller; NULL and 0 if text is NULL or
 * malformed. */
EK_CHECKED ek_status ek_racks_read(const char *text, ek_rack_slots **host, int *n);

enum { EK_WORKER_LINK_NAME_CAP = 16, EK_WORKER_LINK_MACHINE_CAP = 128 };

/* Where the supervisor listens for its workers (worker_link.h). */
typedef struct {
    char name[EK_WORKER_LINK_NAME_CAP];       /* of the socket; not empty, no blanks */
    char machine[EK_WORKER_LINK_MACHINE_CAP]; /* two words, each of which may be empty */
} ek_worker_link_address;

/* Sets both variables; NULL: removes them.  EK_EINVAL: the address is not valid. */
EK_CHECKED ek_status ek_worker_link_set(const ek_worker_link_address *a);
/* Their values, read from texts; name = "" if one is NULL or malformed. */
ek_worker_link_address ek_worker_link_read(const char *name, const char *machine);

enum { EK_PROCESS_MARK_CAP = 64 };

/* Writes the value of a mark; id: not empty. */
void ek_process_mark_write(const char *id, int64_t pid, char text[EK_PROCESS_MARK_CAP]);
/* Whether text is the mark of this process, or (pid = 0) of any that this supervisor started. */
int ek_process_mark_is(const char *text, const char *id, int64_t pid);

/* --- connection ------------------------------------------------------------------------------- */

/* What a worker sends: its rank or, before a regular exit, EK_WORKER_LINK_EXIT. */
enum { EK_WORKER_LINK_EXIT = -1, EK_WORKER_LINK_BYTES = 4 };

void ek_worker_link_word_write(int word, unsigned char bytes[EK_WORKER_LINK_BYTES]);
/* Returns whether n bytes, as received, are such a word. */
int ek_worker_link_word_read(const unsigned char *bytes, size_t n, int *word);

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
    EK_MESSAGE_LACKING,   /* state in shared memory is incomplete; the job continues from `step`, or
                             fails as that is before the least step (EK_LAUNCHED_VARIABLE) */
    EK_MESSAGE_NO_ROOM,   /* before a failure: the shared memory of a host is too small for the
                             state of its ranks */
    EK_MESSAGE_MEMORY,  /* after a start and after each change of the layout, once run.json has it:
                           what joining hosts preallocate for a rank (elastic/prealloc.h) */
    EK_MESSAGE_NOTICE,  /* the host of a rank will be reclaimed */
    EK_MESSAGE_ALIVE,   /* of every rank: it runs (heartbeats.h) */
    EK_MESSAGE_LEAVING, /* of every rank: it sends no EK_MESSAGE_ALIVE any more, as it exits */
    EK_MESSAGES
} ek_message_kind;

enum {
    EK_MESSAGE_CAP = 768, /* bytes of a line with a message, including newline and NUL */
    EK_MESSAGE_HOST_CAP = 256,
    EK_MESSAGE_PHASE_CAP = 32
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
            int64_t step;
        } lacking;
        struct {
            uint64_t run;                  /* id of the run */
            char blocks[EK_PREALLOC_TEXT]; /* sizes of a rank's state blocks, or
                                              EK_MESSAGE_NO_BLOCKS */
        } memory;
        struct {
            int rank;
        } notice; /* EK_MESSAGE_NOTICE, _ALIVE, _LEAVING, _NO_ROOM */
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

/* Of EK_MESSAGE_MEMORY: nothing can be preallocated. */
#define EK_MESSAGE_NO_BLOCKS "-"

/* --- internal commands ------------------------------------------------------------------------ */

/* Commands that the supervisor runs itself:
 *     reserve RUN SUPERVISOR HOST RANKS BLOCKS OUT   preallocates memory for RANKS ranks
 *     reserve RUN SUPERVISOR                         frees what this supervisor has preallocated
 *     links                                          tests the connections of its job
 *     guard ID                                       cleans up when the supervisor has ended
 * RUN, SUPERVISOR: 16 hexadecimal digits. */
typedef enum {
    EK_INTERNAL_RESERVE,
    EK_INTERNAL_FREE,
    EK_INTERNAL_LINKS,
    EK_INTERNAL_GUARD,
    EK_INTERNAL_KINDS
} ek_internal_kind;

enum {
    EK_INTERNAL_RANKS_MAX = 1 << 16, /* on one host */
    EK_INTERNAL_ARGS_MAX = 7,
    EK_INTERNAL_TEXT_CAP = EK_PREALLOC_TEXT + sizeof(ek_path) + 128
};

typedef struct {
    ek_internal_kind kind;
    uint64_t run, supervisor_id; /* _RESERVE, _FREE */
    /* _RESERVE */
    int host;                      /* its number at the supervisor */
    int64_t ranks;                 /* 1 to EK_INTERNAL_RANKS_MAX */
    char blocks[EK_PREALLOC_TEXT]; /* sizes of a rank's state blocks */
    ek_path out;                   /* of the run, absolute */
    /* _GUARD */
    char id[EK_RANDOM_NAME_CAP]; /* of the supervisor's mark */
} ek_internal_call;

/* An argument list.  Points into itself: not to be copied. */
typedef struct {
    char *argv[EK_INTERNAL_ARGS_MAX + 1]; /* [argc], and NULL */
    int argc;
    size_t bytes; /* of text that are in use */
    char text[EK_INTERNAL_TEXT_CAP];
} ek_internal_args;

/* Whether a word is the name of an internal command. */
int ek_internal_is(const char *name);
/* EK_EINVAL: the call is not valid. */
EK_CHECKED ek_status ek_internal_write(const ek_internal_call *c, ek_internal_args *out);
/* Returns whether the arguments, from the command's name on, are a valid call, else *c is
 * undefined. */
int ek_internal_read(int argc, char *const *argv, ek_internal_call *c);

#endif
