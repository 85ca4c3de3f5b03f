/* base/backoff.h - polling for other threads and processes without occupying their cores.
 *
 * A polling loop calls ek_backoff_wait between polls.  The first calls yield the core
 * (sched_yield), later ones sleep.  Yielding alone is not enough: a scheduler that divides cores by
 * session lets a process that is alone in its session (as mpiexec may start it) keep the core until
 * its time slice ends. */
#ifndef BASE_BACKOFF_H
#define BASE_BACKOFF_H

typedef struct {
    int polls; /* unsuccessful polls so far; 0 at the start of a wait */
} ek_backoff;

/* Yields or sleeps once, by the number of polls so far. */
void ek_backoff_wait(ek_backoff *p);

/* Whether the wait is so long that ek_backoff_wait sleeps from here on. */
int ek_backoff_is_long(const ek_backoff *p);

#endif
