/* Predicted times of ops, by their kinds and work. */
#include "train/timing/predict.h"

#include "cost/cost.h"

#include <math.h>

/* Of experts.  The table is of up and down together, which have the same rows. */
static double products(const ek_predict_config *cfg, ek_cost_product product, const ek_event *e)
{
    const ek_product *p = &e->work.products.product[0];
    const ek_cost_table *rate = &cfg->machine->rate[product];

    if (e->work.kind != EK_WORK_PRODUCTS)
        return -1;
    return p->rows > 0 ? e->flops / ek_cost_rate_at(rate, p->rows / fmax(p->groups, 1)) : 0;
}

/* Of an op that only moves memory. */
static double copies(const ek_predict_config *cfg, const ek_event *e)
{
    if (e->work.kind != EK_WORK_ROWS || e->bytes <= 0)
        return -1;
    return ek_cost_copies(cfg->machine, e->bytes);
}

static double all_to_all(const ek_predict_config *cfg, const ek_event *e)
{
    if (e->work.kind != EK_WORK_NET || !ek_cost_has_links(cfg->machine))
        return -1;
    return ek_cost_all_to_all(cfg->machine, e->work.net.span, cfg->nodes, e->work.net.bytes, NULL,
                              0);
}

double ek_predict_op(const ek_predict_config *cfg, const ek_event *e)
{
    switch (ek_op_info_of(e->kind)->cost) {
    case EK_OP_COST_BYTES: return copies(cfg, e);
    case EK_OP_COST_FORWARD: return products(cfg, EK_COST_FORWARD, e);
    case EK_OP_COST_INPUT_GRAD: return products(cfg, EK_COST_BACKWARD_INPUT, e);
    case EK_OP_COST_WEIGHT_GRAD: return products(cfg, EK_COST_BACKWARD_WEIGHT, e);
    case EK_OP_COST_ALL_TO_ALL: return all_to_all(cfg, e);
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
