/* comm/agree.h - agreement of ranks on failures, and gathering of a record from each rank.
 *
 * Local work (reading files, creating folders) may fail on one rank only.  The others must not
 * enter a collective that this rank will not join: all ranks agree here, and all fail.  In a world
 * of which only this rank exists (comm/fake.h) it agrees with itself, and gathers its own record.
 */
#ifndef COMM_AGREE_H
#define COMM_AGREE_H

#include "comm/comm.h"

/* mine: the status of this rank's work.  Returns EK_OK if it is EK_OK on all ranks; otherwise the
 * lowest failed rank gets its own status, and all others, failed or not, EK_EPEER: "rank 3 (host)
 * could not WHAT: ..." with its message, so that one rank reports the failure.  Ranks that failed
 * by EK_EPEER, as within an agreement in this one, come after the others.  If the status is
 * EK_ECANCELED all get that.  world: NULL for one rank.  Collective; blocks. */
EK_CHECKED ek_status ek_agree(ek_comm *world, const char *what, ek_status mine);

/* Broadcasts the failure of rank `failed`, the lowest failed one, which all ranks know already.
 * Returns as ek_agree does.  Collective; blocks. */
EK_CHECKED ek_status ek_agree_failed(ek_comm *world, const char *what, int failed, ek_status mine);

/* All-gather of one record per rank: all [ranks] records of `size` bytes; each rank has filled its
 * own.  world: NULL for one rank.  Collective; blocks. */
EK_CHECKED ek_status ek_gather(ek_comm *world, void *all, size_t size);

/* Makes *x the minimum over ranks (world NULL: one rank).  Collective. */
EK_CHECKED ek_status ek_minimum(ek_comm *world, double *x);
/* The same with the maximum. */
EK_CHECKED ek_status ek_maximum(ek_comm *world, double *x);

#endif
