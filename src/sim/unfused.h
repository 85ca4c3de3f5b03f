/* sim/unfused.h - what a program does that runs each op on rows as a kernel of its own (PyTorch
 * without compilation, as nanotron): bytes that pass memory once more, and what is kept meanwhile.
 *
 *   attention  queries, keys and values are copied into the order of the kernel, keys and values
 *              twice more; gradients likewise, those of queries twice
 *   SwiGLU     SiLU and its product with the other half are two kernels forward, and four backward
 *              (both factors of the product, SiLU, the join of the halves)
 *   loss       logits are converted to the real type, kept whole, and passed over for maximum,
 *              difference, exponential, sum and quotient; backward for the product with the
 *              loss's gradient, and to be converted back
 *   weights    their gradients come in the type of products, all of a micro-batch are kept, and
 *              then added to the sums in the real type
 *
 * Counted from nanotron's models/llama.py, parallel/tensor_parallel/functional.py and
 * optim/gradient_accumulator.py. */
#ifndef SIM_UNFUSED_H
#define SIM_UNFUSED_H

#include "cost/machine.h"
#include "sim/graphs.h"

/* Bytes that pass memory behind an op, beside its own; 0: none. */
double ek_unfused_bytes(const ek_machine *m, const ek_op *op);

/* Bytes that a rank keeps beside those of class c, of n_stages pipeline stages. */
double ek_unfused_memory(const ek_machine *m, const ek_sim_class *c, int32_t n_stages);

#endif
