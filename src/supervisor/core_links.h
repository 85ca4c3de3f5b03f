/* supervisor/core_links.h - which hosts in use cannot reach each other, as the decision core finds
 * out (supervisor/core.h).  A broken link between two hosts that both respond is not visible to the
 * supervisor; workers on them just wait for each other.
 *
 * The test runs jobs: first one on all hosts, which passes soon if all links work; otherwise one on
 * each pair, in rounds in which every host takes part in one job. */
#ifndef SUPERVISOR_CORE_LINKS_H
#define SUPERVISOR_CORE_LINKS_H

#include "evenkeel/err.h"

#include "supervisor/core_action.h"

#include <stdint.h>

typedef struct {
    int *host; /* [n] numbers; of equals the last one is excluded first */
    int n;
    int round, whole;       /* 0: all hosts in one job, and whether it passed; then pairs */
    int good;               /* jobs that passed */
    unsigned char *cut;     /* [n, n] 1: no connectivity */
    unsigned char *out;     /* [n] 1: has to be excluded so that the others reach each other */
    int (*pair)[2];         /* [n] hosts of the pairs of this round */
    unsigned char *running; /* [n] jobs of this round */
    int64_t begin, limit;   /* of this round's jobs */
} ek_core_links;

/* Begins a test between these hosts (numbers, copied); limit in seconds for each job.  EK_ENOMEM.
 */
EK_CHECKED ek_status ek_core_links_begin(ek_core_links *k, const int *host, int n, double limit_s,
                                         int64_t now, ek_core_actions *out);
/* A job has ended; jobs that are not awaited change nothing. */
void ek_core_links_job_ended(ek_core_links *k, int job, int result);
/* Ends late jobs and begins the next round; whether the test is complete: then k->out is set. */
int ek_core_links_poll(ek_core_links *k, int64_t now, ek_core_actions *out);
/* Ends what still runs. */
void ek_core_links_cancel(ek_core_links *k, ek_core_actions *out);
void ek_core_links_fini(ek_core_links *k);

/* Whether two hosts (indices) cannot reach each other. */
int ek_core_links_cut(const ek_core_links *k, int a, int b);

#endif
