/* train/output/sensitivity.h - how a simulated step depends on links, computation, and the
 * imbalance of experts: it is simulated again and again, on all cores. */
#ifndef TRAIN_OUTPUT_SENSITIVITY_H
#define TRAIN_OUTPUT_SENSITIVITY_H

#include "sim/report.h"
#include "train/simulate.h"

/* `base` is the simulation of cfg.  Imbalance is between even loads and those of cfg's trace, or
 * without one of workload W7; with at most four iterations, of which two are simulated.  It is left
 * out with EK_ENGINE_MESSAGES, which has even loads.  Errors as
 * of ek_simulate. */
EK_CHECKED ek_status ek_simulate_sensitivity(const ek_simulation_config *cfg,
                                             const ek_simulation *base, ek_sim_sensitivity *out);

#endif
