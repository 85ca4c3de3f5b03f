/* supervisor/racks.h - passes the rack of each rank from the supervisor, which reads it from the
 * host file, to its workers.  EK_RACKS_VARIABLE is "SLOTS:RACK,SLOTS:RACK,...", with numbers for
 * racks, in the order in which mpiexec assigns ranks to hosts (starting over when there are more
 * ranks than slots). */
#ifndef SUPERVISOR_RACKS_H
#define SUPERVISOR_RACKS_H

#include "evenkeel/err.h"

#define EK_RACKS_VARIABLE "EK_RACKS"

/* In the supervisor: sets the variable for workers started from now on; NULL: not known. */
EK_CHECKED ek_status ek_racks_set(const char *list);

/* In a worker: *rack_of [ranks], to be freed by the caller; NULL if the variable is absent or
 * malformed. */
EK_CHECKED ek_status ek_racks_get(int ranks, int **rack_of);

#endif
