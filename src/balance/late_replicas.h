/* balance/late_replicas.h - quotas and further replicas where a placement was made from other
 * counts.
 *
 * A placement that was made from the counts of an earlier micro-batch has most of the replicas that
 * the actual counts need, and these are in place already.  The quotas are those of the least
 * maximum load (quota_flow.h).  If that is above the mean, a replica in a slot that is still empty
 * may lower it: of the most popular expert among those whose ranks are full where no rank serves
 * more than the mean, on the least loaded rank that can have one.  Its weights are waited for, so
 * it is taken only if the busiest rank's time falls by more than `exposed_s`. */
#ifndef BALANCE_LATE_REPLICAS_H
#define BALANCE_LATE_REPLICAS_H

#include "balance/quota_flow.h"

/* Sets the quotas of a plan for counts [ranks][experts], and adds replicas to its placement while
 * they pay.  Returns how many. */
int32_t ek_late_replicas_add(ek_quota_flow *f, const ek_plan_limits *l, const int64_t *counts,
                             ek_plan *p);

/* Seconds that a layer waits for one replica that is planned after the gate. */
double ek_late_replica_s(const ek_plan_limits *l);

#endif
