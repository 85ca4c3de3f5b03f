/* base/backoff.h - waiting for what other threads and processes do, without taking their cores.
 *
 * A wait polls, and between polls calls ek_backoff_wait: at first that yields the processor,
 * which costs little and lets go of it soon; when the wait gets long it sleeps.  Yielding alone is
 * not enough: with a scheduler that shares the cores out by session, a process alone in its
 * session (as mpiexec may start them) yields to nobody until its time slice ends. */
#ifndef BASE_BACKOFF_H
#define BASE_BACKOFF_H

typedef struct {
    int polls; /* in vain, so far; 0 to start a wait */
} ek_backoff;

void ek_backoff_wait(ek_backoff *p);

#endif
