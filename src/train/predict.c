/* Predicted times of ops, by their names. */
#include "train/predict.h"

#include "cost/cost.h"

#include <string.h>

/* An op of the experts: FLOPs of a row are `factor` hidden ff. */
typedef struct {
    const char *name;
    ek_cost_product product;
    double factor;
} expert_op;

static const expert_op expert_ops[] = {
    {"expert up", EK_COST_FORWARD, 4},
    {"expert down", EK_COST_FORWARD, 2},
    {"expert up input", EK_COST_BACKWARD_INPUT, 4},
    {"expert down input", EK_COST_BACKWARD_INPUT, 2},
    {"expert up weight", EK_COST_BACKWARD_WEIGHT, 4},
    {"expert down weight", EK_COST_BACKWARD_WEIGHT, 2},
};

static const char *const exchanges[] = {"dispatch a2a", "combine a2a", "combine a2a backward",
                                        "dispatch a2a backward"};

static int is_exchange(const char *name)
{
    for (size_t i = 0; i < sizeof(exchanges) / sizeof(exchanges[0]); i++)
        if (strcmp(exchanges[i], name) == 0)
            return 1;
    return 0;
}

/* The table is of up and down together, which have the same rows. */
static double products(const ek_predict_config *cfg, const expert_op *op, double flops)
{
    double ff = (double)cfg->spec->ff / (double)(cfg->etp > 1 ? cfg->etp : 1);
    double rows = flops / (op->factor * (double)cfg->spec->hidden * ff);
    double experts = (double)(cfg->experts > 1 ? cfg->experts : 1);

    return rows > 0 ? flops / ek_cost_rate_at(&cfg->machine->rate[op->product], rows / experts) : 0;
}

double ek_predict_op(const ek_predict_config *cfg, const ek_event *e)
{
    if (e->lane == EK_LANE_NODE || e->lane == EK_LANE_NET)
        return is_exchange(e->name) && ek_cost_has_links(cfg->machine)
                   ? ek_cost_all_to_all(cfg->machine, cfg->ranks, cfg->nodes, e->bytes, NULL, 0)
                   : -1;
    if (e->lane != EK_LANE_COMPUTE)
        return -1;
    for (size_t i = 0; i < sizeof(expert_ops) / sizeof(expert_ops[0]); i++)
        if (strcmp(expert_ops[i].name, e->name) == 0)
            return products(cfg, &expert_ops[i], e->flops);
    return e->flops > 0 || e->bytes <= 0 ? -1 : ek_cost_copies(cfg->machine, e->bytes);
}

void ek_predict_add(const ek_predict_config *cfg, const ek_event *events, int64_t n, ek_compare *c)
{
    for (int64_t i = 0; i < n; i++)
        ek_compare_add(c, events[i].name, ek_predict_op(cfg, &events[i]),
                       (double)(events[i].end_ns - events[i].start_ns) * 1e-9);
}
