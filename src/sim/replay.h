/* sim/replay.h - the time of a step: the ops of all ranks, replayed in the order of their graphs.
 *
 * Rules:
 *
 * - compute: an op starts when its dependencies and the op before it on its lane are done.  So on
 *   the copy and disk lanes.
 *
 * - network: ops of a rank start in order, each when its dependencies are done, and several are in
 *   flight, which share the rank's link inside the node, or to other nodes, evenly; what starts
 *   later slows down only what follows it.  Latency passes beside that.  What messages cost the
 *   processor is added to the compute lane, and ops that poll the network take longer for each op
 *   that is in flight.
 *
 * - groups: a collective moves bytes once all its ranks have started it, and ends on all of them
 *   when the slowest has moved its bytes.
 *
 * - messages: leave when the sender has them, whether or not the receiver waits.
 *
 * Ranks of a class share a graph and prices; their times are a vector, of one element if nothing
 * distinguishes them.  Bytes of different ranks share no link here, and ranks no cores; `replayed`
 * has what that adds under uneven loads. */
#ifndef SIM_REPLAY_H
#define SIM_REPLAY_H

#include "sim/copy_sums.h"
#include "sim/graphs.h"
#include "sim/level_rows.h"
#include "sim/price_net.h"

/* What an op takes, in seconds. */
typedef struct {
    double seconds;  /* of ops on other lanes than the network's, */
    double polled;   /* and more for each network op that is in flight when it begins */
    int silent;      /* a network op that sends nothing, and waits for nobody */
    double overhead; /* of the processor, */
    int outside;     /* 1: it leaves the node, and uses another link than what stays there */
    double wire;     /* of the rank's busiest link, */
    double latency;  /* and after that */
    double skew;     /* for ek_sim_flow: until ranks that have computed for as long have all come to
                        a collective, after the time at which all should have */
    /* For ek_sim_flow, of an op with factors: what the ranks of each column send and get, in
     * gradients of `unit` bytes; NULL: what the op's work or ek_sim_config.exchange says. */
    const ek_copy_messages *sent, *got;
    double unit;
} ek_sim_price;

typedef struct {
    const ek_sim_graphs *graphs;
    /* Of an op on the ranks of a class.  It depends on the op's kind, lane, bytes and work alone,
     * and, with factors, on its layer: asked once for ops of a class that are alike in these. */
    void (*price)(const void *context, const ek_sim_class *c, const ek_op *op, ek_sim_price *out);
    /* Whether an op of the class's graph takes no time and sends nothing, whatever its price. NULL:
     * none is so, as ek_sim_messages assumes. */
    int (*absent)(const void *context, const ek_sim_class *c, int32_t op);
    const void *context;
    int price_each;     /* 1: every op is priced by itself: the same, in more time (tests) */
    int each_rank;      /* 1: ranks are told apart, though nothing distinguishes them */
    const double *slow; /* [ranks] factor on the seconds of a rank's ops; NULL: 1 for all */
    /* Factors [n_columns] of an op on its seconds, wire and overhead, of which rank r has that of
     * column_of[r]; NULL: 1 for all.  An op of the network whose factors are all 0 is silent.
     * factors NULL: no op has any. */
    const double *(*factors)(const void *loads, const ek_op *op);
    const void *loads;
    int first_differs; /* 1: factors, and all below, depend on whether the op's micro is 0, too;
                          they are asked of copies of the graph's ops, and so are prices */
    /* What ranks [n_columns] send and get in an op with factors, by level, for ek_sim_flow; NULL:
     * as the op's work says, times its factor.  exchange NULL: so all ops. */
    const ek_level_rows *(*exchange)(const void *loads, const ek_op *op);
    /* Factors that ek_sim_replay takes instead, on the seconds of an op, and on its wire: those of
     * ranks that share cores or links; NULL: those of `factors`.  replayed NULL: so all ops. */
    const double *(*replayed)(const void *loads, const ek_op *op);
    /* Whether an op has factors on its seconds that depend on its work, too, and writes these, in
     * place of those of `factors` and `replayed`.  NULL: no op has. */
    int (*is_product)(const void *loads, const ek_op *op);
    ek_status (*products)(const void *loads, const ek_op *op, double *factors, double *replayed);
    const int32_t *column_of; /* [ranks] */
    int32_t n_columns;
    const int32_t *recorded; /* [n_recorded] ranks whose ops are recorded */
    int32_t n_recorded;
} ek_sim_config;

/* Where the time of a step goes: of a rank, or a mean of ranks.  The parts add up to the step. */
typedef struct {
    double compute[EK_OP_GROUPS];    /* ops by group */
    double transfer[EK_COLLECTIVES]; /* idle while bytes that are waited for move */
    double skew;                     /* idle until the last rank of a collective has started it */
    double bubble;                   /* idle until another stage has sent */
    double overhead;                 /* of the processor, for messages */
    double other;                    /* idle for the disk or for copies */
    double end;                      /* after a rank's last op, until the last rank ends */
} ek_sim_parts;

/* Times of an op, in seconds from the start of the step; begun: when bytes of a network op could
 * move, of other ops the start. */
typedef struct {
    double start, begun, end;
} ek_sim_span;

/* The ops of a recorded rank. */
typedef struct {
    int32_t rank;
    int32_t n;             /* ops */
    const ek_graph *graph; /* the rank's, borrowed */
    ek_sim_span *spans;    /* [n] */
} ek_sim_record;

typedef struct {
    double step_s;
    ek_sim_parts parts;     /* mean of all ranks */
    ek_sim_parts *of_class; /* [n_classes] mean of a class's ranks */
    int32_t n_classes;
    double flops;           /* of the model, of all ranks: recomputation not counted */
    ek_sim_record *records; /* [n_records] in the order of ek_sim_config.recorded */
    int32_t n_records;
} ek_sim_result;

/* The caller frees *out with ek_sim_free, also after a failure.  EK_EINTERNAL: ops of different
 * ranks wait for one another for ever, or do not fit together.  Local. */
EK_CHECKED ek_status ek_sim_replay(const ek_sim_config *cfg, ek_sim_result *out);
void ek_sim_free(ek_sim_result *r);

/* Adds `share` times the times of r, of the same graphs, to *sum, which begins as zeros; takes over
 * what r has recorded.  EK_ENOMEM. */
EK_CHECKED ek_status ek_sim_add(ek_sim_result *sum, ek_sim_result *r, double share);

/* Seconds of all parts together. */
double ek_sim_parts_sum(const ek_sim_parts *p);

#endif
