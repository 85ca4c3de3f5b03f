/* supervisor/worker_link.h - a worker's side of its connection to the supervisor on the same host,
 * an abstract socket (protocol.h).  The worker sends its rank, which the supervisor acknowledges
 * with one byte, and announces a regular exit.  worker_watch.h is the other side. */
#ifndef SUPERVISOR_WORKER_LINK_H
#define SUPERVISOR_WORKER_LINK_H

#include "supervisor/protocol.h"

/* In a worker on the supervisor's host: connects to the supervisor, which detects by the closed
 * connection which worker died first, and waits until it knows this worker.  From then on this
 * process dies with the supervisor. */
void ek_worker_link_join(int rank);

/* Announces a regular exit: call once this worker's death can no longer end others. */
void ek_worker_link_leave(void);

/* Identifies the scope of abstract socket names: boot id and network namespace. */
void ek_worker_link_machine(char machine[EK_WORKER_LINK_MACHINE_CAP]);

#endif
