/* shadow: hot experts are on every rank for one step, and each rank computes its own tokens there.
 *
 * Source       FasterMoE (He et al., PPoPP 2022), section 3 (the model of a layer's time), section
 *              4.1 and Algorithm 1 (dynamic shadowing).
 * Formula      B_w the assignments that rank w serves, r the number of shadowed experts:
 *                  none shadowed   max_w B_w (compute_s_per_row + comm_s_per_row)
 *                  r shadowed      max_w B'_w compute_s_per_row + r replica_s
 *              In the paper, for experts of two matrices: compute_s_per_row = 12 alpha H^2 / P,
 *              comm_s_per_row = 4 H b / Wn, replica_s = 2 (2 alpha H^2 b) / Wn.  Experts are
 *              visited by descending load, equal loads by ascending id; the first that does not
 *              lower the time ends the search.
 * Complexity   (r + 1) (experts + ranks slots) + ranks experts.
 *
 * Departures
 *   - Slots are finite.  An expert for which some rank has no slot cannot be shadowed and ends the
 *     search, so that the shadowed experts are always the hottest.
 *   - An expert with assignments from its primary rank only ends the search.  Shadowing it moves no
 *     assignment, but the formula would call the first such a gain, because it drops the send term
 *     as soon as anything is shadowed.  A single rank is the simplest case.
 *   - Where ranks differ in speed, loads that compute_s_per_row multiplies are weighted
 *     (row_costs.h).
 *   - A rank that already holds the expert uses that slot; replica_s is charged all the same, since
 *     weights and gradients travel every step.
 *
 * As in the paper, the second formula ignores what unshadowed experts still send: after_s is too
 * low where communication dominates, and even counts may get a shadow that does not pay.
 *
 * Shadows are transient.  Replicas already in the placement are kept, so the caller passes it
 * without the shadows of the step before. */
#include "balance/plan_shadow.h"

#include "balance/row_costs.h"
#include "cost/cost.h"

#include <stdio.h>

typedef struct {
    int64_t *left;    /* [experts] loads of experts not yet visited; -1: visited */
    int64_t *load;    /* [ranks] with all shadows so far and the current expert */
    int32_t *shadows; /* [experts] in the order of shadowing */
} memory;

/* State of a search. */
typedef struct {
    int32_t n;        /* shadowed experts */
    int64_t least;    /* the largest weighted load with these shadows */
    int32_t refused;  /* the expert that ended the search; -1: none did */
    int32_t full;     /* the rank without a slot for it; -1: all have one */
    double refused_s; /* the time with it, if all ranks have a slot */
    int64_t moved;    /* its assignments from ranks other than its primary rank */
} search;

static void *reserve_shadow(ek_arena *a, const ek_plan_limits *l)
{
    memory *m = ek_arena_alloc(a, 1, sizeof(*m));
    int64_t *left = ek_arena_alloc(a, l->experts, sizeof(*left));
    int64_t *load = ek_arena_alloc(a, l->ranks, sizeof(*load));
    int32_t *shadows = ek_arena_alloc(a, l->experts, sizeof(*shadows));

    if (m != NULL)
        *m = (memory){left, load, shadows};
    return m;
}

static int32_t hottest_left(const ek_plan_limits *l, const int64_t *left)
{
    int32_t best = -1;

    for (int32_t e = 0; e < l->experts; e++)
        if (left[e] >= 0 && (best < 0 || left[e] > left[best]))
            best = e;
    return best;
}

/* The slot of a rank that holds the expert or can: the primary slot, one that holds it, an empty
 * one; -1. */
static int32_t slot_for(const ek_placement *at, int32_t rank, int32_t expert)
{
    int32_t s;

    if (at->primary[expert] / at->slots == rank)
        return at->primary[expert];
    s = ek_plan_slot(at, rank, expert);
    return s >= 0 ? s : ek_plan_free_slot(at, rank);
}

int32_t ek_shadow_full(const ek_plan_limits *l, const ek_placement *at, int32_t expert)
{
    for (int32_t r = 0; r < l->ranks; r++)
        if (slot_for(at, r, expert) < 0)
            return r;
    return -1;
}

/* Every rank serves its own assignments of the expert; returns the largest weighted load. */
static int64_t shift_loads(const ek_plan_limits *l, const int64_t *counts, int32_t expert,
                           int32_t primary, int64_t moved, int64_t *load)
{
    load[primary] -= moved;
    for (int32_t r = 0; r < l->ranks; r++)
        load[r] += r == primary ? 0 : counts[(int64_t)r * l->experts + expert];
    return ek_row_costs_largest(l, load);
}

void ek_shadow(const ek_plan_limits *l, const int64_t *counts, int32_t expert, ek_plan *p)
{
    for (int32_t r = 0; r < l->ranks; r++) {
        int32_t s = slot_for(&p->placement, r, expert);

        p->placement.expert_of[s] = expert;
        p->quota[s] = counts[(int64_t)r * l->experts + expert];
    }
}

/* Shadows the hottest expert left if that pays; returns whether it did. */
static int shadow_next(const ek_plan_limits *l, const int64_t *counts, memory *m, search *now,
                       ek_plan *p)
{
    int32_t e = hottest_left(l, m->left), primary;
    int64_t most;

    now->refused = e;
    if (e < 0)
        return 0;
    primary = p->placement.primary[e] / l->slots;
    now->moved = m->left[e] - counts[(int64_t)primary * l->experts + e];
    now->full = ek_shadow_full(l, &p->placement, e);
    if (now->moved == 0 || now->full >= 0)
        return 0;
    m->left[e] = -1;
    /* The search ends if this does not pay, so loads need no undo. */
    most = shift_loads(l, counts, e, primary, now->moved, m->load);
    now->refused_s = (double)most * (l->costs.compute_s_per_row / (double)ek_row_cost_unit(l)) +
                     (double)(now->n + 1) * l->costs.replica_s;
    if (!(now->refused_s < p->after_s))
        return 0;
    ek_shadow(l, counts, e, p);
    p->after_s = now->refused_s;
    now->least = most;
    m->shadows[now->n++] = e;
    return 1;
}

/* --- reason text ------------------------------------------------------------------------------ */

/* Writes what ended the search; returns snprintf's result. */
static int explain_end(const search *now, char *text, size_t cap)
{
    char a[EK_COST_QUANTITY];
    int e = (int)now->refused;

    if (e < 0)
        return snprintf(text, cap, "no expert is left");
    if (now->moved == 0)
        return snprintf(text, cap, "only the primary rank has tokens for expert %d", e);
    if (now->full >= 0)
        return snprintf(text, cap, "expert %d: no empty slot on rank %d", e, (int)now->full);
    return snprintf(text, cap, "with expert %d it would take %s", e,
                    ek_cost_quantity(a, now->refused_s, "s"));
}

/* The list of experts comes last, cut where the text ends. */
static void explain_shadow(const memory *m, const ek_plan_limits *l, const search *now,
                           int64_t most, ek_plan *p)
{
    char a[EK_COST_QUANTITY], b[EK_COST_QUANTITY];
    char end[80];
    int n;

    (void)explain_end(now, end, sizeof(end));
    n = snprintf(p->reason, sizeof(p->reason),
                 "%d shadowed, heaviest rank %lld -> %lld%s, %s -> %s; %s%s", (int)now->n,
                 ek_row_costs_shown(l, most), ek_row_costs_shown(l, now->least),
                 ek_row_costs_note(l), ek_cost_quantity(a, p->before_s, "s"),
                 ek_cost_quantity(b, p->after_s, "s"), end, now->n > 0 ? "; shadowed" : "");
    for (int32_t i = 0; i < now->n && n < EK_PLAN_REASON; i++) {
        size_t cap = sizeof(p->reason) - (size_t)n;
        int k = snprintf(p->reason + n, cap, " %d", (int)m->shadows[i]);

        if ((size_t)k >= cap) {
            p->reason[n] = '\0'; /* no partial number */
            return;
        }
        n += k;
    }
}

static ek_status plan_shadow(void *its, const ek_plan_limits *l, const int64_t *counts, ek_plan *p)
{
    memory *m = its;
    search now = {.refused = -1, .full = -1};
    int64_t most;

    ek_plan_totals(l, counts, m->left);
    ek_plan_primaries_only(l, m->left, p);
    (void)ek_plan_loads(l, p, m->load);
    most = now.least = ek_row_costs_largest(l, m->load);
    p->before_s = p->after_s = ek_row_costs_seconds(l, most);
    while (shadow_next(l, counts, m, &now, p)) {
    }
    if (p->explain)
        explain_shadow(m, l, &now, most, p);
    return EK_OK;
}

const ek_planner ek_planner_shadow = {
    .name = "shadow",
    .what = "hot experts on every rank for a step (FasterMoE, PPoPP 2022)",
    .reserve = reserve_shadow,
    .plan_transient = plan_shadow};
