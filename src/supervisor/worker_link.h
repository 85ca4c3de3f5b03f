/* supervisor/worker_link.h - a worker's side of its connection to the supervisor on the same host,
 * an abstract socket.  The worker sends its rank and, before a regular exit, EK_WORKER_LINK_EXIT,
 * as int32_t; the supervisor sends nothing.  worker_watch.h is the other side. */
#ifndef SUPERVISOR_WORKER_LINK_H
#define SUPERVISOR_WORKER_LINK_H

/* Environment variables: the socket's name, and the machine that it is valid on. */
#define EK_WORKER_LINK_NAME    "EK_LAUNCHED_BY"
#define EK_WORKER_LINK_MACHINE "EK_LAUNCHED_ON"

enum { EK_WORKER_LINK_EXIT = -1, EK_WORKER_LINK_NAME_CAP = 16, EK_WORKER_LINK_MACHINE_CAP = 128 };

/* In a worker on the supervisor's host: connects to the supervisor, which detects by the closed
 * connection which worker died first.  From then on this process dies with the supervisor. */
void ek_worker_link_join(int rank);

/* Announces a regular exit. */
void ek_worker_link_leave(void);

/* Identifies the scope of abstract socket names: boot id and network namespace. */
void ek_worker_link_machine(char machine[EK_WORKER_LINK_MACHINE_CAP]);

#endif
