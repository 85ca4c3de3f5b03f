/* balance/few_copies.h - quotas in which few persistent copies of an expert serve rows.
 *
 * Problem      Only copies that serve rows in a step have gradients, and each of an expert but one
 *              sends them to be summed (costs.gradient_s, once a step).  The quotas of the least
 *              maximum in which rows stay on their rank (quota_flow.h) use nearly all copies,
 *              although loads can nearly always be levelled with one of most experts.
 * Method       1. By falling load, each expert is given to that of its copies whose rank has less
 *                 load then: one that has served in this step already, if there is one.  Copies
 *                 that have served, transient replicas, and the primaries that these report to,
 *                 cost nothing more.
 *              2. The flow of the least maximum over all copies, in which rows of the copies of
 *                 step 1 cost nothing: others serve where they lower the maximum, and few do.
 *              3. The flow in which rows stay on their rank, of the copies that serve then.
 *              4. Copies that serve beside another one are left out, those with the fewest rows
 *                 first, where that takes less time.
 *              5. The quotas are taken if they take less time than those of all copies.
 * Time         Products of the busiest rank, and rows on its link (plan_time.h), and the mean over
 *              ranks of gradients to be summed: messages of several layers and experts are under
 *              way at the same time.
 * Complexity   That of some ten flows.
 *
 * Pure and deterministic. */
#ifndef BALANCE_FEW_COPIES_H
#define BALANCE_FEW_COPIES_H

#include "balance/locality_replicas.h"
#include "balance/quota_flow.h"

typedef struct {
    ek_locality locality;
    unsigned char *free;  /* [ranks * slots] cost nothing more */
    unsigned char *open;  /* [ranks * slots] may serve */
    unsigned char *tried; /* [ranks * slots] not to be left out */
    int64_t *quota;       /* [ranks * slots] the best so far */
    int64_t *load;        /* [ranks] */
    int32_t *order;       /* [experts] by falling load */
    int32_t *serving;     /* [experts] copies whose gradients are summed */
} ek_few_copies;

void ek_few_copies_reserve(ek_few_copies *a, ek_arena *arena, const ek_plan_limits *l);

/* Changes the quotas of a plan, which have the least maximum over all copies, where that takes less
 * time.  states: slots of a rank that keep state, the first ones.  Returns the largest weighted
 * load. */
int64_t ek_few_copies_choose(ek_few_copies *a, ek_quota_flow *f, const ek_plan_limits *l,
                             const int64_t *counts, int32_t states, ek_plan *p);

#endif
