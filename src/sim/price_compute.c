/* Seconds of products, attention and rows by a machine's tables. */
#include "sim/price_compute.h"

#include "cost/cost.h"

#include <math.h>

static ek_cost_product table_of_pass(int pass)
{
    return pass == EK_PRODUCT_FORWARD ? EK_COST_FORWARD
           : pass == EK_PRODUCT_INPUT ? EK_COST_BACKWARD_INPUT
                                      : EK_COST_BACKWARD_WEIGHT;
}

static double price_product(const ek_machine *m, const ek_product *p)
{
    double flops = 2 * p->rows * p->out * p->in; /* of a pass */
    double seconds = 0;

    if (flops <= 0)
        return 0;
    for (int pass = EK_PRODUCT_FORWARD; pass <= EK_PRODUCT_WEIGHT; pass *= 2)
        if ((p->passes & pass) != 0)
            seconds += flops /
                       ek_cost_rate_at(&m->rate[table_of_pass(pass)], p->rows / fmax(p->groups, 1));
    return seconds;
}

static double price_products(const ek_machine *m, const ek_product_work *w)
{
    double seconds = 0;

    for (int32_t i = 0; i < w->n; i++)
        seconds += price_product(m, &w->product[i]);
    return seconds;
}

static double best_rate(const ek_machine *m)
{
    double best = 0;

    for (int p = 0; p < EK_COST_PRODUCTS; p++)
        best = fmax(best, ek_cost_rate_at(&m->rate[p], INFINITY));
    return best;
}

double ek_price_compute(const ek_machine *m, const ek_op *op)
{
    switch (op->work.kind) {
    case EK_WORK_PRODUCTS: return price_products(m, &op->work.products);
    case EK_WORK_ATTENTION: return ek_work_flops(&op->work) / best_rate(m);
    case EK_WORK_ROWS: return ek_cost_copies(m, op->bytes);
    case EK_WORK_NONE:
    case EK_WORK_NET:
    case EK_WORK_DISK: break;
    }
    return 0;
}
