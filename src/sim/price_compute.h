/* sim/price_compute.h - seconds that the work of an op takes on a machine, without the network.
 *
 *   products    each pass at the rate measured for as many rows a group; several passes are summed
 *   attention   its FLOPs at the best rate of any product
 *   rows        the op's bytes over the copy bandwidth
 *   disk        0, as nothing is measured
 *   network     0: a cluster prices it, not a machine
 *   none        0
 *
 * The work of an op is that of an even spread of rows, where schedule/work.h says no more. */
#ifndef SIM_PRICE_COMPUTE_H
#define SIM_PRICE_COMPUTE_H

#include "cost/machine.h"
#include "schedule/graph.h"

/* Seconds, never negative.  Read from op: kind, bytes, work. */
double ek_price_compute(const ek_machine *m, const ek_op *op);

#endif
