/* The arithmetic that planners share. */
#include "balance/planner.h"

#include <string.h>

void ek_plan_reserve(ek_plan *p, ek_arena *a, const ek_plan_limits *l)
{
    ek_placement_reserve(&p->placement, a, l->experts, l->ranks, l->slots);
    p->quota = ek_arena_alloc(a, (int64_t)l->ranks * l->slots, sizeof(*p->quota));
}

/* --- history ---------------------------------------------------------------------------------- */

/* A product of two assignment counts may exceed 64 bits. */
__extension__ typedef __int128 wide;

/* Largest sum of counts, without and with row costs. */
static const int64_t history_max = (int64_t)1 << 62, history_max_weighted = (int64_t)1 << 48;

static int64_t sum_counts(const int64_t *x, int64_t n)
{
    int64_t sum = 0;

    for (int64_t i = 0; i < n; i++)
        sum += x[i];
    return sum;
}

void ek_plan_history_reserve(ek_plan_history *h, ek_arena *a, const ek_plan_limits *l)
{
    *h = (ek_plan_history){
        .counts = ek_arena_alloc(a, (int64_t)l->ranks * l->experts, sizeof(*h->counts)),
        .forecast = ek_arena_alloc(a, l->experts, sizeof(*h->forecast)),
        .window = ek_arena_alloc(a, l->experts, sizeof(*h->window)),
        .load = ek_arena_alloc(a, l->experts, sizeof(*h->load))};
}

/* Whether at most 1 / EK_PLAN_DRIFT of the assignments of h->load are for other experts than
 * forecast: half of the sum of |a / A - b / B|, in integers, as all ranks must agree. */
static int is_as_forecast(const ek_plan_history *h, int32_t experts)
{
    wide all = sum_counts(h->load, experts), forecast = sum_counts(h->forecast, experts);
    wide apart = 0;

    for (int32_t e = 0; e < experts; e++) {
        wide more = h->load[e] * forecast - h->forecast[e] * all;

        apart += more < 0 ? -more : more;
    }
    return all == 0 || (forecast > 0 && apart <= all * forecast / EK_PLAN_DRIFT * 2);
}

/* Ends a window: the constant period goes on, or a new one has begun with it. */
static void end_window(ek_plan_history *h, int32_t experts)
{
    int goes_on = h->constant > 0 && h->exceptions <= h->in_window / EK_PLAN_EXCEPTIONS;

    if (!goes_on)
        memcpy(h->forecast, h->window, (size_t)experts * sizeof(*h->forecast));
    h->constant = goes_on ? h->constant + h->in_window : h->in_window;
    memset(h->window, 0, (size_t)experts * sizeof(*h->window));
    h->in_window = h->exceptions = 0;
}

/* Adds a micro-batch to the window; its loads only as long as their sum does not overflow. */
static void add_to_window(ek_plan_history *h, const ek_plan_limits *l, const int64_t *counts)
{
    ek_plan_totals(l, counts, h->load);
    if (h->constant > 0)
        h->exceptions += !is_as_forecast(h, l->experts);
    if (sum_counts(h->window, l->experts) <= history_max - sum_counts(h->load, l->experts))
        for (int32_t e = 0; e < l->experts; e++)
            h->window[e] += h->load[e];
    if (++h->in_window >= l->horizon)
        end_window(h, l->experts);
}

void ek_plan_remember(ek_plan_history *h, const ek_plan_limits *l, const int64_t *counts)
{
    int64_t n = (int64_t)l->ranks * l->experts;
    int64_t headroom =
        (l->row_cost != NULL ? history_max_weighted : history_max) - sum_counts(counts, n);
    int64_t enough = l->horizon > 0 ? 2 * l->horizon : 2;

    while (h->of >= enough || sum_counts(h->counts, n) > headroom) {
        for (int64_t i = 0; i < n; i++)
            h->counts[i] /= 2;
        h->of /= 2;
    }
    for (int64_t i = 0; i < n; i++)
        h->counts[i] += counts[i];
    h->of++;
    h->due++;
    if (l->horizon > 0)
        add_to_window(h, l, counts);
}

int ek_plan_due(ek_plan_history *h, const ek_plan_limits *l)
{
    if (l->horizon <= 0 || h->due < l->horizon)
        return 0;
    h->due = 0;
    return 1;
}

int64_t ek_plan_horizon(const ek_plan_history *h, const ek_plan_limits *l)
{
    int64_t constant = h->constant / (l->ep_groups > 1 ? l->ep_groups : 1); /* each is remembered */

    return l->horizon > 0 && constant > l->horizon ? constant : l->horizon;
}

static int32_t number_groups(const ek_plan_limits *l,
                             int32_t (*group)(const ek_plan_limits *l, int32_t rank),
                             int32_t *of_rank)
{
    int32_t n = 0;

    for (int32_t r = 0; r < l->ranks; r++) {
        int32_t q = 0;

        while (group(l, q) != group(l, r))
            q++;
        if (of_rank != NULL)
            of_rank[r] = q < r ? of_rank[q] : n;
        n += q == r;
    }
    return n;
}

int32_t ek_plan_number_nodes(const ek_plan_limits *l, int32_t *of_rank)
{
    return number_groups(l, ek_plan_node, of_rank);
}

int32_t ek_plan_number_domains(const ek_plan_limits *l, int32_t *of_rank)
{
    return number_groups(l, ek_plan_domain, of_rank);
}

/* --- sums and slots --------------------------------------------------------------------------- */

void ek_plan_sources(const ek_plan_limits *l, const int64_t *counts, int64_t *sent)
{
    for (int32_t r = 0; r < l->ranks; r++, counts += l->experts) {
        sent[r] = 0;
        for (int32_t e = 0; e < l->experts; e++)
            sent[r] += counts[e];
    }
}

void ek_plan_primaries_only(const ek_plan_limits *l, const int64_t *total, ek_plan *p)
{
    memset(p->quota, 0, (size_t)(l->ranks * l->slots) * sizeof(*p->quota));
    for (int32_t e = 0; e < l->experts; e++)
        p->quota[p->placement.primary[e]] = total[e];
}

int32_t ek_plan_slot(const ek_placement *p, int32_t rank, int32_t expert)
{
    int32_t first = rank * p->slots, s = ek_slot_find(p->expert_of + first, p->slots, expert);

    return s >= 0 ? first + s : -1;
}

int32_t ek_plan_free_slot(const ek_placement *p, int32_t rank)
{
    return ek_plan_slot(p, rank, -1);
}

int ek_plan_is_replica(const ek_placement *p, int32_t slot)
{
    int32_t e = p->expert_of[slot], rank = slot / p->slots;

    return e >= 0 && p->primary[e] / p->slots != rank && ek_plan_slot(p, rank, e) == slot;
}

int64_t ek_plan_loads(const ek_plan_limits *l, const ek_plan *p, int64_t *load)
{
    int64_t most = 0;

    for (int32_t r = 0; r < l->ranks; r++) {
        load[r] = 0;
        for (int32_t s = r * l->slots; s < (r + 1) * l->slots; s++)
            load[r] += p->quota[s];
        most = load[r] > most ? load[r] : most;
    }
    return most;
}

/* --- splitting other counts by a plan's quotas ------------------------------------------------ */

/* floor(a b / c) without overflow of the product; c > 0. */
static int64_t scaled_floor(int64_t a, int64_t b, int64_t c)
{
    return (int64_t)((wide)a * b / c);
}

/* Every slot of the expert gets the floor of its share; what remains of total goes one by one to
 * the largest remainders. */
static void serve_expert(const ek_plan_limits *l, int64_t total, const ek_plan *planned,
                         int32_t expert, int64_t *quota)
{
    const ek_placement *at = &planned->placement;
    int32_t all = l->ranks * l->slots;
    int64_t sum = 0, left = total;

    for (int32_t s = 0; s < all; s++)
        sum += at->expert_of[s] == expert ? planned->quota[s] : 0;
    if (sum == 0) { /* the plan was made without any: the primary copy serves all */
        quota[at->primary[expert]] = total;
        return;
    }
    for (int32_t s = 0; s < all; s++)
        if (at->expert_of[s] == expert)
            left -= quota[s] = scaled_floor(total, planned->quota[s], sum);
    for (; left > 0; left--) {
        int32_t best = -1;
        wide most = -1;

        for (int32_t s = 0; s < all; s++) {
            wide rest;

            if (at->expert_of[s] != expert)
                continue;
            rest = (wide)total * planned->quota[s] - (wide)quota[s] * sum;
            if (rest > most) {
                most = rest;
                best = s;
            }
        }
        quota[best]++;
    }
}

void ek_plan_serve(const ek_plan_limits *l, const int64_t *total, const ek_plan *planned,
                   int64_t *quota)
{
    memset(quota, 0, (size_t)(l->ranks * l->slots) * sizeof(*quota));
    for (int32_t e = 0; e < l->experts; e++)
        serve_expert(l, total[e], planned, e, quota);
}

/* --- splitting by source ---------------------------------------------------------------------- */

/* Assigns what sources have left to slots with quota left, for pairs within the given distance: 0:
 * the same rank, 1: the same node, 2: any. */
static void assign_within(const ek_plan_limits *l, int64_t *source, const int32_t *slots, int32_t n,
                          int64_t *quota_left, int distance, int64_t *rows)
{
    for (int32_t r = 0; r < l->ranks; r++)
        for (int32_t i = 0; i < n && source[r] > 0; i++) {
            int32_t at = slots[i] / l->slots;
            int64_t k = source[r] < quota_left[i] ? source[r] : quota_left[i];

            if ((distance == 0 && at != r) ||
                (distance == 1 && ek_plan_node(l, at) != ek_plan_node(l, r)))
                continue;
            rows[(int64_t)r * n + i] += k;
            source[r] -= k;
            quota_left[i] -= k;
        }
}

int32_t ek_plan_split(const ek_plan_limits *l, const int64_t *counts, const ek_placement *p,
                      const int64_t *quota, int32_t expert, int64_t *memory, int32_t *slots,
                      int64_t *rows)
{
    int32_t n = 0, all = l->ranks * l->slots;
    int64_t *source = memory, *quota_left = memory + l->ranks;

    for (int32_t s = 0; s < all; s++)
        if (p->expert_of[s] == expert) {
            slots[n] = s;
            quota_left[n++] = quota[s];
        }
    for (int32_t r = 0; r < l->ranks; r++)
        source[r] = counts[(int64_t)r * l->experts + expert];
    memset(rows, 0, (size_t)l->ranks * (size_t)n * sizeof(*rows));
    for (int distance = 0; distance < 3; distance++)
        assign_within(l, source, slots, n, quota_left, distance, rows);
    return n;
}

ek_status ek_plan_check(const ek_plan_limits *l, const int64_t *counts, const ek_plan *p)
{
    const ek_placement *at = &p->placement;

    EK_TRY(ek_placement_check(at));
    for (int32_t s = 0; s < l->ranks * l->slots; s++)
        EK_REQUIRE(p->quota[s] >= 0 && (p->quota[s] == 0 || at->expert_of[s] >= 0), EK_EINVAL,
                   "plan: slot %d, which holds expert %d, serves %lld assignments", (int)s,
                   (int)at->expert_of[s], (long long)p->quota[s]);
    for (int32_t e = 0; e < l->experts; e++) {
        int64_t total = 0, served = 0;

        for (int32_t r = 0; r < l->ranks; r++)
            total += counts[(int64_t)r * l->experts + e];
        for (int32_t s = 0; s < l->ranks * l->slots; s++)
            served += at->expert_of[s] == e ? p->quota[s] : 0;
        EK_REQUIRE(served == total, EK_EINVAL,
                   "plan: expert %d has %lld assignments, its slots serve %lld", (int)e,
                   (long long)total, (long long)served);
    }
    return EK_OK;
}
