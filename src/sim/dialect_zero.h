/* sim/dialect_zero.h - what other programs do with ZeRO 1: switches of a dialect (sim/dialect.h).
 */
#ifndef SIM_DIALECT_ZERO_H
#define SIM_DIALECT_ZERO_H

#include "cost/machine.h"
#include "schedule/graph.h"

/* whole-sums: the sums of gradients of one group of ranks are one all-reduce, which begins when the
 * last of them could, and no earlier than another op needs one.  A sum of another group that one of
 * them waits for may be left out.  *to is empty; EK_ENOMEM. */
EK_CHECKED ek_status ek_dialect_sum_at_once(const ek_graph *from, ek_graph *to);

/* gather-copies: weights are gathered when all are updated, at once by each group of ranks.  What
 * the group of the largest gather has is copied into a vector for each rank before, out of one for
 * all ranks into these afterwards, and from each of them weight by weight.  *to is empty;
 * EK_ENOMEM. */
EK_CHECKED ek_status ek_dialect_gather_at_once(const ek_machine *m, const ek_graph *from,
                                               ek_graph *to);

#endif
