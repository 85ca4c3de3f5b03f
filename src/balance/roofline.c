/* The DDL-Roofline of a layer. */
#include "balance/roofline.h"

#include "balance/plan_time.h"
#include "cost/cost.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

ek_roofline_work ek_roofline_work_of(const ek_plan_limits *l, const int64_t *counts,
                                     const ek_plan *p, double row_flops, int64_t *memory,
                                     int32_t *slots)
{
    ek_plan_terms t = ek_plan_terms_of(l, counts, p, memory, slots);
    int64_t rows = 0;

    for (int64_t i = 0; i < (int64_t)l->ranks * l->experts; i++)
        rows += counts[i];
    return (ek_roofline_work){
        .ranks = l->ranks,
        .rank_flops_s = l->costs.compute_s_per_row > 0 ? row_flops / l->costs.compute_s_per_row : 0,
        .flops = row_flops * (double)rows,
        .compute_s = t.products_s,
        .comm_s = t.rows_s + t.replicas_s};
}

ek_roofline_work ek_roofline_work_of_counts(int32_t ranks, const ek_plan_costs *c, double row_flops,
                                            const ek_roofline_counts *n)
{
    return (ek_roofline_work){.ranks = ranks,
                              .rank_flops_s =
                                  c->compute_s_per_row > 0 ? row_flops / c->compute_s_per_row : 0,
                              .flops = row_flops * n->rows,
                              .compute_s = n->busiest * c->compute_s_per_row,
                              .comm_s = n->batches * c->exchange_s + n->link * c->comm_s_per_row +
                                        n->replicas * c->replica_s};
}

void ek_roofline_add(ek_roofline_work *sum, const ek_roofline_work *step)
{
    if (sum->ranks == 0) {
        *sum = *step;
        return;
    }
    sum->time_s = sum->time_s > 0 && step->time_s > 0 ? sum->time_s + step->time_s : 0;
    sum->flops += step->flops;
    sum->compute_s += step->compute_s;
    sum->comm_s += step->comm_s;
}

ek_roofline ek_roofline_of(const ek_roofline_work *w)
{
    double p = w->rank_flops_s, both = w->compute_s + w->comm_s;
    double time = w->time_s > 0 ? w->time_s : both;
    ek_roofline r = {.measured = w->time_s > 0};

    if (w->compute_s > 0)
        r.r_cc = w->comm_s > 0 ? w->compute_s / w->comm_s : (double)INFINITY;
    if (time > 0 && w->ranks > 0)
        r.achieved = w->flops / ((double)w->ranks * time);
    if (both > 0) {
        r.ideal = p * fmin(1, r.r_cc);
        r.semi_ideal = p * w->compute_s / both;
    }
    return r;
}

int ek_roofline_line(const ek_roofline_work *w, int64_t layer, char *text, size_t cap)
{
    ek_roofline r = ek_roofline_of(w);
    char ratio[64] = "", achieved[EK_COST_QUANTITY], even[EK_COST_QUANTITY],
         ideal[EK_COST_QUANTITY];
    double percent = w->rank_flops_s > 0 ? 100 * r.achieved / w->rank_flops_s : 0;

    if (w->flops <= 0)
        return snprintf(text, cap, "layer %" PRId64 ": no assignments", layer);
    if (isfinite(r.r_cc))
        snprintf(ratio, sizeof(ratio), "; computes %.3g times as long as it sends (R_CC)", r.r_cc);
    return snprintf(text, cap,
                    "layer %" PRId64 ": %s a rank%s, %.0f %% of its products' rate; with "
                    "even loads %s, overlapped as well %s%s",
                    layer, ek_cost_quantity(achieved, r.achieved, "FLOP/s"),
                    r.measured ? "" : " predicted", percent,
                    ek_cost_quantity(even, r.semi_ideal, "FLOP/s"),
                    ek_cost_quantity(ideal, r.ideal, "FLOP/s"), ratio);
}
