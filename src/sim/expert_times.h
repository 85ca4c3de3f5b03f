/* sim/expert_times.h - seconds of expert products in which experts have unlike numbers of rows.
 *
 * An expert with n rows takes as long as a product of one group of n rows (sim/price_compute.h);
 * one without rows takes no time, as its weights are not read.  Fewer than one row (a mean over
 * chunks) take that part of the time of one row.  Times are kept at 16 numbers of rows for each
 * doubling, and interpolated between them (within 1 % where rates bend).
 */
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
