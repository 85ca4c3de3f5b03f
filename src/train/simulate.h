/* train/simulate.h - simulates a step of a run on a cluster: the ranks' step graphs
 * (train/imagine.h), priced (sim/price_compute.h, sim/price_net.h) and replayed (sim/replay.h).
 *
 * Without a routing trace loads are even: each expert gets as many rows as any other, so no
 * transient replicas are sent.  Persistent copies of experts serve rows and sum their gradients as
 * the policy plans it for these loads.  With one, a step is simulated for each of some iterations,
 * with the plans of the run's policy (sim/loads.h).  Experts that move between steps cost nothing
 * here. */
#ifndef TRAIN_SIMULATE_H
#define TRAIN_SIMULATE_H

#include "evenkeel/train.h"

#include "sim/cluster.h"
#include "sim/loads.h"
#include "sim/price_net.h"
#include "sim/replay.h"
#include "train/even_plans.h"

/* The words of --engine: sim/replay.h, sim/flow.h, sim/messages.h. */
typedef enum { EK_ENGINE_REPLAY, EK_ENGINE_FLOW, EK_ENGINE_MESSAGES } ek_engine;
#define EK_ENGINE_WORDS "replay|flow|messages"

enum { EK_MESSAGES_RANKS = 64 }; /* the most of EK_ENGINE_MESSAGES, which also has even loads */

typedef struct {
    const ek_train_config *train; /* --ep and so on; data may be missing */
    const ek_cluster *cluster;
    int ranks;
    const int *host_of; /* as of ek_imagined_world */
    int every_rank;     /* 1: a graph for every rank (train/imagine.h) */
    int timeline;       /* 1: records timeline_rank, for ek_simulation_write_timeline */
    int timeline_rank;  /* below ranks (ops are recorded in the last step) */
    int n_strips;       /* also records the first ranks of up to so many classes: the first, the
                           last, and of those between evenly many */
    ek_engine engine;
    const ek_trace *trace; /* NULL: even loads */
    unsigned dialect;      /* bits of sim/dialect.h; 0: evenkeel's */
    int64_t steps;         /* of the trace, evenly spaced; 0: 8; at most those that it has */
    ek_even_plans *plans;  /* of other layouts of the model on the cluster, which are not planned
                              again; NULL: none */
} ek_simulation_config;

enum { EK_SIMULATION_RECORDS = 9 };

/* What an op takes on the ranks of a class under even loads. */
void ek_simulate_price(const ek_cluster *c, const ek_sim_class *of, const ek_op *op,
                       ek_sim_price *out);

/* The same on the ranks of one of n columns, with copies under even loads (ek_even_plans_of); less
 * where there is no memory. */
void ek_simulate_price_copies(const ek_cluster *c, const ek_sim_loads *copies, int32_t n_columns,
                              int32_t column, const ek_sim_class *of, const ek_op *op,
                              ek_sim_price *out);

/* The files that a simulation is made from. */
typedef struct {
    ek_cluster cluster;
    ek_trace loads;
    const ek_trace *trace; /* NULL: none is given */
} ek_simulation_files;

/* Reads a cluster file and, unless NULL, opens a routing trace.  The caller closes *out, also after
 * a failure.  Errors as of ek_cluster_read and ek_trace_open. */
EK_CHECKED ek_status ek_simulation_open_files(const char *cluster, const char *trace,
                                              ek_simulation_files **out);
void ek_simulation_close_files(ek_simulation_files **f);

typedef struct ek_simulation ek_simulation;

/* Whether a dialect of it leaves no way to give experts the loads of a trace. */
int ek_simulates_even_loads_only(const ek_simulation_config *cfg);

/* The caller closes *out, also after a failure.  EK_EINVAL: a setting, ranks that the cluster
 * does not have, or timeline_rank; EK_EUNSUPPORTED: what EK_ENGINE_MESSAGES cannot simulate; others
 * as of ek_imagine.  Local. */
EK_CHECKED ek_status ek_simulate(const ek_simulation_config *cfg, ek_simulation **out);
void ek_simulation_close(ek_simulation **s);

/* Borrowed from s. */
const ek_sim_graphs *ek_simulation_graphs(const ek_simulation *s);
const ek_sim_layout *ek_simulation_layout(const ek_simulation *s);
/* The mean of all steps. */
const ek_sim_result *ek_simulation_result(const ek_simulation *s);
/* Bytes that a rank sends in a step by the level that they pass, under even loads and without
 * transient replicas: the mean of the ranks; sums of persistent copies as in the sample chosen
 * last.  Of more than 256 ranks, the first of each class counts. */
ek_net_traffic ek_simulation_traffic(const ek_simulation *s);
/* What plans did; NULL: loads are even. */
const ek_sim_balance *ek_simulation_balance(const ek_simulation *s);
/* The seconds of each step, [*n], in the trace's order; one with even loads. */
const double *ek_simulation_steps(const ek_simulation *s, int64_t *n);

/* Writes the step of the config's timeline_rank as a timeline (exec/exec.h).  EK_EIO, EK_ENOSPC. */
EK_CHECKED ek_status ek_simulation_write_timeline(const ek_simulation *s, const char *path);

#endif
