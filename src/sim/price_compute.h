/* sim/price_compute.h - seconds that the work of an op takes on a machine, without the network.
 *
 *   products    passes are summed, each at the rate of its shape for as many rows a group
 *   attention   its FLOPs at the rate of its heads and of the keys that a query sees
 *   rows        the op's bytes at the rate of the kernel that its kind calls
 *   others      0 (a cluster prices the network: sim/price_net.h)
 *
 * What an op moves besides the operands of its products is priced as rows.
 *
 * A machine without measured kernels (cost/kernel_costs.h; machine files of version 1, and those of
 * training) prices products and attention at the rates of an expert's products, attention at the
 * best of them, and rows at the copy bandwidth.
 *
 * The work of an op is that of an even spread of rows, where schedule/work.h says no more. */
#ifndef SIM_PRICE_COMPUTE_H
#define SIM_PRICE_COMPUTE_H

#include "cost/machine.h"
#include "schedule/graph.h"

/* Seconds, never negative.  Read from op: kind, bytes, work. */
double ek_price_compute(const ek_machine *m, const ek_op *op);

/* Seconds of a product's passes alone, in which its groups have equally many rows. */
double ek_price_product(const ek_machine *m, const ek_product *p);

#endif
