/* Graphs for the unit tests of dialects (sim/dialect.h). */
#ifndef TESTS_DIALECT_GRAPHS_H
#define TESTS_DIALECT_GRAPHS_H

#include "ek_test.h"
#include "sim/dialect.h"

static const ek_machine machine = {.dtype = "bf16"};
static const ek_dialect_layout one = {.ep = 1, .etp = 1};

static inline int32_t add(ek_graph *g, ek_op_kind kind, ek_lane lane, int32_t micro, ek_work work,
                          int32_t dep)
{
    ek_op op = {.kind = kind, .lane = lane, .layer = -1, .micro = micro, .bytes = 1000};

    op.work = work;
    return ek_graph_after(g, &op, dep);
}

static inline ek_work of_net(ek_collective collective)
{
    ek_work w = {.kind = EK_WORK_NET};

    w.net = (ek_net_work){.collective = collective, .group = {0, 1, 4}, .peer = -1, .bytes = 1000};
    return w;
}

/* The last op that op i depends on; -1: none. */
static inline int32_t last_dep(const ek_graph *g, int32_t i)
{
    return g->ops[i].n_deps > 0 ? g->deps[g->ops[i].dep + g->ops[i].n_deps - 1] : -1;
}

/* What op i depends on, as bits. */
static inline unsigned deps_of(const ek_graph *g, int32_t i)
{
    unsigned bits = 0;

    for (int32_t d = 0; d < g->ops[i].n_deps; d++)
        bits |= 1u << g->deps[g->ops[i].dep + d];
    return bits;
}

#endif
