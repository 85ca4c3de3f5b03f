/* sim/failures.h - what failures of nodes leave of a training run: Monte Carlo over its
 * generations, the spans in which the same nodes train.
 *
 * Failures   Each node that is up fails after an exponential time, with the given mean, and then,
 *            with a given probability, takes the other nodes of its rack with it; nodes are back
 *            after a fixed time.  Or they fail and come back as recorded.
 * A loss     of nodes in use ends the step under way, which is taken again.  If every part of the
 *            model is left on some node that was in use (ek_replica_sets), the run goes on after
 *            recover_s, else, after restart_s, from the newest checkpoint.  A loss meanwhile begins
 *            that anew, and may take parts that have no second copy yet.
 * A return   If nodes that are back make a larger world, the run goes on with them after the step
 *            under way and recover_s; where it never recovers, after the next checkpoint and
 *            restart_s.
 * Worlds     The caller says for a number of nodes how many of them are used, how long a step then
 *            takes, and where the parts are.  With too few nodes the run waits.
 * Saves      are counted in steps, and prolong the run; one that a loss interrupts does not count.
 *
 * Complexity O(nodes) for each failure; steps are not gone through one by one.
 * Pure; the same config gives the same result. */
#ifndef SIM_FAILURES_H
#define SIM_FAILURES_H

#include "placement/survivability.h"

typedef struct {
    double at_s;
    int32_t node; /* from 0 */
    int32_t back; /* 0: it is lost */
} ek_failure_event;

/* A run on some number of nodes. */
typedef struct {
    int32_t nodes; /* of these; 0: too few */
    double step_s;
    int64_t save_every;           /* steps between saves; 0: none is made */
    const ek_replica_sets *parts; /* domains: the nodes in use; NULL: every loss loses a part */
} ek_failures_world;

typedef ek_status (*ek_failures_world_fn)(void *context, int32_t nodes, ek_failures_world *out);

typedef struct {
    int32_t nodes; /* all are there at the beginning */
    ek_failures_world_fn world;
    void *context;
    double mtbf_s;      /* of a node; 0: none fails */
    int32_t rack_nodes; /* consecutive nodes of a rack; 0: 1 */
    double rack_share;  /* probability that a failure takes the rack */
    double back_s;
    const ek_failure_event *events; /* [n_events] ascending, instead of these; NULL: none */
    int64_t n_events;
    double recover_s, restart_s, save_s;
    double seconds; /* of a run */
    int64_t runs;   /* of which the result is the mean; recorded events: 1 suffices */
    uint64_t seed;
} ek_failures_config;

/* Of a run. */
typedef struct {
    double steps;      /* that were completed and not lost again */
    double lost_steps; /* completed ones that were taken again */
    double losses;     /* of nodes */
    double recoveries, restarts, joins;
    double saves;
    double useful_s; /* in `steps` */
    double wait_s;   /* for nodes */
    double node_s;   /* of nodes that are up */
    double goodput;  /* steps over those of an undisturbed run without saves */
    double ettr;     /* useful_s over all seconds */
    double error;    /* standard error of goodput over the runs; 0: one run */
} ek_failures_result;

/* EK_ENOMEM, or a failure of `world`. */
EK_CHECKED ek_status ek_failures_simulate(const ek_failures_config *cfg, ek_failures_result *out);

#endif
