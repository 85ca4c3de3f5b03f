/* search/least_exchange.h - what is left of the all-to-alls of tokens, at least, where a policy
 * keeps several copies of experts: a rank keeps the rows of experts that it has itself, and sends
 * fewer to other nodes.
 *
 * Steps under even loads are simulated with the copies that the policy plans for them
 * (train/simulate.h).  A bound does not plan: some rank serves at least the mean of rows whatever
 * the plan, and no more experts are near than there are slots. */
#ifndef SEARCH_LEAST_EXCHANGE_H
#define SEARCH_LEAST_EXCHANGE_H

#include "sim/cluster.h"
#include "sim/graphs.h"
#include "sim/replay.h"

/* Over what they take with one copy of each expert: the slowest rank's wire, and what messages cost
 * its processor. */
typedef struct {
    double wire, overhead;
} ek_least_exchange;

/* EK_ENOMEM. */
EK_CHECKED ek_status ek_least_exchange_of(const ek_cluster *c, const ek_sim_layout *l,
                                          ek_least_exchange *out);

/* Lowers the price of an op to what is left of it. */
void ek_least_exchange_price(const ek_least_exchange *x, const ek_op *op, ek_sim_price *price);

#endif
