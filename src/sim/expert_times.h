/* sim/expert_times.h - seconds of expert products in which experts have unlike numbers of rows.
 *
 * An expert's product takes the time that its rows take at the rate of so many rows a group
 * (sim/price_compute.h); one without rows takes none, as its weights are not read; less than one
 * row, in the mean over chunks, is one row in as many chunks.  Times are kept at 16 numbers of
 * rows for each doubling, and interpolated between them (within 1 % where rates bend). */
#ifndef SIM_EXPERT_TIMES_H
#define SIM_EXPERT_TIMES_H

#include "cost/machine.h"
#include "schedule/work.h"

typedef struct ek_expert_times ek_expert_times;

/* m is borrowed.  The caller closes *out, also after a failure.  EK_ENOMEM. */
EK_CHECKED ek_status ek_expert_times_open(const ek_machine *m, ek_expert_times **out);
void ek_expert_times_close(ek_expert_times **t);

/* Seconds of the passes of p for one group of `rows` rows; p's own rows and groups do not count.
 * Not for several threads at a time. */
double ek_expert_time(ek_expert_times *t, const ek_product *p, double rows);

#endif
