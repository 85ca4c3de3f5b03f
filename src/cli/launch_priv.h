/* cli/launch_priv.h - parts of the launcher: hosts, the command line of mpiexec, what a job says
 * and how it gets on, and what becomes of it. */
#ifndef CLI_LAUNCH_PRIV_H
#define CLI_LAUNCH_PRIV_H

#include "evenkeel/err.h"

#include "cli/launch.h"

#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>
#include <time.h>

/* --- hosts (launch_hosts.c) ------------------------------------------------------------------- */

enum { LAUNCH_HOST_CAP = 256, LAUNCH_RACK_CAP = 64, LAUNCH_PIECES_CAP = 544 };

typedef struct {
    char name[LAUNCH_HOST_CAP];
    char rack[LAUNCH_RACK_CAP]; /* "": not said */
    int64_t slots;
} launch_host;

typedef struct {
    launch_host *host; /* [n] */
    int n;
} launch_hosts;

/* Reads a file of hosts, or such a text, which it changes; EK_ENOENT, EK_EFORMAT name file (or
 * `what`) and line. */
EK_CHECKED ek_status launch_hosts_read(const char *path, launch_hosts *out);
EK_CHECKED ek_status launch_hosts_parse(const char *what, char *text, launch_hosts *out);
void launch_hosts_free(launch_hosts *h);

int64_t launch_hosts_slots(const launch_hosts *h);
/* "a:2,b:1", to be freed. */
EK_CHECKED ek_status launch_hosts_list(const launch_hosts *h, char **list);

/* Which slots are in which racks, for RACKS_VARIABLE (cli/racks.h), to be freed; a host of which
 * none is said is one by itself.  NULL: none is said of any. */
EK_CHECKED ek_status launch_hosts_racks(const launch_hosts *h, char **list);

/* --- arguments (launch_args.c) ---------------------------------------------------------------- */

/* The arguments of mpiexec, NULL at the end; text of its own behind `owned`. */
typedef struct {
    char **argv;
    size_t n, room;
    char *owned[4];
} launch_args;

/* mpiexec: its path; hosts: a list, borrowed, or NULL for this one. */
EK_CHECKED ek_status launch_args_make(const launch *l, const char *mpiexec, int ranks,
                                      const char *hosts, launch_args *out);
void launch_args_free(launch_args *a);

/* --- children (launch_child.c) -----------------------------------------------------------------
 */

/* Of a launcher, once each: from here on its children are marked, and end with it; their end. */
void launch_children_open(void);
void launch_children_close(void);

/* A stdin for mpiexec, which stays open and never has anything; -1: there is none.  MPICH's hands
 * on the end of its stdin, and fails (status 255) where the worker has just ended before that. */
int launch_child_stdin(void);

/* Between fork and exec: ends with its parent, is marked, in a process group of its own, with these
 * as stdin, stdout, stderr; -1: nothing. */
void launch_child_become(pid_t parent, const sigset_t *mask, int in, int out, int err);

/* Kills what a child has started on this host and what is still there of it. */
void launch_child_kill(pid_t child);

/* --- a command beside the job (launch_subprocess.c)
 * ------------------------------------------------
 */

enum {
    LAUNCH_SUBPROCESS_OUT = -1,
    LAUNCH_SUBPROCESS_KILLED = 1000, /* by a signal */
    LAUNCH_SUBPROCESS_LATE,          /* not ended in its time */
    LAUNCH_SUBPROCESS_STUCK          /* an mpiexec whose last launcher has failed */
};

typedef struct {
    pid_t pid;            /* 0: none is under way */
    int64_t begin, limit; /* ek_clock_ns() */
    double took;          /* seconds, once it has ended */
    int out;              /* what it has printed; -1: that is not kept */
    int64_t looked;       /* last */
    int64_t children_at;  /* last looked for its children */
    int stuck;            /* times running that all of these had failed */
} launch_subprocess;

/* Starts a command; keep: what it prints on stdout.  It is killed after so many seconds, of which
 * those do not count in which nobody looked. */
EK_CHECKED ek_status launch_subprocess_begin(launch_subprocess *e, char *const *argv, int keep,
                                             double seconds);
/* Runs this program with other arguments, through mpiexec. */
EK_CHECKED ek_status launch_subprocess_run(launch_subprocess *e, const launch *l,
                                           const char *mpiexec, int ranks, const char *hosts,
                                           char **argv, int argc, double seconds);
/* LAUNCH_SUBPROCESS_OUT while it runs, else its exit status, or what else has ended it, once. */
int launch_subprocess_look(launch_subprocess *e);
/* Children of a process that have failed, which it has not yet seen; others: its other ones. */
int launch_has_failed_children(pid_t pid, int *others);
/* What it has printed, to be freed; NULL: no memory. */
char *launch_subprocess_said(launch_subprocess *e);
/* Kills it if it still runs, and forgets it.  One that is all zeros but out = -1 may be ended. */
void launch_subprocess_end(launch_subprocess *e);

/* --- which hosts reach each other (launch_connectivity.c)
 * ---------------------------------------------
 */

typedef struct {
    const launch *l;
    const char *mpiexec;
    const char **host; /* [n] names */
    int n;
    double start_s;                /* what a start takes; 0: not known */
    int round, whole;              /* 0: all at once, and whether that went well; then pairs */
    int good;                      /* jobs that did */
    unsigned char *cut;            /* [n * n] */
    launch_subprocess *subprocess; /* [n] of the round */
} launch_connectivity;

/* l to start_s are the caller's.  Begins; looks how it gets on; forgets all but those. */
EK_CHECKED ek_status launch_connectivity_begin(launch_connectivity *k);
EK_CHECKED ek_status launch_connectivity_look(launch_connectivity *k, int *known);
void launch_connectivity_end(launch_connectivity *k);
/* Whether two do not reach each other. */
int launch_connectivity_cut(const launch_connectivity *k, int a, int b);
/* Whom to leave out for the rest to reach each other: out [n], and how many.  None where that were
 * more than half, or no two of several reach each other, which must have another cause. */
int launch_connectivity_choose(const launch_connectivity *k, unsigned char *out);
/* Begins one job, which ends with status 0 if all these reach each other. */
EK_CHECKED ek_status launch_connectivity_try(launch_subprocess *e, const launch *l,
                                             const char *mpiexec, double start_s,
                                             const char *const *host, int n);

/* --- hosts that come and go (launch_membership.c)
 * -------------------------------------------------
 */

typedef enum {
    LAUNCH_UNCHANGED,
    LAUNCH_LOST,
    LAUNCH_LEFT_OUT,
    LAUNCH_GIVING,
    LAUNCH_GIVEN_BACK,
    LAUNCH_JOINED
} launch_change;

typedef struct {
    launch_host host;
    int listed;             /* stands on the list as it was last read */
    int used, first;        /* ranks that it has, or had before it gives; the first in the job */
    int stepped;            /* a step was done with it since it takes part */
    int leaving;            /* has said that it is about to go */
    int giving;             /* is in the job under way for nothing but what it has to hand over, */
    int left_before;        /* and had said that it is to go before that job began */
    int given, tries;       /* has done that; in so many jobs */
    int suspect;            /* has to reach those that take part before it does, too */
    int linking;            /* the question under way is that */
    int refusals;           /* how often running it did not */
    int64_t asked;          /* in which round of questions */
    int answer;             /* to the last question: 0: it is there; see launch_subprocess_look() */
    int again;              /* was asked a second time before the first start */
    int losses;             /* how often it was lost soon after it had come */
    int64_t ask_at;         /* when to ask it again; ek_clock_ns() like the others */
    int64_t back_at, since; /* not used before; used since */
    launch_change change;   /* at the last launch_membership_use() */
    launch_subprocess subprocess; /* the question under way, or its getting ready */
    int number;                   /* that no other one has */
    int preparing;                /* it is the latter */
    int prepared;                 /* it has done what it can of that */
    int owes;                     /* it may have memory that the run has not used */
    int gives_back;               /* that, before it is forgotten */
} launch_member;

typedef struct {
    const launch *l;
    const char *mpiexec;
    launch_member *member; /* [n], in the order of the list */
    int n, begun, excused, numbers;
    int decided; /* no notice counts any more */
    int64_t read_at, used_at, round;
    double slowest_s;       /* answer to the questions under way */
    double start_s;         /* until workers were at work, the slowest start yet; the caller's */
    char run[32];           /* numbers of the run and of the launcher, in hexadecimal digits; */
    char supervisor_id[32]; /* and what a rank has of memory; "": not known */
    char pieces[LAUNCH_PIECES_CAP];
    launch_subprocess discover;
    launch_connectivity links; /* of hosts that took part */
    int *linked;               /* [links.n] their numbers here */
} launch_membership;

/* Reads the list of hosts, of l->hosts or l->discover, which takes a while; whether it is known. */
EK_CHECKED ek_status launch_membership_open(launch_membership *m, const launch *l,
                                            const char *mpiexec, uint64_t supervisor_id);
EK_CHECKED ek_status launch_membership_known(launch_membership *m, int *known);
/* What hosts have got ready is given back, for which they have so many seconds. */
void launch_membership_close(launch_membership *m, double seconds);

/* Between jobs: reads the list again and asks all hosts; whether it is known who is there. */
EK_CHECKED ek_status launch_membership_ask(launch_membership *m);
EK_CHECKED ek_status launch_membership_asked(launch_membership *m, int *asked);

/* The same of whether those that took part reach each other, if all of them answer; who does not is
 * left out. */
EK_CHECKED ek_status launch_membership_link(launch_membership *m);
EK_CHECKED ek_status launch_membership_linked(launch_membership *m, int *known);

/* During one, now and then: reads the list, and asks hosts that take no part. */
void launch_membership_poll(launch_membership *m);
/* What ranks have of memory: "RUN PIECES".  Then hosts that could take part and do not yet get
 * theirs ready, while the others go on; returns whether some have begun, and cannot be used before.
 */
void launch_membership_know_memory(launch_membership *m, const char *text);
int launch_membership_prepare(launch_membership *m);
/* A step was done: hosts that take part have done one, and used what they had ready. */
void launch_membership_clear_flags(launch_membership *m);
/* A host is about to go, that of a rank; or all that said so in the job that has ended were wrong.
 */
void launch_membership_notice(launch_membership *m, int rank);
void launch_membership_forget_notices(launch_membership *m);
/* A start has ended and had not done a step: hosts that were new in it are left out for a while,
 * unless all were. */
void launch_membership_doubt(launch_membership *m);
/* The same where a rank has failed by itself, of its host alone if none has done a step with it and
 * some have with others; it is left out for *s seconds.  Its name, or NULL. */
const char *launch_membership_refuse(launch_membership *m, int rank, double *s);
/* Nobody is suspected any more, or about to go: there are no others. */
void launch_membership_trust(launch_membership *m);
/* Whether one that takes part should not. */
int launch_membership_leave(const launch_membership *m);
/* The job is as good as over: what its workers say from here on is no notice. */
void launch_membership_decide(launch_membership *m);
/* Those that were to give have done so. */
void launch_membership_given(launch_membership *m);
/* Whether others may answer in a moment. */
int launch_membership_asking(const launch_membership *m);
/* Slots of all that could take part now; of the list, whoever answers. */
int64_t launch_membership_slots(const launch_membership *m);
int64_t launch_membership_listed_slots(const launch_membership *m);

/* Chooses hosts for so many ranks, at most the slots there are, in the order of the list.  Behind
 * them those that get none any more and have something of the run, each for a rank that gives it to
 * the others: *givers. */
EK_CHECKED ek_status launch_membership_use(launch_membership *m, int64_t ranks, launch_hosts *out,
                                           int *n_draining);
/* Whether that changed anything, and what: "a (silent for 1.5 s), b (mpiexec: status 255) do not
 * answer; c takes part; ". */
int launch_membership_changed(const launch_membership *m);
void launch_membership_report(const launch_membership *m, FILE *f);

/* --- how it gets on (launch_progress.c) --------------------------------------------------------
 */

/* By the words "phase NAME" of rank 0, but the first two: mpiexec starts workers until all have
 * said so; they connect until all are ready; from then on they read data and look at what is left
 * in memory (plan); they fill theirs (transfer); they take steps. */
typedef enum {
    LAUNCH_LAUNCH,
    LAUNCH_CONNECT,
    LAUNCH_PLAN,
    LAUNCH_TRANSFER,
    LAUNCH_STEP,
    LAUNCH_EVALUATE,
    LAUNCH_CHECKPOINT,
    LAUNCH_END,
    LAUNCH_PHASES
} launch_phase;

enum { LAUNCH_STEPS_KEPT = 32 };
enum { LAUNCH_STALL_NS = 500000000 }; /* a launcher that waits looks every 0.1 s at least */

typedef struct {
    double watchdog_s; /* 0: for ever */
    double longest_s[LAUNCH_PHASES], last_s[LAUNCH_STEPS_KEPT];
    int64_t n; /* of steps whose times were taken, in all starts */

    /* of one start */
    launch_phase phase;
    int64_t since, heard; /* the phase has begun; the last word, stalls since then left out */
    int64_t looked;       /* the launcher was not stalled itself */
    int64_t steps;
    double took_s[LAUNCH_PHASES], first_step_s;
} launch_progress;

const char *launch_phase_name(launch_phase phase);
/* now: ek_clock_ns(). */
void launch_progress_begin(launch_progress *p, int64_t now);
void launch_progress_enter(launch_progress *p, launch_phase phase, int64_t now);
/* A name of a phase, or any other word that is a sign of life. */
void launch_progress_word(launch_progress *p, const char *name, int64_t now);
void launch_progress_step(launch_progress *p, int64_t now);
double launch_progress_median_s(const launch_progress *p); /* of a step; 0: none is known */
/* How long the phase may be without a word; 0: for ever.  Whether it has been longer. */
double launch_progress_timeout_s(const launch_progress *p);
int launch_progress_hangs(const launch_progress *p, int64_t now);
/* Each time round: when this one has not run for LAUNCH_STALL_NS or longer, workers on a machine
 * that stood still, or was too busy, have not either, and are given that time. */
void launch_progress_look(launch_progress *p, int64_t now);

/* --- who died first (launch_worker_watch.c)
 * ---------------------------------------------------------- */

typedef struct {
    int fd;      /* readable when there is something to look at; -1: nobody is watched */
    int door;    /* where workers come in */
    int watched; /* how many have */
    int ended;   /* how many of these have ended, in whatever way */
    int first;   /* the rank that ended first without leaving; -1: none, or none that is watched */
    int *connection; /* [n] */
    int n;
} launch_worker_watch;

/* Before mpiexec is started: sets a variable that workers find the launcher by. */
void launch_worker_watch_init(launch_worker_watch *w);
/* Workers that are still there end. */
void launch_worker_watch_fini(launch_worker_watch *w);
void launch_worker_watch_look(launch_worker_watch *w);

/* --- what a job says (launch_job_output.c)
 * ---------------------------------------------------------- */

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
    int reporter;           /* the first's rank, where it has said so */
    int explained;          /* a line of a report was printed */
    int lost;               /* that one fails because it has lost another */
    int terse;              /* mpiexec's report of an end is understood, and not shown */
    int started;            /* workers that have said so */
    int64_t steps;          /* done, by the last word; -1: no word yet */
    int64_t first_step;     /* the first of them, counted from 0 */
    int is_last;            /* none is left to do */
    int recovered, lacking; /* it goes on from memory; it does not, as too little is left there */
    double taken, copied, received; /* bytes of state, when it went on from memory */
    double prealloc;                /* bytes that hosts had made ready before they joined */
    int drawn;                      /* the terminal's line is not ended */
    int noise;                      /* stdout: mpiexec's own from here on */
    int blank;                      /* stdout: empty lines that may belong to it */
    char *held;                     /* lines of mpiexec that wait */
    size_t held_bytes, held_room;
    int64_t held_since; /* ek_clock_ns() of the oldest; 0: none */
    launch_death death;
    int unseen;                 /* mpiexec has not seen how the first worker ended */
    launch_worker_watch *watch; /* or NULL */
    launch_progress *progress;
    launch_membership *members; /* or NULL */
} launch_job_output;

EK_CHECKED ek_status launch_job_output_init(launch_job_output *t, int ranks);
void launch_job_output_fini(launch_job_output *t);
/* A line (without its newline) from the job's stdout or stderr. */
void launch_job_output_stdout(launch_job_output *t, const char *line, size_t n);
void launch_job_output_stderr(launch_job_output *t, const char *line, size_t n);
/* Prints what waits, or forgets it. */
void launch_job_output_release(launch_job_output *t);
void launch_job_output_drop(launch_job_output *t);
/* "rank 2 on node3 (process 123) was killed by signal 9 (Killed)"; 0: nobody knows who died. */
int launch_job_output_death(const launch_job_output *t, char *text, size_t cap);

/* --- the launcher (launch.c) -------------------------------------------------------------------
 */

/* One of the job's streams, cut into lines. */
typedef struct {
    int fd; /* -1: at its end */
    size_t n;
    char *text;
    void (*line)(launch_job_output *t, const char *line, size_t n);
} launch_stream;

typedef struct {
    int64_t begin, tell_at; /* ek_clock_ns() */
} launch_wait;

/* Why a start of workers was ended by the launcher. */
typedef enum {
    LAUNCH_NOT_ENDED,
    LAUNCH_HUNG,     /* no sign of life */
    LAUNCH_NO_WAY,   /* mpiexec could not reach all hosts, and does not say so */
    LAUNCH_REGROUP,  /* more hosts can take part */
    LAUNCH_HAND_OVER /* a host is to be given back: the next start hands over what it has */
} launch_reason;

typedef struct {
    const launch *l;
    const char *mpiexec;
    int ranks;
    int signals;    /* signalfd */
    sigset_t mask;  /* before */
    int interrupts; /* signals that asked for the end */
    time_t begin;
    int64_t steps; /* done when the start before ended */
    int64_t done;  /* the same with --elastic, where earlier commands have done some, too */
    int joined;    /* workers have been there, in whichever start */
    int vain;      /* starts running that were lost and had not done a step */
    int64_t starts;
    launch_membership *members; /* hosts that come and go; NULL: this host, or a list that stays */
    launch_membership members_space;
    launch_progress progress;
    int lock;                  /* of --out, with --elastic */
    int made_out;              /* and this one has made it */
    uint64_t number;           /* this launcher's own, for its workers */
    int64_t seen_at;           /* when it was seen that work stops; ek_clock_ns(); 0: it goes on */
    double seen_epoch;         /* the same, seconds since 1970 */
    double ending_s, asking_s; /* until the last start had ended; then until hosts had answered */
    double giving_s;           /* in between, in starts that handed state over */
    int lacked;                /* in one of these too little was left in memory */
    char why[1024];            /* it has ended */
    launch_wait wait;          /* the one under way, and which it is; -1: another one */
    int wait_of;

    /* of one start */
    int n_draining;    /* ranks beside these, of hosts that are to go: it is for them alone */
    int64_t chosen_at; /* its hosts, ek_clock_ns() */
    const launch_hosts *hosts; /* NULL: this one */
    launch_job_output job_output;
    pid_t child;
    int ended, wait_status;
    launch_stream streams[2]; /* stdout, stderr */
    launch_worker_watch watch;
    int told;    /* the workers know of the interruption, */
    int hurried; /* and have little time, as they are not at work yet */
    int64_t kill_at, drain_until;
    int again; /* another one shall go on */
    launch_reason reason;
    int all_there; /* those that could take part have just shown that they are there: they have done
                      a step, or have memory ready; who is gone by now is found out by the start */
    int resumed;   /* its first step was told of */
    int64_t end_seen;   /* when its end was seen to come; 0: it is not */
    int64_t more_since; /* the step after which more hosts could take part; -1: they cannot */
    int64_t leave_since, leave_at; /* that after which one is to go, and when it was; at 0: none */
    int64_t tended_at;
    int stuck; /* times running that a launcher of mpiexec's had failed and workers were missing */
} launcher;

/* --- what it waits for (launch_wait.c) ----------------------------------------------------------
 */

typedef enum {
    LAUNCH_WAIT_WORKERS,
    LAUNCH_WAIT_DISCOVER,
    LAUNCH_WAIT_ANSWERS, /* of hosts that are asked */
    LAUNCH_WAIT_CONNECTIVITY,
    LAUNCH_WAIT_HOSTS /* to go on with: none has answered */
} launch_wait_reason;

void launch_wait_begin(launch_wait *w, int quiet, int64_t now);
/* Whether it is time to say so, again or for the first time. */
int launch_wait_is_due(launch_wait *w, int64_t now);
/* "waiting for ..., for 2 s now", if that is due. */
void launch_wait_tell(launcher *x, launch_wait_reason reason);
/* The same while a start is under way. */
void launch_wait_for_workers(launcher *x, int64_t now);
/* Hosts of a start of which no worker has started (or joined): " on a, b"; how many. */
int launch_wait_missing(const launcher *x, int joined, FILE *f);

/* Reads the signals that have come. */
void launch_take_signals(launcher *x);

/* --- the end of a start (launch_exit_policy.c)
 * -------------------------------------------------------
 */

/* Says what there is to say, decides whether to go on; the exit status. */
int launch_exit_policy(launcher *x);
/* Whether one of this command with --elastic has gone on from memory, or left something there. */
int launch_left_in_memory(const launcher *x);
/* Steps that a run has done, by the last line of its metrics, if that was written since then. */
int64_t launch_steps_written(const char *out, time_t since);

/* --- what --elastic adds (launch_elastic.c) ----------------------------------------------------
 */

/* Once, before anything is started: takes the lock of --out, reads the hosts. */
EK_CHECKED ek_status launch_elastic_open(launcher *x);
void launch_elastic_close(launcher *x, int status);
/* Before each start: who takes part, and as how many ranks.  EK_ECANCELED: interrupted. */
EK_CHECKED ek_status launch_elastic_choose(launcher *x, launch_hosts *out);
/* While it runs, some times a second. */
void launch_elastic_tick(launcher *x, int64_t now);

#endif
