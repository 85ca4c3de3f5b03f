/* Rows and replicas by rank and link, from the split by source. */
#include "balance/plan_time.h"

#include <string.h>

/* Adds an expert's assignments to the rows that ranks serve, send and receive. */
static void add_traffic(const ek_plan_limits *l, const ek_plan *p, int32_t n, const int32_t *slots,
                        const int64_t *rows, int64_t *served, int64_t *sent, int64_t *got)
{
    for (int32_t i = 0; i < n; i++) {
        int32_t at = slots[i] / l->slots;

        served[at] += p->quota[slots[i]];
        for (int32_t r = 0; r < l->ranks; r++)
            if (r != at) {
                sent[r] += rows[(int64_t)r * n + i];
                got[at] += rows[(int64_t)r * n + i];
            }
    }
}

void ek_plan_replicas_of(const ek_plan_limits *l, const ek_placement *at, int32_t rank,
                         int32_t *gets, int32_t *gives)
{
    *gets = *gives = 0;
    for (int32_t s = rank * l->slots; s < (rank + 1) * l->slots; s++) {
        int32_t e = at->expert_of[s], others = 0;

        if (e < 0)
            continue;
        *gets += ek_plan_is_replica(at, s);
        for (int32_t o = 0; at->primary[e] == s && o < l->ranks * l->slots; o++)
            others += at->expert_of[o] == e && ek_plan_is_replica(at, o);
        *gives += others > 0;
    }
}

/* Replicas on the busiest link. */
static int32_t busiest_replicas(const ek_plan_limits *l, const ek_placement *at)
{
    int32_t most = 0;

    for (int32_t r = 0; r < l->ranks; r++) {
        int32_t gets, gives;

        ek_plan_replicas_of(l, at, r, &gets, &gives);
        most = gets > most ? gets : most;
        most = gives > most ? gives : most;
    }
    return most;
}

static int64_t largest_of(const int64_t *x, int32_t n)
{
    int64_t most = 0;

    for (int32_t i = 0; i < n; i++)
        most = x[i] > most ? x[i] : most;
    return most;
}

ek_plan_rows ek_plan_rows_of(const ek_plan_limits *l, const int64_t *counts, const ek_plan *p,
                             int64_t *memory, int32_t *slots)
{
    int64_t *served = memory, *sent = served + l->ranks, *got = sent + l->ranks;
    int64_t *split = got + l->ranks, *rows = split + l->ranks + l->ranks * l->slots;

    memset(memory, 0, 3 * (size_t)l->ranks * sizeof(*memory));
    for (int32_t e = 0; e < l->experts; e++) {
        int32_t n = ek_plan_split(l, counts, &p->placement, p->quota, e, split, slots, rows);

        add_traffic(l, p, n, slots, rows, served, sent, got);
    }
    return (ek_plan_rows){served, sent, got};
}

void ek_plan_exchange_of(const ek_plan_limits *l, const int64_t *counts, const ek_plan *p,
                         int64_t *memory, int32_t *slots, int64_t *sent)
{
    int64_t *rows = memory + l->ranks + l->ranks * l->slots;

    memset(sent, 0, (size_t)l->ranks * (size_t)l->ranks * sizeof(*sent));
    for (int32_t e = 0; e < l->experts; e++) {
        int32_t n = ek_plan_split(l, counts, &p->placement, p->quota, e, memory, slots, rows);

        for (int32_t i = 0; i < n; i++)
            for (int32_t r = 0; r < l->ranks; r++)
                sent[(int64_t)r * l->ranks + slots[i] / l->slots] += rows[(int64_t)r * n + i];
    }
}

ek_plan_terms ek_plan_terms_of(const ek_plan_limits *l, const int64_t *counts, const ek_plan *p,
                               int64_t *memory, int32_t *slots)
{
    ek_plan_rows rows = ek_plan_rows_of(l, counts, p, memory, slots);
    int64_t sent = largest_of(rows.sent, l->ranks), got = largest_of(rows.got, l->ranks);

    return (ek_plan_terms){(double)ek_row_costs_largest(l, rows.served) *
                               (l->costs.compute_s_per_row / (double)ek_row_cost_unit(l)),
                           l->costs.exchange_s +
                               (double)(sent > got ? sent : got) * l->costs.comm_s_per_row,
                           busiest_replicas(l, &p->placement) * l->costs.replica_s};
}

double ek_plan_time(const ek_plan_limits *l, const int64_t *counts, const ek_plan *p,
                    int64_t *memory, int32_t *slots)
{
    ek_plan_terms t = ek_plan_terms_of(l, counts, p, memory, slots);

    return t.products_s + t.rows_s + t.replicas_s;
}
