/* train/calibrate/calibrate.h - measures this machine's compute and communication times for the
 * cost tables (cost/machine.h).
 *
 * Measured one after the other: the experts' matrix products at a few numbers of rows, on all ranks
 * at once, as in training; copies; with several ranks, all-to-all and multicast hops at a few
 * sizes, within nodes and between nodes separately.  Every measurement gets a share of the
 * remaining time, and ends early when its repetitions agree; points that would take too long are
 * left out.  The total stays below the budget, with three exceptions: one point of each table is
 * always measured, messages on a disturbed machine may take a few times their share, and the rates
 * of training, where they are asked for, are measured afterwards, in about half a second more: the
 * work of a pass and the memory are bounded for any model, and the rounds are fewer where a pass
 * takes long.
 *
 * A figure is that of the slowest rank, and all ranks get the same bits.
 *
 * Cache    one file per machine, named by a hash of what it was measured on: hosts, CPU, MPI, ranks
 *          on nodes, threads, kernels and sizes.  A file that cannot be read is measured again; one
 *          that cannot be written causes a warning; neither is a failure. */
#ifndef TRAIN_CALIBRATE_CALIBRATE_H
#define TRAIN_CALIBRATE_CALIBRATE_H

#include "comm/comm.h"
#include "cost/machine.h"
#include "spec/model.h"
#include "tensor/kernels.h"

typedef struct {
    const ek_model_spec *spec;
    const ek_kernels *k;
    ek_comm *world;   /* NULL: one rank */
    int64_t experts;  /* of a rank; 0: an even share of the model's, rounded up */
    double budget_s;  /* 0: 1.6 */
    int kernels_once; /* 1: each of these is timed once, however long that takes */
    double kernels_s; /* > 0: afterwards also every kernel of a step (cost/kernel_costs.h) in about
                         so many seconds; a cached file without them is measured again */
    int64_t training_rows; /* > 0: also the rates of training (cost/machine.h), beyond the budget,
                              with so many rows of an expert and sequences of training_seq */
    int64_t training_seq;
    const char *cache; /* a folder, created when needed; NULL: no cache */
    int anew;          /* 1: measures in any case, and replaces what the cache holds */
    const char *last;  /* a file to which the costs are written as well; NULL: none */
    int hurry;         /* 1: if the cache has none, uses those of `last`, of any number of ranks */
} ek_calibrate_config;

/* Fills *out; *cached (may be NULL): whether it came from the cache.  Collective over the world;
 * all ranks give the same config, each with its own spec, k and world. */
EK_CHECKED ek_status ek_calibrate(const ek_calibrate_config *cfg, ek_machine *out, int *cached);

#endif
