/* balance/late_replicas.h - quotas and further replicas where a placement was made from other
 * counts.
 *
 * A placement that was made from the counts of an earlier micro-batch has most of the replicas that
 * the actual counts need, and these are in place already.  The quotas are those of the least
 * maximum load (quota_flow.h).  If that is above the mean, a replica in a slot that is still empty
 * may lower it: of the most popular expert among those whose ranks are full where no rank serves
 * more than the mean, on the least loaded rank that can have one.  Its weights are waited for, so
 * it is taken only if the busiest rank's time falls by more than `exposed_s`.  Replicas that serve
 * nothing in the end are left out: they then send no gradients.
 *
 * Where loads have changed, replicas that were sent occupy the slots of those that are needed, and
 * a plan made from the actual counts alone may take less time.  The time to compare is that of the
 * layer (ek_locality_time), and `exposed_s` for each replica on the busiest link that is waited
 * for, or was sent to no purpose. */
#ifndef BALANCE_LATE_REPLICAS_H
#define BALANCE_LATE_REPLICAS_H

#include "balance/locality_replicas.h"
#include "balance/quota_flow.h"

typedef struct {
    ek_quota_flow flow;
    ek_locality locality;
    int32_t *gets, *gives; /* [ranks] replicas received; experts sent */
    unsigned char *given;  /* [experts] whether its primary rank sends it */
} ek_late_replicas;

/* Replicas of one placement that another one lacks on the same rank. */
typedef struct {
    int32_t all, links; /* all; on the busiest link: those that a rank receives, or experts that it
                           sends */
} ek_late_count;

void ek_late_replicas_reserve(ek_late_replicas *x, ek_arena *a, const ek_plan_limits *l);

/* Sets the quotas of a plan for counts [ranks][experts], and adds replicas to its placement while
 * they pay, and leaves out those that serve nothing, but for persistent copies.  persistent [ranks
 * * slots]: their experts, or -1. */
void ek_late_replicas_add(ek_late_replicas *x, const ek_plan_limits *l, const int64_t *counts,
                          const int32_t *persistent, ek_plan *p);

/* sent: the placement of the replicas that were sent before the gate, with the same primaries. */
ek_late_count ek_late_replicas_count(ek_late_replicas *x, const ek_placement *p,
                                     const ek_placement *sent);
ek_late_count ek_late_replicas_unused(ek_late_replicas *x, const ek_placement *p,
                                      const ek_placement *sent);

/* The time of a layer with a plan, while these had been sent before the gate; NULL: none, and all
 * replicas are waited for.  Without costs it is the busiest rank's load. */
double ek_late_replicas_time(ek_late_replicas *x, const ek_plan_limits *l, const int64_t *counts,
                             const ek_plan *p, const ek_placement *sent);

/* Puts replicas that have been sent to a rank into the slots that they are in there. */
void ek_late_replicas_keep_slots(ek_plan *p, const ek_placement *sent);

#endif
