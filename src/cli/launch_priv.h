/* cli/launch_priv.h - parts of the launcher: the command line of mpiexec, and what a job says. */
#ifndef CLI_LAUNCH_PRIV_H
#define CLI_LAUNCH_PRIV_H

#include "evenkeel/err.h"

#include "cli/launch.h"

#include <stddef.h>
#include <stdint.h>

/* --- hosts and arguments (launch_args.c) ------------------------------------------------------ */

typedef struct {
    char *list; /* "a:2,b:1" */
    int64_t slots;
} launch_hosts;

/* Reads a file of hosts; EK_ENOENT, EK_EFORMAT name file and line. */
EK_CHECKED ek_status launch_hosts_read(const char *path, launch_hosts *out);
void launch_hosts_free(launch_hosts *h);

/* The arguments of mpiexec, NULL at the end; text of its own behind `owned`. */
typedef struct {
    char **argv;
    size_t n, room;
    char *owned[4];
} launch_args;

/* mpiexec: its path; hosts: NULL for this one. */
EK_CHECKED ek_status launch_args_make(const launch *l, const char *mpiexec, int ranks,
                                      const char *hosts, launch_args *out);
void launch_args_free(launch_args *a);

/* --- who died first (launch_watch.c) ---------------------------------------------------------- */

typedef struct {
    int fd;      /* readable when there is something to look at; -1: nobody is watched */
    int door;    /* where workers come in */
    int watched; /* how many have */
    int ended;   /* how many of these have ended, in whatever way */
    int first;   /* the rank that ended first without leaving; -1: none, or none that is watched */
} launch_watch;

/* Before mpiexec is started: sets a variable that workers find the launcher by. */
void launch_watch_init(launch_watch *w);
void launch_watch_fini(launch_watch *w);
void launch_watch_look(launch_watch *w);

/* --- what a job says (launch_talk.c) ---------------------------------------------------------- */

typedef struct {
    int pid;
    int joined; /* is ready, and can be told to stop */
    char host[256];
} launch_worker;

/* What mpiexec said of a worker's end. */
typedef struct {
    int rank, pid, code, signal; /* -1: not said */
    char host[256];
} launch_death;

typedef struct {
    int ranks, ready;       /* workers, and those of them that are there */
    launch_worker *workers; /* [ranks] */
    int reported, status;   /* workers that have reported a failure; exit status of the first */
    int lost;               /* that one fails because it has lost another */
    int drawn;              /* the terminal's line is not ended */
    int noise;              /* stdout: mpiexec's own from here on */
    int blank;              /* stdout: empty lines that may belong to it */
    char *held;             /* lines of mpiexec that wait */
    size_t held_bytes, held_room;
    int64_t held_since; /* ek_clock_ns() of the oldest; 0: none */
    launch_death death;
    int unseen;          /* mpiexec has not seen how the first worker ended */
    launch_watch *watch; /* or NULL */
} launch_talk;

EK_CHECKED ek_status launch_talk_init(launch_talk *t, int ranks);
void launch_talk_fini(launch_talk *t);
/* A line (without its newline) from the job's stdout or stderr. */
void launch_talk_stdout(launch_talk *t, const char *line, size_t n);
void launch_talk_stderr(launch_talk *t, const char *line, size_t n);
/* Prints what waits, or forgets it. */
void launch_talk_release(launch_talk *t);
void launch_talk_drop(launch_talk *t);
/* "rank 2 on node3 (process 123) was killed by signal 9 (Killed)"; 0: nobody knows who died. */
int launch_talk_death(const launch_talk *t, char *text, size_t cap);

#endif
