/** @file
 *  evenkeel/planner.h - planners of one's own: a load balancing policy, written outside this
 *  library, that ek_balance_create (evenkeel/balance.h) and ek_train (evenkeel/train.h) use under
 *  its name.
 *
 *  A planner is a table of functions.  It gets counts and the current placement, and changes the
 *  placement and the quotas.  The library checks every plan, moves weights and optimizer state,
 *  dispatches rows, and sums gradients; a plan never changes what the model computes.
 *
 *      plan(counts[source][expert], placement, costs) -> placement', quotas, reason
 *
 *  @par Terms
 *  Those of evenkeel/balance.h: assignment, slot, primary copy, replica, quota.  A micro-batch is
 *  what a MoE layer processes at once.
 *
 *  @par Two kinds of plans
 *  plan_transient is called after the gate, with the counts of the micro-batch that is about to
 *  be dispatched.  It fills empty slots with replicas for this micro-batch: their weights are
 *  sent, and their gradients are summed into the primary copy.  It must leave every slot as it is
 *  that is not empty.  plan_persistent is called between steps, with the sum of past counts.  It
 *  may put every expert, and persistent replicas, into any slots; moved experts bring their
 *  optimizer state. A planner has one of the two functions, or both.  With both, the persistent
 *  plan places every expert once, as many on each rank as in block order (the first experts %
 *  ranks ranks hold one more), so that the spare slots are free for the transient plans.
 *
 *  @par Determinism
 *  Required.  No plan is communicated: every rank calls the planner with the same input and must
 *  get the same plan.  So a planner must not use the clock, the rank, addresses, uninitialised
 *  memory, the order of threads, or random numbers without a fixed seed; it should compare costs
 *  in a fixed order, and prefer integers.  Where the plans of two ranks differ, their messages do
 *  not match: the run fails, or hangs until its watchdog ends it (ek_train_config.watchdog).
 *
 *  @par Memory
 *  A training step does not allocate.  The library reserves memory_bytes for a planner, once for
 *  each ek_balance and once for each rank of a run, zeroes it, passes it to `init` and then to
 *  every plan.  Its contents persist between the plans: ek_planner_input.layer and ep_group tell
 *  them apart, so a planner can keep a history of its own, for layers * ep_groups of them.  They
 *  are lost when a run ends, also if it is resumed.
 *
 *  @par Errors
 *  A planner that cannot plan returns a negative status through EK_FAIL, with one sentence.  The
 *  library treats an invalid plan in the same way; ek_planner_fn lists the rules.
 *  ek_balance_plan then fails, with the name of the planner and the fault, and keeps the last
 *  persistent placement. In training every rank sees the same fault: a warning names the planner
 *  and the fault, the planner is not called again, and training continues with the persistent
 *  placement and without transient replicas.  The same happens to a planner that takes more than
 *  a quarter of three consecutive steps.
 *
 *  @par Threads
 *  In training the planner is called on the thread that called ek_train, in ek_balance_plan on
 *  its caller's; one call at a time for each memory.  Numbers are formatted with a decimal point
 *  whatever the program's locale is.
 *
 *  Example: examples/planner.c */
#ifndef EK_PLANNER_H
#define EK_PLANNER_H

#include "evenkeel/err.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    EK_PLANNER_NAME = 32,    /**< the longest name, with its final NUL */
    EK_PLANNER_REASON = 192, /**< bytes of ek_planner_output.reason, with the final NUL */
    EK_PLANNER_COUNT = 64    /**< how many planners a process can register */
};

/** Costs of one layer, in seconds and bytes: what ek_balance_config says, or what ek_train
 *  measured before its first step (docs/costs.md).  0: unknown. */
typedef struct {
    double compute_s_per_row; /**< one rank computes one assignment, forward and backward */
    double comm_s_per_row;    /**< one link carries one assignment's rows, all four all-to-alls */
    double replica_s;         /**< one link carries one replica: weights out, gradients back */
    double exposed_s;         /**< the part of replica_s that no other work overlaps; 0: all */
    double replica_bytes;     /**< bytes that replica_s carries */
    double migrate_s_per_expert; /**< one link carries the state of a moving expert, one way */
    double state_bytes;          /**< bytes of that state */
} ek_planner_costs;

/** Sizes, topology, constraints and costs.  Between the plans of one memory row_cost may differ,
 *  and node_of and domain_of if ep_groups is above 1.  Arrays are valid during the call. */
typedef struct {
    int32_t experts;   /**< of a layer */
    int32_t ranks;     /**< expert ranks that exchange tokens (an expert-parallel group) */
    int32_t slots;     /**< of each rank: ceil(experts / ranks) and the spare ones */
    int32_t layers;    /**< of the model, dense ones included; 1 for ek_balance */
    int32_t ep_groups; /**< expert-parallel groups, each with its own copy of all experts and its
                          own transient plans; 1 for ek_balance */
    const int32_t *node_of; /**< [ranks] node of each rank: any numbers, equal on one node.  NULL in
                               memory_bytes alone */
    const int32_t *domain_of; /**< [ranks] failure domain, such as a rack: whole nodes, any numbers;
                                 the node where no racks are known.  NULL in memory_bytes alone */
    const int32_t *row_cost;  /**< [ranks] where ranks differ in speed: time of an assignment on
                                 each,  in 256ths of costs.compute_s_per_row.  NULL: all are equal,
                                 and in  memory_bytes */
    int32_t replicas_min;     /**< number of domains that should hold each expert; see
                                 ek_planner_functions.enforces_replicas_min */
    int64_t horizon; /**< micro-batches that a persistent placement is expected to serve, within
                        which a move should pay for itself; in plan_persistent longer if loads have
                        been constant for longer; 0: nothing may move, or unknown */
    int64_t micro_batches;  /**< of a step; 1 for ek_balance */
    ek_planner_costs costs; /**< 0 in memory_bytes */
} ek_planner_setup;

/** What a plan is made from. */
typedef struct {
    const ek_planner_setup *setup; /**< valid during the call */
    int32_t layer;                 /**< 0 to setup->layers - 1 */
    int32_t ep_group;      /**< 0 to setup->ep_groups - 1; 0 in plan_persistent, whose placement all
                              groups get */
    const int64_t *counts; /**< [ranks][experts] assignments by source rank.  plan_transient: of one
                              micro-batch.  plan_persistent: summed over micro_batches ones; in
                              training older ones fade (halved every `horizon`) */
    int64_t micro_batches; /**< how many counts sums up; 1 in plan_transient */
    int explain;           /**< 1: the reason will be read */
} ek_planner_input;

/** A plan.  It arrives as a valid one: the current placement, in which the primary copies serve
 *  everything.  The library owns the arrays. */
typedef struct {
    int32_t *expert_of; /**< [ranks * slots] the expert that a slot holds; -1: empty.  Slot s of
                           rank r has number r * slots + s */
    int32_t *primary;   /**< [experts] slot number of the primary copy */
    int64_t *quota;  /**< [ranks * slots] how many assignments the slot serves, summed over sources.
                        Which source sends to which slot follows: a slot serves its own rank's
                        assignments first, then its node's, then the others' */
    double before_s; /**< seconds of the layer with the current placement, by the planner's model,
                        for reports; 0: no prediction */
    double after_s;  /**< likewise with the planned one */
    char *reason;    /**< [EK_PLANNER_REASON] one line: the decision and its numbers */
} ek_planner_output;

/** Makes a plan.  Not collective: every rank calls it, and gets the same plan.
 *
 *  The plan is refused, and the planner treated as failed, if
 *  - a slot holds an expert below -1 or above experts - 1,
 *  - an expert is not in its primary slot,
 *  - a quota is negative, or that of an empty slot is not 0,
 *  - the quotas of an expert's slots do not add up to its counts,
 *  - before_s or after_s is negative or not finite,
 *  - plan_transient changes a slot that was not empty, or moves a primary copy; in training with
 *    experts on disk also if it puts an expert into a slot of the rank that has its primary copy,
 *  - plan_persistent of a planner with both functions places other numbers of experts on a rank
 *    than block order does.
 *
 *  @param[in] context  that of ek_planner_functions
 *  @param[in] memory   memory_bytes, as `init` and earlier plans left it; NULL if there are none
 *  @param[in] in       counts and current setup; valid during the call
 *  @param[in,out] out  the current placement; the planned one.  After a failure it is not used
 *  @return EK_OK, or a negative status through EK_FAIL */
typedef ek_status (*ek_planner_fn)(void *context, void *memory, const ek_planner_input *in,
                                   ek_planner_output *out);

/** The functions of a planner.  Those that may be NULL say so. */
typedef struct {
    size_t size;         /**< sizeof(ek_planner_functions) */
    void *context;       /**< passed to every function; borrowed until the process ends */
    const char *summary; /**< one line: what it does; NULL: none */
    /** Bytes of memory for these sizes.  A function of the sizes alone: it is called several times,
     *  before topology and costs are known.  NULL: none are needed. */
    size_t (*memory_bytes)(void *context, const ek_planner_setup *setup);
    /** Prepares fresh memory, which is zero.  NULL: zeros are what the planner starts from.  Keeps
     *  no pointers into setup. */
    void (*init)(void *context, void *memory, const ek_planner_setup *setup);
    ek_planner_fn plan_persistent; /**< NULL: primary copies never move */
    ek_planner_fn plan_transient;  /**< NULL: the persistent placement serves every micro-batch */
    /** 1: in training, plan_transient gets the counts of the layer's previous micro-batch, so that
     *  replica weights are sent before the gate; the actual counts are then split in proportion to
     *  its quotas.  Not with plan_persistent. */
    int uses_previous_counts;
    /** 1: plan_persistent places each expert on replicas_min domains where slots suffice; ek_train
     *  then reports what losses of hosts the placement survives.  Not with plan_transient. */
    int enforces_replicas_min;
} ek_planner_functions;

/** Registers a planner under a name, until the process ends.  In a parallel job every process must
 *  register the same planners before ek_train.  Not collective; from any thread.
 *
 *  @param[in] name       letters, digits, '-', '_' and '.', fewer than EK_PLANNER_NAME; copied.
 *                        The value of ek_balance_config.policy and ek_train_config.balance
 *  @param[in] functions  copied; its strings and context are borrowed until the process ends
 *  @return EK_EINVAL: a name that is taken or malformed, or functions that do not fit together;
 *          EK_EOVERFLOW: EK_PLANNER_COUNT planners are registered */
EK_CHECKED EK_API ek_status ek_planner_register(const char *name,
                                                const ek_planner_functions *functions);

#ifdef __cplusplus
}
#endif
#endif
