/* sim/copy_sums.h - what an expert-parallel group sends once a step so that all persistent copies
 * of an expert have the sum of its gradients (moe/replica_weights.h): copies that have served rows
 * send theirs along a chain to the first of them, the primary if it is one; that sends the sum
 * along a chain of all copies.
 *
 * Short sums go to several copies at once in training (comm/comm.h): with more than two copies the
 * bytes of single ranks differ then, those of all together do not. */
#ifndef SIM_COPY_SUMS_H
#define SIM_COPY_SUMS_H

#include "balance/planner.h"
#include "sim/price_net.h"

/* What a rank sends, or gets, by the level that it passes, in gradients of an expert. */
typedef struct {
    int32_t gradients[EK_CLUSTER_LEVELS];
    int32_t largest[EK_CLUSTER_LEVELS]; /* for, or from, one rank */
} ek_copy_messages;

/* For gradients of so many bytes. */
ek_net_traffic ek_copy_messages_traffic(const ek_copy_messages *m, double gradient);

/* In gradients of an expert instead of bytes. */
typedef struct {
    ek_net_traffic busiest;             /* sent or received by the rank whose link takes longest */
    ek_net_traffic all;                 /* sent by all ranks together */
    const ek_copy_messages *sent, *got; /* [ranks] by each; borrowed from ek_copy_results */
} ek_copy_traffic;

typedef struct {
    ek_copy_traffic to_sum, of_sum;
} ek_copy_sums;

typedef struct {
    const ek_cluster *cluster;
    int32_t etp;    /* consecutive ranks that share an expert; a copy's shard sends to its like */
    int32_t states; /* slots of a rank for persistent copies, the first ones; others are
                       transient */
    int all_serve;  /* gradients are summed before it is known which copies serve */
} ek_copy_sums_config;

/* Results by rank, in memory of the caller. */
typedef struct {
    ek_copy_messages
        *messages;           /* [4 * ranks] what each rank sends and gets, which the answer has */
    double *to_sum, *of_sum; /* [ranks] seconds of its link over those of the busiest */
} ek_copy_results;

/* Of a plan of the group that begins at rank 0.  passed [ranks * ranks]: scratch. */
void ek_copy_sums_of(const ek_copy_sums_config *cfg, const ek_plan *p,
                     const ek_copy_results *by_rank, int32_t *passed, ek_copy_sums *out);

/* The ranks of each expert's messages, as ek_comm_multireduce and ek_comm_multicast take them:
 * lists [experts, ranks] of ranks of the group, first the one that gets the sum; -1 after the last.
 * An expert without messages has no ranks.  to_root: messages of the sums; 0: of what is sent back.
 */
void ek_copy_sums_lists(const ek_copy_sums_config *cfg, const ek_plan *p, int to_root,
                        int32_t *lists);

#endif
