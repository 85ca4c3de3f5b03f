/* train/failures.h - a simulated run under failures of nodes (sim/failures.h): worlds of fewer
 * nodes, laid out and simulated as the whole one is, and where their experts have copies.
 *
 * World      With --elastic a run uses as many ranks of the nodes that are there as its sizes fit,
 *            and --ep follows (ek_mesh_fit).  Else --ep stays, and it uses whole groups.
 * Parts      experts, by the policy's persistent placement of even loads, or of a trace's, for each
 *            expert-parallel group; and the other weights, which ranks with the same place in a
 *            stage hold alike; what --zero 1 to 3 shards also on the node of its rank's partner.
 * Copies     those that a run with --elastic has by default, chosen by training's own rule: where
 *            memory allows and a step gets at most 5 % longer (train/run/protect.c); with
 *            `elastic` set, where memory allows. */
#ifndef TRAIN_FAILURES_H
#define TRAIN_FAILURES_H

#include "sim/report.h"
#include "train/simulate.h"

/* Seconds from a loss to the first step of nodes that go on (docs/resilience.md), and of a restart
 * from a checkpoint (bench/results/resilience.md, model small), if the cluster file has none: both
 * measured. */
#define EK_FAILURES_RECOVER_S 0.91
#define EK_FAILURES_RESTART_S 3.09

/* What a loss does. */
typedef enum {
    EK_ON_FAILURE_RECOVER, /* as --elastic */
    EK_ON_FAILURE_GROUPS,  /* the same with --ep as it is, and copies only in other groups */
    EK_ON_FAILURE_RESTART  /* from the newest checkpoint, with --ep as it is */
} ek_on_failure;

#define EK_ON_FAILURE_WORDS "recover|groups|restart" /* in their order */

/* The settings and ranks that all nodes have: whole groups of ranks, the fitting --ep, and the
 * defaults of --elastic. */
void ek_failures_layout(const ek_simulation_config *cfg, ek_on_failure what, ek_train_config *train,
                        int *ranks);

/* failures: the mean hours between failures of a node as a number, "cluster" for those of the
 * cluster file, or a file (sim/failure_trace.h).  EK_EINVAL, EK_EFORMAT; others as of ek_simulate.
 */
EK_CHECKED ek_status ek_simulate_failures(const ek_simulation_config *cfg, const char *failures,
                                          ek_on_failure what, ek_sim_failures *out);

#endif
