/* Prices ops with planned copies of experts, or without. */
#include "search/bound_prices.h"

#include "train/simulate.h"

ek_status ek_bound_prices_of(const ek_cluster *c, const ek_sim_layout *l, int ranks,
                             ek_even_plans *plans, ek_bound_prices *out)
{
    *out = (ek_bound_prices){.cluster = c, .n_columns = l->ep};
    EK_TRY(ek_even_plans_of(plans, l, c, ranks, 0, 0, &out->copies));
    if (out->copies != NULL)
        out->column = ek_sim_loads_slowest(out->copies);
    return EK_OK;
}

/* Whether an op sums gradients of persistent copies, or sends the sums. */
static int is_of_copies(const ek_op *op)
{
    return op->lane == EK_LANE_SUMS &&
           (op->kind == EK_OP_REPLICA_GRADIENTS || op->kind == EK_OP_SHARE_GRADIENTS);
}

void ek_bound_price(const ek_bound_prices *p, const ek_sim_class *of, const ek_op *op,
                    ek_sim_price *out)
{
    if (p->copies != NULL && !is_of_copies(op))
        ek_simulate_price_copies(p->cluster, p->copies, p->n_columns, p->column, of, op, out);
    else /* nothing to sum without copies */
        ek_simulate_price(p->cluster, of, op, out);
}
