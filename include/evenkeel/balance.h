/* evenkeel/balance.h - the planners alone, for any program that trains or serves Mixture-of-Experts
 * layers: numbers of assignments in, who holds which expert and who serves whose assignments out.
 * No MPI, no threads of its own, no files.
 *
 * Words        an assignment is one token's row for one expert (top-k expanded).  A rank has
 *              ceil(experts / ranks) + spare_slots places for experts; slot s of rank r has number
 *              r * slots + s.  An expert's home is the slot where its optimizer state lives; what
 *              else holds it is a replica.  Homes start in block order: the first ranks hold one
 *              more where they do not divide.
 * Same         all calls with the same arguments in the same order give the same answer, on every
 * everywhere   rank and machine: plan on each rank from gathered counts, and nothing else has to
 *              be said.
 * Ownership    create gives, destroy takes; after create nothing is allocated.
 * Threads      one at a time per planner. */
#ifndef EK_BALANCE_H
#define EK_BALANCE_H

#include "evenkeel/err.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ek_balance ek_balance;

typedef struct {
    size_t size;                 /* of this struct */
    const char *policy;          /* ek_balance_policy lists them; NULL: "exact" */
    int32_t experts, ranks;      /* at least 1 each; nothing has to divide */
    int32_t spare_slots;         /* of a rank, 0 or more */
    const int32_t *node_of;      /* [ranks], copied; NULL: every rank is a node of its own */
    int32_t replicas_min;        /* nodes that are to hold each expert, for "replicate" and "auto",
                                    which is "replicate" where that is more than 1; 0 is 1 */
    double compute_s_per_row;    /* seconds: a rank computes an assignment, forward and backward */
    double comm_s_per_row;       /* a link carries an assignment's rows, all four exchanges */
    double replica_s;            /* a link carries a replica, weights out and gradients back */
    double migrate_s_per_expert; /* a link carries the state of an expert that moves for good
                                    ("auto") */
    int64_t horizon; /* plans in which such moves have to pay for themselves twice over ("auto"); 0:
                      homes stay */
} ek_balance_config;

/** A plan; its arrays belong to the planner and hold until its next call. */
typedef struct {
    int32_t slots;            /* of a rank */
    const int32_t *expert_of; /* [ranks * slots]; -1: empty */
    const int32_t *primary;   /* [experts], a slot number */
    const int64_t *quota; /* [ranks * slots]: assignments that the slot serves, of all sources */
    double before_s, after_s; /* what the planner's model says of before and after */
    const char *reason;       /* what it decided, in a line; may be empty */
    const char
        *primary_reason; /* "auto": the same of the homes, when it was last asked; may be empty */
} ek_balance_plan_result;

/** Names of the policies: "off", "exact", ...; NULL behind the last. */
EK_API const char *ek_balance_policy(int i);

/** Makes a planner and all the memory that it will use.
 *
 *  @param[out] out  NULL on failure
 *  @return EK_EINVAL with the name of what does not fit; EK_EOVERFLOW for too many slots; EK_ENOMEM
 */
EK_CHECKED EK_API ek_status ek_balance_create(const ek_balance_config *cfg, ek_balance **out);

/** Releases *b and sets it to NULL; NULL and *b == NULL are fine. */
EK_API void ek_balance_destroy(ek_balance **b);

/** Plans for these counts.  "place", "replicate" and "eplb" go on from where their last plan put
 *  the experts; the others' replicas are for once.  "auto" does both: replicas for these counts,
 * and with every `lasts`th plan homes for the counts given before, those of up to twice as many
 * plans; who moves has to be there before these counts are served.
 *
 *  @param[in] counts  [ranks][experts], assignments by source rank; none negative, 2^62 in all at
 * most
 *  @return EK_EINVAL with the first count that is not */
EK_CHECKED EK_API ek_status ek_balance_plan(ek_balance *b, const int64_t *counts,
                                            ek_balance_plan_result *out);

/** Who serves whom under the last plan, for these counts, which need not be those that it was made
 *  from: an expert's are shared out over its slots as the plan would; of them a source's own rank
 *  serves first, then its node, then the rest.  Before the first plan all go home.
 *
 *  @param[in] counts  [ranks][experts]
 *  @param[out] rows   [ranks][ranks * slots]: a source's assignments that a slot serves */
EK_CHECKED EK_API ek_status ek_balance_split(ek_balance *b, const int64_t *counts, int64_t *rows);

#ifdef __cplusplus
}
#endif

#endif
