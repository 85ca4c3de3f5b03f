/* train/output/simulation.h - simulates a step (train/simulate.h), also on changed clusters, and
 * writes the report. */
#ifndef TRAIN_OUTPUT_SIMULATION_H
#define TRAIN_OUTPUT_SIMULATION_H

#include "train/simulate.h"

#include <stdio.h>

typedef struct {
    const char *const *changes; /* [n_changes] of the cluster (sim/what_if.h): a step for each */
    int64_t n_changes;
    const char *timeline; /* file; NULL: none */
    const char *page; /* file, with the sensitivity to links, computation and loads; NULL: none */
    int json;
    FILE *out;              /* errors are left in ferror(out) */
    const char *failures;   /* a run under failures as well (train/failures.h); NULL: none */
    const char *on_failure; /* a word of EK_ON_FAILURE_WORDS (train/failures.h) */
} ek_simulation_output;

/* Errors as of ek_simulate, ek_cluster_change and ek_simulation_write_timeline. */
EK_CHECKED ek_status ek_simulate_and_report(const ek_simulation_config *cfg,
                                            const ek_simulation_output *output);

#endif
