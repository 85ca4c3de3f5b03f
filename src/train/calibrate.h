/* train/calibrate.h - measures what this machine takes, for the cost tables (cost/machine.h).
 *
 * In turn: the experts' products at a few numbers of rows, all ranks at once, as they run in
 * training; copies; then, over several ranks, all-to-all and hops of multicasts at a few sizes,
 * inside nodes and between them apart.  Every figure has a share of the time that is left, and ends
 * early when its repetitions agree; points that would take too long are left out.  So the whole
 * stays under its budget but for the least that it measures (one point of each table) and for
 * messages while something holds the machine up, which may take a few times theirs.
 *
 * Of several ranks a figure is the slowest rank's, and all get the same bits.
 *
 * Cache    one file a machine, named for what it was measured on: hosts, CPU, MPI, ranks on nodes,
 *          threads, kernels and sizes.  One that cannot be read is measured again, one that cannot
 *          be written is warned of; neither is a failure. */
#ifndef TRAIN_CALIBRATE_H
#define TRAIN_CALIBRATE_H

#include "comm/comm.h"
#include "cost/machine.h"
#include "spec/model.h"
#include "tensor/kernels.h"

typedef struct {
    const ek_model_spec *spec;
    const ek_kernels *k;
    ek_comm *world;    /* NULL: one rank */
    int64_t experts;   /* that a rank holds; 0: an even share of the model's, rounded up */
    double budget_s;   /* 0: 1.6 */
    const char *cache; /* a folder, made when needed; NULL: nothing is kept */
    int anew;          /* measures whatever the cache holds, and replaces that */
    const char *last;  /* a file that gets the costs, too; NULL: none */
    int hurry;         /* where the cache has none, those of `last` do, of more ranks or fewer */
} ek_calibrate_config;

/* Fills *out; *cached (NULL: nobody asks): whether it came from the cache.  Collective over the
 * world; all ranks give the same config but for spec, k and world being their own. */
EK_CHECKED ek_status ek_calibrate(const ek_calibrate_config *cfg, ek_machine *out, int *cached);

#endif
