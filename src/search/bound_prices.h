/* search/bound_prices.h - prices of ops in bounds: at most what they take in a simulated step under
 * even loads.
 *
 * Copies  Where a policy keeps several copies of experts, a rank keeps the rows of experts that it
 *         has itself, and sends fewer to other nodes.  Which copies there are is planned, as for a
 *         simulation, once for layouts that plans do not distinguish (train/even_plans.h).  Bounds
 *         are of a single rank of each group, the one whose all-to-alls take longest: others only
 *         delay it.  Sums of the gradients of copies are left out. */
#ifndef SEARCH_BOUND_PRICES_H
#define SEARCH_BOUND_PRICES_H

#include "sim/replay.h"
#include "train/even_plans.h"

typedef struct {
    const ek_cluster *cluster;
    const ek_sim_loads *copies; /* borrowed from the plans; NULL: there is one of each expert */
    int32_t n_columns, column;  /* of the rank: ek_sim_config.column_of */
} ek_bound_prices;

/* Of a layout on so many ranks.  Errors as of ek_even_plans_of. */
EK_CHECKED ek_status ek_bound_prices_of(const ek_cluster *c, const ek_sim_layout *l, int ranks,
                                        ek_even_plans *plans, ek_bound_prices *out);

/* Of an op on the rank of a class. */
void ek_bound_price(const ek_bound_prices *p, const ek_sim_class *of, const ek_op *op,
                    ek_sim_price *out);

#endif
