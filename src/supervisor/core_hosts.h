/* supervisor/core_hosts.h - the hosts of an --elastic job as the decision core sees them
 * (supervisor/core.h): which are listed, respond, are in use, leave, and which ranks they get.
 *
 * All hosts are probed at once, so that a silent host does not delay the others for long: once some
 * have responded, the rest has ten times as long as they took.  If it turns out that a late host
 * may hold the only copy of some state, it is probed again, and longer, until it responds or the
 * time for it is over.  No function has side effects beyond its arguments; `out` gets the actions.
 * Times are ns, as in core.h. */
#ifndef SUPERVISOR_CORE_HOSTS_H
#define SUPERVISOR_CORE_HOSTS_H

#include "evenkeel/err.h"

#include "supervisor/core_action.h"
#include "supervisor/host_list.h"

#include <stdint.h>

/* What the last assignment of ranks changed for a host. */
typedef enum {
    EK_HOST_UNCHANGED,
    EK_HOST_LOST,     /* does not respond */
    EK_HOST_EXCLUDED, /* cannot reach others */
    EK_HOST_DRAINING, /* hands over its state */
    EK_HOST_RELEASED,
    EK_HOST_JOINED
} ek_host_change;

/* The current task of a host, and what its last ones showed. */
typedef struct {
    ek_core_task task;
    int64_t begin, limit; /* of the task; it is late at begin + limit */
    int64_t round;        /* of the last probe */
    int answer;           /* result of the last task, 0: the host responds; EK_RESULT_ */
    double took_s;        /* duration of the last task */
    int probed_twice;     /* probed a second time before the first generation */
    int doubles;          /* how often the time limit of its probe was doubled, while late */
    int refusals;         /* consecutive failures of its connectivity test */
    int64_t probe_at;     /* not probed before */
} ek_host_health;

/* Memory that a host preallocates before it joins (elastic/prealloc.h). */
typedef struct {
    int ready;   /* preallocation is complete, or has failed */
    int held;    /* may have preallocated memory that the run does not use yet */
    int freeing; /* frees it before the host is forgotten */
} ek_host_memory;

typedef struct {
    ek_host host;
    int number;             /* unique */
    int listed;             /* on the list as last read */
    int used, first;        /* ranks it has (draining: had), and its first rank */
    int stepped;            /* a step was completed with it since it joined */
    int holds;              /* may hold state of the run */
    int late;               /* it may, and was left out as it responded too late */
    int leaving;            /* has announced that it will be reclaimed */
    int draining;           /* takes part only to hand over its state, */
    int was_leaving;        /* and had announced that before the generation began */
    int drained;            /* has handed over */
    int drain_tries;        /* generations in which it was draining */
    int suspect;            /* must pass a connectivity test before it is used */
    int noted_lost;         /* counted by ek_core_hosts_note_lost */
    int losses;             /* times it was lost soon after it had joined */
    int64_t back_at, since; /* not used before; used since */
    ek_host_change change;  /* at the last assignment */
    ek_host_health health;
    ek_host_memory memory;
} ek_core_host;

typedef struct {
    ek_core_host *host; /* [n], in the order of the list */
    int n, numbers;     /* numbers: next one */
    int *used;          /* [n] scratch: numbers of hosts in use */
    int begun;          /* ranks were assigned at least once */
    int decided;        /* notices are ignored */
    int can_prealloc;   /* the sizes of a rank's state are known */
    int64_t used_at, round;
    int64_t wait_until; /* late hosts are waited for until then; 0: they are not */
    double slowest_s;   /* slowest response to the current probes */
    double start_s;     /* slowest start of workers so far; set by the caller; 0: not known */
} ek_core_hosts;

void ek_core_hosts_fini(ek_core_hosts *h);

/* Index of the host with this number; -1: none.  Its name; there is one. */
int ek_core_hosts_index(const ek_core_hosts *h, int number);
const char *ek_core_hosts_name(const ek_core_hosts *h, int number);

/* Replaces the list; slots of a host that is listed twice are added.  Hosts that are neither listed
 * nor in use are forgotten once they have freed preallocated memory. */
EK_CHECKED ek_status ek_core_hosts_set_list(ek_core_hosts *h, const ek_host *list, int n,
                                            int64_t now, ek_core_actions *out);

/* --- tasks ------------------------------------------------------------------------------------ */

/* Between generations: probes all hosts anew; those that are listed since then; whether all have
 * answered and, if reading (a list is still being read), at least one responds. */
void ek_core_hosts_probe(ek_core_hosts *h, int64_t now, ek_core_actions *out);
void ek_core_hosts_probe_new(ek_core_hosts *h, int64_t now, ek_core_actions *out);
int ek_core_hosts_probed(ek_core_hosts *h, int reading, int64_t now, ek_core_actions *out);

/* During a generation, periodically: probes hosts that are not in use. */
void ek_core_hosts_poll(ek_core_hosts *h, int64_t now, ek_core_actions *out);

/* A task has ended.  Answers that no task waits for change nothing. */
void ek_core_hosts_task_ended(ek_core_hosts *h, int number, int result, double took_s, int64_t now);
/* Ends tasks that are late; the supervisor did not run for `gap`, which does not count. */
void ek_core_hosts_end_late(ek_core_hosts *h, int64_t now, ek_core_actions *out);
void ek_core_hosts_forgive(ek_core_hosts *h, int64_t gap);

/* Time limit of a connectivity test, in seconds; start_s as in ek_core_hosts. */
double ek_core_links_limit_s(double start_s);

/* Starts preallocation on usable hosts that are not in use, until there are `wanted` slots; returns
 * whether any was started, which cannot be used before it has ended. */
int ek_core_hosts_prealloc(ek_core_hosts *h, int64_t wanted, int64_t now, ek_core_actions *out);
/* Whether more hosts may become usable within moments. */
int ek_core_hosts_is_probe_pending(const ek_core_hosts *h, int64_t now);
/* At the end: ends all tasks and frees preallocated memory; whether that is done. */
void ek_core_hosts_free_all(ek_core_hosts *h, int64_t now, ek_core_actions *out);
int ek_core_hosts_all_free(const ek_core_hosts *h);

/* --- what happens in a generation ------------------------------------------------------------- */

/* A step was completed with the hosts in use: their preallocated memory is in use, and they alone
 * hold the state. */
void ek_core_hosts_step_done(ek_core_hosts *h);
/* The hosts in use hold state, too, but no step is completed. */
void ek_core_hosts_recovered(ek_core_hosts *h);
/* All hosts may hold state, of a run that an earlier command has begun. */
void ek_core_hosts_assume_state(ek_core_hosts *h);
/* Whether the last assignment has left out a late host that may hold state. */
int ek_core_hosts_any_late(const ek_core_hosts *h);
/* The host of a rank has announced that it will be reclaimed; from now on notices are ignored, as
 * the generation is being ended; those of the generation that has ended are forgotten (Open MPI
 * sends SIGTERM when a rank dies). */
void ek_core_hosts_notice(ek_core_hosts *h, int rank);
void ek_core_hosts_ignore_notices(ek_core_hosts *h);
void ek_core_hosts_forget_notices(ek_core_hosts *h);
/* Draining hosts have handed over their state. */
void ek_core_hosts_drained(ek_core_hosts *h);
/* A generation has ended without a completed step, and all its hosts respond: excludes those that
 * were new in it for a while, unless all were. */
void ek_core_hosts_suspect_new(ek_core_hosts *h, int64_t now, ek_core_actions *out);
/* A rank has failed on its own: excludes its host for *s seconds and returns its number, provided
 * that no step was completed with this host and some with others; else -1. */
int ek_core_hosts_exclude(ek_core_hosts *h, int rank, int64_t now, double *s);
/* No other hosts remain: clears suspicion and announced departures. */
void ek_core_hosts_clear_suspicion(ek_core_hosts *h);

/* --- which hosts can be used ------------------------------------------------------------------ */

/* Not listed any more, or will be reclaimed. */
int ek_core_host_is_leaving(const ek_core_host *x);
/* Whether it can be given ranks. */
int ek_core_host_is_usable(const ek_core_host *x, int64_t now);
/* Whether a host in use is leaving. */
int ek_core_hosts_has_leaving(const ek_core_hosts *h);
/* Slots of all usable hosts; of all listed hosts. */
int64_t ek_core_hosts_slots(const ek_core_hosts *h, int64_t now);
int64_t ek_core_hosts_listed_slots(const ek_core_hosts *h);
/* Hosts that have ranks, or had and hand over their state. */
int ek_core_hosts_in_use(const ek_core_hosts *h);

/* Assigns `ranks` ranks (at most ek_core_hosts_slots()) to hosts, in the order of the list.  Behind
 * them comes one rank for each host that gets none but holds state of the run, which it hands over;
 * returns their number. */
int ek_core_hosts_assign(ek_core_hosts *h, int64_t ranks, int64_t now);
/* After probes, before an assignment: hosts in use that do not respond and did before; each counts
 * once until it responds. */
int ek_core_hosts_note_lost(ek_core_hosts *h);
/* Whether the assignment changed anything. */
int ek_core_hosts_changed(const ek_core_hosts *h);

#endif
