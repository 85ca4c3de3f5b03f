/* net_work.h - the work of a collective, for tests of its price. */
#ifndef NET_WORK_H
#define NET_WORK_H

#include "schedule/work.h"

/* Of numbers of four bytes. */
static inline ek_net_work work_of(ek_collective collective, ek_ranks group, double bytes)
{
    return (ek_net_work){.collective = collective,
                         .group = group,
                         .span = group.n,
                         .peer = -1,
                         .element = 4,
                         .bytes = bytes};
}

#endif
