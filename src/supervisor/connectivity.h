/* supervisor/connectivity.h - tests which hosts reach each other. */
#ifndef SUPERVISOR_CONNECTIVITY_H
#define SUPERVISOR_CONNECTIVITY_H

#include "evenkeel/err.h"

#include "supervisor/config.h"
#include "supervisor/subprocess.h"

typedef struct {
    const ek_supervisor_config *config;
    const char *mpiexec;
    const char **host; /* [n] names */
    int n;
    double start_s;            /* duration of a start of workers; 0: not known */
    int round, whole;          /* 0: all hosts in one job, and whether it passed; then pairs */
    int good;                  /* jobs that passed */
    unsigned char *cut;        /* [n * n] 1: no connectivity */
    ek_subprocess *subprocess; /* [n] jobs of this round */
} ek_connectivity;

/* config to start_s are set by the caller.  begin: starts the test.  poll: *known: it is complete.
 * end: frees everything but those. */
EK_CHECKED ek_status ek_connectivity_begin(ek_connectivity *k);
EK_CHECKED ek_status ek_connectivity_poll(ek_connectivity *k, int *known);
void ek_connectivity_end(ek_connectivity *k);
/* Whether two hosts cannot reach each other. */
int ek_connectivity_cut(const ek_connectivity *k, int a, int b);
/* Chooses hosts to exclude so that the others all reach each other: out [n]; returns their number.
 * Excludes none if that were more than half, or if no pair of more than two hosts passed (then
 * there is another cause). */
int ek_connectivity_choose(const ek_connectivity *k, unsigned char *out);
/* Starts one job that exits with status 0 if all these hosts reach each other. */
EK_CHECKED ek_status ek_connectivity_try(ek_subprocess *e, const ek_supervisor_config *config,
                                         const char *mpiexec, double start_s,
                                         const char *const *host, int n);

#endif
