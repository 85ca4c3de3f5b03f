/* train/calibrate/calibrate_priv.h - declarations shared by the files of calibration.
 *
 *   calibrate.c  order of measurements, agreement of ranks, cache
 *   compute.c    matrix products and copies
 *   links.c      messages
 *   sizes.c      choice of message sizes and repetitions */
#ifndef TRAIN_CALIBRATE_CALIBRATE_PRIV_H
#define TRAIN_CALIBRATE_CALIBRATE_PRIV_H

#include "train/calibrate/calibrate.h"

typedef struct {
    const ek_calibrate_config *cfg;
    ek_comm *world; /* not used with one rank */
    int rank, ranks;
    int nodes, a_node; /* ranks of the fullest node */
    ek_machine *m;
} ek_calibration;

static inline int ek_calibrate_node(const ek_calibration *c, int rank)
{
    return c->ranks > 1 ? ek_comm_node(c->world, rank) : 0;
}

/* The two shortest repetitions so far of one measurement. */
typedef struct {
    double best, next;
    int n;
} ek_repeats;

static inline void ek_repeats_add(ek_repeats *r, double seconds)
{
    seconds = seconds > 1e-9 ? seconds : 1e-9;
    if (r->n == 0 || seconds < r->best) {
        r->next = r->best;
        r->best = seconds;
    } else if (r->n == 1 || seconds < r->next) {
        r->next = seconds;
    }
    r->n++;
}

static inline int ek_repeats_agree(const ek_repeats *r)
{
    return r->n >= 3 && r->next <= 1.03 * r->best;
}

/* x [n] := the maximum over ranks.  Collective. */
EK_CHECKED ek_status ek_calibrate_largest(const ek_calibration *c, double *x, int64_t n);

/* Makes n calls with `bytes` bytes: *seconds of one call, and *spent since a fixed instant; both
 * the same on all ranks. */
typedef ek_status ek_time_calls(void *context, int64_t bytes, int n, double *seconds,
                                double *spent);

/* Times as many of the ascending sizes [*n], from the first on, as `share` seconds allow, at least
 * one; sets *n to their number.  took [*n]: seconds of one call.  from: *spent at the beginning.
 * On a disturbed machine it may take a few times as long. */
EK_CHECKED ek_status ek_calibrate_sizes(ek_time_calls *time_calls, void *context, double from,
                                        double share, const int64_t *sizes, double *took, int *n);

/* Fill the compute and the link tables of c->m in about budget_s seconds.  Collective. */
EK_CHECKED ek_status ek_calibrate_compute(ek_calibration *c, double budget_s);
EK_CHECKED ek_status ek_calibrate_links(ek_calibration *c, double budget_s);

#endif
