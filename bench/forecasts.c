/* Compares forecasts from which `auto` could choose the replicas that it sends before the gate: the
 * counts of the last micro-batch, as it does, and fading means of the micro-batches before.
 *
 *   cc -O2 -std=gnu17 -Isrc -Iinclude bench/forecasts.c build/libek_balance.a \
 *      build/libek_cost.a build/libek_placement.a build/libek_base.a -lm -lpthread -o forecasts
 *   ./forecasts TRACE.npy FIRST RANKS TOKENS COMPUTE COMM REPLICA EXPOSED
 *
 * FIRST: iteration to begin with; TOKENS of a rank, top-2; the others are seconds, the costs of
 * `evenkeel bench balance --json`.  Each micro-batch is planned as training plans it, with one
 * spare slot a rank and primary copies in block order: replicas from the forecast, quotas from the
 * counts as they are, late replicas where they pay.  Prints for each weight of the last micro-batch
 * (1: it alone) the layer's predicted time, that of plans from the counts as they are, whose
 * replicas are waited for, and late and unused replicas a micro-batch in the mean. */
#include "balance/late_replicas.h"
#include "balance/trace.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    ek_trace trace;
    ek_arena memory;
    ek_plan_limits limits;
    ek_apportion_scratch apportion;
    ek_late_replicas late;
    ek_plan ahead, after;
    void *planner;
    int64_t tokens, first;
    int64_t *counts, *forecast; /* [ranks, experts] */
    int64_t *weight;            /* [2 experts] scratch of ek_trace_scale */
    double *mean;               /* [layers, ranks, experts] */
    int32_t *block, *sent;      /* [ranks * slots] */
} bench;

static void need(ek_status st)
{
    if (st == EK_OK)
        return;
    fprintf(stderr, "forecasts: %s\n", ek_err_message());
    exit(1);
}

/* Experts in block order, without replicas. */
static void begin_plan(const bench *b, ek_plan *p)
{
    int32_t each = b->limits.slots - 1;

    memcpy(p->placement.expert_of, b->block,
           sizeof(*b->block) * (size_t)(b->limits.ranks * b->limits.slots));
    for (int32_t e = 0; e < b->limits.experts; e++)
        p->placement.primary[e] = e / each * b->limits.slots + e % each;
}

static void plan(bench *b, const int64_t *counts, ek_plan *p)
{
    begin_plan(b, p);
    need(ek_planner_auto.plan_transient(b->planner, &b->limits, counts, p));
}

static void reserve(bench *b)
{
    int64_t all = b->limits.ranks * (int64_t)b->limits.slots,
            n = b->limits.ranks * (int64_t)b->limits.experts;

    need(ek_arena_init(&b->memory, 1 << 28, "forecasts"));
    ek_late_replicas_reserve(&b->late, &b->memory, &b->limits);
    ek_plan_reserve(&b->ahead, &b->memory, &b->limits);
    ek_plan_reserve(&b->after, &b->memory, &b->limits);
    ek_apportion_reserve(&b->apportion, &b->memory, b->limits.experts);
    b->planner = ek_planner_reserve(&ek_planner_auto, &b->memory, &b->limits);
    b->counts = ek_arena_alloc(&b->memory, n, sizeof(*b->counts));
    b->forecast = ek_arena_alloc(&b->memory, n, sizeof(*b->forecast));
    b->weight = ek_arena_alloc(&b->memory, 2 * b->limits.experts, sizeof(*b->weight));
    b->mean = ek_arena_alloc(&b->memory, b->trace.layers * n, sizeof(*b->mean));
    b->block = ek_arena_alloc(&b->memory, all, sizeof(*b->block));
    b->sent = ek_arena_alloc(&b->memory, all, sizeof(*b->sent));
    need(ek_arena_check(&b->memory, "forecasts"));
}

/* Sums over plans. */
typedef struct {
    double ahead_s, after_s;
    int64_t late, unused, plans;
} sums;

/* Plans the micro-batch b->counts with replicas sent for b->forecast, and with none sent. */
static void add_plans(bench *b, sums *to)
{
    const ek_plan_limits *l = &b->limits;
    ek_placement sent;

    plan(b, b->forecast, &b->ahead);
    plan(b, b->counts, &b->after);
    sent = b->ahead.placement;
    memcpy(b->sent, sent.expert_of, sizeof(*b->sent) * (size_t)(l->ranks * l->slots));
    sent.expert_of = b->sent;
    ek_late_replicas_add(&b->late, l, b->counts, b->block, &b->ahead);
    to->ahead_s += ek_late_replicas_time(&b->late, l, b->counts, &b->ahead, &sent);
    to->after_s += ek_late_replicas_time(&b->late, l, b->counts, &b->after, NULL);
    to->late += ek_late_replicas_count(&b->late, &b->ahead.placement, &sent).all;
    to->unused += ek_late_replicas_unused(&b->late, &b->ahead.placement, &sent).all;
    to->plans++;
}

/* All micro-batches from the second on; weight: of the last one in the forecast. */
static sums replay(bench *b, double weight)
{
    int64_t n = b->limits.ranks * (int64_t)b->limits.experts;
    sums all = {0};

    for (int64_t t = b->first; t < b->trace.iterations; t++)
        for (int64_t layer = 0; layer < b->trace.layers; layer++) {
            double *mean = b->mean + layer * n;

            ek_trace_counts(&b->trace, t, layer, b->limits.ranks, b->counts);
            ek_trace_scale(&b->apportion, b->limits.ranks, b->limits.experts, b->tokens, 2,
                           b->weight, b->counts);
            for (int64_t i = 0; i < n; i++)
                b->forecast[i] = llround(mean[i]);
            if (t > b->first)
                add_plans(b, &all);
            for (int64_t i = 0; i < n; i++)
                mean[i] += (t > b->first ? weight : 1) * ((double)b->counts[i] - mean[i]);
        }
    return all;
}

int main(int argc, char **argv)
{
    static const double weights[] = {1, 0.5, 0.25, 0.125};
    bench b = {0};
    int32_t each;

    if (argc != 9) {
        fputs("usage: forecasts TRACE.npy FIRST RANKS TOKENS COMPUTE COMM REPLICA EXPOSED\n",
              stderr);
        return 2;
    }
    need(ek_trace_read(argv[1], &b.trace));
    b.first = atoll(argv[2]);
    b.tokens = atoll(argv[4]);
    b.limits = (ek_plan_limits){.experts = (int32_t)b.trace.experts,
                                .ranks = atoi(argv[3]),
                                .replicas_min = 1,
                                .costs = {.compute_s_per_row = atof(argv[5]),
                                          .comm_s_per_row = atof(argv[6]),
                                          .replica_s = atof(argv[7]),
                                          .exposed_s = atof(argv[8])}};
    if (b.limits.ranks < 1 || b.limits.experts % b.limits.ranks != 0 || b.first < 0 ||
        b.first + 1 >= b.trace.iterations) {
        fputs("forecasts: RANKS must divide the experts, and two iterations or more be there from "
              "FIRST on\n",
              stderr);
        return 2;
    }
    each = b.limits.experts / b.limits.ranks;
    b.limits.slots = each + 1;
    reserve(&b);
    for (int32_t s = 0; s < b.limits.ranks * b.limits.slots; s++)
        b.block[s] =
            s % b.limits.slots < each ? s / b.limits.slots * each + s % b.limits.slots : -1;
    for (size_t i = 0; i < sizeof(weights) / sizeof(*weights); i++) {
        sums of = replay(&b, weights[i]);
        double n = (double)of.plans;

        printf("weight %-5g  ahead %.2f ms  after the gate %.2f ms  late %.2f  unused %.2f\n",
               weights[i], 1e3 * of.ahead_s / n, 1e3 * of.after_s / n, (double)of.late / n,
               (double)of.unused / n);
    }
    ek_trace_close(&b.trace);
    ek_arena_fini(&b.memory);
    return 0;
}
