/** @file
 *  evenkeel/balance.h - the expert-placement planners alone, for any program that trains or
 *  serves Mixture-of-Experts layers.  Input: assignment counts.  Output: which slot holds which
 *  expert, and which slot serves which source's assignments.  No MPI, no threads of its own, no
 *  files.
 *
 *  @par Terms
 *  An assignment is one token's row for one expert (top-k expanded).  A rank has ceil(experts /
 *  ranks) + spare_slots slots for experts; slot s of rank r has number r * slots + s. The slot
 *  with an expert's optimizer state is its primary copy; any other slot that holds the expert is
 *  a replica.  Primary copies start in block order: where ranks does not divide experts, the
 *  first ranks hold one more.
 *
 *  @par Determinism
 *  The same calls with the same arguments in the same order give the same results on every rank
 *  and machine: each rank plans from the gathered counts, and no plan has to be communicated.
 *
 *  @par Collective
 *  No call is.
 *
 *  @par Ownership
 *  ek_balance_create allocates, ek_balance_destroy frees; no other call allocates.
 *
 *  @par Threads
 *  One thread at a time per planner. */
#ifndef EK_BALANCE_H
#define EK_BALANCE_H

#include "evenkeel/err.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/** A planner with its memory and its last plan. */
typedef struct ek_balance ek_balance;

/** Sizes and costs of the layer that is to be balanced. */
typedef struct {
    size_t size;            /**< sizeof(ek_balance_config) */
    const char *policy;     /**< a name that ek_balance_policy lists; NULL: "exact" */
    int32_t experts;        /**< at least 1 */
    int32_t ranks;          /**< at least 1; they need not divide experts */
    int32_t spare_slots;    /**< per rank, 0 or more */
    const int32_t *node_of; /**< [ranks] node of each rank, copied; NULL: one rank per node */
    int32_t replicas_min; /**< "replicate", "auto": minimum number of nodes that hold each expert; 0
                             is 1.  With 2 or more "auto" places persistent replicas as "replicate"
                             does, at first in the first plan; if the other slots suffice for that
                             many copies of each expert, the last slot of each rank is for transient
                             replicas.  Its quotas have the least maximum load in every plan */
    double compute_s_per_row; /**< seconds: a rank, the fastest one, computes an assignment, forward
                                 and backward */
    double comm_s_per_row;    /**< seconds: one link carries one assignment's rows, all four
                                 all-to-alls */
    double replica_s; /**< seconds: one link carries one replica: weights out, gradients back */
    double migrate_s_per_expert; /**< seconds, "auto": one link carries the state of an expert whose
                                    primary copy moves */
    int64_t horizon; /**< "auto", and registered planners that make both kinds of plans: number of
                        plans within which such moves must pay for themselves twice over, or more if
                        loads have been constant for longer; 0: primary copies never move, except to
                        come onto replicas_min nodes */
    int prefer_survival; /**< 1, where replicas_min is above 1: the placement that survives most
                            losses of further nodes, even where a rank then has more than 5 % more
                            load */
    const double *rank_speeds; /**< [ranks] relative speeds of ranks that differ, each finite and
                                  above 0, copied: plans then level the time of assignments instead
                                  of their number ("fastermoe" and "eplb" do not); NULL: all are
                                  equal.  See ek_balance_set_rank_speeds */
} ek_balance_config;

/** A plan.  The planner owns the arrays; they are valid until its next call. */
typedef struct {
    int32_t slots;            /**< per rank */
    const int32_t *expert_of; /**< [ranks * slots]; -1: empty */
    const int32_t *primary;   /**< [experts] slot number of the primary copy */
    const int64_t *quota; /**< [ranks * slots] assignments served by the slot, over all sources */
    double before_s;      /**< seconds of the layer, predicted by the policy's own model, with the
                             placement before */
    double after_s;       /**< likewise with this one */
    const char *reason;   /**< one line: the decision and its numbers; may be empty */
    const char *primary_reason; /**< "auto": the same for the last plan of the primary copies; may
                                   be empty */
} ek_balance_plan_result;

/** Names of the policies: "off", "exact", ..., then registered ones (evenkeel/planner.h).  Not
 *  collective.
 *
 *  @param[in] i  from 0
 *  @return the name of policy i, static; NULL behind the last */
EK_API const char *ek_balance_policy(int i);

/** Creates a planner and allocates all the memory that it will use.  Not collective.
 *
 *  @param[in]  cfg  borrowed during the call
 *  @param[out] out  freed by ek_balance_destroy; NULL on failure
 *  @return EK_EINVAL with the name and value of the bad field; EK_EOVERFLOW: too many slots;
 *          EK_ENOMEM */
EK_CHECKED EK_API ek_status ek_balance_create(const ek_balance_config *cfg, ek_balance **out);

/** Frees a planner.  Not collective.
 *
 *  @param[in,out] b  *b is set to NULL; NULL and *b == NULL are allowed */
EK_API void ek_balance_destroy(ek_balance **b);

/** Sets or changes the relative speeds of ranks, for the plans that follow.  They are rounded so
 *  that the fastest rank takes 256 units of time for an assignment and any other a whole number, at
 *  most 64 times as many.  If that makes all ranks equal, plans are those without speeds.  All
 *  ranks must set the same.  Not collective.
 *
 *  @param[in] b       the planner
 *  @param[in] speeds  [ranks] assignments in a time of any length, finite and above 0; NULL: all
 *                     ranks are equal
 *  @return EK_EINVAL with the first speed that is out of range */
EK_CHECKED EK_API ek_status ek_balance_set_rank_speeds(ek_balance *b, const double *speeds);

/** Plans for these counts.  "place", "replicate" and "eplb" make persistent placements: each plan
 *  starts from the one before.  The replicas of all other policies are transient: they are valid
 *  for these counts.  "auto" does both: transient replicas for these counts and, in every
 *  `horizon`th plan, a new placement of the primary copies from the counts of the calls before (the
 *  last `horizon` to 2 `horizon` plans).  Moved experts must be in place before these counts are
 *  dispatched.  Not collective.
 *
 *  @param[in]  b       the planner
 *  @param[in]  counts  [ranks][experts] assignments by source rank; none negative, sum at most
 * 2^62, 2^48 where speeds of ranks differ
 *  @param[out] out     filled in; see ek_balance_plan_result for its lifetime
 *  @return EK_EINVAL with the first count that is out of range.  With a registered planner also its
 *          own failures, and EK_EINVAL with the fault of an invalid plan; ek_balance_split then
 *          works as before the first plan, with the last persistent placement */
EK_CHECKED EK_API ek_status ek_balance_plan(ek_balance *b, const int64_t *counts,
                                            ek_balance_plan_result *out);

/** Splits counts over the slots of the last plan.  The counts need not be those of the plan: each
 *  expert's are apportioned to its slots in proportion to the plan's quotas.  A slot serves its own
 *  rank's assignments first, then its node's, then the others'.  Before the first plan the primary
 *  copies serve everything.  Not collective.
 *
 *  @param[in]  b       the planner
 *  @param[in]  counts  [ranks][experts], as for ek_balance_plan
 *  @param[out] rows    [ranks][ranks * slots] assignments of a source rank that a slot serves
 *  @return EK_EINVAL with the first count that is out of range */
EK_CHECKED EK_API ek_status ek_balance_split(ek_balance *b, const int64_t *counts, int64_t *rows);

#ifdef __cplusplus
}
#endif

#endif
