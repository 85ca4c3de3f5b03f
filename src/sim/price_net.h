/* sim/price_net.h - seconds of a network op on a cluster, from the algorithms that comm runs.
 *
 *   time = messages x overhead + bytes of the busiest link / its bandwidth + phases x latency
 *
 * Bytes    those that the algorithm sends, by the level that they pass, exact where the work says
 *          which rank has what: ranges as equal as possible (ek_range_first), rows spread evenly
 *          over the other ranks of the span.  Of replicas and of experts that migrate, whose
 *          places are not known before, bytes are spread like rows.  What a rank sends to its
 *          partner goes to the rank that is as far behind each rank as the work's own.
 * Links    a rank has a link of its own through each level (sim/cluster.h), or its part of a shared
 *          one.  Of a shared link the more is left for a rank the fewer use it: rings, messages and
 *          rounds of pairs cross it with few ranks of a group.  Groups at a stride are interleaved
 *          with others, which do the same at the same time.  In the network a message passes the
 *          links of all levels up to that at which its ranks meet, but not those inside the node;
 *          inside a node likewise.  All links carry bytes at the same time, and both directions of
 *          a link, too.
 * Latency  of the highest level that is used, once for each phase: a phase begins with what another
 *          has brought.  A ring has a phase for each step, short unless a step is a segment long.
 * Peers    messages, and what an exchange has for one rank, move at most at the level's bandwidth
 *          between two ranks, and each takes its gap of the link.  Not those of sums and gathers.
 * Pieces   into which a back end splits messages, and segments, count once: what splitting costs is
 *          in the bandwidth, which was measured with it.
 *
 * Left out: sums and copies on the processor, waiting for ranks that start later, other ops on the
 * same links, and rails. */
#ifndef SIM_PRICE_NET_H
#define SIM_PRICE_NET_H

#include "schedule/work.h"
#include "sim/cluster.h"

typedef struct {
    double overhead_s; /* of the processor for messages */
    double wire_s;     /* of the rank's busiest link, which its ops in flight share */
    double latency_s;  /* then passes until the last rank has all: other ops do not wait for it */
    double beside_s;   /* of the processor for the bytes, meanwhile: the rank computes longer */
} ek_net_time;

/* Of a rank of the world, one of w->group, that makes the call with the others. */
ek_net_time ek_price_net_of(const ek_cluster *c, const ek_net_work *w, int32_t rank);

/* Of the slowest rank of the group. */
ek_net_time ek_price_net(const ek_cluster *c, const ek_net_work *w);

/* What a rank sends, or for a receive what it receives, by the level that it passes. */
typedef struct {
    double bytes[EK_CLUSTER_LEVELS];
    double messages[EK_CLUSTER_LEVELS]; /* segments of a long vector count each */
    double largest[EK_CLUSTER_LEVELS];  /* bytes of an exchange, or a message, for one rank */
} ek_net_traffic;

ek_net_traffic ek_net_traffic_of(const ek_cluster *c, const ek_net_work *w, int32_t rank);

/* Seconds of messages that a rank sends, all at once. */
ek_net_time ek_price_traffic(const ek_cluster *c, const ek_net_traffic *t);

#endif
