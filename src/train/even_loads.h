/* train/even_loads.h - even loads of experts as a trace (balance/trace.h), of an expert-parallel
 * group, for sim/loads.h.
 *
 * Tokens choose experts in turn, as with --force-balance (moe/gate.h).  Ranks of a group have as
 * many tokens as each other, or those that they have of a step's first micro-batch, or of one that
 * is as short as the last: of one with fewer sequences than data-parallel ranks some have none. */
#ifndef TRAIN_EVEN_LOADS_H
#define TRAIN_EVEN_LOADS_H

#include "balance/trace.h"
#include "sim/graphs.h"

/* Ranks with as many tokens as each other; with an assignment for each expert, to be scaled.  The
 * caller closes *out, also after a failure.  EK_ENOMEM. */
EK_CHECKED ek_status ek_even_loads_open(const ek_sim_layout *l, ek_trace *out);

/* Of a group, with the tokens that its ranks have of a micro-batch of so many sequences. */
EK_CHECKED ek_status ek_even_loads_of_group(const ek_sim_layout *l, int64_t seqs, int group,
                                            ek_trace *out);

/* Sequences of a step's last micro-batch. */
int64_t ek_even_loads_rest(const ek_sim_layout *l);

/* Tokens that a group has of a micro-batch; and whether ranks have unlike numbers of them in the
 * first or the last of a step. */
int64_t ek_even_loads_tokens(const ek_sim_layout *l, int64_t seqs, int group);
int ek_even_loads_differ(const ek_sim_layout *l);

#endif
