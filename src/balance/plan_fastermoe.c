/* fastermoe: FasterMoE's shadowing as released, which differs from its paper (`shadow`).
 *
 * Source       FastMoE's repository (laekov/fastmoe, fmoe/fastermoe/shadow_policy.py), which
 *              includes FasterMoE (He et al., PPoPP 2022): its policy for where to shadow, as
 *              switched on by FMOE_FASTER_SHADOW_ENABLE.  A published baseline; see `shadow` for a
 *              working one.
 * Formula      S_w the assignments that rank w SENDS, in descending order S_(0), S_(1), ...  While
 *                  S_(i+1) (compute_s_per_row + comm_s_per_row) + (i + 1) replica_s / 2
 *              is below the time so far (at first S_(0) (compute_s_per_row + comm_s_per_row)), the
 *              expert whose number equals the rank number of S_(i) is shadowed.  The last rank is
 *              not considered.
 * Complexity   ranks experts to add up the counts, ranks^2 to visit them in order, ranks slots per
 *              shadow.
 *
 * Differences from the paper
 *   - S_w replaces B_w, the assignments that w serves: sums go over the wrong axis of the gathered
 *     counts.  Where all ranks have equal batches all S_w are equal, and nothing is ever shadowed,
 *     however hot an expert is.
 *   - A rank number is used as an expert number: with uneven batches, experts of the numbers
 *     0 ... ranks - 1 of the ranks with most tokens are shadowed, whatever their loads.
 *   - A shadow is charged for sending the weights only, and what is not shadowed still sends.
 *
 * Departures   Slots are finite: an expert for which some rank has no slot ends the search.  So
 *              does a rank number that is no expert number. */
#include "balance/plan_shadow.h"
#include "cost/cost.h"

#include <stdio.h>

typedef struct {
    int64_t *total; /* [experts] */
    int64_t *sends; /* [ranks]; -1: visited */
} memory;

static void *reserve_fastermoe(ek_arena *a, const ek_plan_limits *l)
{
    memory *m = ek_arena_alloc(a, 1, sizeof(*m));
    int64_t *total = ek_arena_alloc(a, l->experts, sizeof(*total));
    int64_t *sends = ek_arena_alloc(a, l->ranks, sizeof(*sends));

    if (m != NULL)
        *m = (memory){total, sends};
    return m;
}

static void sum_sent(memory *m, const ek_plan_limits *l, const int64_t *counts)
{
    for (int32_t r = 0; r < l->ranks; r++, counts += l->experts) {
        m->sends[r] = 0;
        for (int32_t e = 0; e < l->experts; e++)
            m->sends[r] += counts[e];
    }
}

/* The rank that sends most among those not visited; -1. */
static int32_t most_sent(const memory *m, int32_t ranks)
{
    int32_t best = -1;

    for (int32_t r = 0; r < ranks; r++)
        if (m->sends[r] >= 0 && (best < 0 || m->sends[r] > m->sends[best]))
            best = r;
    return best;
}

static ek_status plan_fastermoe(void *mem, const ek_plan_limits *l, const int64_t *counts,
                                ek_plan *p)
{
    char a[EK_COST_QUANTITY], b[EK_COST_QUANTITY];
    memory *m = mem;
    double each = l->costs.compute_s_per_row + l->costs.comm_s_per_row;
    int32_t n = 0, now, next;

    ek_plan_totals(l, counts, m->total);
    ek_plan_primaries_only(l, m->total, p);
    sum_sent(m, l, counts);
    now = most_sent(m, l->ranks);
    p->before_s = p->after_s = (double)m->sends[now] * each;
    for (;; now = next) {
        double s;

        m->sends[now] = -1;
        next = most_sent(m, l->ranks);
        if (next < 0 || now >= l->experts || ek_shadow_full(l, &p->placement, now) >= 0)
            break;
        s = (double)m->sends[next] * each + (n + 1) * l->costs.replica_s / 2;
        if (!(s < p->after_s))
            break;
        p->after_s = s;
        ek_shadow(l, counts, now, p);
        n++;
    }
    if (p->explain)
        snprintf(p->reason, sizeof(p->reason),
                 "%d expert%s shadowed, by assignments sent: %s -> %s by its own model", (int)n,
                 n == 1 ? "" : "s", ek_cost_quantity(a, p->before_s, "s"),
                 ek_cost_quantity(b, p->after_s, "s"));
    return EK_OK;
}

const ek_planner ek_planner_fastermoe = {
    .name = "fastermoe",
    .what = "shadowing as in FasterMoE's released code, by what ranks send; mostly does nothing",
    .reserve = reserve_fastermoe,
    .plan_transient = plan_fastermoe};
