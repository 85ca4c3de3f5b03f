/* recover/restart_experts.h - the initial expert placement of a run that continues from memory:
 * where memory holds the experts (elastic/restart_placement.h).
 *
 * Only for unsharded experts with one expert-parallel group a stage; elsewhere nothing is placed.
 */
#ifndef RECOVER_RESTART_EXPERTS_H
#define RECOVER_RESTART_EXPERTS_H

#include "recover/recover.h"

typedef struct {
    const ek_recovery *recovery; /* after ek_recover_read_tables */
    const ek_model *model;       /* laid out, its weights not yet filled */
    const int *rack_of;          /* [ranks of the mesh]; NULL: hosts are the failure domains */
    int32_t replicas_min;        /* failure domains that have to hold each expert */
} ek_restart_experts;

/* Sets the placement of a layer of this stage; to and quota [ranks * slots] are borrowed for the
 * call. */
typedef ek_status (*ek_assume_fn)(void *context, int64_t layer, const ek_placement *to,
                                  const int64_t *quota);

/* Calls `assume` for each routed layer of this stage, in order.  *whole: 1 if the ranks are those
 * of the earlier generation and the placement has enough replicas, so that the next plan can wait
 * for its turn.  Not collective: all ranks of a stage compute the same. */
EK_CHECKED ek_status ek_restart_experts_place(const ek_restart_experts *x, ek_assume_fn assume,
                                              void *context, int *whole);

#endif
