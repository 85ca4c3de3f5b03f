/* train/calibrate_priv.h - inside of calibration: what its parts share.
 *
 *   calibrate.c          the order, what ranks agree on, the cache
 *   calibrate_compute.c  products and copies
 *   calibrate_links.c    messages
 *   calibrate_sizes.c    which sizes of them, and how often */
#ifndef TRAIN_CALIBRATE_PRIV_H
#define TRAIN_CALIBRATE_PRIV_H

#include "train/calibrate.h"

typedef struct {
    const ek_calibrate_config *cfg;
    ek_comm *world; /* not to be used with one rank */
    int rank, ranks;
    int nodes, a_node; /* ranks of the fullest node */
    ek_machine *m;
} ek_calibration;

static inline int ek_calibrate_node(const ek_calibration *c, int rank)
{
    return c->ranks > 1 ? ek_comm_node(c->world, rank) : 0;
}

/* The quickest repetition so far of one figure, and whether more would say the same. */
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

/* To 4 digits, which is more than is known. */
double ek_calibrate_round(double x);

/* x [n] := the largest of all ranks. */
EK_CHECKED ek_status ek_calibrate_largest(const ek_calibration *c, double *x, int64_t n);

/* Seconds of one of n calls with so many bytes, and what has been spent since the same instant as
 * ever; both the same on all ranks. */
typedef ek_status ek_time_calls(void *context, int64_t bytes, int n, double *seconds,
                                double *spent);

/* Times the first of the ascending sizes [*n] that `share` seconds allow, at least one, and makes
 * *n their number; took [*n]: of one call.  from: what has been spent.  Where calls are disturbed
 * it may take a few times as long. */
EK_CHECKED ek_status ek_calibrate_sizes(ek_time_calls *time_calls, void *context, double from,
                                        double share, const int64_t *sizes, double *took, int *n);

/* Fill their part of c->m in about so many seconds.  Collective. */
EK_CHECKED ek_status ek_calibrate_compute(ek_calibration *c, double budget_s);
EK_CHECKED ek_status ek_calibrate_links(ek_calibration *c, double budget_s);

#endif
