/* Step graphs by hand, for tests of simulations: classes of ranks, ops of so many seconds. */
#ifndef UNIT_SIM_WORLD_H
#define UNIT_SIM_WORLD_H

#include "ek_test.h"
#include "sim/replay.h"

enum { RANKS_MOST = 64, CLASSES_MOST = 16 };

typedef struct {
    ek_graph graph[CLASSES_MOST];
    ek_sim_class of[CLASSES_MOST];
    int32_t ranks[RANKS_MOST]; /* of the classes, one after the other */
    ek_sim_graphs all;
} world;

/* n classes of `each` ranks: class i has ranks i * each and following. */
static inline void open_world(world *w, int n, int each)
{
    memset(w, 0, sizeof(*w));
    for (int i = 0; i < n; i++) {
        ek_graph_init(&w->graph[i]);
        w->of[i] = (ek_sim_class){
            .graph = &w->graph[i], .n_ranks = each, .ranks = w->ranks + i * each, .stage = i};
    }
    for (int r = 0; r < n * each; r++)
        w->ranks[r] = r;
    w->all = (ek_sim_graphs){n * each, n, w->of};
}

static inline void close_world(world *w)
{
    for (int i = 0; i < w->all.n_classes; i++)
        ek_graph_fini(&w->graph[i]);
}

/* The seconds of a result, which is freed. */
static inline double take_step(ek_sim_result r)
{
    double s = r.step_s;

    ek_sim_free(&r);
    return s;
}

/* Ops of `seconds`; their bytes are seconds, too. */
static inline int32_t compute(ek_graph *g, double seconds, int32_t dep)
{
    ek_op op = {.kind = EK_OP_EXPERT_UP,
                .lane = EK_LANE_COMPUTE,
                .flops = 10 * seconds,
                .bytes = seconds,
                .work = ek_work_of_rows(1, 1)};

    return ek_graph_after(g, &op, dep);
}

static inline int32_t net(ek_graph *g, ek_op_kind kind, ek_collective c, ek_ranks group,
                          int32_t peer, double seconds, int32_t dep)
{
    ek_op op = {.kind = kind,
                .lane = EK_LANE_NET,
                .bytes = seconds,
                .work = {.kind = EK_WORK_NET,
                         .net = {.collective = c,
                                 .group = group,
                                 .span = group.n,
                                 .peer = peer,
                                 .element = 1,
                                 .bytes = seconds}}};

    return ek_graph_after(g, &op, dep);
}

static inline int32_t all_reduce(ek_graph *g, ek_ranks group, double seconds, int32_t dep)
{
    return net(g, EK_OP_REDUCE_GRADIENTS, EK_COLLECTIVE_ALL_REDUCE, group, -1, seconds, dep);
}

/* Factors on the seconds of ops: compute, wire; latency and overhead of a network op. */
typedef struct {
    double compute, wire, latency, overhead;
} factors;

static const factors plain = {1, 1, 0, 0};

static inline void price_by_bytes(const void *context, const ek_sim_class *c, const ek_op *op,
                                  ek_sim_price *out)
{
    const factors *f = context;

    (void)c;
    *out = (ek_sim_price){0};
    if (op->work.kind == EK_WORK_NET)
        *out = (ek_sim_price){
            .overhead = f->overhead, .wire = f->wire * op->bytes, .latency = f->latency};
    else if (op->work.kind != EK_WORK_NONE)
        out->seconds = f->compute * op->bytes;
}

static inline int is_near(double got, double want)
{
    return fabs(got - want) <= 1e-9 * fabs(want) + 1e-15;
}

#define CHECK_SECONDS(got, want)                                                                   \
    (is_near(got, want)                                                                            \
         ? (void)0                                                                                 \
         : EK_T_FAIL("%s is %.12g, expected %.12g", #got, (double)(got), (double)(want)))

/* Rank `from` sends to rank `to`, of classes of one rank, after a computation. */
static inline void message(world *w, int32_t from, int32_t to, double after, double bytes)
{
    const ek_ranks all = {0, 1, w->all.ranks};
    int32_t dep = after > 0 ? compute(&w->graph[from], after, -1) : -1;

    net(&w->graph[from], EK_OP_SEND, EK_COLLECTIVE_SEND, all, to, bytes, dep);
    net(&w->graph[to], EK_OP_RECEIVE, EK_COLLECTIVE_RECEIVE, all, from, bytes, -1);
}

#endif
