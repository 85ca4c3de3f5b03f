/* supervisor/membership.h - membership of an --elastic job: which hosts are listed, respond, and
 * are in use. */
#ifndef SUPERVISOR_MEMBERSHIP_H
#define SUPERVISOR_MEMBERSHIP_H

#include "evenkeel/err.h"

#include "supervisor/config.h"
#include "supervisor/connectivity.h"
#include "supervisor/host_list.h"
#include "supervisor/protocol.h"
#include "supervisor/subprocess.h"

#include <stdint.h>
#include <stdio.h>

/* What the last assignment of ranks changed for a host. */
typedef enum {
    EK_MEMBER_UNCHANGED,
    EK_MEMBER_LOST,     /* does not respond */
    EK_MEMBER_EXCLUDED, /* cannot reach others */
    EK_MEMBER_DRAINING, /* hands over its state */
    EK_MEMBER_RELEASED,
    EK_MEMBER_JOINED
} ek_member_change;

/* A host.  Times are ek_clock_ns(). */
typedef struct {
    ek_host host;
    int number;               /* unique id */
    int listed;               /* on the list as last read */
    int used, first;          /* ranks it has (draining: had); its first rank in the job */
    int stepped;              /* a step was completed with it since it joined */
    int leaving;              /* has announced that it will be reclaimed */
    int draining;             /* in the current job only to hand over its state, */
    int was_leaving;          /* and had announced that before the job began */
    int drained;              /* has handed over */
    int drain_tries;          /* jobs in which it was draining */
    int suspect;              /* must pass a connectivity test before it is used */
    int testing_links;        /* the current probe is that test */
    int refusals;             /* consecutive failures of that test */
    int64_t asked;            /* round of its last probe */
    int answer;               /* result of the last probe, 0: responds; ek_subprocess_poll() */
    int probed_twice;         /* probed a second time before the first start */
    int losses;               /* times it was lost soon after it had joined */
    int64_t ask_at;           /* next probe */
    int64_t back_at, since;   /* not used before; used since */
    ek_member_change change;  /* at the last ek_membership_assign() */
    ek_subprocess subprocess; /* current probe, or preallocation */
    int preparing;            /* it is the preallocation */
    int prepared;             /* preallocation is complete, or has failed */
    int holds_prealloc;       /* may have preallocated memory that the run has not used */
    int freeing;              /* frees that memory before it is dropped */
} ek_member;

typedef struct {
    const ek_supervisor_config *config;
    const char *mpiexec;
    ek_member *member; /* [n], in the order of the list */
    int n, begun, list_error_shown, numbers;
    int decided; /* notices are ignored */
    int64_t read_at, used_at, round;
    double slowest_s;                   /* slowest response to the current probes */
    double start_s;                     /* slowest start of workers so far; set by the caller */
    char run[EK_MESSAGE_RUN_CAP];       /* id of the run, hexadecimal */
    char supervisor_id[32];             /* id of this supervisor, hexadecimal */
    char blocks[EK_MESSAGE_BLOCKS_CAP]; /* sizes of a rank's state blocks; "": not known */
    ek_subprocess discover;
    ek_connectivity links; /* connectivity test of hosts in use */
    int *link_member;      /* [links.n] their indices in member */
} ek_membership;

/* Starts to read the host list of l->hosts or l->discover; *known: it has been read. */
EK_CHECKED ek_status ek_membership_open(ek_membership *m, const ek_supervisor_config *config,
                                        const char *mpiexec, uint64_t supervisor_id);
EK_CHECKED ek_status ek_membership_list_known(ek_membership *m, int *known);
/* Hosts get `seconds` to free preallocated memory. */
void ek_membership_close(ek_membership *m, double seconds);

/* Between jobs: reads the list again and probes all hosts; *asked: all probes have ended. */
EK_CHECKED ek_status ek_membership_probe(ek_membership *m);
EK_CHECKED ek_status ek_membership_probed(ek_membership *m, int *asked);

/* Between jobs: tests the connectivity of hosts in use, if all of them respond, and marks those
 * that have to be excluded as suspect; *known: the test has ended. */
EK_CHECKED ek_status ek_membership_test_links(ek_membership *m);
EK_CHECKED ek_status ek_membership_links_tested(ek_membership *m, int *known);

/* During a job, periodically: reads the list, and probes hosts that are not in use. */
void ek_membership_poll(ek_membership *m);
/* What hosts that join preallocate for a rank (EK_MESSAGE_MEMORY). */
void ek_membership_set_blocks(ek_membership *m, const char *run, const char *blocks);
/* Starts preallocation on usable hosts that are not in use; returns whether any was started, which
 * cannot be used before it has ended. */
int ek_membership_prealloc(ek_membership *m);
/* A step was completed: marks hosts in use accordingly; their preallocated memory is in use. */
void ek_membership_step_done(ek_membership *m);
/* The host of a rank has announced that it will be reclaimed. */
void ek_membership_notice(ek_membership *m, int rank);
/* Drops the notices of the job that has ended (Open MPI sends SIGTERM when a rank dies). */
void ek_membership_forget_notices(ek_membership *m);
/* A start has ended without a completed step: excludes hosts that were new in it for a while,
 * unless all were. */
void ek_membership_suspect_new(ek_membership *m);
/* A rank has failed on its own: excludes its host for *s seconds and returns its name, provided
 * that no step was completed with this host and some with others; else NULL. */
const char *ek_membership_exclude(ek_membership *m, int rank, double *s);
/* Clears suspicion and drain flags: no other hosts remain. */
void ek_membership_clear_suspicion(ek_membership *m);
/* Whether a host in use is not listed any more or will be reclaimed. */
int ek_membership_has_leaving(const ek_membership *m);
/* The current job is being ended: notices from its workers are ignored. */
void ek_membership_ignore_notices(ek_membership *m);
/* Draining hosts have handed over their state. */
void ek_membership_drained(ek_membership *m);
/* Whether more hosts may become usable within moments. */
int ek_membership_probe_pending(const ek_membership *m);
/* Slots of all usable hosts; of all listed hosts. */
int64_t ek_membership_slots(const ek_membership *m);
int64_t ek_membership_listed_slots(const ek_membership *m);

/* Assigns `ranks` ranks (at most ek_membership_slots()) to hosts, in the order of the list.
 * Behind them come *n_draining ranks, one for each host that gets no rank but holds state of the
 * run, which it hands over. */
EK_CHECKED ek_status ek_membership_assign(ek_membership *m, int64_t ranks, ek_host_list *out,
                                          int *n_draining);
/* Whether the assignment changed anything, and what: "a (timed out after 1.5 s), b (mpiexec: status
 * 255) do not respond; c joins; ". */
int ek_membership_changed(const ek_membership *m);
void ek_membership_report(const ek_membership *m, FILE *f);

#endif
