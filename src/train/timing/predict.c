/* Predicted times of ops, by their kinds. */
#include "train/timing/predict.h"

#include "cost/cost.h"

/* The table is of up and down together, which have the same rows. */
static double products(const ek_predict_config *cfg, ek_cost_product product, int matrices,
                       double flops)
{
    double ff = (double)cfg->spec->ff / (double)(cfg->etp > 1 ? cfg->etp : 1);
    double rows = flops / (2.0 * matrices * (double)cfg->spec->hidden * ff);
    double experts = (double)(cfg->experts > 1 ? cfg->experts : 1);

    return rows > 0 ? flops / ek_cost_rate_at(&cfg->machine->rate[product], rows / experts) : 0;
}

/* Of an op that only moves memory. */
static double copies(const ek_predict_config *cfg, const ek_event *e)
{
    if (e->lane != EK_LANE_COMPUTE || e->flops > 0 || e->bytes <= 0)
        return -1;
    return ek_cost_copies(cfg->machine, e->bytes);
}

double ek_predict_op(const ek_predict_config *cfg, const ek_event *e)
{
    const ek_op_info *op = ek_op_info_of(e->kind);

    switch (op->cost) {
    case EK_OP_COST_BYTES: return copies(cfg, e);
    case EK_OP_COST_FORWARD: return products(cfg, EK_COST_FORWARD, op->matrices, e->flops);
    case EK_OP_COST_INPUT_GRAD:
        return products(cfg, EK_COST_BACKWARD_INPUT, op->matrices, e->flops);
    case EK_OP_COST_WEIGHT_GRAD:
        return products(cfg, EK_COST_BACKWARD_WEIGHT, op->matrices, e->flops);
    case EK_OP_COST_ALL_TO_ALL:
        return ek_cost_has_links(cfg->machine)
                   ? ek_cost_all_to_all(cfg->machine, cfg->ranks, cfg->nodes, e->bytes, NULL, 0)
                   : -1;
    }
    return -1;
}

void ek_predict_add(const ek_predict_config *cfg, const ek_event *events, int64_t n, ek_compare *c)
{
    for (int64_t i = 0; i < n; i++)
        ek_compare_add(c, (int)events[i].kind, ek_op_name(events[i].kind),
                       ek_predict_op(cfg, &events[i]),
                       (double)(events[i].end_ns - events[i].start_ns) * 1e-9);
}
