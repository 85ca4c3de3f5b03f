/* Predicted times of ops, by their work. */
#include "train/timing/predict.h"

#include "cost/cost.h"
#include "sim/price_compute.h"

static double predict_net(const ek_predict_config *cfg, const ek_net_work *w)
{
    if (w->collective < EK_COLLECTIVE_A2A_LINEAR || w->collective > EK_COLLECTIVE_A2A_2DH ||
        !ek_cost_has_links(cfg->machine))
        return -1;
    return ek_cost_all_to_all(cfg->machine, w->span, cfg->nodes, w->bytes, NULL, 0);
}

double ek_predict_op(const ek_predict_config *cfg, const ek_event *e)
{
    ek_op op = {.kind = e->kind, .flops = e->flops, .bytes = e->bytes, .work = e->work};

    switch (e->work.kind) {
    case EK_WORK_NET: return predict_net(cfg, &e->work.net);
    case EK_WORK_NONE:
    case EK_WORK_DISK: return -1;
    default: return ek_price_compute(cfg->machine, &op);
    }
}

void ek_predict_add(const ek_predict_config *cfg, const ek_event *events, int64_t n, ek_compare *c)
{
    for (int64_t i = 0; i < n; i++)
        ek_compare_add(c, (int)events[i].kind, ek_op_name(events[i].kind),
                       ek_predict_op(cfg, &events[i]),
                       (double)(events[i].end_ns - events[i].start_ns) * 1e-9);
}
