/* supervisor/elastic_default.h - whether a run on several hosts is elastic without being told. */
#ifndef SUPERVISOR_ELASTIC_DEFAULT_H
#define SUPERVISOR_ELASTIC_DEFAULT_H

#include "base/options.h"

enum { EK_ELASTIC_WHY = 160 };

/* Whether `train` with these options starts as with --elastic: --elastic was not given, and --hosts
 * names several hosts.  Writes to `why` what is against it where there are several hosts; ""
 * otherwise.  Reads the host file; one that cannot be read is left for its reader to report. */
int ek_elastic_by_default(const ek_options *o, char why[EK_ELASTIC_WHY]);

/* Whether --pp, --tp and --etp need more ranks than are left without one of the hosts: then the run
 * ends with its loss, and the same command with --resume continues it.  Reads the host file as
 * above. */
int ek_elastic_waits_for_hosts(const ek_options *o);

/* The hosts of so many ranks as --hosts places them, and their racks (ek_host_list_places); NULL:
 * without --hosts.  *ranks 0 becomes the slots of the hosts.  The caller frees both, also after a
 * failure.  Errors as of ek_host_list_read; EK_ENOMEM. */
EK_CHECKED ek_status ek_elastic_places(const ek_options *o, int *ranks, int **host_of,
                                       int **rack_of);

#endif
