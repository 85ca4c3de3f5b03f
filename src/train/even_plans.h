/* train/even_plans.h - what policies that keep several copies of experts plan for even loads, of
 * many layouts of one model on one cluster: planned once for layouts that are alike in all that
 * plans depend on.
 *
 * Complexity   A layout is compared with all plans before it; plans stay until all are closed. */
#ifndef TRAIN_EVEN_PLANS_H
#define TRAIN_EVEN_PLANS_H

#include "sim/graphs.h"
#include "sim/loads.h"

/* The settings of loads that a layout has, without a trace: what it does not say is 0. */
ek_sim_loads_config ek_loads_config_of(const ek_sim_layout *l, const ek_cluster *c, int ranks);

/* Likewise of even loads (train/even_loads.h): one step, after one that only places experts. */
ek_sim_loads_config ek_even_loads_config_of(const ek_sim_layout *l, const ek_cluster *c, int ranks);

typedef struct ek_even_plans ek_even_plans;

/* The caller closes *out, also after a failure.  EK_ENOMEM. */
EK_CHECKED ek_status ek_even_plans_open(ek_even_plans **out);
void ek_even_plans_close(ek_even_plans **p);

/* The loads of a layout in a step under even loads; *out NULL: there is one copy of each expert.
 * by_level, by_rank: as of ek_sim_loads_config.  *out is borrowed from p, has one step, and is not
 * to be changed.  Any thread may call it.  Errors as of ek_sim_loads_open. */
EK_CHECKED ek_status ek_even_plans_of(ek_even_plans *p, const ek_sim_layout *l, const ek_cluster *c,
                                      int ranks, int by_level, int by_rank,
                                      const ek_sim_loads **out);

#endif
