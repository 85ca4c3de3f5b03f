/* supervisor/worker_watch.h - the supervisor's side of its connections to the workers on its host
 * (worker_link.h): which of them ended first. */
#ifndef SUPERVISOR_WORKER_WATCH_H
#define SUPERVISOR_WORKER_WATCH_H

typedef struct {
    int fd;
    int rank; /* -1: not yet known, or its exit was announced */
} ek_worker_connection;

typedef struct {
    int fd;      /* readable when there is an event; -1: inactive */
    int door;    /* listening socket */
    int watched; /* workers that have connected */
    int ended;   /* connections that have ended in any way */
    int first;   /* first rank that ended without a regular exit; -1: none, or not watched */
    ek_worker_connection *connection; /* [n] */
    int n;
} ek_worker_watch;

/* Before mpiexec is started: opens the socket and sets the variables that lead workers to it. */
void ek_worker_watch_init(ek_worker_watch *w);
/* Closes all connections, on which workers that still run end. */
void ek_worker_watch_fini(ek_worker_watch *w);
void ek_worker_watch_poll(ek_worker_watch *w);

#endif
