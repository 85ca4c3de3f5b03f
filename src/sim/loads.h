/* sim/loads.h - loads of experts in a simulated step: from a routing trace and a planner, how much
 * more or less each expert-parallel rank does than under even loads.
 *
 * A planner plans every layer of the trace, with the counts scaled to the rows of a micro-batch,
 * each rank having as many; steps are samples of the trace's iterations.  Planners without
 * transient plans, and with one micro-batch a step those that plan ahead (uses_previous_counts),
 * plan from the iteration before the sample, whose rows they then serve (ek_plan_serve).  Those
 * with may_use_previous_counts (auto) plan in training's two ways (balance/early_replicas.h):
 * replicas are sent before the gate for the counts of the micro-batch before, and late ones are
 * added. Planners with both kinds of plans (auto) place experts after the first iteration, which is
 * no sample, as training does after its first step, where the trace has a second one and horizon is
 * not 0.  MoE layers of the model have the loads of the trace's layers, in order, spread over them;
 * all micro-batches of a step, and all expert-parallel groups, have the same loads, and the same
 * plan but for a first micro-batch whose replicas are forecast from the step before.  With a
 * capacity factor, assignments over the capacity of experts are dropped before a plan is made
 * (sim/capacity.h), and counts are not scaled.
 *
 * Factors are relative to even loads, and multiply seconds:
 *   served    rows that a rank's slots serve: what products of experts read and write; of the
 *             products themselves, times by the rows of each slot
 *   traffic   the larger of the rows that it sends and gets: all-to-alls
 *   replicas  transient ones that it receives or gives, over the slots that they could be in:
 *             multicasts of weights and sums of gradients, which without replicas are silent; of
 *             weights for forward those that are sent before the gate, and those added after it
 *   copies    of the sums of the gradients of persistent copies (sim/copy_sums.h): over the busiest
 *             rank's */
#ifndef SIM_LOADS_H
#define SIM_LOADS_H

#include "balance/planner.h"
#include "balance/trace.h"
#include "schedule/graph.h"
#include "sim/cluster.h"
#include "sim/copy_sums.h"
#include "sim/level_rows.h"
#include "spec/model.h"

typedef struct {
    const ek_trace *trace;
    const ek_planner *planner;
    const ek_model_spec *spec;
    const ek_cluster *cluster;
    const char *dtype;      /* of the run, for what its planner counts with */
    int32_t ranks, ep, etp; /* ranks: of the world */
    int32_t spare_slots, replicas_min;
    int keep_all_slots;       /* ek_plan_limits */
    int all_serve;            /* ek_copy_sums_config */
    int sends_twice;          /* ek_sim_layout */
    double rows;              /* assignments of a rank, layer and micro-batch, under even loads */
    int counted;              /* 1: the trace's counts are those of a micro-batch, not scaled */
    int64_t horizon, batches; /* ek_plan_limits */
    int64_t steps;            /* samples; at most the trace's iterations but those before */
    int64_t skip;             /* iterations at the beginning that are planned, and no samples */
    double capacity_factor;   /* 0: dropless */
    int by_level;             /* 1: ek_sim_loads_exchange is asked; 0: ek_sim_loads_replayed */
    int by_rank;              /* 1: ek_sim_loads_passed and ek_sim_loads_lists are asked */
    int padded;               /* 1: experts have as many rows as their capacity */
} ek_sim_loads_config;

/* What plans changed, in the mean over iterations and layers; replicas: over samples. */
typedef struct {
    double before, after; /* largest over mean rows of a rank: primary copies alone; as planned */
    double replicas;      /* of a layer and micro-batch, over all ranks of a group */
    double step_replicas, step_ahead; /* of a step, likewise; of these, sent before the gate */
    double step_bytes;                /* which these moved, as training counts them, of the run:
                                         set by ek_simulate, as the other two are then */
    double plan_s;                    /* median time of a plan */
} ek_sim_balance;

typedef struct ek_sim_loads ek_sim_loads;

/* The limits of a group's plans, without node_of and costs. */
ek_plan_limits ek_sim_loads_limits(const ek_sim_loads_config *c);

/* Whether a trace is of so many experts a layer.  EK_EFORMAT. */
EK_CHECKED ek_status ek_sim_loads_check(const ek_trace *trace, int64_t experts);

/* Borrowed until *out is closed: trace, planner, cluster; during the call: spec.  The caller closes
 * *out, also after a failure.  EK_EFORMAT: the trace does not fit the model;
 * EK_ENOMEM; a failure of the planner. */
EK_CHECKED ek_status ek_sim_loads_open(const ek_sim_loads_config *cfg, ek_sim_loads **out);
void ek_sim_loads_close(ek_sim_loads **l);

int64_t ek_sim_loads_steps(const ek_sim_loads *l);
/* Whether answers for ops of a step's first micro-batch (ek_op.micro 0) are others than those of
 * the rest. */
int ek_sim_loads_first_differs(const ek_sim_loads *l);
/* Chooses the sample of ek_sim_loads_factors; the first one is chosen to begin with. */
void ek_sim_loads_set(ek_sim_loads *l, int64_t step);
const ek_sim_balance *ek_sim_loads_balance(const ek_sim_loads *l);

/* The rank of a group whose all-to-alls of tokens take longest in a replay; of equal ones the first
 * of those that serve most rows.  Of the chosen sample, in the first layer. */
int32_t ek_sim_loads_slowest(const ek_sim_loads *l);

/* The factors [ep] of an op on the ranks of an expert-parallel group; NULL: it does not depend on
 * loads.  Borrowed until the next sample is chosen. */
const double *ek_sim_loads_factors(const ek_sim_loads *l, const ek_op *op);

/* What each rank [ep] of a group sends and gets in an all-to-all of tokens, or of the weights and
 * gradients of transient replicas; NULL: another op.
 * Borrowed likewise. */
const ek_level_rows *ek_sim_loads_exchange(const ek_sim_loads *l, const ek_op *op);

/* Whether an op is a product of experts, whose times depend on how its rank's rows are spread over
 * experts. */
int ek_sim_loads_is_product(const ek_sim_loads *l, const ek_op *op);

/* The factors [ep] of such an op, in place of those of the two questions around: the time of its
 * slots' rows (sim/expert_times.h) over that of as many rows of each expert.  EK_ENOMEM.  Any
 * thread may ask. */
EK_CHECKED ek_status ek_sim_loads_products(const ek_sim_loads *l, const ek_op *op, double *factors,
                                           double *replayed);

/* Factors [ep] of an op for an engine that does not simulate shared links and cores, over the time
 * under even loads.  Of exchanges but 2DH: of the slowest link that the rank uses, with the rows of
 * all ranks that share it (ek_level_wires_of).  Of what ranks do with the rows that they serve,
 * where they share cores: until the rank has finished, as ranks that finish earlier leave their
 * part of the cores to the others (sim/flow_cores.h).  NULL: those of ek_sim_loads_factors.
 * Borrowed likewise. */
const double *ek_sim_loads_replayed(const ek_sim_loads *l, const ek_op *op);

/* What an op that sums gradients of persistent copies, or sends the sums, has the ranks of a group
 * send, in gradients of *gradient bytes; NULL: it is none of these. */
const ek_copy_traffic *ek_sim_loads_copies(const ek_sim_loads *l, const ek_op *op,
                                           double *gradient);

/* Of an all-to-all of tokens: rows that each expert rank of a group sends to each [ep, ep], over
 * those of an even spread; NULL: another op.  Borrowed likewise. */
const double *ek_sim_loads_passed(const ek_sim_loads *l, const ek_op *op);

/* Of an op that ek_sim_loads_copies knows: ek_copy_sums_lists [experts, ep]; NULL: another op. */
const int32_t *ek_sim_loads_lists(const ek_sim_loads *l, const ek_op *op);

/* Bytes that the replicas of a group move in an op of its first rank's graph: of weights and
 * gradients of transient ones in the mean over samples, sums of persistent ones of the chosen
 * sample; 0: another op. */
double ek_sim_loads_replica_bytes(const ek_sim_loads *l, const ek_op *op);

/* Rows that all ranks together send in an all-to-all of tokens, over those under even loads with
 * one copy of each expert; 1 for other ops. */
double ek_sim_loads_rows_sent(const ek_sim_loads *l, const ek_op *op);

/* Of each layer of a model, layer_of [spec->layers], which of a trace's layers it has the loads of;
 * -1: it is dense. */
void ek_sim_spread_layers(const ek_model_spec *spec, int64_t layers, int32_t *layer_of);

#endif
