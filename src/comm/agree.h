/* comm/agree.h - ranks that fail together, and what they say of themselves.
 *
 * Work that each rank does by itself (reading files, making folders) may fail on one of them.  The
 * others must not go on into a collective that it will not join: they meet here, and all fail. */
#ifndef COMM_AGREE_H
#define COMM_AGREE_H

#include "comm/comm.h"

/* Every rank gives the status of its own work.  EK_OK when all are; else the first rank that failed
 * gets its status back, and all others, whether they failed or not, EK_EPEER: "rank 3 (host) could
 * not WHAT: ..." with its text.  So one rank has the failure to report, and its status says so. All
 * get EK_ECANCELED when that is its status.  Collective; waits.  world: NULL for one rank. */
EK_CHECKED ek_status ek_agree(ek_comm *world, const char *what, ek_status mine);

/* The second half of it: `failed` is known to all as the first rank that failed.  Its text goes to
 * all. */
EK_CHECKED ek_status ek_agree_failed(ek_comm *world, const char *what, int failed, ek_status mine);

/* One record of each rank, on all ranks: all [ranks] of `size` bytes, of which each has filled its
 * own.  Collective; waits.  world: NULL for one rank. */
EK_CHECKED ek_status ek_gather(ek_comm *world, void *all, size_t size);

#endif
