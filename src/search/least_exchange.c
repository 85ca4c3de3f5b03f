/* Counts rows that no rank near has an expert for. */
#include "search/least_exchange.h"

#include "sim/level_rows.h"

#include <math.h>
#include <stdlib.h>

/* Shares are found in another order than factors of loads are. */
#define ROUNDING 1e-9

/* Rows of a rank in an even spread, as sim/loads.h scales them. */
static double count_rows(const ek_sim_layout *l)
{
    double top_k = (double)l->spec.top_k;

    return top_k * fmax(1, round(l->rows / top_k));
}

/* Of what a rank sends with one copy of each expert: rows of experts that it has no slots for. */
static double least_sent(const ek_sim_layout *l, int32_t slots)
{
    double rows = count_rows(l), experts = (double)l->spec.experts;
    double own = fmin(rows, slots * ceil(rows / experts));

    return (rows - own) / (rows * (l->ep - 1) / l->ep);
}

ek_status ek_least_exchange_of(const ek_cluster *c, const ek_sim_layout *l, ek_least_exchange *out)
{
    int32_t experts = (int32_t)l->spec.experts,
            slots = (experts + l->ep - 1) / l->ep + l->spare_slots;
    ek_level_group g = {c, l->ep, l->etp, l->etp, count_rows(l) / l->ep};
    ek_level_rows *scratch;
    double *wires;

    *out = (ek_least_exchange){1, 1};
    if (l->planner == NULL || !ek_planner_fills_slots(l->planner) || l->ep < 2)
        return EK_OK;
    scratch = calloc((size_t)l->ep, sizeof(*scratch));
    wires = calloc((size_t)l->ep, sizeof(*wires));
    if (scratch != NULL && wires != NULL) {
        double less = 1 - ROUNDING, sent = fmin(1, less * least_sent(l, slots));
        double wire = less * ek_level_least_wire(&g, experts, slots, scratch, wires);

        *out = (ek_least_exchange){fmin(wire, sent), sent};
    }
    free(scratch);
    free(wires);
    EK_REQUIRE(scratch != NULL && wires != NULL, EK_ENOMEM, "no memory for %d ranks", l->ep);
    return EK_OK;
}

void ek_least_exchange_price(const ek_least_exchange *x, const ek_op *op, ek_sim_price *price)
{
    if (!ek_op_is_token_exchange(op->kind))
        return;
    price->wire *= x->wire;
    price->overhead *= x->overhead;
    if (x->overhead <= 0) /* nothing is sent, and nobody waits */
        *price = (ek_sim_price){.silent = 1};
}
