/* cli/racks.h - which racks ranks are in, from the launcher, which has read it in the list of
 * hosts, to its workers: RACKS_VARIABLE is "SLOTS:RACK,SLOTS:RACK,...", racks being numbers, in the
 * order in which mpiexec gives ranks to hosts (and again from the first when there are more ranks).
 */
#ifndef CLI_RACKS_H
#define CLI_RACKS_H

#include "evenkeel/err.h"

#define RACKS_VARIABLE "EK_RACKS"

/* For workers that are started from now on; NULL: nothing is known. */
EK_CHECKED ek_status cli_racks_set(const char *list);

/* In a worker: rack_of [ranks], to be freed; NULL where nothing is known or understood. */
EK_CHECKED ek_status cli_racks_get(int ranks, int **rack_of);

#endif
