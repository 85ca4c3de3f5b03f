/* schedule/graph.h - the step graph: what runs, on which lane, after what.
 *
 * A step is a list of ops.  An op has a kind, a function, the lane that it occupies, its FLOPs,
 * bytes and work (set by the builder, and read here by everything else) and the ops that it depends
 * on.
 * Builders append every op after its dependencies.  Ops of one lane run in that order, one at a
 * time, like work on a CUDA stream; ops of a network lane start in that order, and several may be
 * in flight at once.  A graph is only data: exec/ runs it.
 *
 * A packed graph (ek_graph_pack) is for reading only: ops that micro-batches repeat are kept once,
 * and the executor cannot run it.  Who reads graphs that may be packed asks ek_graph_op,
 * ek_graph_deps_of and ek_graph_micro.
 *
 * Memory       grows while the first step is built; ek_graph_reset keeps it, so building the
 *              same step again allocates nothing.  Packed: 12 bytes of an op, 4 of a dependency. */
#ifndef SCHEDULE_GRAPH_H
#define SCHEDULE_GRAPH_H

#include "evenkeel/err.h"

#include "schedule/op_kind.h"
#include "schedule/work.h"

#include <stddef.h>
#include <stdint.h>

typedef enum {
    EK_LANE_COMPUTE,
    EK_LANE_SUMS, /* network: sums of gradients that nothing in the pass waits for */
    EK_LANE_NET,  /* all other network ops */
    EK_LANE_COPY, /* host to device and back */
    EK_LANE_DISK,
    EK_LANE_COUNT
} ek_lane;

typedef struct ek_op ek_op;

/* Runs the op.  EK_PENDING: started, not finished; the executor calls again. */
typedef ek_status (*ek_op_fn)(void *self, const ek_op *op);

/* Writes to text [cap] what an op that returned EK_PENDING waits for, for the message on a hang. */
typedef void (*ek_op_describe_fn)(void *self, const ek_op *op, char *text, size_t cap);

struct ek_op {
    ek_op_kind kind;
    ek_op_fn run;
    void *self;
    ek_lane lane;
    int32_t layer, micro; /* -1: not of a layer, not of a micro-batch */
    int32_t part;         /* chunk, head block or expert, as the builder defines it; -1: none */
    int32_t recompute;    /* 1: repeats an op of this step (recomputation): no model FLOPs */
    int32_t async;        /* 1: accesses device memory by kernels alone, so the next such op may
                             start before they are done */
    double flops, bytes;  /* arithmetic, and memory or network traffic */
    ek_work work;         /* what the time depends on */
    int64_t *busy_ns;     /* the executor adds the time in which the op ran; NULL: not counted */
    int64_t *stall_ns;    /* the executor adds the time that the lane waited for the op's
                             dependencies; NULL: not counted */
    int32_t dep, n_deps;  /* its range of ek_graph.deps; set by ek_graph_add */
    void **state;         /* the op's own pointer for what it waits for; NULL at its first call in a
                             run; set by the executor */
    ek_op_describe_fn describe; /* may be NULL */
};

/* An op of a packed graph. */
typedef struct {
    int32_t like;  /* index of one of ek_graph.alike */
    int32_t micro; /* ek_op.micro */
    int32_t dep;   /* its first of ek_graph.deps; they end where those of the next op begin */
} ek_graph_place;

typedef struct {
    ek_op *ops; /* [n_ops]; NULL: it is packed */
    int32_t *deps;
    int32_t n_ops, n_deps, cap_ops, cap_deps;
    ek_status failed;      /* sticky, reported by ek_graph_check */
    ek_op *alike;          /* [n_alike] of a packed graph, without functions and dependencies; micro
                              is 0 where it is of any micro-batch */
    ek_graph_place *place; /* [n_ops + 1] */
    int32_t n_alike;
} ek_graph;

void ek_graph_init(ek_graph *g);
void ek_graph_fini(ek_graph *g);

/* Forgets the ops, keeps the memory. */
void ek_graph_reset(ek_graph *g);

/* Makes *to, which is empty, an unpacked copy of a graph, packed or not.  Data of the ops'
 * functions are not copied; of a packed graph, which has no functions, neither are these.
 * EK_ENOMEM. */
EK_CHECKED ek_status ek_graph_copy(ek_graph *to, const ek_graph *from);

/* Makes *to, which is empty, a packed copy of a graph that is not packed.  EK_ENOMEM. */
EK_CHECKED ek_status ek_graph_pack(ek_graph *to, const ek_graph *from);

/* Op i; of a packed graph without what differs between ops that are alike: its micro-batch, its
 * dependencies, and how it is run. */
static inline const ek_op *ek_graph_op(const ek_graph *g, int32_t i)
{
    return g->ops != NULL ? &g->ops[i] : &g->alike[g->place[i].like];
}

static inline int32_t ek_graph_micro(const ek_graph *g, int32_t i)
{
    return g->ops != NULL ? g->ops[i].micro : g->place[i].micro;
}

/* The ops [*n] that op i depends on; NULL: none. */
static inline const int32_t *ek_graph_deps_of(const ek_graph *g, int32_t i, int32_t *n)
{
    int32_t first = g->ops != NULL ? g->ops[i].dep : g->place[i].dep;

    *n = g->ops != NULL ? g->ops[i].n_deps : g->place[i + 1].dep - first;
    return *n > 0 ? g->deps + first : NULL;
}

/* Appends a copy of *op that depends on n_deps ops (ids below its own; negative ones are
 * ignored).  Returns its id; -1 on failure, which ek_graph_check reports. */
int32_t ek_graph_add(ek_graph *g, const ek_op *op, const int32_t *deps, int32_t n_deps);

/* The same with one dependency (none, if negative). */
int32_t ek_graph_after(ek_graph *g, const ek_op *op, int32_t dep);

/* The last op of a lane so far: lanes run in order, so all before it on the lane are done with it.
 * -1: there is none.  Not of a packed graph. */
int32_t ek_graph_last_of(const ek_graph *g, ek_lane lane);

/* Whether building succeeded: EK_ENOMEM, or EK_EINTERNAL for a dependency on a later op. */
EK_CHECKED ek_status ek_graph_check(const ek_graph *g);

/* A hash of what is known of the ops before they run: kind, lane, place in the step, FLOPs,
 * bytes, work and dependencies.  Equal for the same step of ranks with the same work (tests; one
 * graph can then stand for many ranks). */
uint64_t ek_graph_digest(const ek_graph *g);

/* "compute", "net", ... */
const char *ek_lane_name(ek_lane lane);

#endif
