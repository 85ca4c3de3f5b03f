/* cli/launch_priv.h - internals of the launcher: host lists, mpiexec command line, job output,
 * progress and timeouts, exit policy, membership. */
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

/* --- host lists (launch_hosts.c) -------------------------------------------------------------- */

enum { LAUNCH_HOST_CAP = 256, LAUNCH_RACK_CAP = 64, LAUNCH_BLOCKS_CAP = 544 };

typedef struct {
    char name[LAUNCH_HOST_CAP];
    char rack[LAUNCH_RACK_CAP]; /* "": not given */
    int64_t slots;
} launch_host;

typedef struct {
    launch_host *host; /* [n] */
    int n;
} launch_hosts;

/* Parses a host file, or text in its format, which is modified.  EK_ENOENT, EK_EFORMAT: the message
 * names the file (or `what`) and the line. */
EK_CHECKED ek_status launch_hosts_read(const char *path, launch_hosts *out);
EK_CHECKED ek_status launch_hosts_parse(const char *what, char *text, launch_hosts *out);
void launch_hosts_free(launch_hosts *h);

int64_t launch_hosts_slots(const launch_hosts *h);
/* "a:2,b:1", to be freed by the caller. */
EK_CHECKED ek_status launch_hosts_list(const launch_hosts *h, char **list);

/* The value of RACKS_VARIABLE (cli/racks.h), to be freed by the caller; a host without a rack is a
 * rack of its own.  NULL: no host has a rack. */
EK_CHECKED ek_status launch_hosts_racks(const launch_hosts *h, char **list);

/* --- command line of mpiexec (launch_args.c) -------------------------------------------------- */

/* NULL-terminated argv; `owned`: strings it refers to. */
typedef struct {
    char **argv;
    size_t n, room;
    char *owned[4];
} launch_args;

/* mpiexec: its path.  hosts: list as of launch_hosts_list(), borrowed; NULL: this host. */
EK_CHECKED ek_status launch_args_make(const launch *l, const char *mpiexec, int ranks,
                                      const char *hosts, launch_args *out);
void launch_args_free(launch_args *a);

/* --- child processes (launch_child.c) --------------------------------------------------------- */

/* Once per launcher: marks children started from now on and starts the guard; stops the guard. */
void launch_children_open(void);
void launch_children_close(void);

/* A stdin for mpiexec that stays open and never has data; -1 on failure.  MPICH's mpiexec forwards
 * EOF of its stdin, and fails (status 255) if the worker has just ended. */
int launch_child_stdin(void);

/* In the child, between fork and exec: dies with its parent, is marked, gets a process group of its
 * own and these descriptors as stdin, stdout and stderr; -1: /dev/null. */
void launch_child_become(pid_t parent, const sigset_t *mask, int in, int out, int err);

/* Kills all remaining descendants of a child on this host. */
void launch_child_kill(pid_t child);

/* --- auxiliary commands (launch_subprocess.c) ------------------------------------------------- */

enum {
    LAUNCH_SUBPROCESS_RUNNING = -1,
    LAUNCH_SUBPROCESS_KILLED = 1000, /* by a signal */
    LAUNCH_SUBPROCESS_LATE,          /* time limit exceeded */
    LAUNCH_SUBPROCESS_STUCK          /* mpiexec whose remote launchers (ssh) have all failed */
};

typedef struct {
    pid_t pid;            /* 0: none */
    int64_t begin, limit; /* ek_clock_ns() */
    double took;          /* seconds, once it has ended */
    int out;              /* its stdout in memory; -1: not kept */
    int64_t looked;       /* last poll */
    int64_t children_at;  /* last inspection of its children */
    int stuck;            /* consecutive inspections in which all its children had failed */
} launch_subprocess;

/* Starts a command.  keep: capture its stdout.  It is killed after `seconds`, not counting periods
 * in which nobody polled (the launcher itself was stalled). */
EK_CHECKED ek_status launch_subprocess_begin(launch_subprocess *e, char *const *argv, int keep,
                                             double seconds);
/* Runs this program with other arguments through mpiexec. */
EK_CHECKED ek_status launch_subprocess_run(launch_subprocess *e, const launch *l,
                                           const char *mpiexec, int ranks, const char *hosts,
                                           char **argv, int argc, double seconds);
/* LAUNCH_SUBPROCESS_RUNNING, or once its exit status or another LAUNCH_SUBPROCESS_ value. */
int launch_subprocess_poll(launch_subprocess *e);
/* Number of children of a process that have failed and are not reaped yet; others: other
 * children. */
int launch_has_failed_children(pid_t pid, int *others);
/* Captured stdout, to be freed by the caller; NULL: no memory. */
char *launch_subprocess_output(launch_subprocess *e);
/* Kills it if it still runs, and resets *e.  May be called on {.out = -1}. */
void launch_subprocess_end(launch_subprocess *e);

/* --- connectivity test (launch_connectivity.c) ------------------------------------------------ */

typedef struct {
    const launch *l;
    const char *mpiexec;
    const char **host; /* [n] names */
    int n;
    double start_s;                /* duration of a start of workers; 0: not known */
    int round, whole;              /* 0: all hosts in one job, and whether it passed; then pairs */
    int good;                      /* jobs that passed */
    unsigned char *cut;            /* [n * n] 1: no connectivity */
    launch_subprocess *subprocess; /* [n] jobs of this round */
} launch_connectivity;

/* l to start_s are set by the caller.  begin: starts the test.  poll: *known: it is complete.  end:
 * frees everything but those. */
EK_CHECKED ek_status launch_connectivity_begin(launch_connectivity *k);
EK_CHECKED ek_status launch_connectivity_poll(launch_connectivity *k, int *known);
void launch_connectivity_end(launch_connectivity *k);
/* Whether two hosts cannot reach each other. */
int launch_connectivity_cut(const launch_connectivity *k, int a, int b);
/* Chooses hosts to exclude so that the others all reach each other: out [n]; returns their number.
 * Excludes none if that were more than half, or if no pair of more than two hosts passed (then
 * there is another cause). */
int launch_connectivity_choose(const launch_connectivity *k, unsigned char *out);
/* Starts one job that exits with status 0 if all these hosts reach each other. */
EK_CHECKED ek_status launch_connectivity_try(launch_subprocess *e, const launch *l,
                                             const char *mpiexec, double start_s,
                                             const char *const *host, int n);

/* --- membership (launch_membership.c) --------------------------------------------------------- */

/* What the last assignment of ranks changed for a host. */
typedef enum {
    LAUNCH_UNCHANGED,
    LAUNCH_LOST,     /* does not respond */
    LAUNCH_EXCLUDED, /* cannot reach others */
    LAUNCH_DRAINING, /* hands over its state */
    LAUNCH_RELEASED,
    LAUNCH_JOINED
} launch_change;

/* A host.  Times are ek_clock_ns(). */
typedef struct {
    launch_host host;
    int number;             /* unique id */
    int listed;             /* on the list as last read */
    int used, first;        /* ranks it has (draining: had); its first rank in the job */
    int stepped;            /* a step was completed with it since it joined */
    int leaving;            /* has announced that it will be reclaimed */
    int draining;           /* in the current job only to hand over its state, */
    int was_leaving;        /* and had announced that before the job began */
    int drained;            /* has handed over */
    int drain_tries;        /* jobs in which it was draining */
    int suspect;            /* must pass a connectivity test before it is used */
    int testing_links;      /* the current probe is that test */
    int refusals;           /* consecutive failures of that test */
    int64_t asked;          /* round of its last probe */
    int answer;             /* result of the last probe, 0: responds; launch_subprocess_poll() */
    int probed_twice;       /* probed a second time before the first start */
    int losses;             /* times it was lost soon after it had joined */
    int64_t ask_at;         /* next probe */
    int64_t back_at, since; /* not used before; used since */
    launch_change change;   /* at the last launch_membership_assign() */
    launch_subprocess subprocess; /* current probe, or preallocation */
    int preparing;                /* it is the preallocation */
    int prepared;                 /* preallocation is complete, or has failed */
    int holds_prealloc;           /* may have preallocated memory that the run has not used */
    int freeing;                  /* frees that memory before it is dropped */
} launch_member;

typedef struct {
    const launch *l;
    const char *mpiexec;
    launch_member *member; /* [n], in the order of the list */
    int n, begun, list_error_shown, numbers;
    int decided; /* notices are ignored */
    int64_t read_at, used_at, round;
    double slowest_s;               /* slowest response to the current probes */
    double start_s;                 /* slowest start of workers so far; set by the caller */
    char run[32];                   /* id of the run, hexadecimal */
    char supervisor_id[32];         /* id of this launcher, hexadecimal */
    char blocks[LAUNCH_BLOCKS_CAP]; /* sizes of a rank's state blocks; "": not known */
    launch_subprocess discover;
    launch_connectivity links; /* connectivity test of hosts in use */
    int *link_member;          /* [links.n] their indices in member */
} launch_membership;

/* Starts to read the host list of l->hosts or l->discover; *known: it has been read. */
EK_CHECKED ek_status launch_membership_open(launch_membership *m, const launch *l,
                                            const char *mpiexec, uint64_t supervisor_id);
EK_CHECKED ek_status launch_membership_list_known(launch_membership *m, int *known);
/* Hosts get `seconds` to free preallocated memory. */
void launch_membership_close(launch_membership *m, double seconds);

/* Between jobs: reads the list again and probes all hosts; *asked: all probes have ended. */
EK_CHECKED ek_status launch_membership_probe(launch_membership *m);
EK_CHECKED ek_status launch_membership_probed(launch_membership *m, int *asked);

/* Between jobs: tests the connectivity of hosts in use, if all of them respond, and marks those
 * that have to be excluded as suspect; *known: the test has ended. */
EK_CHECKED ek_status launch_membership_test_links(launch_membership *m);
EK_CHECKED ek_status launch_membership_links_tested(launch_membership *m, int *known);

/* During a job, periodically: reads the list, and probes hosts that are not in use. */
void launch_membership_poll(launch_membership *m);
/* Message "memory" of a worker: "RUN BLOCKS". */
void launch_membership_set_blocks(launch_membership *m, const char *text);
/* Starts preallocation on usable hosts that are not in use; returns whether any was started, which
 * cannot be used before it has ended. */
int launch_membership_prealloc(launch_membership *m);
/* A step was completed: marks hosts in use accordingly; their preallocated memory is in use. */
void launch_membership_step_done(launch_membership *m);
/* The host of a rank has announced that it will be reclaimed. */
void launch_membership_notice(launch_membership *m, int rank);
/* Drops the notices of the job that has ended (Open MPI sends SIGTERM when a rank dies). */
void launch_membership_forget_notices(launch_membership *m);
/* A start has ended without a completed step: excludes hosts that were new in it for a while,
 * unless all were. */
void launch_membership_suspect_new(launch_membership *m);
/* A rank has failed on its own: excludes its host for *s seconds and returns its name, provided
 * that no step was completed with this host and some with others; else NULL. */
const char *launch_membership_exclude(launch_membership *m, int rank, double *s);
/* Clears suspicion and drain flags: no other hosts remain. */
void launch_membership_clear_suspicion(launch_membership *m);
/* Whether a host in use is not listed any more or will be reclaimed. */
int launch_membership_has_leaving(const launch_membership *m);
/* The current job is being ended: notices from its workers are ignored. */
void launch_membership_ignore_notices(launch_membership *m);
/* Draining hosts have handed over their state. */
void launch_membership_drained(launch_membership *m);
/* Whether more hosts may become usable within moments. */
int launch_membership_probe_pending(const launch_membership *m);
/* Slots of all usable hosts; of all listed hosts. */
int64_t launch_membership_slots(const launch_membership *m);
int64_t launch_membership_listed_slots(const launch_membership *m);

/* Assigns `ranks` ranks (at most launch_membership_slots()) to hosts, in the order of the list.
 * Behind them come *n_draining ranks, one for each host that gets no rank but holds state of the
 * run, which it hands over. */
EK_CHECKED ek_status launch_membership_assign(launch_membership *m, int64_t ranks,
                                              launch_hosts *out, int *n_draining);
/* Whether the assignment changed anything, and what: "a (timed out after 1.5 s), b (mpiexec: status
 * 255) do not respond; c joins; ". */
int launch_membership_changed(const launch_membership *m);
void launch_membership_report(const launch_membership *m, FILE *f);

/* --- progress and timeouts (launch_progress.c) ------------------------------------------------ */

/* Phases of a start.  launch: until all workers have sent "start"; connect: until all have sent
 * "rank"; the others as rank 0 reports them: plan: reads data and inspects state left in memory;
 * transfer: restores its state. */
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
enum { LAUNCH_STALL_NS = 500000000 }; /* longer gaps between polls (0.1 s): it did not run */

typedef struct {
    double watchdog_s; /* 0: no limit */
    double longest_s[LAUNCH_PHASES], last_s[LAUNCH_STEPS_KEPT];
    int64_t n; /* steps measured, over all starts */

    /* of one start */
    launch_phase phase;
    int64_t since, heard; /* start of the phase; last message, later stalls not counted */
    int64_t looked;       /* last time that the launcher itself was seen to run */
    int64_t steps;
    double took_s[LAUNCH_PHASES], first_step_s;
} launch_progress;

const char *launch_phase_name(launch_phase phase);
/* now: ek_clock_ns(). */
void launch_progress_begin(launch_progress *p, int64_t now);
void launch_progress_enter(launch_progress *p, launch_phase phase, int64_t now);
/* A message of rank 0: the name of a phase, or any other text, which only shows that it is
 * alive. */
void launch_progress_alive(launch_progress *p, const char *name, int64_t now);
void launch_progress_step(launch_progress *p, int64_t now);
double launch_progress_median_s(const launch_progress *p); /* of a step; 0: not known */
/* Timeout of the current phase without a message, 0: none; whether it is exceeded. */
double launch_progress_timeout_s(const launch_progress *p);
int launch_progress_hangs(const launch_progress *p, int64_t now);
/* Call at each poll: if the launcher itself was stalled (LAUNCH_STALL_NS; a busy or suspended
 * machine), so were workers on this machine, and that time does not count against the timeout. */
void launch_progress_look(launch_progress *p, int64_t now);

/* --- first death of a job (launch_worker_watch.c) --------------------------------------------- */

typedef struct {
    int fd;          /* readable when there is an event; -1: inactive */
    int door;        /* listening socket */
    int watched;     /* workers that have connected */
    int ended;       /* of these, how many have ended in any way */
    int first;       /* first rank that ended without a regular exit; -1: none, or not watched */
    int *connection; /* [n] */
    int n;
} launch_worker_watch;

/* Before mpiexec is started: opens the socket and sets the variables that lead workers to it. */
void launch_worker_watch_init(launch_worker_watch *w);
/* Closes all connections, on which workers that still run end. */
void launch_worker_watch_fini(launch_worker_watch *w);
void launch_worker_watch_poll(launch_worker_watch *w);

/* --- output of a job (launch_job_output.c) ---------------------------------------------------- */

typedef struct {
    int pid;
    int joined; /* ready, and reachable by SIGUSR1 */
    char host[256];
} launch_worker;

/* What mpiexec reported about the end of a worker. */
typedef struct {
    int rank, pid, code, signal; /* -1: not given */
    char host[256];
} launch_death;

typedef struct {
    int ranks, started, ready;      /* workers; those that have sent "start", and "rank" */
    launch_worker *workers;         /* [ranks] */
    int reported, status;           /* workers that reported a failure; exit status of the first */
    int reporter;                   /* its rank */
    int explained;                  /* a line of a report was printed */
    int lost;                       /* its failure is the loss of another rank */
    int hide_mpiexec_reports;       /* do not show mpiexec's report of a worker's end */
    int64_t steps;                  /* completed, as last reported; -1: no report yet */
    int64_t first_step;             /* first step of this start, counted from 0 */
    int is_last;                    /* no step is left */
    int recovered;                  /* continues from shared memory */
    int state_incomplete;           /* does not, as state in shared memory is incomplete */
    double taken, copied, received; /* bytes of state, if recovered */
    double prealloc;                /* bytes that hosts had preallocated before they joined */
    int drawn;                      /* the live line on the terminal is not terminated */
    int in_mpiexec_report;          /* stdout: inside mpiexec's report */
    int blank;                      /* stdout: empty lines that may belong to the report */
    char *held;                     /* held-back lines of mpiexec */
    size_t held_bytes, held_room;
    int64_t held_since; /* ek_clock_ns() of the oldest; 0: none */
    launch_death death;
    int death_unseen;           /* mpiexec did not see how the first worker ended */
    launch_worker_watch *watch; /* or NULL */
    launch_progress *progress;
    launch_membership *members; /* or NULL */
} launch_job_output;

EK_CHECKED ek_status launch_job_output_init(launch_job_output *t, int ranks);
void launch_job_output_fini(launch_job_output *t);
/* Processes a line (without newline) of the job's stdout or stderr. */
void launch_job_output_stdout(launch_job_output *t, const char *line, size_t n);
void launch_job_output_stderr(launch_job_output *t, const char *line, size_t n);
/* Prints, or drops, the held-back lines. */
void launch_job_output_release(launch_job_output *t);
void launch_job_output_drop(launch_job_output *t);
/* "rank 2 on node3 (process 123) was killed by signal 9 (Killed)"; returns 0 if it is not known
 * which worker died. */
int launch_job_output_death(const launch_job_output *t, char *text, size_t cap);

/* --- the launcher (launch.c) ------------------------------------------------------------------ */

/* stdout or stderr of the job, split into lines. */
typedef struct {
    int fd; /* -1: end of file */
    size_t n;
    char *text;
    void (*line)(launch_job_output *t, const char *line, size_t n);
} launch_stream;

typedef struct {
    int64_t begin, tell_at; /* ek_clock_ns() */
} launch_wait;

/* Why the launcher ended a start of workers. */
typedef enum {
    LAUNCH_NOT_ENDED,
    LAUNCH_HUNG,        /* no progress */
    LAUNCH_UNREACHABLE, /* mpiexec could not reach all hosts, and hangs */
    LAUNCH_REGROUP,     /* more hosts are available */
    LAUNCH_HAND_OVER    /* a host will be released: the next start drains it */
} launch_reason;

typedef struct {
    const launch *l;
    const char *mpiexec;
    int ranks;
    int signals;    /* signalfd */
    sigset_t mask;  /* original signal mask */
    int interrupts; /* signals received that request the end */
    time_t begin;
    int64_t steps;     /* of this command, completed when the previous start ended */
    int64_t done;      /* with --elastic: of the run, including earlier commands */
    int joined;        /* any worker has ever started */
    int failed_starts; /* consecutive starts lost without a completed step */
    int64_t starts;
    launch_membership *members; /* NULL: this host only, or a fixed host list */
    launch_membership members_space;
    launch_progress progress;
    int lock;              /* of --out, with --elastic */
    int made_out;          /* this launcher has created --out */
    uint64_t number;       /* id of this launcher */
    int64_t seen_at;       /* when the loss was detected, ek_clock_ns(); 0: none pending */
    double seen_epoch;     /* the same, seconds since 1970 */
    double ending_s;       /* from there until the start had ended */
    double drain_s;        /* starts that drained hosts */
    double probe_s;        /* until hosts had responded */
    int drain_incomplete;  /* state in memory was incomplete in one of these */
    char end_reason[1024]; /* why the last start ended */
    launch_wait wait;      /* current wait */
    int wait_of;           /* its launch_phase; LAUNCH_PHASES: interrupt; -1: other */

    /* of one start */
    int n_draining;            /* ranks behind these, on draining hosts; then no step is taken */
    int64_t chosen_at;         /* when its hosts were chosen, ek_clock_ns() */
    const launch_hosts *hosts; /* NULL: this host */
    launch_job_output job_output;
    pid_t child;
    int ended, wait_status;
    launch_stream streams[2]; /* stdout, stderr */
    launch_worker_watch watch;
    int workers_told; /* the interrupt was forwarded to the workers, */
    int short_grace;  /* with a short grace period, as they take no steps yet */
    int64_t kill_at, drain_until;
    int restart; /* another start follows */
    launch_reason reason;
    int skip_probe;     /* hosts have just shown that they respond (step, preallocation): start the
                           next job without a probe */
    int resumed;        /* its first step was reported */
    int64_t end_seen;   /* when its end was detected; 0: not yet */
    int64_t more_since; /* step at which more hosts were first available; -1: none are */
    int64_t leave_since, leave_at; /* step and time at which a leaving host was first seen; leave_at
                                      0: none */
    int64_t tended_at;             /* last poll of the members */
    int stuck; /* consecutive polls in which a remote launcher of mpiexec had failed */
} launcher;

/* --- "waiting for ..." messages (launch_wait.c) ----------------------------------------------- */

typedef enum {
    LAUNCH_WAIT_WORKERS,
    LAUNCH_WAIT_DISCOVER,
    LAUNCH_WAIT_ANSWERS, /* of probed hosts */
    LAUNCH_WAIT_CONNECTIVITY,
    LAUNCH_WAIT_HOSTS /* no host has responded */
} launch_wait_reason;

void launch_wait_begin(launch_wait *w, int quiet, int64_t now);
/* Whether a message is due. */
int launch_wait_is_due(launch_wait *w, int64_t now);
/* Prints "waiting for ... (2 s so far)" if due. */
void launch_wait_report(launcher *x, launch_wait_reason reason);
/* The same during a start. */
void launch_wait_for_workers(launcher *x, int64_t now);
/* Prints " on a, b", the hosts of which no worker has started (or joined); returns their number. */
int launch_wait_missing(const launcher *x, int joined, FILE *f);

/* Handles pending signals. */
void launch_handle_signals(launcher *x);

/* --- end of a start (launch_exit_policy.c) ---------------------------------------------------- */

/* Reports how the start ended and sets x->restart; returns the exit status. */
int launch_exit_policy(launcher *x);
/* Whether this --elastic command has continued from shared memory, or left state there. */
int launch_has_state_in_memory(const launcher *x);
/* Completed steps by the last line of metrics.jsonl, if that was written since then; else 0. */
int64_t launch_steps_written(const char *out, time_t since);

/* --- --elastic (launch_elastic.c) ------------------------------------------------------------- */

/* Once, before the first start: locks --out and reads the host list. */
EK_CHECKED ek_status launch_elastic_open(launcher *x);
void launch_elastic_close(launcher *x, int status);
/* Before each start: chooses hosts and number of ranks.  EK_ECANCELED: interrupted. */
EK_CHECKED ek_status launch_elastic_choose(launcher *x, launch_hosts *out);
/* During a start, several times a second. */
void launch_elastic_tick(launcher *x, int64_t now);

#endif
