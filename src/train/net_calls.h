/* train/net_calls.h - the communicator's calls for network ops of step graphs, of all ranks in one
 * process: what is sent is recorded (comm/record.h). */
#ifndef TRAIN_NET_CALLS_H
#define TRAIN_NET_CALLS_H

#include "comm/record.h"
#include "sim/loads.h"
#include "sim/messages.h"

typedef struct ek_net_calls ek_net_calls;

/* node_of [ranks]: copied.  The caller closes *out, also after a failure.  EK_ENOMEM. */
EK_CHECKED ek_status ek_net_calls_open(int ranks, const int *node_of, ek_net_calls **out);
void ek_net_calls_close(ek_net_calls **c);

/* Loads of ek_net_calls_start_op, opened with by_rank, of experts of which each is on `etp` of
 * `ep` x `etp` ranks; borrowed.  Without this they are even, with one copy of each expert. */
void ek_net_calls_set_loads(ek_net_calls *c, const ek_sim_loads *loads, int experts, int ep,
                            int etp);

/* Messages of all calls; borrowed. */
ek_recorder *ek_net_calls_recorder(ek_net_calls *c);

/* Starts the call of `w` on a rank, of which w->group is a group; `call` is for
 * ek_net_calls_finished.  tag: of a send or receive.  Rows of all-to-alls are as even as bytes are.
 * EK_EUNSUPPORTED: replicas, and experts that migrate, whose ranks the work does not name. */
EK_CHECKED ek_status ek_net_calls_start(ek_net_calls *c, int32_t rank, const ek_net_work *w,
                                        int tag, int32_t call);

/* The same of an op, of which w is the work: rows and sums of copies are those of the loads.  The
 * ranks of a group start sums in one order. */
EK_CHECKED ek_status ek_net_calls_start_op(ek_net_calls *c, int32_t rank, const ek_op *op,
                                           const ek_net_work *w, int tag, int32_t call);

/* Lets the calls of a rank make progress; *call: one that has finished, which is forgotten, or -1
 * if all of them wait for messages. */
EK_CHECKED ek_status ek_net_calls_finished(ek_net_calls *c, int32_t rank, int32_t *call);

/* Borrowed from c. */
ek_sim_calls ek_net_calls_for_sim(ek_net_calls *c);

#endif
