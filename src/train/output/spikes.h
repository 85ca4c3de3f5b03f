/* train/output/spikes.h - detects steps whose loss or gradient norm is far above the recent median.
 *
 * The median is over the last 64 steps, spikes included; detection begins after 20 steps.  A value
 * is a spike when it is above
 *   the median by more than 8 standard deviations, estimated as 1.4826 times the median absolute
 *   deviation, and
 *   1.1 times the median (loss), or 10 times it (gradient norm).
 * A median hardly moves with a few spikes, and follows a persistent change of level within 64
 * steps.  The state has a fixed size and is not saved: each start begins with an empty window. */
#ifndef TRAIN_OUTPUT_SPIKES_H
#define TRAIN_OUTPUT_SPIKES_H

#include <stddef.h>
#include <stdint.h>

enum { EK_SPIKES_WINDOW = 64, EK_SPIKES_LEAST = 20, EK_SPIKES_QUIET = 10 };

enum { EK_SPIKE_LOSS = 1, EK_SPIKE_NORM = 2 };

typedef struct {
    double loss[EK_SPIKES_WINDOW], norm[EK_SPIKES_WINDOW];
    int64_t seen;  /* steps */
    int64_t calm;  /* steps since the last spike */
    int64_t count; /* steps with one */
} ek_spikes;

typedef struct {
    int kinds;  /* EK_SPIKE_*; 0: none */
    int is_new; /* the steps before, EK_SPIKES_QUIET of them, had none */
    double usual_loss, usual_norm;
} ek_spike;

/* Compares a step with the window before it, and adds it to the window. */
ek_spike ek_spikes_add(ek_spikes *s, double loss, double norm);

/* "loss 9.31 is far above the usual 3.12; ...".  clip: the limit of the norm; 0: none. */
void ek_spike_describe(const ek_spike *x, double loss, double norm, double clip, char *text,
                       size_t cap);

#endif
