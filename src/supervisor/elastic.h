/* supervisor/elastic.h - --elastic: chooses the hosts of each start, ends a start that hangs or
 * whose hosts change, reports and records each restart. */
#ifndef SUPERVISOR_ELASTIC_H
#define SUPERVISOR_ELASTIC_H

#include "evenkeel/err.h"

#include "supervisor/supervisor_priv.h"

#include <stdint.h>

/* Once, before the first start: locks --out and reads the host list. */
EK_CHECKED ek_status ek_elastic_open(ek_supervisor *x);
void ek_elastic_close(ek_supervisor *x, int status);
/* Before each start: chooses hosts and number of ranks.  EK_ECANCELED: interrupted. */
EK_CHECKED ek_status ek_elastic_choose(ek_supervisor *x, ek_host_list *out);
/* During a start, several times a second. */
void ek_elastic_tick(ek_supervisor *x, int64_t now);

#endif
